"""A user's own data: arrays, NumPy archives and CSV files."""

import contextlib
import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_muon.core.reading import reading
from fedjax_muon.data.dataset import Dataset, check, standardize, stratified, subset
from fedjax_muon.data.npz import arrays_of

Place = str | os.PathLike[str]

ARRAYS = ("x", "y", "owner", "x_test", "y_test", "classes")
LARGEST = float(np.finfo(np.float32).max)
TRAIN, TEST = "train", "test"  # entries of the column that divides a table


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    owners: ArrayLike | None = None,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    test_share: float = 0.2,
    classes: Sequence[str] | None = None,
    text: bool = False,
) -> Dataset:
    """Makes a data set of arrays.

    Inputs are converted to float32, and every channel (the last axis) is standardized
    with the mean and the standard deviation of the training examples.

    Args:
      x: Numbers [n, ..., channels], such as features [n, d] or images NHWC.
      y: Labels, integers or strings [n].
      owners: Owner of every example, integers or strings [n]; `partition.by_owner` of
        `Dataset.owners` makes a client of each.
      test: Inputs and labels for testing. By default, `test_share` of the examples, a
        stratified part that is the same in every call and leaves every owner one
        training example at least.
      test_share: Share of examples for testing, in (0, 1).
      classes: Names of the classes in the order of integer labels; by default, the
        sorted labels.
      text: Whether `x` has token ids [n, length], which stay as they are.

    Returns:
      The data set, checked.
    """
    x, y = _inputs("x", x, text), np.asarray(y)
    _check_length("y", y, x)
    held = None if test is None else (_inputs("x_test", test[0], text), test[1])
    names = _classes([y] if test is None else [y, np.asarray(test[1])], classes)
    labels = _numbered("y", y, names)
    if owners is not None:
        owners = np.asarray(owners)
        _check_length("owners", owners, x)
        owners = np.unique(owners, return_inverse=True)[1]
    if held is None:
        kept, out = _held_out(labels, owners, test_share)
    else:
        kept, out = np.arange(len(x)), np.arange(0)
    x_test, y_test = (x[out], labels[out])
    if held is not None:
        x_test, y_test = held[0], _numbered("y_test", np.asarray(held[1]), names)
    tested = None if owners is None or held is not None else owners[out]
    whole = Dataset(x, labels, x_test, y_test, names, 0, owners, tested)
    return standardize(check(subset(whole, kept)))


def _held_out(
    labels: np.ndarray, owners: np.ndarray | None, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of training and test examples; every owner has one to train on."""
    kept, out = stratified(labels, share, TEST)
    if owners is None:
        return kept, out
    _, first = np.unique(owners[out], return_index=True)
    back = out[first][~np.isin(owners[out[first]], owners[kept])]
    if len(back) == len(out):
        raise ValueError(
            "every owner has one example, which is for training; give the examples for "
            "testing, or leave the owners out"
        )
    return np.concatenate([kept, back]), np.setdiff1d(out, back, assume_unique=True)


def from_npz(path: Place, *, test_share: float = 0.2) -> Dataset:
    """Reads a data set from a NumPy archive.

    It has the arrays `x` and `y`, and optionally `owner`, `x_test` and `y_test`, and
    `classes`, with the meaning of the arguments of `from_arrays`. An `x` in int32 with
    two axes has token ids.

    Args:
      path: Path of the file.
      test_share: Share of examples for testing, if the archive has no `x_test`.

    Raises:
      FileNotFoundError: If there is no such file.
    """
    path = _existing(path)
    arrays = arrays_of(path, ARRAYS)
    for name in ("x", "y"):
        if name not in arrays:
            found = ", ".join(arrays) or "none of its arrays"
            raise ValueError(
                f"{path}: expected arrays x and y (and owner, x_test and y_test, "
                f"classes if there are any), found {found}; save it by numpy.savez"
            )
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise ValueError(f"{path}: x_test and y_test belong together; save both")
    classes = arrays.get("classes")
    if classes is not None and classes.dtype.kind != "U":
        raise ValueError(f"{path}: expected classes as strings, found {classes.dtype}")
    held = (arrays["x_test"], arrays["y_test"]) if "x_test" in arrays else None
    with named(path):
        return from_arrays(
            arrays["x"],
            arrays["y"],
            owners=arrays.get("owner"),
            test=held,
            test_share=test_share,
            classes=None if classes is None else tuple(map(str, classes)),
            text=arrays["x"].dtype == np.int32 and arrays["x"].ndim == 2,
        )


def from_csv(
    path: Place,
    *,
    label: str,
    owner: str | None = None,
    split: str | None = None,
    exclude: Sequence[str] = (),
    test_share: float = 0.2,
) -> Dataset:
    """Reads a data set from a table whose first line has the names of its columns.

    All columns that are not named here are features, and have numbers.

    Args:
      path: Path of a file with commas between columns.
      label: Column of the labels, any text.
      owner: Column of the owners, any text.
      split: Column that says "train" or "test".
      exclude: Columns to leave out.
      test_share: Share of examples for testing, if no column says.

    Raises:
      FileNotFoundError: If there is no such file.
    """
    path = _existing(path)
    table = _read(path)
    special = {"label": label, "owner": owner, "split": split}
    for role, name in special.items():
        if name is not None:
            _check_column(path, table, role, name)
            _check_filled(path, table, name)
    for name in exclude:
        _check_column(path, table, "exclude", name)
    left_out = {*special.values(), *exclude}
    features = [name for name in table.columns if name not in left_out]
    if not features:
        raise ValueError(f"{path}: no column is left for features")
    x = _numbers(path, table, features)
    y = _labels(table.columns[label])
    owners = None if owner is None else np.array(table.columns[owner])
    if split is None:
        kept, out = np.arange(len(y)), None
    else:
        kept, out = _divided(path, table, split)
    with named(path):
        return from_arrays(
            x[kept],
            y[kept],
            owners=None if owners is None else owners[kept],
            test=None if out is None else (x[out], y[out]),
            test_share=test_share,
            classes=None if out is None else tuple(map(str, np.unique(y))),
        )


class Table(NamedTuple):
    """The texts of a table."""

    columns: dict[str, list[str]]
    lines: list[int]  # of the file, for each row


def _read(path: Path) -> Table:
    with (
        reading(path, "a table with commas", "save it as CSV", errors=(csv.Error,)),
        path.open(newline="", encoding="utf-8-sig") as file,
    ):
        rows = csv.reader(file, strict=True)
        names = next(rows, [])
        if len(set(names)) < len(names) or "" in names or len(names) < 2:
            raise ValueError(
                f"{path}: expected two or more different names of columns in the first "
                f"line, found {', '.join(map(repr, names)) or 'nothing'}"
            )
        values: list[list[str]] = []
        lines: list[int] = []
        for row in rows:
            if not row:
                continue
            if len(row) != len(names):
                raise ValueError(
                    f"{path}, line {rows.line_num}: expected {len(names)} columns as "
                    f"in the first line, found {len(row)}"
                )
            values.append(row)
            lines.append(rows.line_num)
    if not values:
        raise ValueError(f"{path}: expected rows below the first line, found none")
    columns = zip(*values, strict=True)
    return Table(dict(zip(names, map(list, columns), strict=True)), lines)


def _numbers(path: Path, table: Table, names: Sequence[str]) -> np.ndarray:
    found = np.empty((len(table.lines), len(names)), np.float32)
    for i, name in enumerate(names):
        for row, text in enumerate(table.columns[name]):
            try:
                value = float(text)
            except ValueError:
                value = np.nan
            if not abs(value) <= LARGEST:
                raise ValueError(
                    f"{path}, line {table.lines[row]}: {text!r} in column {name!r} is "
                    "not a finite number; correct it, or exclude the column"
                )
            found[row, i] = value
        if not np.ptp(found[:, i]):
            raise ValueError(
                f"{path}: column {name!r} is {found[0, i]:g} in all rows; exclude it"
            )
    return found


def _labels(texts: Sequence[str]) -> np.ndarray:
    """Labels, as integers if all of them are, so that 2 comes before 10."""
    try:
        whole = np.array([int(text) for text in texts])
    except (ValueError, OverflowError):
        return np.array(texts)
    return whole if list(map(str, whole)) == list(texts) else np.array(texts)


def _divided(path: Path, table: Table, split: str) -> tuple[np.ndarray, np.ndarray]:
    parts = [text.strip().lower() for text in table.columns[split]]
    for line, part in zip(table.lines, parts, strict=True):
        if part not in (TRAIN, TEST):
            raise ValueError(
                f"{path}, line {line}: {part!r} in column {split!r} is neither {TRAIN} "
                f"nor {TEST}"
            )
    is_train = np.array(parts) == TRAIN
    for name, rows in ((TRAIN, is_train), (TEST, ~is_train)):
        if not rows.any():
            raise ValueError(f"{path}: no row has {name} in column {split!r}")
    return np.flatnonzero(is_train), np.flatnonzero(~is_train)


def _check_column(path: Path, table: Table, role: str, name: str) -> None:
    if name not in table.columns:
        raise ValueError(
            f"{path}: there is no column {name!r} for {role}; its columns are "
            f"{', '.join(table.columns)}"
        )


def _check_filled(path: Path, table: Table, name: str) -> None:
    for line, text in zip(table.lines, table.columns[name], strict=True):
        if not text.strip():
            raise ValueError(
                f"{path}, line {line}: column {name!r} is empty; fill it in, or leave "
                "the line out"
            )


def _existing(path: Place) -> Path:
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    return path


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Names the file or the directory in the errors of a block.

    Yields:
      Nothing.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _inputs(name: str, x: ArrayLike, text: bool) -> np.ndarray:
    x = np.asarray(x)
    kinds, what = ("iu", "token ids") if text else ("iufb", "numbers")
    if x.dtype.kind not in kinds:
        raise ValueError(f"{name} must be an array of {what}, got {x.dtype}")
    if text and x.size and x.max() > np.iinfo(np.int32).max:
        raise ValueError(f"{name}: token ids must be below 2^31, got {x.max()}")
    with np.errstate(over="ignore"):  # `check` names examples that become infinite
        return x.astype(np.int32 if text else np.float32)


def _check_length(name: str, values: np.ndarray, x: np.ndarray) -> None:
    if values.shape != x.shape[:1] or values.dtype.kind not in "iuU":
        raise ValueError(
            f"{name} must be {len(x)} integers or strings, one per example, got "
            f"{values.dtype}{list(values.shape)}"
        )


def _classes(
    labels: Sequence[np.ndarray], classes: Sequence[str] | None
) -> tuple[str, ...]:
    found = np.unique(np.concatenate(labels))
    if classes is None:
        classes = [str(one) for one in found]
    if len(found) < 2 or len(classes) < 2:
        raise ValueError(
            f"all labels are {str(found[0])!r}; classification needs two or more "
            "classes"
        )
    return tuple(map(str, classes))


def _numbered(name: str, labels: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """Labels as numbers of classes; integers are numbers if they are no names."""
    numbers = {one: i for i, one in enumerate(classes)}
    texts = labels.astype(str).tolist()
    if labels.dtype.kind in "iu" and not set(texts) <= set(numbers):
        return labels
    unknown = [text for text in texts if text not in numbers]
    if unknown:
        raise ValueError(
            f"{name} has the label {unknown[0]!r}, which is none of the classes "
            f"{', '.join(classes)}"
        )
    return np.array([numbers[text] for text in texts], np.int32)
