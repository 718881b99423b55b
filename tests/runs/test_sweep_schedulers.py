"""Sweeps on the workers of Dask and on jobs of SLURM."""

import contextlib
import json
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import swept
from command import refused, run
from packages import needs
from swept import CELLS, DIGITS, GRID, assert_same_tables, finished, meanwhile

from fedjax_muon.runs.executor_names import _submitit
from fedjax_muon.simulation import executors
from fedjax_muon.simulation.executors import Jobs, WorkerEndedError

pytestmark = pytest.mark.slow


# ------------ a sweep on a scheduler and workers of Dask, of which one is killed


@pytest.fixture
def program(tmp_path, tmp_path_factory, monkeypatch):
    """Starts programs of Dask, which end with the test."""
    needs("distributed")
    swept.share_programs(tmp_path_factory, monkeypatch)
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
    needs("distributed")
    monkeypatch.setattr("fedjax_muon.runs.executor_names.SECONDS_TO_CONNECT", 0.5)
    place = tmp_path / "new"
    given = ("--executor", "dask:tcp://127.0.0.1:9", "--output", place)
    message = refused(capsys, "sweep", *DIGITS, "--grid", "lr=0.1", *given)
    assert "tcp://127.0.0.1:9" in message
    assert not place.exists()


# ------ a sweep on jobs of submitit, which run on this machine in place of SLURM


@pytest.fixture
def submitit(monkeypatch):
    monkeypatch.setenv("SUBMITIT_LOG_LEVEL", "NOCONFIG")  # which would close loggers
    needs("submitit")
    monkeypatch.setattr(executors, "SECONDS_BETWEEN_LOOKS", 0.05)


@pytest.mark.usefixtures("submitit")
def test_two_jobs_make_the_same_table(tmp_path, tmp_path_factory, monkeypatch):
    swept.share_programs(tmp_path_factory, monkeypatch)
    alone, place = tmp_path / "alone", tmp_path / "swept"
    run("sweep", *GRID, "--output", alone)
    given = ("--executor", "slurm:cluster=local,timeout_min=5", "--cells-at-once", 12)
    run("sweep", *GRID, *given, "--output", place)
    assert_same_tables(place, alone)
    assert len(list((place / "jobs").glob("*_submitted.pkl"))) == 2


class Job:
    """A job of submitit in a state that a test chooses."""

    def __init__(self):
        self.answer: Any = None
        self.cancelled = False

    def done(self) -> bool:
        return self.answer is not None

    def result(self) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def cancel(self, check: bool = True) -> None:
        assert not check
        self.cancelled = True


class Cluster:
    """Submits nothing."""

    def __init__(self):
        self.jobs: list[Job] = []

    def submit(self, fn, *args) -> Job:
        self.jobs.append(Job())
        return self.jobs[-1]


@pytest.mark.usefixtures("submitit")
def test_the_ends_of_jobs_are_those_of_futures():
    _submitit()
    from submitit.core.utils import FailedJobError, UncompletedJobError

    cluster = Cluster()
    with Jobs(cluster) as jobs:
        futures: list[Future] = [jobs.submit(print, n) for n in range(4)]
        answers = (7, UncompletedJobError("timed out\nlog"), FailedJobError("trace"))
        for job, answer in zip(cluster.jobs, answers, strict=False):
            job.answer = answer
        assert futures[0].result(timeout=5) == 7
        with pytest.raises(WorkerEndedError, match=r"^timed out$"):
            futures[1].result(timeout=5)
        with pytest.raises(FailedJobError, match="trace"):
            futures[2].result(timeout=5)
        assert not futures[3].done()
        jobs.shutdown(cancel_futures=True)
    assert futures[3].cancelled()
    assert [job.cancelled for job in cluster.jobs] == [False, False, False, True]


@pytest.mark.usefixtures("submitit")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", 'slurm: Could not detect "srun"'),
        ("cluster=moon", "slurm: AutoExecutor doesn't know any executor named moon"),
        ("cluster=local,color=red", "slurm: Parameter 'color' need to be prefixed"),
        ("cluster=local,timeout_min=long", 'slurm: Parameter "timeout_min" expected'),
    ],
)
def test_options_that_submitit_refuses_are_one_line(options, message, capsys, tmp_path):
    place = tmp_path / "new"
    given = ("--executor", f"slurm:{options}", "--output", place)
    assert message in refused(capsys, "sweep", *DIGITS, "--grid", "lr=0.1", *given)
    assert not place.exists()
