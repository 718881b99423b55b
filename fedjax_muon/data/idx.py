"""MNIST and Fashion-MNIST from their four original IDX files, gzipped or not.

The format (LeCun, Cortes and Burges, the MNIST page): two zero bytes, a byte for the
type of the values (8: uint8), a byte for the number of axes, each axis as a big-endian
uint32, then the values.
"""

import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.source import unpacked

FILES = {  # with their unpacked sizes in bytes
    "train-images-idx3-ubyte": 16 + 60_000 * 28 * 28,
    "train-labels-idx1-ubyte": 8 + 60_000,
    "t10k-images-idx3-ubyte": 16 + 10_000 * 28 * 28,
    "t10k-labels-idx1-ubyte": 8 + 10_000,
}
UINT8 = 8  # the format's code for this type


def read_idx(paths: Sequence[Path], classes: tuple[str, ...]) -> Dataset:
    """Reads four files in the order of FILES, with pixels in uint8."""
    x_train, y_train, x_test, y_test = (
        _parse(path, num_axes)
        for num_axes, path in zip((3, 1, 3, 1), paths, strict=True)
    )
    return Dataset(x_train[..., None], y_train, x_test[..., None], y_test, classes)


def _parse(path: Path, num_axes: int) -> np.ndarray:
    content, header = unpacked(path), 4 + 4 * num_axes
    magic = bytes([0, 0, UINT8, num_axes])
    if content[:4] != magic or len(content) < header:
        raise ValueError(
            f"{path}: expected an IDX file of uint8 with {num_axes} axes (first bytes "
            f"{magic.hex()}, header of {header} bytes), found {content[:4].hex()!r} in "
            f"{len(content)} bytes; replace it with the original file"
        )
    shape = struct.unpack(f">{num_axes}I", content[4:header])
    if len(content) != header + math.prod(shape):
        raise ValueError(
            f"{path}: expected {header + math.prod(shape)} bytes for shape "
            f"{list(shape)}, found {len(content)}; the file is damaged, download it "
            "again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
