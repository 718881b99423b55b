"""Tables in CSV files: which columns they have, and what is in them.

pyarrow parses numbers by columns. Only where it fails, Python's own reader goes through
the file again and finds the cells at fault.
"""

import bz2
import codecs
import collections
import contextlib
import csv
import dataclasses
import gzip
import io
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from fedjax_muon.data.cleaning import cleaned
from fedjax_muon.files import reading

LARGEST = float(np.finfo(np.float32).max)
SEPARATORS = {
    ",": "commas",
    ";": "semicolons",
    "\t": "tabs",
    "|": "bars",
    " ": "blanks",
}
HEAD = 2**18  # bytes in which the names of columns lie
ABOVE = 20  # lines above them at most, such as a title
BLOCK = 2**16  # bytes that are parsed at a time, or some rows
SEPARATOR_LINE = re.compile(r'"?sep=(.)"?', re.IGNORECASE)  # of Excel
UNNAMED = re.compile(r"|Unnamed: \d+")  # the second by pandas
THOUSANDS = re.compile(r"[+-]?\d{1,3}([,.' ]\d{3})+([.,]\d+)?")
OPENED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open}
CODECS: dict[type, str] = {gzip.GzipFile: "gzip", bz2.BZ2File: "bz2"}  # of pyarrow
OTHERS = {b"PK": "a zip archive or an Excel file", b"PAR1": "a Parquet file"}
DECIMAL = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
NO_NAMES = "; if the first line has no names, add one that has"
ROWS = 16
MOST_WORDS, MOST_COLUMNS = 1000, 8  # that are counted, and named
BOOLEANS = {"true": 1.0, "false": 0.0}


class Layout(NamedTuple):
    """How a table is stored."""

    path: Path
    separator: str
    names: list[str]
    above: int  # lines above the rows
    encoding: str
    width: int  # characters of the longest of its first lines

    @property
    def words(self) -> str:
        """What the file is, in errors."""
        return f"a table with {SEPARATORS.get(self.separator, self.separator)}"

    def rows(self, used: Collection[int]) -> Iterator[tuple[int, list[str]]]:
        """Yields lines and cells, without rows that are empty in the used columns."""
        remedy = "save it as CSV in UTF-8"
        with (
            reading(self.path, self.words, remedy, errors=(csv.Error,)),
            opened(self.path) as file,
            io.TextIOWrapper(file, self.encoding, newline="") as text,
        ):
            for _ in range(self.above):
                text.readline()
            rows = csv.reader(text, delimiter=self.separator, strict=True)
            for row in rows:
                line, filled = self.above + rows.line_num, any(map(str.strip, row))
                if filled and len(row) != len(self.names):
                    raise ValueError(
                        f"{self.path}, line {line}: expected {len(self.names)} columns "
                        f"as in line {self.above}, found {len(row)}"
                    )
                if filled and any(row[i].strip() for i in used):
                    yield line, row


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked if it is packed."""
    with path.open("rb") as file:
        start = file.read(4)
    for magic, what in OTHERS.items():
        if start.startswith(magic):
            raise ValueError(
                f"{path}: expected a CSV file, found {what}; save it as CSV"
            )
    unpack = (each for magic, each in OPENED.items() if start.startswith(magic))
    with next(unpack, open)(path, "rb") as file:
        yield file


def layout_of(path: Path, wanted: Sequence[str]) -> Layout:
    """Finds the separator of a table and the line with the names of its columns.

    The line must have all wanted names; above it may be titles and comments. If none
    has them, it is the one with most names.
    """
    with reading(path, "a table", "save it as CSV in UTF-8"), opened(path) as file:
        content = file.read(HEAD)
        marks = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
        encoding = marks.get(content[:2], "utf-8-sig")
        text = codecs.getincrementaldecoder(encoding)().decode(content)
        if "\0" in text.partition("\n")[0]:
            raise ValueError("zero bytes, as UTF-16 has without its mark")
    first = text.partition("\n")[0].strip()
    named = SEPARATOR_LINE.fullmatch(first)
    width = max(map(len, text.splitlines()), default=0)
    layouts: list[Layout] = []
    for separator in [named[1]] if named else SEPARATORS:
        above: list[list[str]] = []
        with reading(path, "a table", "save it as CSV", errors=(csv.Error,)):
            rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
            for row in rows:
                names = [name.strip() for name in row]
                if len(above) > ABOVE:
                    break
                comment = names and names[0].startswith("#") and not layouts
                title = sum(map(bool, names)) < 2 or SEPARATOR_LINE.fullmatch(row[0])
                layout = Layout(path, separator, names, rows.line_num, encoding, width)
                if {*wanted} <= {*names} and len(names) > 1:
                    return layout
                if not (title or comment):
                    layouts.append(layout)
                    break
                above.append(row)
    if not layouts:
        raise ValueError(
            f"{path}: expected two or more names of columns in the first line, with "
            f"{', '.join(SEPARATORS.values())} between them, found "
            f"{repr(first[:60]) if first else 'nothing'}"
        )
    return max(layouts, key=lambda layout: len(layout.names))


class Table(NamedTuple):
    """What was read of a table."""

    features: list[str]
    x: np.ndarray  # float64 [n, features]
    texts: dict[str, np.ndarray]  # of other columns, integers or strings
    layout: Layout
    used: list[int]  # numbers of all these columns

    def line(self, row: int) -> int:
        """The line of the file in which a row ends."""
        return next(
            line for i, (line, _) in enumerate(self.layout.rows(self.used)) if i == row
        )


def check_names(layout: Layout) -> None:
    """Raises `ValueError` for names of columns that occur twice."""
    named = [name for name in layout.names if name]
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        raise ValueError(
            f"{layout.path}: expected different names of columns in line "
            f"{layout.above}, found {', '.join(map(repr, twice))} twice; rename them"
            f"{NO_NAMES}"
        )


def read_table(
    layout: Layout,
    features: Sequence[str],
    others: Sequence[str],
    missing: Sequence[str],
) -> Table:
    """Reads columns of numbers, and others whose texts are cleaned.

    Columns without a name are left out if they are empty or number the rows.
    """
    names, path = layout.names, layout.path
    numbers = [i for i, name in enumerate(names) if name in features]
    unnamed = [i for i in numbers if UNNAMED.fullmatch(names[i])]
    numbers = [i for i in numbers if i not in unnamed]
    roles = [names.index(name) for name in others]
    used = [*numbers, *roles]
    x, columns = _parsed(layout, numbers, [*roles, *unnamed])
    for i in unnamed:
        _check_unnamed(layout, i, columns.pop(i))
    if not numbers:
        raise ValueError(f"{path}: no column is left for features")
    table = Table([names[i] for i in numbers], x, {}, layout, used)
    for i in roles:
        coded = columns[i].dictionary_encode()
        table.texts[names[i]] = cleaned(
            coded.dictionary.to_pylist(),
            coded.indices.to_numpy(),
            f"column {names[i]!r}",
            missing,
            lambda row: f"{path}, line {table.line(row)}",
        )
    _check_no_example(table)
    return table


def _check_no_example(table: Table) -> None:
    """Raises `ValueError` if the line with the names is an example.

    All features are numbers there, which do not rise, as years do, or another name is
    an entry of its own column; but numbers may count all columns.
    """
    names = table.layout.names
    numbers = [float(name) for name in names if NUMBER.fullmatch(name)]
    steps = np.diff(numbers)
    own = any(name in np.unique(v).astype(str) for name, v in table.texts.items())
    may_be = (steps == 1).all() if len(numbers) == len(names) else not own
    if all(map(NUMBER.fullmatch, table.features)) and not (may_be and all(steps > 0)):
        raise ValueError(
            f"{table.layout.path}, line {table.layout.above}: expected names of "
            f"columns, found the numbers {', '.join(table.features[:4])}{NO_NAMES}"
        )


def _check_unnamed(layout: Layout, column: int, texts: Any) -> None:
    """Raises `ValueError` unless a column without a name is no data."""
    import pyarrow

    if not any(text.strip() for text in texts.unique().to_pylist()):
        return
    with contextlib.suppress(pyarrow.ArrowInvalid):
        if column == 0 and len(texts.cast(pyarrow.int64()).unique()) == len(texts):
            warnings.warn(
                f"{layout.path}: the first column, without a name, numbers the rows, "
                "and is left out",
                stacklevel=5,
            )
            return
    name = layout.names[column]
    raise ValueError(
        f"{layout.path}: column {column + 1} has no name; name it in line "
        f"{layout.above}, or exclude {name!r}"
    )


def _parsed(
    layout: Layout, numbers: list[int], texts: list[int]
) -> tuple[np.ndarray, dict[int, Any]]:
    """Numbers [n, columns], and the texts of the other columns as arrays of pyarrow."""
    import pyarrow

    decimal, booleans, reason = ".", list[int](), ""
    while True:
        try:
            x, columns = _parse(layout, numbers, texts, decimal, booleans)
            if _is_finite(x):
                return x, columns
        except pyarrow.ArrowInvalid as error:
            reason = str(error)
        rest = {*numbers} - {*booleans}
        bad, rows = _bad_cells(layout, [*numbers, *texts], rest, decimal)
        words = {word for column in bad.values() for word in column.words}
        more = [
            i
            for i, column in bad.items()
            if column.words <= BOOLEANS.keys() and column.count == rows
        ]
        if (
            words
            and decimal == "."
            and layout.separator != ","
            and all(map(DECIMAL.fullmatch, words))
        ):
            decimal = ","  # then none is left
        elif more:
            booleans += more
        elif bad:
            raise ValueError(_complaint(layout, bad, rows))
        else:
            with reading(layout.path, layout.words, "save it as CSV in UTF-8"):
                raise ValueError(reason)


def _parse(
    layout: Layout,
    numbers: list[int],
    texts: list[int],
    decimal: str,
    booleans: list[int],
) -> tuple[np.ndarray, dict[int, Any]]:
    # Imported here, since few datasets need it.
    import pyarrow
    from pyarrow import csv as arrow

    lines, last = -layout.above, b""  # at most one row more
    with opened(layout.path) as file:
        for part in iter(lambda: file.read(BLOCK), b""):
            lines += part.count(b"\n") + part.count(b"\r")
            lines -= (last + part).count(b"\r\n")
            last = part[-1:]
    kinds: dict[str, Any] = {str(i): pyarrow.float64() for i in numbers}
    kinds |= {str(i): pyarrow.string() for i in (*texts, *booleans)}
    x, n = np.empty((max(lines, 0) + 1, len(numbers))), 0
    columns: dict[int, list[Any]] = {i: [] for i in texts}
    with _bytes_of(layout) as file:
        for batch in arrow.open_csv(
            file,
            arrow.ReadOptions(
                column_names=[*map(str, range(len(layout.names)))],
                skip_rows=layout.above,
                block_size=max(BLOCK, ROWS * layout.width),
                use_threads=False,  # as fast, and with less memory
            ),
            arrow.ParseOptions(
                delimiter=layout.separator,
                newlines_in_values=True,
                invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
            ),
            arrow.ConvertOptions(
                column_types=kinds,
                include_columns=list(kinds),
                null_values=[""],
                decimal_point=decimal,
            ),
            memory_pool=pyarrow.system_memory_pool(),  # which gives memory back
        ):
            rows = slice(n, n := n + len(batch))
            for j, i in enumerate(numbers):
                column = batch.column(str(i))
                if i in booleans:
                    values = [BOOLEANS[v.strip().lower()] for v in column.to_pylist()]
                    x[rows, j] = values
                else:
                    x[rows, j] = _numbers(column)
            for i in texts:
                columns[i].append(batch.column(str(i)))
    if n < lines:  # an unclosed quote is an error, and blank lines are none
        collections.deque(layout.rows(()), maxlen=0)
    joined = {i: pyarrow.chunked_array(c, pyarrow.string()) for i, c in columns.items()}
    x = x[:n]
    filled = _filled(x, joined.values())
    if not filled.all():
        x, joined = x[filled], {i: c.filter(filled) for i, c in joined.items()}
    if not len(x):
        raise ValueError(
            f"{layout.path}: expected rows below the names of columns, found none"
        )
    return x, {i: column.combine_chunks() for i, column in joined.items()}


def _bytes_of(layout: Layout) -> Any:
    """The file as UTF-8, in an object of pyarrow: its threads read from it, and one
    that still holds an object of Python when the program ends would abort it."""
    import pyarrow

    with opened(layout.path) as file:
        if layout.encoding.startswith("utf-8"):
            how = CODECS.get(type(file))
            return pyarrow.input_stream(str(layout.path), compression=how)
        content = file.read().decode(layout.encoding)
    return pyarrow.BufferReader(content.encode())


def _numbers(column: Any) -> np.ndarray:
    """A column of doubles; pyarrow's own conversion imports pandas where it is."""
    if column.null_count:
        return column.to_numpy(zero_copy_only=False)
    first, memory = column.offset, column.buffers()[1]
    return np.frombuffer(memory, np.float64, first + len(column))[first:]


def _filled(x: np.ndarray, columns: Iterable[Any]) -> np.ndarray:
    """Which rows have a value in some column."""
    filled = np.full(len(x), False)
    if x.size and not np.isnan(x[:, 0]).any():
        return ~filled
    for j in range(x.shape[1]):
        filled |= ~np.isnan(x[:, j])
    empty = np.flatnonzero(~filled)
    for column in columns:
        texts = column.take(empty).to_pylist()
        filled[empty] |= np.array([bool(str(text).strip()) for text in texts], bool)
    return filled


def _is_finite(x: np.ndarray) -> bool:
    return not x.size or bool(x.min() >= -LARGEST and x.max() <= LARGEST)


@dataclasses.dataclass
class Bad:
    """The cells of a column that are no numbers."""

    line: int  # of the first
    first: str
    words: set[str] = dataclasses.field(default_factory=set)  # some, in lower case
    count: int = 0


def _bad_cells(
    layout: Layout, used: Collection[int], numbers: Collection[int], decimal: str
) -> tuple[dict[int, Bad], int]:
    """The cells that are no numbers, by column, and the number of rows."""
    bad: dict[int, Bad] = {}
    count = 0
    for line, row in layout.rows(used):
        count += 1
        for i in numbers:
            cell = row[i]
            try:
                # what pyarrow takes
                number = (
                    cell if decimal == "." else cell.replace(".", "x").replace(",", ".")
                )
                if abs(float(number)) <= LARGEST and "_" not in cell:
                    continue
            except ValueError:
                pass
            column = bad.setdefault(i, Bad(line, cell))
            column.count += 1
            if len(column.words) < MOST_WORDS:
                column.words.add(cell.strip().lower())
    return bad, count


def _complaint(layout: Layout, bad: dict[int, Bad], rows: int) -> str:
    """What is wrong with cells, in a line."""
    cells = {layout.names[i]: column for i, column in bad.items()}
    if any(THOUSANDS.fullmatch(word) for each in bad.values() for word in each.words):
        remedy = "write numbers without separators of thousands"
    else:
        remedy = "correct them, exclude the columns"
        remedy += (
            ", or encode texts and fill in missing values with pandas or scikit-learn"
        )
    if [column.count for column in bad.values()] == [1]:
        ((name, column),) = cells.items()
        return (
            f"{layout.path}, line {column.line}: {column.first!r} in column {name!r} "
            "is not a finite number; correct it, or exclude the column"
        )
    listed = [
        f"{name!r} in {column.count} of {rows} rows ({_example(column)})"
        for name, column in cells.items()
    ]
    more = (
        f" and {len(listed) - MOST_COLUMNS} more" if len(listed) > MOST_COLUMNS else ""
    )
    return (
        f"{layout.path}: columns with cells that are not finite numbers: "
        f"{', '.join(listed[:MOST_COLUMNS])}{more}; {remedy}"
    )


def _example(column: Bad) -> str:
    kinds = f"{len(column.words)} texts, " if len(column.words) > 1 else ""
    return f"{kinds}{column.first!r} in line {column.line}"
