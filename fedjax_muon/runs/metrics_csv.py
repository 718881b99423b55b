"""The metrics of a run in a CSV file, which survives crashes of the program."""

import csv
import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.files import reading

# how a cell begins that spreadsheets execute, but for numbers
NUMBER = r"[+-](\d+\.?\d*|\.\d+|inf|nan)(e[+-]?\d+)?$"
FORMULA = rf"\s*(?!{NUMBER})[=+\-@\t\r\n＝＋－＠]."


def text_of(rows: Sequence[Mapping[str, Any]], *, header: bool) -> str:
    """Formats rows with the same columns as lines of a metrics file."""
    lines = io.StringIO(newline="")
    writer = csv.writer(lines)
    if header and rows:
        writer.writerow(map(_inert, rows[0]))
    writer.writerows(map(_inert, row.values()) for row in rows)
    return lines.getvalue()


def _inert(cell: Any) -> Any:
    """A cell that no spreadsheet executes, such as the name of another's client."""
    runs = isinstance(cell, str) and re.match(FORMULA, cell, re.DOTALL | re.IGNORECASE)
    return f"'{cell}" if runs else cell


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Adds one row to a metrics file, and waits until it is on disk."""
    text = text_of([row], header=not path.exists())
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _lines(path: Path) -> list[str]:
    """All lines, without a last one that was cut off."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = file.readlines()
    commas = lines[0].count(",") if lines else 0
    cut = lines and (not lines[-1].endswith("\n") or lines[-1].count(",") != commas)
    return lines[:-1] if cut else lines


def read(path: Path) -> dict[str, np.ndarray]:
    """Reads the columns of a metrics file; `pandas.DataFrame` makes a table of them.

    A last line that was cut off is ignored.
    """
    with reading(path, "columns of numbers in UTF-8", "repair it or delete it"):
        return _read(path)


def _read(path: Path) -> dict[str, np.ndarray]:
    header, *rows = list(csv.reader(_lines(path))) or [[]]
    if "round" not in header:
        raise ValueError(f"{path} has no column 'round'; it is not a metrics file")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(
                f"line {number} of {path} has {len(row)} values for {len(header)} "
                "columns; repair it or delete it"
            )
    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    return {
        name: np.array([_kind(name)(value) for value in column], _kind(name))
        for name, column in zip(header, columns, strict=True)
    }


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; raises `ValueError` if it is damaged."""
    with reading(path, "columns of numbers in UTF-8", "repair it or delete it"):
        return parsed(path.read_bytes().decode())


def parsed(text: str) -> list[dict[str, Any]]:
    """The rows in the text of a metrics file, with a header.

    Example:
      >>> parsed(text_of([{"round": 5, "train_loss": 0.25}], header=True))
      [{'round': 5, 'train_loss': 0.25}]
    """
    rows = csv.DictReader(io.StringIO(text, newline=""))
    return [{name: _kind(name)(x) for name, x in row.items()} for row in rows]


def _kind(name: str) -> type:
    return int if name in INTEGERS else float


INTEGERS = {"round", "bytes_down", "bytes_up", "answered", "dropped"}
INTEGERS |= {"seed", "diverged"}
