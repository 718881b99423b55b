"""MNIST and Fashion-MNIST from their four original IDX files, gzipped or not.

The format (LeCun, Cortes and Burges, the MNIST page): two zero bytes, a byte for the
type of the values (8: uint8), a byte for the number of axes, each axis as a big-endian
uint32, then the values.
"""

import math
import struct
from functools import partial
from pathlib import Path

import numpy as np

from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.source import File, Layout, Source, check_labels, unpacked

FILES = {  # with their unpacked sizes in bytes
    "train-images-idx3-ubyte": 16 + 60_000 * 28 * 28,
    "train-labels-idx1-ubyte": 8 + 60_000,
    "t10k-images-idx3-ubyte": 16 + 10_000 * 28 * 28,
    "t10k-labels-idx1-ubyte": 8 + 10_000,
}
UINT8 = 8  # the format's code for this type

# Checksums of the unpacked files, in the order of FILES. Those of MNIST are published;
# those of Fashion-MNIST are from files whose packed checksums are the published ones.
MD5 = {
    "mnist": (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    "fashion_mnist": (
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
}


def read_idx(paths: list[Path], classes: tuple[str, ...]) -> Dataset:
    """Reads a data set from its four IDX files.

    Args:
      paths: Paths of the files, in the order of FILES.

    Returns:
      The data set, with pixels in uint8.
    """
    x_train, y_train, x_test, y_test = (
        parse_idx(unpacked(path), num_axes, path)
        for num_axes, path in zip((3, 1, 3, 1), paths, strict=True)
    )
    for labels, path in ((y_train, paths[1]), (y_test, paths[3])):
        check_labels(labels, len(classes), path)
    return Dataset(
        x_train=x_train[..., None],
        y_train=y_train,
        x_test=x_test[..., None],
        y_test=y_test,
        classes=classes,
    )


def parse_idx(content: bytes, num_axes: int, path: Path) -> np.ndarray:
    """Parses an uncompressed IDX file.

    Args:
      content: Bytes of the file.
      path: Path of the file, for error messages.

    Returns:
      The array, in uint8.
    """
    header = 4 + 4 * num_axes
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


def _source(name: str, url: str, license: str, classes: tuple[str, ...]) -> Source:
    files = tuple(
        File(
            file,
            size=size,
            md5=MD5[name][i],
            # The files of both sets have the same names, so a wrong folder would go
            # unnoticed.
            namesakes=tuple((md5[i], other) for other, md5 in MD5.items()),
        )
        for i, (file, size) in enumerate(FILES.items())
    )
    layout = Layout(
        files,
        folders=(name, ""),
        read=partial(read_idx, classes=classes),
        url=url,
        packed=(".gz",),
    )
    return Source(
        example="28 x 28 x 1",
        examples=(60_000, 10_000),
        classes=len(classes),
        license=license,
        layouts=(layout,),
        prepared=name,
    )


SETS = {
    "mnist": _source(
        "mnist",
        url="https://storage.googleapis.com/cvdf-datasets/mnist/",
        license="CC BY-SA 3.0 (LeCun and Cortes)",
        classes=tuple("0123456789"),
    ),
    "fashion_mnist": _source(
        "fashion_mnist",
        url="https://github.com/zalandoresearch/fashion-mnist",
        license="MIT",
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
    ),
}
