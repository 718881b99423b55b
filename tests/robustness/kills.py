"""Processes that are killed and resumed, against those that are left alone.

    python -m tests.robustness.kills FILE train fedavg ...

is the command, which writes down what it is doing, so that it can be killed there.
"""

import contextlib
import csv
import functools
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SIZES = "--cohort 3 --local-steps 2 --batch-size 8"
SMALL = [*SIZES.split(), "--problem", "digits:clients=6,model=mlp:8"]
TRAIN = ["train", "fedmuon", "--rounds", "120", "--evaluate-every", "20"]

TURN = 0.05  # seconds that evaluating and saving take at least, to be hit


def environment() -> dict[str, str]:
    """Of processes: they find this package."""
    return os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}


def start(phase: Path, *words: str) -> subprocess.Popen:
    """A command that writes down its phase."""
    program = [sys.executable, "-m", "tests.robustness.kills", str(phase), *words]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(program, cwd=ROOT, env=environment(), **quiet)


def finish(phase: Path, *words: str) -> str:
    """Runs a command to its end; what is wrong with it."""
    process = start(phase, *words)
    text, _ = process.communicate(timeout=600)
    return "" if process.returncode == 0 else f"{process.returncode}: {text[-300:]}"


def hit(process, phase: Path, wanted: str, number: int, delay: float) -> str:
    """Sends a signal in a phase; the phase that was hit, empty if it ended before."""
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if phase.exists() and phase.read_text() == wanted:
            time.sleep(delay)
            now = phase.read_text()
            process.send_signal(number)
            process.communicate(timeout=300)
            return now or wanted
        time.sleep(0.002)
    process.kill()
    process.communicate()
    return ""


def results(directory: Path) -> dict[str, list[dict[str, str]]]:
    """All rows of all CSV files, without times."""
    found = {}
    timed = re.compile("seconds|minutes").search
    for path in sorted(directory.rglob("*.csv")):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        kept = [{k: v for k, v in row.items() if not timed(k)} for row in rows]
        found[str(path.relative_to(directory))] = kept
    return found


def noting(path: Path) -> Callable[[str, Callable], Callable]:
    """Wraps functions, so that a file has the name of the phase meanwhile."""
    lock = threading.Lock()

    def say(phase: str) -> None:
        with lock, contextlib.suppress(OSError):
            path.write_text(phase)

    say("set-up")

    def wrapped(phase: str, function: Callable) -> Callable:
        @functools.wraps(function)
        def run(*arguments: Any, **options: Any) -> Any:
            say(phase)
            if phase in ("evaluation", "saving"):
                time.sleep(TURN)
            try:
                return function(*arguments, **options)
            finally:
                say("training")

        return run

    return wrapped


def main() -> None:
    """Runs the command."""
    path, *words = sys.argv[1:]
    wrapped = noting(Path(path))

    from fedjax_muon import files
    from fedjax_muon.cli.main import main as command
    from fedjax_muon.simulation import checkpoint
    from fedjax_muon.simulation.simulation import Simulation

    checkpoint.save = wrapped("saving", checkpoint.save)
    files.write = wrapped("saving", files.write)
    for name, phase in (("evaluate", "evaluation"), ("train_rounds", "training")):
        setattr(Simulation, name, wrapped(phase, getattr(Simulation, name)))
    command(words)


if __name__ == "__main__":
    main()
