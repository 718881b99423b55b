"""Tables in CSV files, parsed by pyarrow.

Only where it fails, Python's own reader goes through the file again and finds the line
and the column at fault.
"""

import codecs
import collections
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_muon.data.cleaning import clean, cleaned
from fedjax_muon.files import reading

LARGEST = float(np.finfo(np.float32).max)
BLOCK, CELL = 2**16, 2**9  # bytes that are parsed at a time; for every column at least
HINT = (
    "; give separator, encoding, or header, the number of the line with the names; add "
    "such a line if there is none, and save other formats, as of Excel, as CSV"
)


class Table(NamedTuple):
    """A file, and the names of its columns."""

    path: Path
    separator: str
    decimal: str
    encoding: str
    above: int  # lines above the rows, or the names if these are not read yet
    names: Sequence[str] = ()

    def reading(self) -> AbstractContextManager[None]:
        wanted = f"a table in {self.encoding} with {self.separator!r} between columns"
        return reading(self.path, wanted, HINT.removeprefix("; "), errors=(csv.Error,))

    def content(self) -> Any:
        """The file as UTF-8, unpacked as its name says.

        It is an object of pyarrow, whose threads read from it: one that still holds an
        object of Python when the program ends would abort it.
        """
        import pyarrow  # not above, since few datasets need it

        file = pyarrow.input_stream(str(self.path))
        if codecs.lookup(self.encoding).name == "utf-8":
            return file
        with file:
            return pyarrow.BufferReader(file.read().decode(self.encoding).encode())

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yields the last lines of rows, and their cells."""
        with (
            self.reading(),
            self.content() as file,
            io.TextIOWrapper(file, "utf-8-sig", newline="") as text,
        ):
            for _ in range(self.above):
                text.readline()
            rows = csv.reader(text, delimiter=self.separator, strict=True)
            for row in filter(None, rows):
                yield self.above + rows.line_num, row

    def place(self, number: int) -> str:
        """Where a row is, in errors."""
        line = next(line for i, (line, _) in enumerate(self.rows()) if i == number)
        return f"{self.path}, line {line}"


class Entries(NamedTuple):
    """A column of texts: the different ones, and the number that every row has."""

    different: list[str]
    rows: np.ndarray


def with_names(table: Table) -> Table:
    """Reads the names of the columns, in the first line that is not above them."""
    line, row = next(table.rows(), (table.above + 1, []))
    names = [name.strip() for name in row]
    twice = sorted({repr(name) for name in names if name and names.count(name) > 1})
    if twice:
        raise ValueError(
            f"{table.path}, line {line}: expected different names of columns, found "
            f"{', '.join(twice)} twice; rename them{HINT}"
        )
    return table._replace(above=line, names=names)


def read_table(
    table: Table, features: Sequence[str], others: Sequence[str], missing: Sequence[str]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Numbers [n, features] of a table, and cleaned texts of other columns."""
    _check_head(table, features)
    x, columns = _read(table, features, others)
    return x, _cleaned(
        table, features, dict(zip(others, columns, strict=True)), missing
    )


def read_texts(
    table: Table, features: Sequence[str], others: Sequence[str], missing: Sequence[str]
) -> tuple[dict[str, Entries], dict[str, np.ndarray]]:
    """The features of a table as texts, and cleaned texts of other columns."""
    _check_head(table, features)
    _, columns = _read(table, [], [*features, *others])
    named = dict(zip([*features, *others], columns, strict=True))
    rest = {name: named.pop(name) for name in others}
    texts = {
        name: Entries(column.dictionary.to_pylist(), np.from_dlpack(column.indices))
        for name, column in named.items()
    }
    return texts, _cleaned(table, features, rest, missing)


def _check_head(table: Table, features: Sequence[str]) -> None:
    """Raises `ValueError` for features without names, and tables without rows."""
    head = f"{table.path}, line {table.above}"
    for name in features:
        if not name or name.startswith("Unnamed: "):  # the second by pandas
            number = 1 + table.names.index(name)
            raise ValueError(
                f"{head}: column {number} has no name; name it, or exclude {name!r}"
            )
    if next(table.rows(), None) is None:
        raise ValueError(f"{head}: expected rows below the names, found none")


def _read(
    table: Table, features: Sequence[str], others: Sequence[str]
) -> tuple[np.ndarray, list[Any]]:
    """Columns of finite numbers as an array, and columns of texts."""
    reason = "a number that is not finite"
    try:
        x, columns = _parsed(table, features, others)
        if not x.size or (x.min() >= -LARGEST and x.max() <= LARGEST):
            return x, columns
    except (ValueError, OSError) as error:  # those of pyarrow are
        reason = str(error)
    _complain(table, features)
    with table.reading():  # what only pyarrow complains about
        raise ValueError(reason)


def _cleaned(
    table: Table,
    features: Sequence[str],
    columns: Mapping[str, Any],
    missing: Sequence[str],
) -> dict[str, np.ndarray]:
    """The texts of labels, owners and parts."""
    texts = {
        name: cleaned(
            column.dictionary.to_pylist(),
            np.from_dlpack(column.indices),  # pyarrow's own way imports pandas
            f"column {name!r}",
            missing,
            table.place,
        )
        for name, column in columns.items()
    }
    # numbers may be names, as years are; a row has a label that others have, too
    is_row = any(clean(name) in {*map(str, texts[name])} for name in columns)
    if is_row and all(map(is_number, features)):
        raise ValueError(
            f"{table.path}, line {table.above}: expected names of columns, found the "
            f"numbers {', '.join(features[:4])}{HINT}"
        )
    return texts


def _parsed(
    table: Table, numbers: Sequence[str], texts: Sequence[str]
) -> tuple[np.ndarray, list[Any]]:
    """Columns of numbers as an array, and columns of texts."""
    import pyarrow
    from pyarrow import csv as arrow

    feeds, returns = 0, 0
    with table.content() as file:
        for part in iter(lambda: file.read(BLOCK), b""):
            feeds, returns = feeds + part.count(b"\n"), returns + part.count(b"\r")
    kinds: dict[str, Any] = dict.fromkeys(numbers, pyarrow.float64())
    kinds |= dict.fromkeys(texts, pyarrow.string())
    x, n = np.empty((feeds + returns + 1, len(numbers))), 0  # memory comes with rows
    columns: list[list[Any]] = [[] for _ in texts]
    with table.content() as file:
        for batch in arrow.open_csv(
            file,
            arrow.ReadOptions(
                column_names=table.names,
                skip_rows=table.above,
                block_size=max(BLOCK, CELL * len(table.names)),
                use_threads=False,  # as fast, and with less memory
            ),
            arrow.ParseOptions(delimiter=table.separator, newlines_in_values=True),
            arrow.ConvertOptions(
                column_types=kinds,
                include_columns=list(kinds),
                null_values=[],
                decimal_point=table.decimal,
            ),
            memory_pool=pyarrow.system_memory_pool(),  # which gives memory back
        ):
            rows = slice(n, n := n + len(batch))
            for i in range(len(numbers)):
                x[rows, i] = np.from_dlpack(batch.column(i))
            for i, column in enumerate(columns, len(numbers)):
                column.append(batch.column(i))
    if n < feeds - table.above:  # an unclosed quote raises, and blank lines do not
        collections.deque(table.rows(), maxlen=0)
    join = lambda parts: pyarrow.chunked_array(parts, pyarrow.string())
    return x[:n], [
        join(parts).dictionary_encode().combine_chunks() for parts in columns
    ]


def _complain(table: Table, numbers: Sequence[str]) -> None:
    """Raises `ValueError` for the first row that can't be read."""
    for line, row in table.rows():
        place = f"{table.path}, line {line}"
        if len(row) != len(table.names):
            raise ValueError(
                f"{place}: expected {len(table.names)} columns as in line "
                f"{table.above}, found {len(row)}"
            )
        cells = dict(zip(table.names, row, strict=True))
        bad = [each for each in numbers if not is_number(cells[each], table.decimal)]
        if bad:
            more = f" (nor in {', '.join(map(repr, bad[1:9]))})" if bad[1:] else ""
            raise ValueError(
                f"{place}: {cells[bad[0]][:60]!r} in column {bad[0]!r} is not a finite "
                f"number{more}; correct it, exclude the column, encode texts "
                "(categories='one_hot'), fill in blanks (missing='mean'), or give "
                f"another decimal than {table.decimal!r}"
            )


def is_number(cell: str, decimal: str = ".") -> bool:
    """Whether pyarrow takes a cell for a number that is finite in float32."""
    plain = cell if decimal == "." else cell.replace(".", "x").replace(decimal, ".")
    try:
        return abs(float(plain)) <= LARGEST and "_" not in plain
    except ValueError:
        return False
