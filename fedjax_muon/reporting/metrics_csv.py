"""The metrics of a run as a CSV file: appended durably, cut on resume, read back."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Adds one row, with a header if the file is new; on disk when it returns."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(row)
        writer.writerow(row.values())
        file.flush()
        os.fsync(file.fileno())


def extend(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Adds several rows, all or none; on disk when it returns."""
    old = _lines(path) if path.exists() else []
    new = io.StringIO(newline="")
    writer = csv.writer(new)
    if not old and rows:
        writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)
    _replace(path, [*old, new.getvalue()])


def keep(path: Path, rows: Sequence[int]) -> None:
    """Drops all rows but those at `rows`, counted from 0, atomically."""
    header, *lines = _lines(path)
    _replace(path, [header, *(lines[row] for row in rows)])


def _replace(path: Path, lines: Sequence[str]) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _lines(path: Path) -> list[str]:
    """All lines, as they are, but a last one that was cut off."""
    with path.open(newline="") as file:
        lines = file.readlines()
    commas = lines[0].count(",") if lines else 0
    cut = lines and (not lines[-1].endswith("\n") or lines[-1].count(",") != commas)
    return lines[:-1] if cut else lines


def read(path: Path) -> dict[str, np.ndarray]:
    """The columns of a metrics file; a last line that was cut off is left out.

    `pandas.DataFrame(read(path))` makes a table of them. Raises `ValueError` for a file
    that is not one of ours.
    """
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
    kind = lambda name: int if name in INTEGERS else float
    return {
        name: np.array([kind(name)(value) for value in column], kind(name))
        for name, column in zip(header, columns, strict=True)
    }


INTEGERS = {"round", "bytes_down", "bytes_up", "dropped", "seed", "diverged"}


def truncate(path: Path, last_round: int) -> dict[str, Any]:
    """Drops the rows after `last_round`, which no checkpoint covers, atomically.

    Returns the last row that stays, {} if none does.
    """
    if not path.exists():
        return {}
    lines = _lines(path)
    if not lines:  # a run that ended while it wrote the header
        path.unlink()
        return {}
    columns = read(path)
    count = int(np.sum(columns["round"] <= last_round))
    _replace(path, lines[: count + 1])
    return {name: column[count - 1].item() for name, column in columns.items() if count}
