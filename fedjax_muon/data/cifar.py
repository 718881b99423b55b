"""CIFAR-10 and CIFAR-100 from a NumPy archive, or from the original binary files.

The format (Krizhevsky, the CIFAR page): one byte for the label (in CIFAR-100 two, for
the coarse and the fine label), then 3072 bytes for the pixels of a 32 x 32 image: all
red values row by row, then all green and all blue ones. For CIFAR-100 the fine labels
are used. The Python version of these files is not read, since it is pickled and could
execute code.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedjax_muon.core.reading import check_size, read_text
from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.npz import npz_layout
from fedjax_muon.data.source import LIMIT, File, Layout, Source, check_labels

URL = "https://www.cs.toronto.edu/~kriz/cifar.html"
LICENSE = "none stated; cite Krizhevsky 2009"
SIDE = 32
PIXELS = 3 * SIDE * SIDE
COARSE = 20  # classes of CIFAR-100's coarse labels


def read_binary(paths: list[Path], *, labels: int, num_classes: int) -> Dataset:
    """Reads the binary files of CIFAR.

    Args:
      paths: One or more files of training examples, then one of test examples and one
        of class names.
      labels: Bytes before the pixels of an image; the last one is its label.
      num_classes: Number of class names in the last file.

    Returns:
      The data set, with pixels in uint8.
    """
    *train, test, names = paths
    # CIFAR-100's coarse label comes before the fine one.
    counts = (COARSE, num_classes)[-labels:]
    parts = [_read_records(path, counts) for path in train]
    x_train, y_train = (np.concatenate(part) for part in zip(*parts, strict=True))
    x_test, y_test = _read_records(test, counts)
    return Dataset(
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=_read_names(names, num_classes),
    )


def _read_records(path: Path, counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Images and their last labels, of which `counts` has the numbers of classes."""
    check_size(path, LIMIT)
    labels = len(counts)
    content, record = np.fromfile(path, np.uint8), labels + PIXELS
    if not len(content) or len(content) % record:
        raise ValueError(
            f"{path}: expected records of {record} bytes, found {len(content)} bytes; "
            f"it was cut off, or is another file: download it again from {URL}"
        )
    rows = content.reshape(-1, record)
    for place, count in enumerate(counts):
        check_labels(rows[:, place], count, path)
    planes = rows[:, labels:].reshape(-1, 3, SIDE, SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), rows[:, labels - 1]


def _read_names(path: Path, num_classes: int) -> tuple[str, ...]:
    names = tuple(read_text(path).split())
    if len(names) != num_classes:
        raise ValueError(
            f"{path}: expected the names of {num_classes} classes, found {len(names)}; "
            f"download it again from {URL}"
        )
    return names


def _binary_layout(
    folder: str, files: dict[str, int], names: str, labels: int, num_classes: int
) -> Layout:
    record = labels + PIXELS
    return Layout(
        files=(*(File(f, size=n * record) for f, n in files.items()), File(names)),
        folders=(folder, ""),
        read=partial(read_binary, labels=labels, num_classes=num_classes),
        url=URL,
        how=f"download cifar-{num_classes}-binary.tar.gz from {URL} and unpack it",
    )


def _source(name: str, num_classes: int, *layouts: Layout) -> Source:
    return Source(
        example="32 x 32 x 3",
        examples=(50_000, 10_000),
        classes=num_classes,
        license=LICENSE,
        layouts=(npz_layout(name, num_classes), *layouts),
        prepared=name,
    )


BATCHES = {
    **{f"data_batch_{i}.bin": 10_000 for i in range(1, 6)},
    "test_batch.bin": 10_000,
}
SETS = {
    "cifar10": _source(
        "cifar10",
        10,
        _binary_layout("cifar-10-batches-bin", BATCHES, "batches.meta.txt", 1, 10),
    ),
    # A user's own selection, so neither its size nor its files are published.
    "cifar10_subset": _source("cifar10_subset", 10)._replace(
        examples=None, prepared="cifar10"
    ),
    "cifar100": _source(
        "cifar100",
        100,
        _binary_layout(
            "cifar-100-binary",
            {"train.bin": 50_000, "test.bin": 10_000},
            "fine_label_names.txt",
            2,
            100,
        ),
    ),
}
