"""Tables of numbers and texts, as inputs of a model.

A column of texts becomes one channel for each category, which is 1 in rows that have
it. In a column of numbers, the mean fills blanks, and a second channel is 1 there. Both
follow from sums over training examples, which clients can add up.
"""

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedjax_muon.data.cleaning import MISSING, clean, warn_of_likeness
from fedjax_muon.data.csv_files import (
    Entries,
    Table,
    is_number,
    read_texts,
    with_names,
)
from fedjax_muon.data.dataset import Standardization
from fedjax_muon.files import read_text, reading, write

FEW, EACH = 20, 5  # categories that any column may have; and examples each of more
BLANK = ""  # the category of blanks

Categories = Literal["one_hot"]
Missing = Literal["mean"]


class Column(NamedTuple):
    """Sums over the training examples in a column."""

    name: str
    categories: tuple[str, ...] | None = None  # in order; None in a column of numbers
    counts: tuple[int, ...] = ()  # number of examples of each category
    numbers: int = 0  # number of examples with a number
    blanks: int = 0  # number of examples without
    mean: float = 0.0  # of the numbers
    squares: float = 0.0  # sum of (number - mean)^2

    @property
    def channels(self) -> list[str]:
        """What its channels are called in errors."""
        name = f"column {self.name!r}"
        if self.categories is None:
            return [name, f"{name}, blank,"][: 1 + (self.blanks > 0)]
        return [f"{name}, {each or 'blank'!r}," for each in self.categories]

    def encode(self, x: np.ndarray, words: Sequence[str] | None) -> np.ndarray:
        """The channels [n, c] of cells [n]; unknown categories and blanks are 0.

        Args:
          x: Numbers, or the places of cells in words; NaN is a blank.
        """
        gaps = np.isnan(x)
        if self.categories is None:
            if gaps.any() and not self.blanks:
                self._warn("a blank")
            filled = np.where(gaps, self.mean, x)
            return np.stack([filled, gaps][: 1 + (self.blanks > 0)], axis=1)
        assert words is not None
        cells = np.where(gaps, len(words), x).astype(int)
        places = {word: i for i, word in enumerate(self.categories)}
        place = np.array([places.get(word, -1) for word in (*words, BLANK)])[cells]
        for i in np.unique(cells[place < 0]):
            self._warn(repr([*words, BLANK][i]) if i < len(words) else "a blank")
        return (place[:, None] == np.arange(len(places))).astype(float)

    def _warn(self, what: str) -> None:
        remedy = "correct it, or train with examples of it"
        warnings.warn(
            f"column {self.name!r} has {what}, which no training example has; the "
            f"model takes it for {'the mean' if self.categories is None else 0};"
            f" {remedy}",
            stacklevel=2,
        )

    def fitted(self, x: np.ndarray, words: Sequence[str] | None) -> "Column":
        """The sums over the cells of training examples, as in `encode`."""
        name, gaps = self.name, np.isnan(x)
        blanks = int(gaps.sum())
        if words is None:
            numbers = x[~gaps]
            mean = float(numbers.mean()) if len(numbers) else 0.0
            squares = float(((numbers - mean) ** 2).sum())
            return Column(name, None, (), len(numbers), blanks, mean, squares)
        counts = np.bincount(x[~gaps].astype(int), minlength=len(words)).tolist()
        found = [(w, n) for w, n in zip(words, counts, strict=True) if n]
        if len(found) > FEW and len(x) < EACH * len(found):
            raise ValueError(
                f"column {name!r} has {len(found)} different texts in {len(x)} "
                f"training examples, such as {found[0][0]!r}, as names, dates and "
                "notes have; exclude it, or merge categories"
            )
        found += [(BLANK, blanks)] if blanks else []
        categories, numbers_of = zip(*found, strict=True)
        return Column(name, categories, numbers_of)

    def scales(self) -> list[tuple[float, float]]:
        """The mean and the standard deviation of every channel."""
        if self.categories is not None:
            return [_of_share(n / sum(self.counts)) for n in self.counts]
        total = self.numbers + self.blanks
        own = self.mean, float(np.sqrt(self.squares / total))
        return [own, _of_share(self.blanks / total)][: 1 + (self.blanks > 0)]

    def joined(self, other: "Column") -> "Column":
        """The sums over the examples of both (Chan, Golub, LeVeque 1983)."""
        if self.categories is None and other.categories is None:
            return self._joined_numbers(other)
        total = dict[str, int]()
        for each in (self, other):
            if each.numbers:
                raise ValueError(
                    f"column {self.name!r} has numbers in one table, but texts in "
                    "another; write them alike, or exclude it"
                )
            blanks = {} if each.categories is not None else {BLANK: each.blanks}
            counts = zip(each.categories or (), each.counts, strict=True)
            for word, count in (*counts, *blanks.items()):
                total[word] = total.get(word, 0) + count
        words = sorted(total, key=lambda word: (word == BLANK, word))
        return Column(self.name, tuple(words), tuple(total[w] for w in words))

    def _joined_numbers(self, other: "Column") -> "Column":
        numbers = self.numbers + other.numbers
        apart, share = other.mean - self.mean, other.numbers / max(1, numbers)
        mean = self.mean + share * apart
        squares = self.squares + other.squares + share * self.numbers * apart**2
        blanks = self.blanks + other.blanks
        return Column(self.name, None, (), numbers, blanks, mean, squares)


def _of_share(share: float) -> tuple[float, float]:
    return share, float(np.sqrt(share * (1 - share)))


class Columns(NamedTuple):
    """How the rows of a table become inputs, and how the table is written."""

    columns: tuple[Column, ...]
    classes: tuple[str, ...] = ()
    label: str = ""  # the column of the classes
    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    header: int = 1
    na_values: tuple[str, ...] = MISSING

    @property
    def channels(self) -> list[str]:
        """What the channels of inputs are called in errors."""
        return [channel for each in self.columns for channel in each.channels]

    def check(self) -> None:
        """Raises `ValueError` for a column that is blank in all training examples."""
        for each in self.columns:
            if each.categories in (None, (BLANK,)) and not each.numbers:
                raise ValueError(
                    f"column {each.name!r} is blank in all rows; exclude it"
                )

    @property
    def standardization(self) -> Standardization:
        """The standardization of the training examples, which follows from the sums."""
        pairs = [pair for each in self.columns for pair in each.scales()]
        mean, std = np.array(pairs).T
        for name, one in zip(self.channels, std, strict=True):
            if one == 0:
                raise ValueError(
                    f"{name} is constant in the training examples; exclude it"
                )
        return Standardization(mean, std)

    def encode(self, raw: "Raw") -> np.ndarray:
        """The inputs [n, channels] of rows, which are not standardized yet."""
        if not (
            any(raw.words)
            or any(c.blanks for c in self.columns)
            or np.isnan(raw.x).any()
        ):
            return raw.x  # without a copy
        several = zip(self.columns, raw.x.T, raw.words, strict=True)
        parts = [column.encode(x, words) for column, x, words in several]
        return np.concatenate(parts, axis=1)

    def fitted(self, raw: "Raw", kept: np.ndarray | None = None) -> "Columns":
        """The sums over the rows of these numbers, or all, which are for training."""
        rows = slice(None) if kept is None else kept
        several = zip(self.columns, raw.x.T, raw.words, strict=True)
        made = tuple(column.fitted(x[rows], words) for column, x, words in several)
        return self._replace(columns=made)

    def published(self) -> "Columns":
        """What predictions need: without the numbers of examples."""
        return self._replace(
            columns=tuple(
                Column(c.name, c.categories, blanks=int(c.blanks > 0), mean=c.mean)
                for c in self.columns
            )
        )


class Raw(NamedTuple):
    """The cells of features."""

    x: np.ndarray  # [n, columns]: numbers, or places in words; NaN is a blank
    words: tuple[tuple[str, ...] | None, ...]  # None of columns of numbers


def cells_of(
    texts: Mapping[str, Entries],
    columns: Columns,
    place: Callable[[int], str],
    *,
    categories: Categories | None = None,
    missing: Missing | None = None,
    known: bool = False,
) -> Raw:
    """The cells of columns, of which those with texts have categories.

    Args:
      columns: Their names and, if `known`, whether they have numbers.
      place: Function from the number of a row to where it is, in errors.
    """
    absent = {word.casefold() for word in columns.na_values} | {BLANK}
    found, words = list[np.ndarray](), list[tuple[str, ...] | None]()
    for column in columns.columns:
        name, (different, rows) = column.name, texts[column.name]
        cells = [clean(text) for text in different]
        blank = np.array([cell.casefold() in absent for cell in cells], bool)
        number = np.array([is_number(c, columns.decimal) for c in cells], bool) & ~blank
        at = lambda wrong, rows=rows: int(np.argmax(wrong[rows]))
        if blank.any() and missing is None and not known:
            raise ValueError(
                f"{place(at(blank))}: column {name!r} is blank; fill it in, exclude "
                "the column, or give missing='mean'"
            )
        other = ~(number | blank)
        is_text = column.categories is not None if known else bool(other.any())
        if is_text:
            numbers, texts_ = int(number[rows].sum()), int(other[rows].sum())
            if not known and (categories is None or numbers > texts_):
                _refuse(place(at(other)), name, cells[rows[at(other)]], numbers, texts_)
            named = sorted({c for c, gap in zip(cells, blank, strict=True) if not gap})
            warn_of_likeness(f"column {name!r}", named)
            code: dict[str, float] = {word: i for i, word in enumerate(named)}
            values = [code.get(c, np.nan) for c in cells]
            words.append(tuple(named))
        else:
            if other.any():
                _refuse(place(at(other)), name, cells[rows[at(other)]], 1, 0)
            plain = [cell.replace(columns.decimal, ".") for cell in cells]
            pairs = zip(plain, number, strict=True)
            values = [float(cell) if one else np.nan for cell, one in pairs]
            words.append(None)
        found.append(np.array(values or [np.nan])[rows])
    return Raw(np.stack(found, axis=1), tuple(words))


def read_rows(
    path: str | os.PathLike[str], columns: Columns, *, labeled: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [n, channels] of a table, not standardized, by known columns; and if they
    are `labeled`, the numbers of their classes [n]."""
    place = Path(path).expanduser()
    if not place.is_file():
        raise FileNotFoundError(f"there is no file {place}")
    how = columns.separator, columns.decimal, columns.encoding, columns.header - 1
    table = with_names(Table(place, *how))
    wanted = [each.name for each in columns.columns]
    others = [columns.label] if labeled else []
    check_there(f"{place}", table.names, [*wanted, *others])
    entries, texts = read_texts(table, wanted, others, columns.na_values)
    x = columns.encode(cells_of(entries, columns, table.place, known=True))
    numbers = {name: i for i, name in enumerate(columns.classes)}
    labels = [str(text) for name in others for text in texts[name]]
    for row, label in enumerate(labels):
        if label not in numbers:
            raise ValueError(
                f"{table.place(row)}: the label {label!r} is not one of the classes "
                f"{', '.join(columns.classes)}"
            )
    return x, np.array([numbers[label] for label in labels], np.int32)


def check_there(what: str, names: Any, wanted: Sequence[str]) -> None:
    """Raises `ValueError` if a table lacks columns."""
    lacks = [name for name in wanted if name not in names]
    if lacks:
        raise ValueError(f"{what} lacks the columns {', '.join(lacks)}; add them")


def _refuse(place: str, name: str, cell: str, numbers: int, texts: int) -> None:
    """Raises `ValueError` for a text in a column that may not have it."""
    if numbers > texts:
        remedy = "most cells are numbers: correct it, or add it to na_values"
    else:
        remedy = "exclude the column, or give categories='one_hot'"
    raise ValueError(
        f"{place}: {cell[:60]!r} in column {name!r} is not a number; {remedy}"
    )


def join_columns(parts: Sequence[Columns], names: Sequence[object] = ()) -> Columns:
    """Adds up what the training examples of several tables have in their columns.

    Args:
      parts: What `sum_columns` returned, such as one for every site.
      names: What the tables are called in errors; by default, their numbers.
    """
    first, total = parts[0], list(parts[0].columns)
    called = [*names] or [f"table {i}" for i in range(len(parts))]
    for name, part in zip(called[1:], parts[1:], strict=True):
        others = {each.name: each for each in part.columns}
        check_names(f"{name}", [*others], [each.name for each in total], called[0])
        total = [each.joined(others[each.name]) for each in total]
    classes = sorted({each for part in parts for each in part.classes})
    return first._replace(columns=tuple(total), classes=tuple(classes))


def check_names(
    place: str, found: Sequence[str], wanted: Sequence[str], other: object
) -> None:
    """Raises `ValueError` unless a table has the features of another one."""
    lacks, more = {*wanted} - {*found}, {*found} - {*wanted}
    if lacks or more:
        words = [f"lacks {', '.join(sorted(lacks))}"] if lacks else []
        words += [f"has {', '.join(sorted(more))} too"] if more else []
        raise ValueError(
            f"{place} {' and '.join(words)}, compared with {other}; rename or exclude "
            "columns until all tables have the same"
        )


def save_columns(path: str | os.PathLike[str], columns: Columns) -> Path:
    """Writes the sums of columns to a JSON file."""
    place = Path(path).expanduser()
    write(place, json.dumps(as_json(columns), indent=1) + "\n")
    return place


def load_columns(path: str | os.PathLike[str]) -> Columns:
    """Reads the sums of columns that `save_columns` wrote."""
    place = Path(path).expanduser()
    with reading(
        place, "sums that fedjax_muon.data.save_columns wrote", "write it again"
    ):
        return from_json(json.loads(read_text(place)))


def as_json(columns: Columns) -> dict[str, Any]:
    """Columns as values that JSON can represent."""
    each = [column._asdict() for column in columns.columns]
    return {**columns._asdict(), "columns": each}


def from_json(value: Mapping[str, Any]) -> Columns:
    """Columns of what `as_json` returned."""

    def fields(given: Mapping[str, Any]) -> Any:
        return {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}

    made = tuple(Column(**fields(column)) for column in value["columns"])
    return Columns(**{**fields(value), "columns": made})
