"""Tables of sweeps, compared, and the processes that made them."""

import csv
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

DIGITS = [
    *("--num-clients", 6, "--cohort-size", 3, "--local-steps", 2, "--batch-size", 8),
    *("--hidden", 8, "--rounds", 3, "--evaluate-every", 2, "--algorithms", "fedavg"),
]
GRID = [*DIGITS, "--grid", "lr=0.01,0.02,0.03,0.05,0.1,0.2,0.3,0.5", "--seeds", "3,4,5"]
CELLS = 24


def lines(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV file as they are written, without times."""
    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k != "seconds"} for row in found]


def cells(run_dir: Path) -> dict[str, list[tuple[str, ...]]]:
    """The rows of each algorithm's cells, sorted: groups end in any order."""
    paths = sorted((run_dir / "cells").glob("*.csv"))
    return {p.name: sorted(tuple(row.values()) for row in lines(p)) for p in paths}


def assert_same_tables(some: Path, other: Path) -> None:
    """All digits of two sweeps are the same, and no cell is there twice."""
    expected = cells(other)
    assert expected
    assert cells(some) == expected
    for rows in expected.values():
        assert len(set(rows)) == len(rows)
    for name in ("points.csv", "summary.csv"):
        assert lines(some / name) == lines(other / name)


def finished(run_dir: Path) -> set[tuple[str, str]]:
    """Rate and seed of the cells that are recorded."""
    path = run_dir / "cells" / "fedavg.csv"
    rows = lines(path) if path.exists() else []
    return {(row["lr"], row["seed"]) for row in rows}


def workers(pid: int | None = None) -> list[psutil.Process]:
    """The worker processes of a process, this one by default."""
    return [p for p in psutil.Process(pid).children(recursive=True) if is_worker(p)]


def is_worker(process: psutil.Process) -> bool:
    """Whether a process runs tasks, and has not ended."""
    try:
        return "spawn_main" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def meanwhile(condition: Callable[[], bool], act: Callable[[], None]):
    """Acts as soon as a condition holds, in a thread."""

    def watch():
        deadline = time.monotonic() + 120
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread
