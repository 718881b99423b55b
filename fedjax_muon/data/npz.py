"""Image data sets in a NumPy archive, such as CIFAR-10 and CIFAR-100."""

import math
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedjax_muon.core.reading import reading
from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.source import File, Layout

SPLITS = ("x_train", "y_train", "x_test", "y_test")
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# An array of more bytes than this may not be RATIO times as large as its compressed
# form; photographs are at most 10 times as large.
BYTES, RATIO = 2**26, 100


def npz_layout(name: str, num_classes: int) -> Layout:
    """Describes a data set in data_dir/name.npz.

    Args:
      name: Name of the file, without its suffix.

    Returns:
      The layout of a file for `read_npz`.
    """
    return Layout(
        files=(File(f"{name}.npz"),),
        folders=("",),
        read=partial(read_npz, num_classes=num_classes),
        how=f"write it with numpy.savez (uint8 images NHWC and integer labels: "
        f"{', '.join(SPLITS)})",
        check=_check,
    )


def read_npz(paths: list[Path], *, num_classes: int) -> Dataset:
    """Reads a data set from a NumPy archive.

    The archive has the arrays x_train and x_test (uint8 [n, height, width, channels]),
    y_train and y_test (integers), and optionally `classes`, the names of the classes in
    order (strings). By default the names are "0" to str(num_classes - 1).

    Args:
      paths: Path of the archive, in a list of one.

    Returns:
      The data set, with pixels in uint8.
    """
    (path,) = paths
    arrays = arrays_of(path, (*SPLITS, "classes"))
    missing = [key for key in SPLITS if key not in arrays]
    if missing:
        raise ValueError(
            f"{path}: expected arrays {', '.join(SPLITS)}, found no "
            f"{', '.join(missing)}; add them with numpy.savez"
        )
    for key in ("x_train", "x_test"):
        if arrays[key].ndim != 4 or arrays[key].dtype != np.uint8:
            raise ValueError(
                f"{path}: expected {key} as uint8 [n, height, width, channels], found "
                f"{arrays[key].dtype}{list(arrays[key].shape)}; save it in this form"
            )
    for key in ("y_train", "y_test"):
        if arrays[key].ndim != 1 or arrays[key].dtype.kind not in "iu":
            raise ValueError(
                f"{path}: expected {key} as integers on one axis, found "
                f"{arrays[key].dtype}{list(arrays[key].shape)}; save it in this form"
            )
    classes = arrays.get("classes", np.arange(num_classes).astype(str))
    if classes.ndim != 1 or classes.dtype.kind != "U":
        raise ValueError(
            f"{path}: expected classes as strings on one axis, found "
            f"{classes.dtype}{list(classes.shape)}; save them in this form, or leave "
            "them out"
        )
    return Dataset(
        x_train=arrays["x_train"],
        y_train=arrays["y_train"],
        x_test=arrays["x_test"],
        y_test=arrays["y_test"],
        classes=tuple(str(each) for each in classes),
    )


def _check(paths: list[Path]) -> None:
    """Checks the archive's directory, which is at its end: truncated files lack it."""
    if not zipfile.is_zipfile(paths[0]):
        raise ValueError(
            f"{paths[0]}: expected a NumPy .npz archive, found another or a truncated "
            "file; write it again"
        )


def arrays_of(path: Path, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Reads arrays of a NumPy archive.

    Args:
      path: Path of the archive.
      keys: Names of arrays.

    Returns:
      Those that the archive has.
    """
    _check([path])
    wanted = "a NumPy .npz archive of plain arrays"
    found = "a damaged or pickled one"
    with (
        reading(path, wanted, "write it again", found=found),
        zipfile.ZipFile(path) as archive,
    ):
        names = archive.namelist()
        return {key: _array(archive, key) for key in keys if f"{key}.npy" in names}


def _array(archive: zipfile.ZipFile, key: str) -> np.ndarray:
    """An array of an archive, whose header is checked before memory is reserved."""
    members = [info for info in archive.infolist() if info.filename == f"{key}.npy"]
    if len(members) > 1:
        raise ValueError(f"{len(members)} arrays {key}")
    (info,) = members
    if info.file_size > max(BYTES, RATIO * info.compress_size):
        raise ValueError(
            f"{key} expands from {info.compress_size} to {info.file_size} bytes; if it "
            "is meant to, save it by numpy.savez, which does not compress"
        )
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"{key} has the version {version}")
        shape, _, dtype = HEADERS[version](file)
        content = info.file_size - file.tell()
    if dtype.hasobject or dtype.fields or not dtype.itemsize:
        raise ValueError(f"{key} has the type {dtype}")
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != content:
        raise ValueError(f"{key} has {content} bytes for {dtype}{list(shape)}")
    with archive.open(info) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        file.read(1)  # past the end, where the checksum is compared
    return array
