"""What is printed on a terminal: the only place that makes consoles of `rich`.

Paths, labels and names of classes are users' text, so nothing is read as markup.
"""

import os
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LEAST = 40  # columns that tables need, however narrow a terminal says that it is


def plain_console(**options: Any) -> Console:
    """A console on which text stands for itself, of a width that holds tables.

    Args:
      options: Other options of `rich`'s console.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) < LEAST:  # 0 if it is unknown
        options["width"] = LEAST if int(columns) else 80
    return Console(markup=False, emoji=False, **options)


def progress_bar(console: Console) -> Progress:
    """A bar of rounds."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
