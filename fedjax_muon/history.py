"""The metrics of a run as a CSV file: appended durably, truncated on resume, read back."""

import csv
import os
from collections.abc import Mapping
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


def read(path: Path) -> dict[str, np.ndarray]:
    """The columns of a metrics file; a last line that was cut off is left out.

    `pandas.DataFrame(read(path))` makes a table of them. Raises `ValueError` for a file
    that is not one of ours.
    """
    with path.open(newline="") as file:
        header, *lines = list(csv.reader(file)) or [[]]
    if "round" not in header:
        raise ValueError(f"{path} has no column 'round'; it is not a metrics file")
    whole = [line for line in lines if len(line) == len(header)]
    columns = zip(*whole, strict=True) if whole else [()] * len(header)
    kind = lambda name: int if name in INTEGERS else float
    return {
        name: np.array([kind(name)(value) for value in column], kind(name))
        for name, column in zip(header, columns, strict=True)
    }


INTEGERS = {"round", "bytes_down", "bytes_up", "dropped"}


def truncate(path: Path, last_round: int) -> dict[str, Any]:
    """Drops the rows after `last_round`, which no checkpoint covers, atomically.

    Returns the last row that stays, {} if none does.
    """
    if not path.exists():
        return {}
    columns = read(path)
    keep = int(np.sum(columns["round"] <= last_round))
    with path.open(newline="") as file:
        lines = file.readlines()[: keep + 1]
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return {name: column[keep - 1].item() for name, column in columns.items() if keep}
