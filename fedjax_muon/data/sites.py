"""Tables of several sites: one file of each, from one of all."""

import csv
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedjax_muon.data.cleaning import clean
from fedjax_muon.data.csv_files import Table, with_names


def split_csv(
    file: Path,
    directory: Path,
    *,
    owner: str,
    separator: str = ",",
    encoding: str = "utf-8",
    header: int = 1,
) -> str:
    """Divides a table into one file for each owner, with all columns.

    Args:
      file: The table, a CSV file.
      directory: Where OWNER.csv is written for every owner; none may exist yet.
      owner: Name of the column of owners.
      separator: Character between columns.
      encoding: Encoding of the table, and of the files that are written.
      header: Number of the line with the column names, from 1.
    """
    place = Path(file).expanduser()
    if not place.is_file():
        raise FileNotFoundError(f"there is no file {place}")
    table = with_names(Table(place, separator, ".", encoding, header - 1))
    if owner not in table.names:
        raise ValueError(
            f"{place}: there is no column {owner!r} for owner; its columns are "
            f"{', '.join(table.names)[:300]}"
        )
    at = list(table.names).index(owner)
    rows: dict[str, list[Sequence[str]]] = {}
    for line, row in table.rows():
        name = clean(row[at]) if len(row) == len(table.names) else ""
        if not name or Path(name).name != name:
            raise ValueError(
                f"{place}, line {line}: expected {len(table.names)} columns and a name "
                f"of a file in {owner!r}, found {row[at : at + 1] or row}; correct it"
            )
        rows.setdefault(name, []).append(row)
    folder = Path(directory).expanduser()
    there = [name for name in sorted(rows) if (folder / f"{name}.csv").exists()]
    if there:
        raise ValueError(
            f"{folder} has {there[0]}.csv already; choose another directory"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for name in sorted(rows):
            path = folder / f"{name}.csv"
            opened: Any = path.open("x", encoding=encoding, newline="")
            writer = csv.writer(stack.enter_context(opened), delimiter=separator)
            writer.writerows([table.names, *rows[name]])
    sizes = ", ".join(
        f"{name}.csv with {len(rows[name])} rows" for name in sorted(rows)
    )
    return f"{folder} has {sizes}"
