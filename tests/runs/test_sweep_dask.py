"""A sweep on a scheduler and workers of Dask, of which one is killed."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import refused, run
from packages import needs
from swept import (
    CELLS,
    DIGITS,
    GRID,
    assert_same_tables,
    finished,
    meanwhile,
    share_programs,
)

pytestmark = pytest.mark.slow
needs("distributed")


@pytest.fixture
def program(tmp_path, tmp_path_factory, monkeypatch):
    """Starts programs of Dask, which end with the test."""
    share_programs(tmp_path_factory, monkeypatch)
    with contextlib.ExitStack() as stack:

        def start(kind: str, *arguments: str) -> subprocess.Popen:
            command = [sys.executable, "-m", "dask", kind, *arguments]
            command += ["--scheduler-file", str(tmp_path / "scheduler.json")]
            log = stack.enter_context((tmp_path / "log").open("a"))
            given = {"stdout": log, "stderr": log, "cwd": tmp_path}
            process = stack.enter_context(subprocess.Popen(command, **given))
            stack.callback(process.kill)
            return process

        yield start


def address_in(path: Path) -> str:
    """The address of a scheduler that has started."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            return json.loads(path.read_text())["address"]
        time.sleep(0.05)
    raise AssertionError(path.with_name("log").read_text())


def test_one_of_two_workers_is_killed_and_the_table_is_the_same(program, tmp_path):
    quiet = ("--port", "0", "--no-dashboard")
    program("scheduler", *quiet)
    alone, place = tmp_path / "alone", tmp_path / "swept"
    several = ("--no-nanny", "--nthreads", "1", "--no-dashboard")
    workers = [program("worker", *several) for _ in range(2)]
    run("sweep", *GRID, "--output", alone)
    address = address_in(tmp_path / "scheduler.json")
    before: list[int] = []
    kill = lambda: (before.append(len(finished(place))), workers[0].kill())
    meanwhile(lambda: len(finished(place)) > 1, kill)
    run("sweep", *GRID, "--executor", f"dask:{address}", "--output", place)
    workers[0].wait()
    assert workers[1].poll() is None
    assert before[0] < CELLS
    assert_same_tables(place, alone)


def test_a_scheduler_that_does_not_answer_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("fedjax_muon.runs.executor_names.SECONDS_TO_CONNECT", 0.5)
    place = tmp_path / "new"
    given = ("--executor", "dask:tcp://127.0.0.1:9", "--output", place)
    message = refused(capsys, "sweep", *DIGITS, "--grid", "lr=0.1", *given)
    assert "tcp://127.0.0.1:9" in message
    assert not place.exists()
