"""Two-class datasets in the format of LIBSVM: lines `label index:value ...`.

a8a and a9a (UCI Adult, 123 binary features) and ijcnn1 (22 features), as distributed at
https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html. The features in the
files are already scaled. Label -1 becomes 0.
"""

import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_muon.core.reading import reading
from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.source import unpacked

URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"
NUMBER = rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?"
ROW = re.compile(rb"%s(?:[ \t]++[1-9]\d{0,8}:%s)*+[ \t]*+\r?" % (NUMBER, NUMBER))
LONGEST = 64, 40  # bytes of the longest plausible line, and more for each feature


def read_libsvm(
    paths: Sequence[Path], *, features: int, classes: tuple[str, str]
) -> Dataset:
    """Reads a training and a test file, in float32.

    Args:
      paths: Paths of the training and the test file.
      classes: Names of the classes with labels -1 and 1.
    """
    train, test = (_read_file(path, features) for path in paths)
    return Dataset(*train, *test, classes)


def _read_file(path: Path, features: int) -> tuple[np.ndarray, np.ndarray]:
    # Imported here, since importing scikit-learn takes a second.
    from sklearn.datasets import load_svmlight_file

    content = unpacked(path)
    _check_lines(content, features, path)
    wanted = f"a file in LIBSVM's format with {features} features"
    with reading(path, wanted, f"download it again from {URL}"):
        # Indices count from 1. By default, scikit-learn guesses.
        x, y = load_svmlight_file(
            io.BytesIO(content), n_features=features, zero_based=False
        )
    # Numbers that float32 cannot hold are errors, so they become no infinities.
    large = np.abs(x.data) > np.finfo(np.float32).max
    if large.any():
        row = np.searchsorted(x.indptr, np.flatnonzero(large)[0], side="right")
        raise ValueError(
            f"{path}, line {row}: expected values in float32, found a larger one; "
            f"download it again from {URL}"
        )
    labels = np.unique(y)
    if not np.isin(labels, (-1, 1)).all():
        raise ValueError(
            f"{path}: expected labels -1 and 1, found {labels[:5]}; download it again "
            f"from {URL}"
        )
    return x.astype(np.float32).toarray(), (y > 0).astype(np.int32)


def _check_lines(content: bytes, features: int, path: Path) -> None:
    """Rejects what is no label and pairs; scikit-learn accepts more, such as NaN."""
    first, more = LONGEST
    lines = content.removesuffix(b"\n").split(b"\n")
    for number, line in enumerate(lines, start=1):
        plain = len(line) <= first + more * features and ROW.fullmatch(line)
        # scikit-learn checks that indices ascend.
        if not plain or _last_index(line) > features:
            raise ValueError(
                f"{path}, line {number}: not in LIBSVM's format with {features} "
                f"features, label index:value ... (found {line[:60]!r}); download it "
                f"again from {URL}"
            )


def _last_index(line: bytes) -> int:
    pieces = line.rpartition(b":")[0].split()
    return int(pieces[-1]) if pieces else 0
