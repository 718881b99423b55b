"""Processes that are killed and resumed, against those that are left alone.

    python -m tests.robustness.kills FILE train --algorithm fedavg ...

is the command, which writes down what it is doing, so that it can be killed there.
"""

import contextlib
import csv
import functools
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
SIZES = "--num-clients 6 --cohort-size 3 --local-steps 2 --batch-size 8 --hidden 8"
SMALL = SIZES.split()
TRAINING = {
    "train": "train --algorithm fedmuon --rounds 400 --evaluate-every 20",
    "scaffold": "train --algorithm scaffold --rounds 400 --evaluate-every 7",
    "compare": "compare fedavg fedmuon --rounds 60 --seeds 0 1 --evaluate-every 20",
    "sweep": "sweep --algorithms fedavg,fedprox --rounds 30 --evaluate-every 10",
}
TRAINING["sweep"] += " --grid lr=0.03,0.1 --seeds 0,1 --cells-at-once 1"
COMMANDS = {name: [*words.split(), *SMALL] for name, words in TRAINING.items()}
PRIVATE = "compare dpmixsgd dp_sgda --epsilon 4 --seeds 0,1 --rounds 40"
# without fixed noise no two runs are alike
COMMANDS["private"] = [*PRIVATE.split(), "--insecure-fixed-noise"]
# a module of experiments, which is started again with the same words
COMMANDS["paper"] = ["fedmuon_004", "table_2", "--scale", "smoke"]

PHASES = ("set-up", "training", "evaluation", "saving")
TURN = 0.05  # seconds that evaluating and saving take at least, to be hit


class Trial(NamedTuple):
    """One command, killed once or more, and resumed to its end."""

    name: str
    signal: str
    phases: tuple[str, ...]  # in which it was hit
    problem: str


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


def trial(draw: random.Random, name: str, number: int, place: Path) -> Trial:
    """Kills a command up to six times, and compares what it leaves at last."""
    whole, phase = place.parent / f"whole-{name}", place / "phase"
    place.mkdir(parents=True)
    if not whole.exists():
        problem = finish(phase, *COMMANDS[name], "--output", str(whole))
        if problem:
            shutil.rmtree(whole, ignore_errors=True)
            return Trial(name, "none", (), f"uninterrupted: {problem}")
    run_dir, hits = place / "run", []
    words = [*COMMANDS[name], "--output", str(run_dir)]
    for _ in range(draw.randint(2, 6)):
        phase.unlink(missing_ok=True)
        process = start(phase, *words)
        delay = draw.choice((0, 0.01, 0.05, draw.uniform(0, 1.5)))
        where = hit(process, phase, draw.choice(PHASES), number, delay)
        if (run_dir / "config.json").exists() and name != "paper":
            words = ["resume", str(run_dir)]
        if not where:
            break
        hits.append(where)
    problem = finish(phase, *words)
    if not problem and results(run_dir) != results(whole):
        problem = "other numbers than without the kill"
    if not problem:
        shutil.rmtree(place)
    return Trial(name, signal.Signals(number).name, tuple(hits), problem)


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

    from fedjax_muon import cli
    from fedjax_muon.runs import files
    from fedjax_muon.simulation import checkpoint
    from fedjax_muon.simulation.simulation import Simulation
    from fedjax_muon.sweeps.groups import GroupRecord

    checkpoint.save = wrapped("saving", checkpoint.save)
    files.write = wrapped("saving", files.write)
    for name, phase in (("evaluate", "evaluation"), ("train_rounds", "training")):
        setattr(Simulation, name, wrapped(phase, getattr(Simulation, name)))
    record = GroupRecord
    record.add_rows = wrapped("evaluation", record.add_rows)
    record.add_metrics = wrapped("training", record.add_metrics)
    if words[0].startswith("fedmuon_"):
        name = f"experiments.papers.{words[0]}"
        sys.argv[1:] = words[1:]
        runpy.run_module(name, run_name="__main__")
    else:
        cli.main(words)


if __name__ == "__main__":
    main()
