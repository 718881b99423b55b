"""The points of a kept table, trained again without the other points of their grids.

    python -m experiments.papers.minimax_000 figure_1 \\
        --repeat results/papers/minimax_000/figure_1.csv --data-dir DATA

This checks the table. If all scores are the same, the curves are kept next to it, as
.json and .png.
"""

import csv
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SAME = ("setting", "method", "hyper", "seeds", "by_seed", "train_loss_by_seed")
Line = Mapping[str, str]


def read(table: Path) -> list[dict[str, str]]:
    """Returns the lines of a table.

    Raises:
      ValueError: If it is not a table of a paper.
    """
    if not table.is_file():
        raise ValueError(f"no file {table}")
    with table.open(newline="") as file:
        lines = list(csv.DictReader(file))
    missing = [name for name in SAME if not lines or name not in lines[0]]
    if missing:
        raise ValueError(f"{table} has no column {missing[0]!r}: not a result.csv")
    return lines


def narrow(panel: Any, lines: Sequence[Line]) -> Any:
    """Returns a panel whose grids have only the points of a table.

    Args:
      panel: A `frame.Panel`.
      lines: Lines of the table.

    Raises:
      ValueError: If the table lacks a method of the panel.
    """
    if panel.every_point:
        return panel
    found = {(line["setting"], line["method"]): line["hyper"] for line in lines}
    methods = {}
    for name, (method, _) in panel.methods.items():
        key = panel.setting, panel.label_of(name)
        if key not in found:
            raise ValueError(f"the table has no row of {key[1]} on {key[0]}")
        words = [word.split("=") for word in found[key].split() if "=" in word]
        methods[name] = method, {option: (float(value),) for option, value in words}
    return panel._replace(methods=methods)


def keep(table: Path, item_dir: Path) -> None:
    """Copies the curves of finished runs next to the table that they repeat.

    Args:
      table: The kept table.
      item_dir: Directory with result.csv, .json and .png of the runs.

    Raises:
      ValueError: If a row of the table has other numbers.
    """
    columns = lambda lines: [{name: line[name] for name in SAME} for line in lines]
    now = columns(read(item_dir / "result.csv"))
    other = [line for line in columns(read(table)) if line not in now]
    if other:
        first = other[0]
        method = f"{first['method']} on {first['setting']}"
        new = [
            line["by_seed"]
            for line in now
            if (line["method"], line["setting"]) == (first["method"], first["setting"])
        ]
        raise ValueError(
            f"{len(other)} of {len(read(table))} rows of {table} have other numbers "
            f"now; the first is {method}: {first['by_seed']}, now "
            f"{'; '.join(new) or 'missing'}. The curves are in {item_dir}"
        )
    for suffix in (".json", ".png"):
        shutil.copy(item_dir / f"result{suffix}", table.with_suffix(suffix))
