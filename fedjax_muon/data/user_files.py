"""A user's data: arrays, NumPy archives, and CSV files."""

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_muon.core import check_count
from fedjax_muon.data.cleaning import MISSING, of_array
from fedjax_muon.data.columns import (
    FEW,
    Categories,
    Column,
    Columns,
    Missing,
    Raw,
    cells_of,
    check_names,
    load_columns,
)
from fedjax_muon.data.csv_files import HINT, Table, read_table, read_texts, with_names
from fedjax_muon.data.dataset import (
    TEST,
    TRAIN,
    Dataset,
    Standardization,
    check,
    check_axes,
    not_finite,
    standardization_of,
    stratified,
)
from fedjax_muon.data.npz import arrays_of
from fedjax_muon.files import named

Place = str | os.PathLike[str]

# names of folders, and entries of the column that divides a table; of those for testing
# the first that is there counts
OF_TRAIN = (TRAIN, "training")
OF_TEST = (TEST, "testing", "val", "valid", "validation", "dev", "eval", "evaluation")


def from_arrays(
    x: ArrayLike,
    y: ArrayLike | None = None,
    *,
    targets: ArrayLike | None = None,
    owners: ArrayLike | None = None,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    test_share: float = 0.2,
    classes: Sequence[str] | None = None,
    text: bool = False,
) -> Dataset:
    """Makes a dataset from arrays, and checks it.

    Every channel (the last axis) is standardized with the mean and the standard
    deviation of the training examples, in float64 unless it is float32 or uint8, and
    converted to float32.

    Args:
      x: Numbers [n, ..., channels], such as features [n, d] or images NHWC.
      y: Labels, integers or strings [n]. Blanks around strings do not count, and 1.0 is
        the integer 1.
      targets: Instead of labels, finite numbers [n] to predict.
      owners: Owner of every example, integers or strings [n]; `partition.by_owner` of
        `Dataset.owners` makes a client of each.
      test: Inputs and labels, or targets, for testing. By default, `test_share` of the
        examples, a stratified part that is the same in every call and leaves every
        owner at least one training example.
      classes: Names of the classes in the order of integer labels; by default, the
        sorted labels.
      text: Whether `x` contains token ids [n, length], which are not changed.
    """
    x = _inputs("x", x, text)
    if (y is None) == (targets is None):
        raise ValueError("give either y, the labels, or targets")
    if y is not None:
        y_of, y = of_array, of_array("y", y, len(x))
    else:
        assert targets is not None
        y_of, y = targets_of, targets_of("targets", targets, len(x))
    if owners is not None:
        owners = of_array("owners", owners, len(x))
    if test is not None:
        x_test = _inputs("x_test", test[0], text)
        test = x_test, y_of("y_test", test[1], len(x_test))
    whole = _Rows(x, y, owners)
    fit = _as_given if text else _standardized
    return _dataset(whole, test and _Rows(*test), test_share, classes, fit=fit)


class _Rows(NamedTuple):
    """Examples whose labels and owners are cleaned."""

    x: np.ndarray
    y: np.ndarray  # [n]: labels, or targets in float64
    owners: np.ndarray | None = None


def targets_of(name: str, values: ArrayLike, count: int) -> np.ndarray:
    """Targets in an array [count]."""
    y = np.asarray(values)
    if y.shape != (count,) or y.dtype.kind not in "iuf" or not np.isfinite(y).all():
        raise ValueError(
            f"{name} must be {count} finite numbers, one per example, got "
            f"{y.dtype}{list(y.shape)}"
        )
    return y.astype(float)


def _dataset(
    train: _Rows,
    test: _Rows | None,
    share: float,
    classes: Sequence[str] | None = None,
    *,
    fit: "Fit",
) -> Dataset:
    """Divides examples, and makes inputs of them."""
    is_target = train.y.dtype.kind == "f"
    labels = [one.y for one in (train, test) if one is not None]
    called = () if is_target else _classes(labels, classes)
    y, owners = _numbered("y", train.y, called), train.owners
    test_owners: np.ndarray | None = None
    names: Any = ()  # of owners
    kept: np.ndarray | None = None
    held: np.ndarray | None = None
    if test is None:
        if owners is not None:
            names, owners = np.unique(owners, return_inverse=True)
        strata = np.zeros(len(y), int) if is_target else y
        kept, held = held_out(strata, owners, share, called)
        x_test, y_test = train.x, y[held]
        y = y[kept]
        if owners is not None:
            owners, test_owners = owners[kept], owners[held]
    else:
        x_test, y_test = test.x, _numbered("y_test", test.y, called)
        if x_test.shape[1:] != train.x.shape[1:]:
            raise ValueError(
                "x and x_test must hold examples of one shape, got "
                f"{list(train.x.shape[1:])} and {list(x_test.shape[1:])}"
            )
        if owners is not None:
            both = [owners] if test.owners is None else [owners, test.owners]
            names, numbers = np.unique(np.concatenate(both), return_inverse=True)
            owners, rest = np.split(numbers, [len(owners)])
            test_owners = None if test.owners is None else rest
    unseen = sorted({*y_test.tolist()} - {*y.tolist()})
    if unseen and unseen[0] in range(len(called)):
        warnings.warn(
            f"the class {called[unseen[0]]!r} has test examples, but none to train on",
            stacklevel=3,
        )
    fitted = fit(train.x, kept)
    x, x_test = fitted.rows(train.x, kept), fitted.rows(x_test, held)
    made = Dataset(x, y, x_test, y_test, called, 0, owners, test_owners)
    made = made._replace(owner_names=tuple(map(str, names)))
    made = made._replace(standardization=fitted.scales, columns=fitted.columns)
    return check(made._replace(held_out=kept is not None))


class _Fitted(NamedTuple):
    """What becomes of examples, as those for training decide."""

    # (examples, their numbers or None for all) -> inputs
    rows: Callable[[np.ndarray, np.ndarray | None], np.ndarray]
    scales: Standardization | None = None
    columns: Columns | None = None


Fit = Callable[[np.ndarray, np.ndarray | None], _Fitted]  # (examples, numbers)


def _standardized(x: np.ndarray, kept: np.ndarray | None) -> _Fitted:
    scales = standardization_of(x, kept)
    return _Fitted(scales.of_rows, scales)


def _as_given(x: np.ndarray, kept: np.ndarray | None) -> _Fitted:
    del x, kept
    return _Fitted(lambda rows, ids: rows if ids is None else rows[ids])


def _of_table(
    columns: Columns,
    words: Sequence[tuple[str, ...] | None],
    known: bool,
    x: np.ndarray,
    kept: np.ndarray | None,
) -> _Fitted:
    """Encodes and standardizes rows, by sums that are known, or by those of training
    examples."""
    raw = Raw(x, tuple(words))
    made = columns if known else columns.fitted(raw, kept)
    made.check()
    encoded = made.encode(raw)
    scales = (
        made.standardization
        if known
        else standardization_of(encoded, kept, made.channels)
    )

    def rows(given: np.ndarray, ids: np.ndarray | None) -> np.ndarray:
        inputs = encoded if given is x else made.encode(raw._replace(x=given))
        return scales.of_rows(inputs, ids)

    return _Fitted(rows, scales, made)


def _summed(
    columns: Columns,
    words: Sequence[tuple[str, ...] | None],
    known: bool,
    x: np.ndarray,
    kept: np.ndarray | None,
) -> _Fitted:
    """Sums of columns, some of which may be constant."""
    made = columns if known else columns.fitted(Raw(x, tuple(words)), kept)
    zeros = lambda rows, ids: np.zeros((len(rows if ids is None else ids), 1), "f4")
    return _Fitted(zeros, columns=made)


def held_out(
    labels: np.ndarray,
    owners: np.ndarray | None,
    share: float,
    classes: Sequence[str],
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of training and test examples; every owner has one to train on."""
    kept, out = stratified(labels, share, TEST, classes=classes)
    if owners is None:
        return kept, out
    _, first = np.unique(owners[out], return_index=True)
    back = out[first][~np.isin(owners[out[first]], owners[kept])]
    if len(back) == len(out):
        raise ValueError(
            "every owner has only one example, which is needed for training; give "
            "separate test examples, or leave out the owners"
        )
    return np.concatenate([kept, back]), np.setdiff1d(out, back, assume_unique=True)


def name_of(path: Path) -> str:
    """The name of a dataset that a path has."""
    return path.absolute().name or str(path)


def from_npz(path: Place, *, test_share: float = 0.2) -> Dataset:
    """Reads a dataset from a NumPy archive.

    It has the arrays `x` and `y`, and optionally `owner`, `x_test` and `y_test`, and
    `classes`, with the meaning of the arguments of `from_arrays`. An `x` in int32 with
    two axes has token ids.
    """
    path = Path(path).expanduser()
    others = ("owner", "x_test", "y_test", "classes")
    arrays = arrays_of(path, ("x", "y"), others)
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise ValueError(f"{path}: x_test and y_test belong together; save both")
    classes = arrays.get("classes")
    if classes is not None and classes.dtype.kind != "U":
        raise ValueError(f"{path}: expected classes as strings, found {classes.dtype}")
    test = (arrays["x_test"], arrays["y_test"]) if "x_test" in arrays else None
    with named(path):
        made = from_arrays(
            arrays["x"],
            arrays["y"],
            owners=arrays.get("owner"),
            test=test,
            test_share=test_share,
            classes=None if classes is None else tuple(map(str, classes)),
            text=arrays["x"].dtype == np.int32 and arrays["x"].ndim == 2,
        )
    return made._replace(name=name_of(path))


def from_csv(
    path: Place,
    *,
    label: str = "label",
    target: str | None = None,
    owner: str | None = None,
    split: str | None = None,
    exclude: Sequence[str] = (),
    categories: Categories | None = None,
    missing: Missing | None = None,
    columns: Place | None = None,
    na_values: Sequence[str] = MISSING,
    test_share: float = 0.2,
    separator: str = ",",
    decimal: str = ".",
    encoding: str = "utf-8",
    header: int = 1,
) -> Dataset:
    """Reads a dataset from a table; a file that ends in .gz or .bz2 is unpacked.

    All columns that are not named here are features.

    Args:
      target: Instead of a label, the column of numbers to predict.
      owner: Column of the owners, each of whom is a client.
      split: Column that says which rows are for training and which for testing; by
        default, a share of the rows is held out.
      exclude: Columns to ignore.
      categories: With "one_hot", a feature of texts becomes one input for each of its
        categories among the training examples. By default, texts are errors.
      missing: With "mean", a blank in a feature of numbers becomes the mean of training
        examples, and another input is 1; a blank text is a category. By default, blanks
        are errors.
      columns: File of means, categories and scales that `save_columns` wrote, instead
        of those of this table, so that all sites have the same.
      na_values: Words that are blanks, in any case, as empty cells are. Blank labels,
        owners and parts are errors. Leave out the ones that are names, such as NA for
        Namibia.
      test_share: Share of the rows that is held out.
      separator: Character between columns.
      decimal: Decimal mark of the numbers.
      encoding: Such as "utf-16" of Excel, or "cp1252".
      header: Number of the line with the column names, from 1.

    Example:
      >>> loans = from_csv("loans.csv", label="risk", owner="bank", separator=";")
    """
    given = {**locals()}
    return _from_csv(_of_table, **given)


def sum_columns(path: Place, **how: Any) -> Columns:
    """Sums over the training examples of a table, from which means, categories and
    scales follow.

    Args:
      how: Arguments of `from_csv`.

    Example:
      >>> east = sum_columns("east.csv", missing="mean")  # doctest: +SKIP
      >>> west = sum_columns("west.csv", missing="mean")  # doctest: +SKIP
      >>> both = join_columns([east, west])  # doctest: +SKIP
    """
    given = inspect.signature(from_csv).bind(path, **how)
    given.apply_defaults()
    return _from_csv(_summed, **given.arguments).columns


def _from_csv(
    fit: Callable[..., _Fitted],
    path: Place,
    label: str,
    target: str | None,
    owner: str | None,
    split: str | None,
    exclude: Sequence[str],
    categories: Categories | None,
    missing: Missing | None,
    columns: Place | None,
    na_values: Sequence[str],
    test_share: float,
    separator: str,
    decimal: str,
    encoding: str,
    header: int,
) -> Dataset:
    """A table, of which `fit` makes inputs."""
    check_count("header", header)
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if target is not None and label != "label":
        raise ValueError(f"give either label or target, got {label!r} and {target!r}")
    first = {"label": label} if target is None else {"target": target}
    roles = {**first, "owner": owner, "split": split}
    wanted = {role: name.strip() for role, name in roles.items() if name is not None}
    left_out = [name.strip() for name in exclude]
    table = with_names(Table(path, separator, decimal, encoding, header - 1))
    features = features_of(path, table.names, wanted, left_out, HINT)
    numbers = [wanted.pop("target")] if target is not None else []
    others = [*dict.fromkeys(wanted.values())]
    known = columns is not None
    if known and (categories or missing):
        raise ValueError(
            "columns says what becomes of texts and blanks; leave out categories and "
            "missing"
        )
    form = _form(table, features, na_values, columns)
    if known or categories is not None or missing is not None:
        cells, texts = read_texts(table, [*features, *numbers], others, na_values)
        how: Any = {"categories": categories, "missing": missing, "known": known}
        raw = cells_of(cells, form, table.place, **how)
        own = form._replace(columns=tuple(map(Column, numbers)))
        ys = cells_of(cells, own, table.place).x if numbers else None
    else:
        x, texts = read_table(table, [*features, *numbers], others, na_values)
        raw = Raw(x[:, : len(features)], (None,) * len(features))
        ys = x[:, len(features) :] if numbers else None
    _warn_of_ids(path, [each.name for each in form.columns], raw)
    of = {role: texts[name] for role, name in wanted.items()}
    y, owners = of["label"] if ys is None else ys[:, 0], of.get("owner")
    whole, rest = _Rows(raw.x, y, owners), None
    if "split" in of:
        train = _is_train(table, wanted["split"], of["split"])
        part = lambda p: _Rows(raw.x[p], y[p], None if owners is None else owners[p])
        whole, rest = part(train), part(~train)
    with named(path):
        classes = form.classes if known else None
        as_inputs = functools.partial(fit, form, raw.words, known)
        made = _dataset(whole, rest, test_share, classes, fit=as_inputs)
    sums = made.columns._replace(classes=made.classes, label=wanted.get("label", ""))
    return made._replace(name=name_of(path), columns=sums)


def _warn_of_ids(path: Path, features: Sequence[str], raw: Raw) -> None:
    """Warns of columns that number the rows."""
    count = np.arange(len(raw.x))
    if len(count) <= FEW or len(features) == 1:
        return
    for name, column, words in zip(features, raw.x.T, raw.words, strict=True):
        first = column[0]
        if words is None and first in (0, 1) and (column == first + count).all():
            warnings.warn(
                f"{path}: column {name!r} numbers the rows, as an id does; exclude it",
                stacklevel=4,
            )


def _form(
    table: Table, features: Sequence[str], na_values: Sequence[str], sums: Place | None
) -> Columns:
    """The columns of a table, with sums that are known, and how it is written."""
    known = Columns(tuple(map(Column, features)))
    if sums is not None:
        known = load_columns(sums)
        names = [each.name for each in known.columns]
        check_names(f"{table.path}", features, names, sums)
    how = table.separator, table.decimal, table.encoding, table.above, tuple(na_values)
    return Columns(known.columns, known.classes, known.label, *how)


def _is_train(table: Table, split: str, entries: np.ndarray) -> np.ndarray:
    """Which rows of a table are for training, by the entries of a column."""
    texts = entries.astype(str)
    parts, rows = np.unique(np.char.lower(texts), return_inverse=True)
    of_test = OF_TEST[:2] if {*parts.tolist()} & {*OF_TEST[:2]} else OF_TEST
    wrong = ~np.isin(parts, (*OF_TRAIN, *of_test))[rows]
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"{table.place(row)}: {str(texts[row])!r} in "
            f"column {split!r} is neither {TRAIN} nor {TEST}; change it, or leave out "
            "the rows"
        )
    train = np.isin(parts, OF_TRAIN)[rows]
    for name, there in ((TRAIN, train.any()), (TEST, not train.all())):
        if not there:
            raise ValueError(f"{table.path}: no row has {name} in column {split!r}")
    return train


def features_of(
    place: object,
    columns: Sequence[str],
    roles: Mapping[str, str | None],
    exclude: Sequence[str],
    hint: str = "",
) -> list[str]:
    """The columns of a table that have no role and are not excluded."""
    wanted = [*roles.items(), *(("exclude", name) for name in exclude)]
    for role, name in wanted:
        if name is not None and name not in columns:
            raise ValueError(
                f"{place}: there is no column {name!r} for {role}; its columns are "
                f"{' '.join(', '.join(columns).split())[:300] or 'none'}{hint}"
            )
    taken = {name for _, name in wanted}
    features = [name for name in columns if name not in taken]
    if not features:
        raise ValueError(f"{place}: no column is left for features")
    return features


def _inputs(name: str, x: ArrayLike, text: bool) -> np.ndarray:
    x = np.asarray(x)
    kinds, what = ("iu", "token ids") if text else ("iufb", "numbers")
    if x.dtype.kind not in kinds:
        raise ValueError(f"{name} must be an array of {what}, got {x.dtype}")
    if x.ndim < 2 or not x.size:
        hint = f"; give one feature as {name}[:, None]" if x.ndim == 1 else ""
        raise ValueError(
            f"{name} must be non-empty [n, ..., channels], got {x.dtype}"
            f"{list(x.shape)}{hint}"
        )
    if text and x.max() > np.iinfo(np.int32).max:
        raise ValueError(f"{name}: token ids must be below 2^31, got {x.max()}")
    if text:
        return x.astype(np.int32)
    check_axes(name, x.shape, x.dtype)
    if problem := not_finite(x):
        raise ValueError(f"{name} {problem}")
    return x


def _classes(
    labels: Sequence[np.ndarray], classes: Sequence[str] | None
) -> tuple[str, ...]:
    values = np.unique(np.concatenate(labels))
    if classes is None:
        classes = [str(value) for value in values]
    if len(classes) < 2:
        raise ValueError(
            f"all labels are {str(values[0])!r}; classification needs two or more "
            "classes"
        )
    return tuple(map(str, classes))


def _numbered(name: str, labels: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """Labels as numbers of classes; integers are numbers if they are not names."""
    if labels.dtype.kind == "f":  # targets
        return labels.astype(np.float32)
    numbers = {name: i for i, name in enumerate(classes)}
    values, rows = np.unique(labels, return_inverse=True)
    texts = values.astype(str).tolist()
    if labels.dtype.kind in "iu" and not set(texts) <= set(numbers):
        return labels
    unknown = [text for text in texts if text not in numbers]
    if unknown:
        raise ValueError(
            f"{name} has the label {unknown[0]!r}, which is not one of the classes "
            f"{', '.join(classes)}"
        )
    return np.array([numbers[text] for text in texts], np.int32)[rows]
