"""Datasets that Hugging Face's library `datasets` saved in a directory."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_muon.data.csv_files import LARGEST
from fedjax_muon.data.dataset import TEST, TRAIN, Dataset, stratified
from fedjax_muon.data.images import Size, decoded
from fedjax_muon.data.text import Sentences, tokenized
from fedjax_muon.data.user_files import (
    OF_TEST,
    OF_TRAIN,
    features_of,
    from_arrays,
    name_of,
)
from fedjax_muon.files import named, reading
from fedjax_muon.versions import optional

UNLABELED = "unsupervised"  # split of datasets such as IMDb
MARKS = ("dataset_dict.json", "state.json")  # of a DatasetDict, and of a Dataset


def is_saved(path: Path) -> bool:
    """Whether a directory has the files that `save_to_disk` writes."""
    return any((path / name).is_file() for name in MARKS)


def from_hf(
    path: str | os.PathLike[str],
    *,
    label: str = "label",
    owner: str | None = None,
    exclude: Sequence[str] = (),
    size: Size | None = None,
    test_share: float = 0.2,
) -> Dataset:
    """Reads a dataset that `datasets.Dataset.save_to_disk` wrote.

    All columns that are not named here are features: numbers and lists of numbers, or
    one column of images, or one column of texts, which become token ids of words. From
    a `DatasetDict`, the splits "train" and "test" are read; without a "test" it is
    "validation". A warning names the others. Requires the extra `hf`.

    Args:
      label: Column of the labels: integers, strings, or a `ClassLabel`, whose names
        are the classes.
      size: Height and width to which images are resized; by default, all must have the
        same.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"there is no directory {root}")
    library = optional("datasets", "what save_to_disk of Hugging Face wrote")
    with reading(root, "what save_to_disk of datasets wrote", "save it again"):
        saved = library.load_from_disk(str(root))
    splits = dict(saved) if isinstance(saved, dict) else {TRAIN: saved}
    parts = [
        next((name for word in words for name in splits if name.lower() == word), "")
        for words in (OF_TRAIN, OF_TEST)
    ]
    if not parts[0]:
        raise ValueError(
            f"{root}: expected a split {TRAIN}, and {TEST} if there is one, found "
            f"{', '.join(splits) or 'none'}; rename one"
        )
    if others := splits.keys() - {*parts, UNLABELED}:
        known = f"{', '.join(OF_TRAIN)}, and of {', '.join(OF_TEST)}"
        not_read = f"{root}: the splits {', '.join(sorted(others))} are not read"
        warnings.warn(f"{not_read}, but the first of {known}", stacklevel=2)
    parts = [name for name in parts if name]
    rows = [
        _rows(_Split(root, name, splits[name], library), label, owner, exclude, size)
        for name in parts
    ]
    named_in = [getattr(splits[name].features[label], "names", None) for name in parts]
    classes = named_in[0]
    if classes != named_in[-1]:
        raise ValueError(
            f"{root}: {parts[0]} has the classes {classes}, but {parts[-1]} has "
            f"{named_in[-1]}; cast column {label!r} to the same"
        )
    with named(root):
        is_text, words = isinstance(rows[0].inputs, list), tuple[str, ...]()
        if is_text:
            rows, words = _tokenized(rows, test_share)
        made = from_arrays(
            rows[0].inputs,
            rows[0].labels,
            owners=rows[0].owners,
            test=None if len(rows) == 1 else rows[1][:2],
            test_share=test_share,
            classes=classes,
            text=is_text,
        )
        made = made._replace(held_out=len(parts) == 1, name=name_of(root))
        return made._replace(words=words)


class _Split(NamedTuple):
    root: Path
    name: str
    table: Any  # datasets.Dataset
    library: Any  # the module datasets

    def row(self, number: int) -> str:
        """What a row is called in errors."""
        return f"{self.root}, row {number} of {self.name}"

    def entries(self, name: str, form: str | None = None) -> Any:
        """The entries of a column, as Python's objects or as an array."""
        return self.table.select_columns([name]).with_format(form)[:][name]


class _Rows(NamedTuple):
    inputs: np.ndarray | list[str]
    labels: np.ndarray
    owners: np.ndarray | None


def _rows(
    split: _Split,
    label: str,
    owner: str | None,
    exclude: Sequence[str],
    size: Size | None,
) -> _Rows:
    place, roles = f"{split.root}, {split.name}", {"label": label, "owner": owner}
    features = features_of(place, split.table.column_names, roles, exclude)
    if not len(split.table):
        raise ValueError(f"{place}: expected rows, found none")
    labels = _named_entries(split, label)
    if labels.dtype.kind == "i" and labels.min() < 0:
        raise ValueError(
            f"{split.row(int(np.argmin(labels)))}: the label {labels.min()} stands for "
            "a hidden label; leave out such rows, or the split"
        )
    owners = None if owner is None else _named_entries(split, owner)
    return _Rows(_inputs(split, features, size), labels, owners)


def _named_entries(split: _Split, name: str) -> np.ndarray:
    """Labels or owners: integers or strings, of which none is missing."""
    entries = split.entries(name)
    missing = [i for i, value in enumerate(entries) if value is None or value == ""]
    if missing:
        raise ValueError(
            f"{split.row(missing[0])}: column {name!r} is empty; fill it in, or leave "
            "the row out"
        )
    values = np.array(entries) if np.ndim(entries[0]) == 0 else np.array(0.0)
    if values.dtype.kind not in "biuU":
        raise ValueError(
            f"{split.root}: column {name!r} has the type "
            f"{split.table.features[name]}; labels and owners are integers or strings"
        )
    return values.astype(str) if values.dtype.kind == "b" else values


def _inputs(
    split: _Split, names: Sequence[str], size: Size | None
) -> np.ndarray | list[str]:
    """Images, texts, or the numbers of all columns."""
    types, features = split.library.features, split.table.features
    images = [n for n in names if isinstance(features[n], types.Image)]
    texts = [n for n in names if getattr(features[n], "dtype", "").endswith("string")]
    alone = [*images, *texts]
    if alone and len(names) > 1:
        others = ", ".join(name for name in names if name != alone[0])
        raise ValueError(
            f"{split.root}: a column of images or texts, such as {alone[0]!r}, cannot "
            f"be combined with other features; exclude it, or exclude {others}"
        )
    if images:
        return _images(split, names[0], size)
    if texts:
        entries = split.entries(names[0])
        if None in entries:
            raise ValueError(
                f"{split.row(entries.index(None))}: column {names[0]!r} has no text; "
                "fill it in, or leave the row out"
            )
        return entries
    columns = [_numbers(split, name) for name in names]
    if len(columns) == 1 and columns[0].ndim > 1:
        return columns[0]
    return np.concatenate([c.reshape(len(c), -1) for c in columns], axis=1)


def _numbers(split: _Split, name: str) -> np.ndarray:
    """Numbers [n, ...] of one shape."""
    feature = split.table.features[name]
    is_class = isinstance(feature, split.library.ClassLabel)
    with np.errstate(over="ignore"):  # datasets converts to float32
        values = np.asarray(split.entries(name, "numpy"))
    if values.dtype == object and isinstance(values[0], np.ndarray):
        shapes = [np.shape(value) for value in values]
        i = next(i for i, shape in enumerate(shapes) if shape != shapes[0])
        raise ValueError(
            f"{split.row(i)}: column {name!r} has the shape {list(shapes[i])}, but "
            f"{list(shapes[0])} in row 0; make all lists equally long, or exclude it"
        )
    if is_class or values.dtype.kind not in "biuf":
        raise ValueError(
            f"{split.root}: column {name!r} has the type {feature}; features are "
            "numbers, lists of numbers, images or texts: exclude it"
        )
    rows = values.reshape(len(values), -1)
    wrong = np.flatnonzero(~(abs(rows.astype(float)) <= LARGEST).all(axis=1))
    if len(wrong):
        raise ValueError(
            f"{split.row(wrong[0])}: column {name!r} is empty or not a finite number; "
            "correct it, or exclude the column"
        )
    return values


def _images(split: _Split, name: str, size: Size | None) -> np.ndarray:
    # Images are not decoded by datasets, which would open files of any format.
    image = split.library.Image(decode=False)
    plain = split._replace(table=split.table.cast_column(name, image))
    entries = plain.entries(name)

    def read(i: int) -> bytes:
        entry = entries[i] or {"bytes": None, "path": None}
        if not entry["bytes"] and not entry["path"]:
            raise ValueError(f"{split.row(i)}: column {name!r} has no image")
        return entry["bytes"] or Path(entry["path"]).read_bytes()

    return decoded([split.row(i) for i in range(len(entries))], read, size)


def _tokenized(
    rows: list[_Rows], test_share: float
) -> tuple[list[_Rows], tuple[str, ...]]:
    """The same with ids of the words of training texts, and these words."""
    if len(rows) == 1:
        whole = rows[0]
        numbers = np.unique(whole.labels, return_inverse=True)[1]
        parts = stratified(numbers, test_share, TEST)
        rows = [
            _Rows(
                [whole.inputs[i] for i in part],
                whole.labels[part],
                None if whole.owners is None else whole.owners[part],
            )
            for part in parts
        ]
    train, test = (Sentences(list(one.inputs), one.labels.tolist()) for one in rows)
    ids = tokenized(train, test, classes=())
    inputs = zip(rows, (ids.x_train, ids.x_test), strict=True)
    return [one._replace(inputs=x) for one, x in inputs], ids.words
