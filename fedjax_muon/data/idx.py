"""MNIST and Fashion-MNIST from their four original IDX files, gzipped or not.

The format (LeCun, Cortes and Burges, the MNIST page): two zero bytes, a byte for the
type of the values (8: uint8), a byte for the number of axes, each axis as a big-endian
uint32, then the values.
"""

import gzip
import hashlib
import math
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_muon.data.dataset import Dataset

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
UINT8 = 8  # the format's code for that type of value


class IdxSet(NamedTuple):
    """What tells sets of the same four file names apart, and where to get them."""

    classes: tuple[str, ...]
    url: str
    train_labels_md5: str  # of the uncompressed file


SETS = {
    "mnist": IdxSet(
        classes=tuple("0123456789"),
        url="https://storage.googleapis.com/cvdf-datasets/mnist/",
        train_labels_md5="a25bea736e30d166cdddb491f175f624",
    ),
    "fashion_mnist": IdxSet(
        classes=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        url="https://github.com/zalandoresearch/fashion-mnist",
        train_labels_md5="9018921c3c673c538a1fc5bad174d6f9",
    ),
}


def read_idx_set(name: str, directory: Path) -> Dataset:
    """The set `name` of SETS, pixels in uint8, from directory/name or the directory.

    Raises:
      FileNotFoundError: if neither folder has all four files.
      ValueError: if a file is damaged or belongs to another set of SETS.
    """
    paths = _locate(name, directory)
    contents = [_content(path) for path in paths]
    _refuse_other_set(name, paths[1], contents[1])
    x_train, y_train, x_test, y_test = (
        parse_idx(content, num_axes, path)
        for content, num_axes, path in zip(contents, (3, 1, 3, 1), paths, strict=True)
    )
    return Dataset(
        x_train=x_train[..., None],
        y_train=y_train,
        x_test=x_test[..., None],
        y_test=y_test,
        classes=SETS[name].classes,
    )


def parse_idx(content: bytes, num_axes: int, path: Path) -> np.ndarray:
    """The uint8 array in the bytes of an uncompressed IDX file; errors name `path`.

    Raises:
      ValueError: if type, number of axes or length are not as they must be.
    """
    header = 4 + 4 * num_axes
    magic = bytes([0, 0, UINT8, num_axes])
    if content[:4] != magic or len(content) < header:
        raise ValueError(
            f"{path}: expected an IDX file of uint8 with {num_axes} axes (first bytes "
            f"{magic.hex()}, header of {header} bytes), found {content[:4].hex()!r} in "
            f"{len(content)} bytes; replace it by the original file"
        )
    shape = struct.unpack(f">{num_axes}I", content[4:header])
    if len(content) != header + math.prod(shape):
        raise ValueError(
            f"{path}: expected {header + math.prod(shape)} bytes for shape "
            f"{list(shape)}, found {len(content)}; the file is damaged, fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _locate(name: str, directory: Path) -> list[Path]:
    """The four files, all in one folder."""
    folders = (directory / name, directory)
    for folder in folders:
        found = [
            [p for p in (folder / file, folder / f"{file}.gz") if p.is_file()]
            for file in FILES
        ]
        if all(found):
            return [paths[0] for paths in found]
    raise FileNotFoundError(
        f"{name}: neither {folders[0]} nor {folders[1]} has all of "
        f"{', '.join(FILES)} (.gz or not); download them from {SETS[name].url}, or run "
        f"fedjax_muon.data.prepare({name!r}, {str(directory)!r}) once and load "
        f"'tfds:{name}'"
    )


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path}: expected a complete gzip file, found a damaged one ({error}); "
            "fetch it again"
        ) from error


def _refuse_other_set(name: str, path: Path, train_labels: bytes):
    """All sets have the same file names, so a wrong folder would go unnoticed."""
    md5 = hashlib.md5(train_labels, usedforsecurity=False).hexdigest()
    for other, row in SETS.items():
        if other != name and md5 == row.train_labels_md5:
            raise ValueError(
                f"{path}: expected {name}, found the labels of {other}; give the "
                f"folder of {name}'s files, or its parent if that has a folder {name}"
            )
