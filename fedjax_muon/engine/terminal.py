"""What is printed on a terminal: the only place that makes consoles of `rich`.

Paths, labels and names of classes are users' text, so nothing is read as markup.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
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

from fedjax_muon.engine.processes import is_first

LEAST = 40  # columns that tables need, however narrow a terminal says that it is


def plain_console(**options: Any) -> Console:
    """A console on which text stands for itself, of a width that holds tables."""
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


@contextlib.contextmanager
def shown(rounds: int) -> Iterator[Callable[[int], None]]:
    """Shows a bar, in the first process, if somebody sees it.

    Yields a function that is called with the number of new rounds.
    """
    console = plain_console()
    # rich also writes to files if the environment asks for colors
    seen = console.file.isatty() or (console.is_jupyter and find_spec("ipywidgets"))
    if not (seen and is_first()):
        yield lambda new: None
        return
    with progress_bar(console) as bar:
        yield functools.partial(bar.advance, bar.add_task("train", total=rounds))
