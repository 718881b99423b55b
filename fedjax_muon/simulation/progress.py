"""Bars of rounds, in the terminal and in notebooks."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from importlib.util import find_spec

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


def progress_bar(console: Console) -> Progress:
    """A bar of rounds."""
    return Progress(
        TextColumn("{task.description}"),
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
    console = Console()
    # rich also writes to files if the environment asks for colors
    seen = console.file.isatty() or (console.is_jupyter and find_spec("ipywidgets"))
    if not (seen and is_first()):
        yield lambda new: None
        return
    with progress_bar(console) as bar:
        yield functools.partial(bar.advance, bar.add_task("train", total=rounds))
