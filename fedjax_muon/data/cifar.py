"""CIFAR-10 and CIFAR-100 from the original binary files.

The format (Krizhevsky, the CIFAR page): one byte for the label (in CIFAR-100 two, for
the coarse and the fine label), then 3072 bytes for the pixels of a 32 x 32 image: all
red values row by row, then all green and all blue ones. For CIFAR-100 the fine labels
are used. The Python version of these files is not read, since it is pickled and could
execute code.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_muon.core.reading import check_size, read_text
from fedjax_muon.data.dataset import Dataset, Examples
from fedjax_muon.data.source import LIMIT

URL = "https://www.cs.toronto.edu/~kriz/cifar.html"
SIDE = 32
PIXELS = 3 * SIDE * SIDE


def read_binary(paths: Sequence[Path], *, labels: int, num_classes: int) -> Dataset:
    """Reads the binary files of CIFAR, with pixels in uint8.

    Args:
      paths: One or more files of training examples, then one of test examples and one
        of class names.
      labels: Bytes before the pixels of an image; the last one is its label.
    """
    *train, test, names = paths
    parts = [_read_records(path, labels) for path in train]
    x_train, y_train = (np.concatenate(part) for part in zip(*parts, strict=True))
    classes = tuple(read_text(names).split())
    if len(classes) != num_classes:
        raise ValueError(
            f"{names}: expected the names of {num_classes} classes, found "
            f"{len(classes)}; download it again from {URL}"
        )
    return Dataset(x_train, y_train, *_read_records(test, labels), classes)


def _read_records(path: Path, labels: int) -> Examples:
    check_size(path, LIMIT)
    content, record = np.fromfile(path, np.uint8), labels + PIXELS
    if not len(content) or len(content) % record:
        raise ValueError(
            f"{path}: expected records of {record} bytes, found {len(content)} bytes; "
            f"it was cut off, or is another file: download it again from {URL}"
        )
    rows = content.reshape(-1, record)
    planes = rows[:, labels:].reshape(-1, 3, SIDE, SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), rows[:, labels - 1]
