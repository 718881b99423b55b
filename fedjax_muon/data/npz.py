"""Image sets in one NumPy archive, such as CIFAR-10 and CIFAR-100."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedjax_muon.data.dataset import Dataset

SPLITS = ("x_train", "y_train", "x_test", "y_test")


def read_npz(
    name: str, directory: Path, *, num_classes: int, tfds_name: str
) -> Dataset:
    """The set in directory/name.npz, pixels in uint8.

    The archive holds x_train and x_test (uint8, [n, height, width, channels]), y_train
    and y_test (integers), and may hold the names of the classes in order (`classes`,
    strings); without them the classes are called "0" to str(num_classes - 1).

    Raises:
      FileNotFoundError: if there is no such file; `tfds_name` is what
        tensorflow-datasets calls the set.
      ValueError: if the file is damaged, or its arrays are not as above.
    """
    path = directory / f"{name}.npz"
    if not path.is_file():
        raise FileNotFoundError(
            f"{name}: there is no {path}; write it with numpy.savez (uint8 images NHWC "
            f"and integer labels: {', '.join(SPLITS)}), or run fedjax_muon.data."
            f"prepare({tfds_name!r}, {str(directory)!r}) once and load "
            f"'tfds:{tfds_name}'"
        )
    arrays = _arrays(path)
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
                f"{arrays[key].dtype}{list(arrays[key].shape)}; save it so"
            )
    classes = arrays.get("classes", np.arange(num_classes).astype(str))
    if classes.ndim != 1 or classes.dtype.kind != "U":
        raise ValueError(
            f"{path}: expected classes as strings on one axis, found "
            f"{classes.dtype}{list(classes.shape)}; save them so or leave them out"
        )
    return Dataset(
        x_train=arrays["x_train"],
        y_train=arrays["y_train"],
        x_test=arrays["x_test"],
        y_test=arrays["y_test"],
        classes=tuple(str(each) for each in classes),
    )


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f"{path}: expected a NumPy .npz archive, found another or a cut-off file; "
            "write it again"
        )
    try:
        with np.load(path) as archive:
            return {key: archive[key] for key in (*SPLITS, "classes") if key in archive}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path}: expected a NumPy .npz archive of plain arrays, found a damaged "
            f"or pickled one ({error}); write it again"
        ) from error
