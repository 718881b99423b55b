"""Datasets larger than memory: NumPy files, of which inputs are read in parts."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.data.dataset import (
    EXACT,
    Dataset,
    OnDisk,
    Standardization,
    check,
    standardization_of,
)
from fedjax_muon.files import named, reading

NEEDED = ("x", "y", "x_test", "y_test")
OTHERS = ("owner", "classes", "mean", "std")


def mapped(folder: str | os.PathLike[str]) -> Dataset:
    """Reads a dataset from NumPy files, without its training inputs.

    The folder has x.npy, y.npy, x_test.npy and y_test.npy, and optionally owner.npy,
    classes.npy, mean.npy and std.npy, as `numpy.save` writes them. x.npy stays on disk:
    a round reads the examples that it trains on, and evaluations read at most 10,000.
    The other files are read whole.

    x [n, ..., channels] has numbers of any type, or token ids, int32 [n, length].
    y [n] and owner [n] have integers; an owner's examples may lie anywhere. classes
    [classes] has names, by default the labels. mean and std [channels] standardize the
    inputs. By default, they are computed from all training examples, as for data in
    memory; this reads x.npy twice, part by part.

    Raises:
      ValueError: If a file is cut short, or files do not fit together. Training raises
        it when it reads an example with NaN or infinity.

    Example:
      >>> Path("scans").mkdir()
      >>> x = np.lib.format.open_memmap("scans/x.npy", "w+", np.uint8, (60, 8, 8, 3))
      >>> for part in np.split(np.arange(60), 6):
      ...     x[part] = np.random.default_rng(part).integers(0, 256, (10, 8, 8, 3))
      >>> arrays = {"y": np.arange(60) % 2, "owner": np.arange(60) // 10}
      >>> arrays |= {"x_test": x[:9], "y_test": np.arange(9) % 2}
      >>> for name, array in arrays.items():
      ...     np.save(f"scans/{name}.npy", array)
      >>> problem = fm.problems.classification(fm.data.mapped("scans"))
    """
    root = Path(folder).expanduser()
    paths = {name: root / f"{name}.npy" for name in (*NEEDED, *OTHERS)}
    for name in NEEDED:
        if not paths[name].is_file():
            files = ", ".join(f"{each}.npy" for each in NEEDED)
            raise FileNotFoundError(
                f"{root}: expected {files}, found no {name}.npy; write it with "
                "numpy.save"
            )
    arrays = {name: _map(path) for name, path in paths.items() if path.exists()}
    with named(root):
        return _dataset(arrays)._replace(name=root.absolute().name or str(root))


def _map(path: Path) -> Any:
    """Maps an array; a size that differs from its header raises `ValueError`."""
    with reading(path, "an array that numpy.save wrote", "write it again"):
        array: Any = np.load(path, mmap_mode="r", allow_pickle=False)
        expected, found = array.offset + array.nbytes, path.stat().st_size
        if expected != found:
            raise ValueError(f"{expected} bytes by its header, and {found} on disk")
        if not array.flags.c_contiguous:
            raise ValueError("its first axis must come first, as in C's order")
    return array if path.stem == "x" else np.array(array)


def _dataset(arrays: dict[str, Any]) -> Dataset:
    x, y, x_test, y_test = (arrays[name] for name in NEEDED)
    text = x.dtype == np.int32 and x.ndim == 2
    if x.dtype.kind not in "iufb" or x.ndim < 2 or x.shape[1:] != x_test.shape[1:]:
        raise ValueError(
            "x and x_test must be numbers [n, ..., channels] of one shape, got "
            f"{x.dtype}{list(x.shape)} and {x_test.dtype}{list(x_test.shape)}"
        )
    if any(labels.dtype.kind not in "iu" or not labels.size for labels in (y, y_test)):
        raise ValueError(
            f"y and y_test must be integers from 0, got {y.dtype} and {y_test.dtype}; "
            "number the classes, and name them in classes.npy"
        )
    if text and x.min() < 0:
        raise ValueError(f"x: token ids must not be negative, got {x.min()}")
    tokens, scales = 1 + int(max(x.max(), x_test.max())) if text else 0, None
    if not text:
        scales = _scales(x, arrays.get("mean"), arrays.get("std"))
        x_test = scales.of_rows(x_test)
    classes = arrays.get("classes", range(1 + max(y.max(), y_test.max())))
    inputs: Any = OnDisk(x, scales)
    names, owners = tuple(map(str, classes)), arrays.get("owner")
    made = Dataset(inputs, y, x_test, y_test, names, tokens, owners)
    return check(made._replace(standardization=scales))


def _scales(x: np.ndarray, mean: Any, std: Any) -> Standardization:
    """The standardization of the files, or that of all examples."""
    kind = np.float32 if x.dtype.type in EXACT else np.float64
    scales = standardization_of(x) if mean is None or std is None else None
    scales = scales or Standardization(mean.astype(kind), std.astype(kind))
    if not all(np.shape(array) == x.shape[-1:] for array in scales):
        raise ValueError(f"mean and std must be {x.shape[-1]} numbers, one per channel")
    if not np.isfinite(scales).all() or min(scales.std) <= 0:
        raise ValueError(
            "x, mean or std has NaN or infinity, or std is not positive; leave such "
            "examples and channels out"
        )
    return scales
