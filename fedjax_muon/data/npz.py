"""Arrays in a NumPy archive, such as the images of CIFAR-10 and CIFAR-100."""

import math
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_muon.data.dataset import Dataset
from fedjax_muon.files import reading

SPLITS = ("x_train", "y_train", "x_test", "y_test")
PIXELS = (np.uint8, 4, "uint8 [n, height, width, channels]")
FORMS = {  # type of the numbers, number of axes
    "x_train": PIXELS,
    "x_test": PIXELS,
    "classes": (np.str_, 1, "strings on one axis"),
}
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# An array of more bytes than this may not be RATIO times as large as its compressed
# form; photographs are at most 10 times as large.
BYTES, RATIO = 2**26, 100


def read_npz(paths: Sequence[Path], *, num_classes: int) -> Dataset:
    """Reads a dataset of images from a NumPy archive, the only path.

    The archive has the arrays x_train and x_test (uint8 [n, height, width, channels]),
    y_train and y_test (integers), and optionally `classes`, the names of the classes in
    order (strings). By default the names are "0" to str(num_classes - 1).
    """
    (path,) = paths
    arrays = arrays_of(path, SPLITS, ("classes",))
    arrays.setdefault("classes", np.arange(num_classes).astype(str))
    for key, (kind, axes, form) in FORMS.items():
        array = arrays[key]
        if array.dtype.type is not kind or array.ndim != axes:
            raise ValueError(
                f"{path}: expected {key} as {form}, found "
                f"{array.dtype}{list(array.shape)}; save it in this form"
            )
    x_train, y_train, x_test, y_test = (arrays[key] for key in SPLITS)
    classes = tuple(map(str, arrays["classes"]))
    return Dataset(x_train, y_train, x_test, y_test, classes)


def check(paths: Sequence[Path]) -> None:
    """Checks the archive's directory, which is at its end: truncated files lack it."""
    if not paths[0].is_file():
        raise FileNotFoundError(f"there is no file {paths[0]}")
    if not zipfile.is_zipfile(paths[0]):
        raise ValueError(
            f"{paths[0]}: expected a NumPy .npz archive, found another format or a "
            "truncated file; save it again"
        )


def arrays_of(
    path: Path, needed: Sequence[str], others: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Reads some arrays of a NumPy archive; those that are needed must be there."""
    check([path])
    wanted, damage = "a NumPy .npz archive of plain arrays", "a damaged or pickled one"
    with (
        reading(path, wanted, "write it again", found=damage),
        zipfile.ZipFile(path) as archive,
    ):
        names = archive.namelist()
        missing = [key for key in needed if f"{key}.npy" not in names]
        if missing:
            more = f" (and {', '.join(others)} if there are any)" if others else ""
            there = [
                name.removesuffix(".npy") for name in names if name.endswith(".npy")
            ]
            raise ValueError(
                f"{path}: expected the arrays {', '.join(needed)}{more}, found no "
                f"{', '.join(missing)}, but {', '.join(there[:20]) or 'nothing'}; save "
                "them under these names with numpy.savez"
            )
        keys = [key for key in (*needed, *others) if f"{key}.npy" in names]
        unread = sorted({name.removesuffix(".npy") for name in names} - {*keys})
        if unread:
            known = ", ".join((*needed, *others))
            wrong = f"{path}: {', '.join(unread[:20])} will not be read"
            warnings.warn(f"{wrong}; the names are {known}", stacklevel=3)
        return {key: _array(archive, key) for key in keys}


def _array(archive: zipfile.ZipFile, key: str) -> np.ndarray:
    """An array of an archive, whose header is checked before memory is reserved."""
    members = [info for info in archive.infolist() if info.filename == f"{key}.npy"]
    if len(members) > 1:
        raise ValueError(f"{len(members)} arrays {key}")
    (info,) = members
    if info.file_size > max(BYTES, RATIO * info.compress_size):
        raise ValueError(
            f"{key} expands from {info.compress_size} to {info.file_size} bytes; if "
            "this is intended, save it with numpy.savez, which does not compress"
        )
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"{key} has the version {version}")
        shape, _, dtype = HEADERS[version](file)
        content = info.file_size - file.tell()
    if dtype.hasobject:
        raise ValueError(f"{key} has Python objects: save texts as {key}.astype(str)")
    if dtype.fields or not dtype.itemsize:
        raise ValueError(f"{key} has the type {dtype}")
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != content:
        raise ValueError(f"{key} has {content} bytes for {dtype}{list(shape)}")
    with archive.open(info) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        file.read(1)  # past the end, where the checksum is compared
    return array
