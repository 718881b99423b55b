"""Two-class datasets in the format of LIBSVM: lines `label index:value ...`.

a8a and a9a (UCI Adult, 123 binary features) and ijcnn1 (22 features), as distributed at
https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html. The features in the
files are already scaled. Indices count from 1 and ascend. Label -1 becomes 0.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_muon.data.dataset import Dataset, Examples
from fedjax_muon.data.source import unpacked

URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"
NUMBER = rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?"
ROW = re.compile(rb"%s(?:[ \t]++[1-9]\d{0,8}:%s)*+[ \t]*+\r?" % (NUMBER, NUMBER))
LARGEST = float(np.finfo(np.float32).max)
LONGEST = 64, 40  # bytes of the longest plausible line, and more for each feature


def read_libsvm(
    paths: Sequence[Path], *, features: int, classes: tuple[str, str]
) -> Dataset:
    """Reads a training and a test file, in float32."""
    train, test = (_read_file(path, features) for path in paths)
    return Dataset(*train, *test, classes)


def _read_file(path: Path, features: int) -> Examples:
    lines = unpacked(path).removesuffix(b"\n").split(b"\n")
    x = np.zeros((len(lines), features), np.float32)
    y = np.empty(len(lines), np.int32)
    for row, line in enumerate(lines):
        label, places, values = _parsed(line, features)
        if label not in (-1, 1):
            raise ValueError(
                f"{path}, line {row + 1}: not in LIBSVM's format with {features} "
                f"features and labels -1 and 1, label index:value ... (found "
                f"{line[:60]!r}); download it again from {URL}"
            )
        x[row, places], y[row] = values, label > 0
    return x, y


def _parsed(line: bytes, features: int) -> tuple[float, list[int], list[float]]:
    """The label of a line, the columns of its features and their values; else NaN."""
    first, more = LONGEST
    if len(line) > first + more * features or not ROW.fullmatch(line):
        return math.nan, [], []
    label, *pairs = map(float, line.replace(b":", b" ").split())
    places, values = [int(index) - 1 for index in pairs[::2]], pairs[1::2]
    ascend = places == sorted({*places}) and all(place < features for place in places)
    # Numbers that float32 cannot hold are errors, so they become no infinities.
    fit = max(map(abs, values), default=0.0) <= LARGEST
    return (label, places, values) if ascend and fit else (math.nan, [], [])
