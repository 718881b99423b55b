"""Two-class sets in the format of LIBSVM: lines `label index:value ...`.

a8a and a9a (UCI Adult, 123 binary features) and ijcnn1 (22 features) as distributed at
https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html, scaled by whoever
made the files. Label -1 becomes 0.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_muon.data.dataset import Dataset

URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"


class LibsvmSet(NamedTuple):
    """Which files a set has, and what is in them."""

    files: tuple[str, str]  # of training and test examples
    features: int
    classes: tuple[str, str]


INCOME = ("at most 50K", "above 50K")
SETS = {
    "a8a": LibsvmSet(("a8a", "a8a.t"), 123, INCOME),
    "a9a": LibsvmSet(("a9a", "a9a.t"), 123, INCOME),
    "ijcnn1": LibsvmSet(("ijcnn1.trn", "ijcnn1.tst"), 22, ("-1", "1")),
}


def read_libsvm_set(name: str, directory: Path) -> Dataset:
    """The set `name` of SETS, float32, from directory/libsvm, directory/name or the
    directory; files may end in .bz2 or .gz.

    Raises:
      FileNotFoundError: if no folder has both files.
      ValueError: if a file is damaged, or has other features or labels.
    """
    # Imported here: scikit-learn takes a second, and other sets do not need it.
    from sklearn.datasets import load_svmlight_file

    about, found = SETS[name], []
    for path in _locate(name, directory):
        try:
            x, y = load_svmlight_file(path, n_features=about.features, dtype=np.float32)
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(
                f"{path}: not in LIBSVM's format with {about.features} features "
                f"({error}); fetch it again from {URL}"
            ) from error
        labels = np.unique(y)
        if not np.isin(labels, (-1, 1)).all():
            raise ValueError(f"{path}: expected labels -1 and 1, found {labels[:5]}")
        found.append((x.toarray(), (y > 0).astype(np.int32)))
    (x_train, y_train), (x_test, y_test) = found
    return Dataset(x_train, y_train, x_test, y_test, about.classes)


def _locate(name: str, directory: Path) -> list[Path]:
    """Both files, in one folder."""
    folders = (directory / "libsvm", directory / name, directory)
    files = SETS[name].files
    suffixes = ("", ".bz2", ".gz")
    for folder in folders:
        named = [[folder / f"{file}{suffix}" for suffix in suffixes] for file in files]
        there = [[path for path in paths if path.is_file()] for paths in named]
        if all(there):
            return [paths[0] for paths in there]
    raise FileNotFoundError(
        f"{name} needs {' and '.join(files)} in {', '.join(map(str, folders[:-1]))} or "
        f"{folders[-1]}; fetch them from {URL}"
    )
