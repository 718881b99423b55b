"""A user's data: arrays, NumPy archives, CSV files, and folders of images."""

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_muon.core import check_count
from fedjax_muon.data.cleaning import MISSING, of_array
from fedjax_muon.data.csv_files import HINT, Table, read_table, with_names
from fedjax_muon.data.dataset import (
    TEST,
    TRAIN,
    Dataset,
    check,
    check_axes,
    not_finite,
    standardization_of,
    stratified,
)
from fedjax_muon.data.images import FORMATS, Size, decoded
from fedjax_muon.data.npz import arrays_of
from fedjax_muon.files import named, visible

Place = str | os.PathLike[str]

# names of folders, and entries of the column that divides a table; of those for testing
# the first that is there counts
OF_TRAIN = (TRAIN, "training")
OF_TEST = (TEST, "testing", "val", "valid", "validation", "dev", "eval", "evaluation")


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
    """Makes a dataset from arrays, and checks it.

    Every channel (the last axis) is standardized with the mean and the standard
    deviation of the training examples, in float64 unless it is float32 or uint8, and
    converted to float32.

    Args:
      x: Numbers [n, ..., channels], such as features [n, d] or images NHWC.
      y: Labels, integers or strings [n]. Blanks around strings do not count, and 1.0 is
        the integer 1.
      owners: Owner of every example, integers or strings [n]; `partition.by_owner` of
        `Dataset.owners` makes a client of each.
      test: Inputs and labels for testing. By default, `test_share` of the examples, a
        stratified part that is the same in every call and leaves every owner at least
        one training example.
      classes: Names of the classes in the order of integer labels; by default, the
        sorted labels.
      text: Whether `x` has token ids [n, length], which stay as they are.
    """
    x = _inputs("x", x, text)
    y = of_array("y", y, len(x))
    if owners is not None:
        owners = of_array("owners", owners, len(x))
    if test is not None:
        x_test = _inputs("x_test", test[0], text)
        test = x_test, of_array("y_test", test[1], len(x_test))
    whole = _Rows(x, y, owners)
    return _dataset(whole, test and _Rows(*test), test_share, classes, text=text)


class _Rows(NamedTuple):
    """Examples whose labels and owners are cleaned."""

    x: np.ndarray
    y: np.ndarray
    owners: np.ndarray | None = None


def _dataset(
    train: _Rows,
    test: _Rows | None,
    share: float,
    classes: Sequence[str] | None = None,
    *,
    names: Sequence[str] = (),
    text: bool = False,
) -> Dataset:
    """Divides and standardizes examples; `names` are those of their channels."""
    called = _classes([one.y for one in (train, test) if one is not None], classes)
    y, owners = _numbered("y", train.y, called), train.owners
    test_owners: np.ndarray | None = None
    kept: np.ndarray | None = None
    held: np.ndarray | None = None
    if test is None:
        if owners is not None:
            owners = np.unique(owners, return_inverse=True)[1]
        kept, held = _held_out(y, owners, share, called)
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
            numbers = np.unique(np.concatenate(both), return_inverse=True)[1]
            owners, rest = np.split(numbers, [len(owners)])
            test_owners = None if test.owners is None else rest
    unseen = sorted({*y_test.tolist()} - {*y.tolist()})
    if unseen and unseen[0] in range(len(called)):
        warnings.warn(
            f"the class {called[unseen[0]]!r} has test examples, and none to train on",
            stacklevel=3,
        )
    scales = None if text else standardization_of(train.x, kept, names)
    x, x_test = (
        scales.of_rows(rows, ids)
        if scales is not None
        else rows
        if ids is None
        else rows[ids]
        for rows, ids in ((train.x, kept), (x_test, held))
    )
    made = Dataset(x, y, x_test, y_test, called, 0, owners, test_owners, scales)
    return check(made._replace(held_out=kept is not None))


def _held_out(
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
    owner: str | None = None,
    split: str | None = None,
    exclude: Sequence[str] = (),
    missing: Sequence[str] = MISSING,
    test_share: float = 0.2,
    separator: str = ",",
    decimal: str = ".",
    encoding: str = "utf-8",
    header: int = 1,
) -> Dataset:
    """Reads a dataset from a table; a file that ends in .gz or .bz2 is unpacked.

    All columns that are not named here are features, and must be numeric.

    Args:
      owner: Column of the owners, each of whom is a client.
      split: Column that says which rows are for training and which for testing; by
        default, a share of the rows is held out.
      exclude: Columns to ignore.
      missing: Words that stand for a missing label, owner or part, in any case, as
        empty cells do. These are errors. Leave out the ones that are names, such as
        NA for Namibia.
      test_share: Share of the rows that is held out.
      separator: Character between columns.
      decimal: Decimal mark of the numbers.
      encoding: Such as "utf-16" of Excel, or "cp1252".
      header: Number of the line that has the names of the columns.

    Example:
      >>> loans = from_csv("loans.csv", label="risk", owner="bank", separator=";")
    """
    check_count("header", header)
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    roles = {"label": label, "owner": owner, "split": split}
    wanted = {role: name.strip() for role, name in roles.items() if name is not None}
    left_out = [name.strip() for name in exclude]
    table = with_names(Table(path, separator, decimal, encoding, header - 1))
    features = features_of(path, table.names, wanted, left_out, HINT)
    others = [*dict.fromkeys(wanted.values())]
    x, texts = read_table(table, features, others, missing)
    of = {role: texts[name] for role, name in wanted.items()}
    y, owners = of["label"], of.get("owner")
    first, rest = _Rows(x, y, owners), None
    if "split" in of:
        train = _is_train(table, wanted["split"], of["split"])
        part = lambda p: _Rows(x[p], y[p], None if owners is None else owners[p])
        first, rest = part(train), part(~train)
    names = [f"column {name!r}" for name in features]
    with named(path):
        made = _dataset(first, rest, test_share, names=names)
    return made._replace(name=name_of(path))


def from_folder(
    path: Place,
    *,
    size: Size | None = None,
    owner: str | Callable[[Path], str] | None = None,
    test_share: float = 0.2,
) -> Dataset:
    """Reads images from folders named after their classes.

    The folder has CLASS/IMAGE, or train/CLASS/IMAGE and test/CLASS/IMAGE, also with
    names such as Training and val. Images are converted to three colors, or to one if
    all of them are gray, and are turned upright as their EXIF data say. Those that
    would lose values, such as transparent ones, are refused. Hidden files are not read.

    Args:
      size: Height and width to which images are resized; by default, all must have the
        same.
      owner: Function from an image's path, relative to the folder of its class, to the
        name of its owner, such as `lambda image: image.stem.split("_")[0]`; or a
        regular expression, whose first group or whole match is the name.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}")
    places = _parts(root)
    images = [(place, image) for place in places for image in _images(place)]
    labels = [image.relative_to(place).parts[0] for place, image in images]
    classes = sorted({*labels})
    if len(classes) < 2:
        raise ValueError(f"{root}: {_without_classes(root, classes)}")
    every = [image for _, image in images]
    _warn_of_others(root, every)
    x, y = decoded(every, every.__getitem__, size), np.array(labels)
    count = sum(place == places[0] for place, _ in images)  # the others are for testing
    owners = None
    if owner is not None:
        owner = _by_pattern(owner) if isinstance(owner, str) else owner
        relative = [image.relative_to(place) for place, image in images[:count]]
        owners = [owner(Path(*each.parts[1:])) for each in relative]
    with named(root):
        made = from_arrays(
            x[:count],
            y[:count],
            owners=owners,
            test=(x[count:], y[count:]) if len(places) > 1 else None,
            test_share=test_share,
            classes=classes,
        )
    return made._replace(name=name_of(root))


LAYOUT = (
    "it must have CLASS/IMAGE, or train/CLASS/IMAGE and test/CLASS/IMAGE, with images "
    f"in {', '.join(FORMATS)}"
)
WITH_PARTS = {"", "set", "data", "images", "imgs", "seg", "split"}  # as in train_set
NO_DATA = {"", ".csv", ".html", ".json", ".md", ".pdf", ".txt", ".xml", ".yaml", ".yml"}


def _part(name: str) -> str:
    """The word by which the name of a folder says train or test; empty if it does not.

    Example:
      >>> [_part(name) for name in ("Train_Set", "val2017", "train_station")]
      ['train', 'val', '']
    """
    words = {*re.split("[^a-z]+", name.lower())} - WITH_PARTS
    return words.pop() if len(words) == 1 and words <= {*OF_TRAIN, *OF_TEST} else ""


def _parts(root: Path) -> list[Path]:
    """The folders with the classes: of training and of test images, or one for both.

    Raises `ValueError` if the names of folders do not say which of them these are.
    """
    below: dict[str, set[str]] = {}  # the folders, with the names in them
    for image in _images(root):
        folder, name, *_ = image.relative_to(root).parts
        below.setdefault(folder, set()).add(
            "" if (root / folder / name) == image else name
        )
    words = {folder: _part(folder) for folder in sorted(below)}
    train, test = (
        sorted(
            (f for f in below if words[f] in known), key=lambda f: known.index(words[f])
        )
        for known in (OF_TRAIN, OF_TEST)
    )
    test = [folder for folder in test if "" not in below[folder]] or test
    if train and (test or len(below) == 1):
        for folder in (*train[:1], *test[:1]):
            if "" in below[folder]:
                raise ValueError(f"{root / folder} has images in no class; {LAYOUT}")
        return [root / folder for folder in (*train[:1], *test[:1])]
    for folder, names in below.items():
        inner = {_part(name) for name in names}
        divided = inner & {*OF_TRAIN} and inner & {*OF_TEST}
        if divided or (words[folder] and "" not in names):
            inside = ", ".join(sorted(names)[:5])
            raise ValueError(
                f"{root / folder} has the folders {inside}, so it is no class; {LAYOUT}"
            )
    return [root]


def _images(folder: Path) -> list[Path]:
    """The images in its folders, in the order of their names."""
    images = (i for i in visible(folder, "**/*") if i.suffix.lower() in FORMATS)
    return [image for image in images if image.parent != folder and image.is_file()]


def _without_classes(root: Path, classes: Sequence[str]) -> str:
    """Why a folder with fewer than two classes can't be read."""
    inner = {image.relative_to(root).parts[1] for image in _images(root)}
    if len(classes) == 1 and all((root / classes[0] / name).is_dir() for name in inner):
        return (
            f"there is one folder, {classes[0]}, with the folders "
            f"{', '.join(sorted(inner)[:5])}; if these are the classes, give "
            f"{root / classes[0]}"
        )
    return (
        "expected two or more folders of images, each a class, found "
        f"{classes[0] if classes else 'none'}; {LAYOUT}"
    )


def _warn_of_others(root: Path, images: Sequence[Path]) -> None:
    known = {*images}
    every = [f for f in visible(root, "**/*") if f.is_file() and f not in known]
    with_images = {folder for image in images for folder in image.parents}
    is_data = lambda file: file.suffix.lower() not in NO_DATA
    others = [f for f in every if is_data(f) or f.parent not in with_images]
    if others:
        warnings.warn(
            f"{root}: {len(others)} files are not read, such as "
            f"{others[0].relative_to(root)}; {LAYOUT}",
            stacklevel=3,
        )


def _by_pattern(pattern: str) -> Callable[[Path], str]:
    """The function of a regular expression; a path without a match is an error.

    Example:
      >>> _by_pattern(r"(.*)_")(Path("clinic3_17.png"))
      'clinic3'
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"owner {pattern!r} is not a regular expression: {error}"
        ) from error

    def owner(image: Path) -> str:
        match = compiled.search(image.as_posix())
        name = match and match[min(1, compiled.groups)]
        if not name:
            raise ValueError(
                f"{image}: owner {pattern!r} finds nothing in this path; change the "
                "regular expression, or remove the image"
            )
        return name

    return owner


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
    if len(values) < 2 or len(classes) < 2:
        raise ValueError(
            f"all labels are {str(values[0])!r}; classification needs two or more "
            "classes"
        )
    return tuple(map(str, classes))


def _numbered(name: str, labels: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """Labels as numbers of classes; integers are numbers if they are no names."""
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
