"""The command, which writes down what it is doing, so that it can be killed there.

python -m tests.robustness.phases FILE train --algorithm fedavg ...
"""

import contextlib
import functools
import runpy
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PHASES = ("set-up", "training", "evaluation", "saving")
TURN = 0.05  # seconds that evaluating and saving take at least, to be hit


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
    from fedjax_muon.simulation import checkpoint, sweep_record
    from fedjax_muon.simulation.simulation import Simulation

    checkpoint.save = wrapped("saving", checkpoint.save)
    files.write = wrapped("saving", files.write)
    for name, phase in (("evaluate", "evaluation"), ("train_rounds", "training")):
        setattr(Simulation, name, wrapped(phase, getattr(Simulation, name)))
    record = sweep_record.GroupRecord
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
