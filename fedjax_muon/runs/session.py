"""What every command that works for a while needs: a directory, progress, Ctrl-C."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedjax_muon.runs.directory import held
from fedjax_muon.runs.errors import refusing


def new_directory(given: Path | None, name: str) -> Path:
    return given or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"


def progress_bar(console: Console) -> Progress:
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
def resumable(run_dir: Path, again: str = "") -> Iterator[Callable[[], None]]:
    """Holds the directory, and ends with the command to resume, or what else is to be
    done `again`, if the user presses Ctrl-C.

    Yields a function to be called between rounds, which is where the run stops: an
    interrupt anywhere else could be lost in a library's callback. A second Ctrl-C stops
    at once.
    """
    pressed = threading.Event()

    def press(number, frame):
        del number, frame
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    def between_rounds():
        if pressed.is_set():
            raise KeyboardInterrupt

    holding = contextlib.ExitStack()
    with refusing():
        holding.enter_context(held(run_dir))
    previous = signal.signal(signal.SIGINT, press)
    try:
        with holding:
            yield between_rounds
    except KeyboardInterrupt:
        again = again or f"fedjax-muon resume {run_dir}"
        print(f"\ninterrupted; continue with: {again}")
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, previous)
