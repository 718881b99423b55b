"""What is printed on a terminal: the only place that makes consoles of `rich`.

Paths, labels and names of classes are users' text, so nothing is read as markup.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress as RichProgress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedjax_muon.engine.processes import is_first

LEAST = 40  # columns that tables need, however narrow a terminal says that it is
UNLIMITED = 10_000  # columns of a file: nothing is cut or wrapped
SHARE, SECONDS = 0.1, 30.0  # of the rounds, or since the last line: a line is due
LOOK = 1.0  # seconds between two looks at what is due
SCORES = (
    "test_auc",
    "test_mcc",
    "test_accuracy",
    "test_bits_per_byte",
    "test_loss",
    "train_loss",
)


def plain_console(**options: Any) -> Console:
    """A console on which text stands for itself, of a width that holds tables."""
    console = Console(markup=False, emoji=False, **options)
    columns = os.environ.get("COLUMNS", "")
    if "width" in options or (columns.isdigit() and int(columns) >= LEAST):
        return console
    if not (console.file.isatty() or console.is_jupyter):
        console.width = UNLIMITED
    elif columns.isdigit():  # 0 if it is unknown
        console.width = LEAST if int(columns) else 80
    return console


class Progress:
    """Counts the rounds of one run or of several, for whatever shows them."""

    def __init__(self, total: int, title: str = "train"):
        self.total, self.title = total, title
        self.done = self.skipped = 0
        self.score = ""
        self.began = time.monotonic()

    def skip(self, rounds: int) -> None:
        """Counts rounds that were completed before."""
        self.done += rounds
        self.skipped += rounds

    def advance(self, rounds: int, record: Mapping[str, Any] | None = None) -> None:
        """Counts new rounds, and keeps the score of their evaluation, if any."""
        self.done += rounds
        name = next((name for name in SCORES if name in (record or {})), None)
        if record is not None and name is not None:
            self.score = f", {name.replace('_', ' ')} {record[name]:.4g}"
            if record.get("tokens"):
                pace = record["tokens"] / record["seconds"]
                self.score += f", {pace:,.0f} tokens per second"

    def line(self) -> str:
        """What a log says, such as "FedAvg: 20 of 100 rounds, 12 s left"."""
        new, elapsed = self.done - self.skipped, time.monotonic() - self.began
        rest = f"{elapsed:.0f} s so far"
        if new:
            rest = f"{elapsed / new * (self.total - self.done):.0f} s left"
        return f"{self.title}: {self.done} of {self.total} rounds{self.score}, {rest}"


@contextlib.contextmanager
def shown(console: Console, progress: Progress) -> Iterator[Progress]:
    """Shows progress in the first process: a bar on a terminal and in notebooks that
    have ipywidgets, and lines elsewhere: every tenth of the rounds, or every 30 s."""
    if console.quiet or not is_first():
        yield progress
        return
    # rich also writes to files if the environment asks for colors
    seen = console.file.isatty() or (console.is_jupyter and find_spec("ipywidgets"))
    over = threading.Event()
    with _bar(console) if seen else contextlib.nullcontext() as bar:
        follow = partial(_follow, bar) if bar else partial(_write_lines, console)
        thread = threading.Thread(target=follow, args=(progress, over), daemon=True)
        thread.start()
        try:
            yield progress
        finally:
            over.set()
            thread.join()


def _bar(console: Console) -> RichProgress:
    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def _follow(bar: RichProgress, progress: Progress, over: threading.Event) -> None:
    task, waiting = bar.add_task(progress.title, total=progress.total), True
    while waiting:
        waiting = not over.wait(0.1)
        bar.update(task, completed=progress.done, description=progress.title)


def _write_lines(console: Console, progress: Progress, over: threading.Event) -> None:
    written, last = progress.done, time.monotonic()
    while not over.wait(LOOK):
        share = (progress.done - written) / max(progress.total, 1)
        if share >= SHARE or time.monotonic() - last >= SECONDS:
            print(progress.line(), file=console.file, flush=True)
            written, last = progress.done, time.monotonic()
