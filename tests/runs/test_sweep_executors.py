"""Sweeps on workers: the table of one machine, whatever happens to the workers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import swept
from cases import slow_but
from command import refused, run, spawn, wait_for
from packages import needs
from swept import CELLS, DIGITS, GRID, assert_same_tables, finished, meanwhile

from fedjax_muon.runs import sweep as sweeps
from fedjax_muon.runs.config import Config, Sweep
from fedjax_muon.runs.directory import to_json
from fedjax_muon.sweeps import executors
from fedjax_muon.sweeps.executors import Jobs, WorkerEndedError, _submitit


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The sweep on one machine."""
    place = tmp_path_factory.mktemp("runs") / "alone"
    run("sweep", *GRID, "--output", place)
    return place


@pytest.fixture
def submitted(monkeypatch) -> list[str]:
    """The names of the tasks that are handed to `run_tasks`."""
    found: list[str] = []
    whole = sweeps.run_tasks

    def remember(executor, function, tasks, stop):
        found.extend(task.name for task in tasks)
        return whole(executor, function, tasks, stop)

    monkeypatch.setattr(sweeps, "run_tasks", remember)
    return found


@pytest.mark.slow
def test_a_killed_sweep_resumes_with_what_is_missing(alone, tmp_path, submitted):
    place = tmp_path / "killed"
    given = ("--executor", "processes:2", "--output", place)
    process = spawn("sweep", *GRID, *given)
    wait_for(lambda: len(finished(place)) > 1, process)
    helpers = swept.workers(process.pid)
    process.kill()
    process.communicate()
    before = finished(place)
    assert 1 < len(before) < CELLS
    assert len(helpers) == 2
    psutil.wait_procs(helpers, timeout=10)
    assert not any(helper.is_running() for helper in helpers)
    run("resume", place, "--executor", "processes:1")
    assert len(submitted) == CELLS - len(before)
    done = {f"fedavg lr={float(lr):g} seed {seed}" for lr, seed in before}
    assert not done & set(submitted)
    assert_same_tables(place, alone)
    again = len(submitted)
    run("resume", place, "--executor", "processes:1")  # nothing is missing
    assert len(submitted) == again


@pytest.mark.slow
def test_an_interrupt_keeps_finished_groups(alone, tmp_path, capsys, submitted):
    """And ends the workers."""
    place = tmp_path / "stopped"
    stop = lambda: os.kill(os.getpid(), signal.SIGTERM)
    meanwhile(lambda: len(finished(place)) > 1, stop)
    with pytest.raises(SystemExit) as ended:
        run("sweep", *GRID, "--executor", "processes:1", "--output", place)
    assert ended.value.code == 130
    out = capsys.readouterr().out.replace("\n", "")
    assert f"fedjax-muon resume {place} --executor processes:1" in out
    assert 1 < len(finished(place)) < CELLS
    assert swept.workers() == []
    run("resume", place)  # in this process
    assert len(submitted) == CELLS
    assert_same_tables(place, alone)


# ------------------------------------------------------------------------ refusals

BAD = {
    "an executor is processes:N, dask:ADDRESS, slurm or": "--executor threads:2",
    "got 'processes:two'": "--executor processes:two",
    "leave out devices": "--devices 2 --executor processes:2",
    "copies the examples to each device; leave out": "--split-examples",
    "devices must be at most the 8 that this host has": "--devices 99",
    "got 'processes'": "--executor processes",
    "got 'dask:'": "--executor dask:",
    "processes must be at least 1, got 0": "--executor processes:0",
    "OPTION=VALUE,...; got slurm:fast": "--executor slurm:fast",
}


@pytest.fixture
def refusal(monkeypatch, capsys, tmp_path):
    """What a sweep with these options says, before it makes or runs anything."""

    def said(*options):
        given = ("--grid", "lr=0.1", *options, "--output", tmp_path / "new")
        message = refused(capsys, "sweep", *DIGITS, *given)
        assert not (tmp_path / "new").exists()
        return message

    monkeypatch.setattr(sweeps, "train", lambda *_, **__: pytest.fail("not refused"))
    return said


@pytest.mark.parametrize("message", slow_but(5, BAD))
def test_executors_and_devices_are_checked_at_once(refusal, message):
    if "slurm:" in BAD[message] and not find_spec("submitit"):
        pytest.skip("submitit is not installed")  # importing it would close loggers
    assert message in refusal(*BAD[message].split())


@pytest.mark.parametrize(
    ("name", "package"), [("dask:localhost:8786", "distributed"), ("slurm", "submitit")]
)
def test_a_missing_package_is_the_pip_command(refusal, name, package, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    kind = name.partition(":")[0]
    message = f"the executor {kind} needs {package}, which is not installed; run: pip"
    assert refusal("--executor", name).startswith(message)


@pytest.mark.slow
def test_only_sweeps_are_resumed_on_an_executor(capsys, tmp_path):
    place = tmp_path / "run"
    run("train", "--rounds", "1", "--hidden", "4", "--output", place)
    message = refused(capsys, "resume", place, "--executor", "processes:2")
    assert (
        message
        == f"{place} is not a sweep; leave out --executor, which is only for sweeps"
    )


def test_workers_with_another_data_set_are_refused():
    job = Sweep(("fedavg",), {"fedavg": {"lr": (0.1,)}}, (0,), 0.1, None, Config())
    with pytest.raises(ValueError, match="the examples of digits on this machine"):
        sweeps.prepare(to_json(job), "fedavg", "digest")


# ------------------------------------------------------------------- Dask and SLURM
@pytest.fixture
def program(tmp_path):
    """Starts programs of Dask, which end with the test."""
    needs("distributed")
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


@pytest.mark.slow
def test_of_two_workers_of_dask_one_is_killed(alone, program, tmp_path):
    """The table is the same."""
    place = tmp_path / "swept"
    program("scheduler", "--port", "0", "--no-dashboard")
    several = ("--no-nanny", "--nthreads", "1", "--no-dashboard")
    workers = [program("worker", *several) for _ in range(2)]
    address = address_in(tmp_path / "scheduler.json")
    before: list[int] = []
    kill = lambda: (before.append(len(finished(place))), workers[0].kill())
    meanwhile(lambda: len(finished(place)) > 1, kill)
    run("sweep", *GRID, "--executor", f"dask:{address}", "--output", place)
    workers[0].wait()
    assert workers[1].poll() is None
    assert before[0] < CELLS
    assert_same_tables(place, alone)


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer_is_named(refusal, monkeypatch):
    needs("distributed")
    monkeypatch.setattr(executors, "SECONDS_TO_CONNECT", 0.5)
    assert "tcp://127.0.0.1:9" in refusal("--executor", "dask:tcp://127.0.0.1:9")


@pytest.fixture
def submitit(monkeypatch):
    """Its jobs run on this machine in place of SLURM."""
    monkeypatch.setenv("SUBMITIT_LOG_LEVEL", "NOCONFIG")  # which would close loggers
    needs("submitit")
    monkeypatch.setattr(executors, "SECONDS_BETWEEN_LOOKS", 0.05)


@pytest.mark.slow
@pytest.mark.usefixtures("submitit")
def test_two_jobs_make_the_same_table(alone, tmp_path):
    place = tmp_path / "swept"
    given = ("--executor", "slurm:cluster=local,timeout_min=5", "--cells-at-once", 12)
    run("sweep", *GRID, *given, "--output", place)
    assert_same_tables(place, alone)
    assert len(list((place / "jobs").glob("*_submitted.pkl"))) == 2


class Job:
    """A job of submitit in a state that a test chooses."""

    answer: Any = None
    cancelled = False

    def done(self) -> bool:
        return self.answer is not None

    def result(self) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def cancel(self, check: bool = True) -> None:
        assert not check
        self.cancelled = True


@pytest.mark.slow
@pytest.mark.usefixtures("submitit")
def test_the_ends_of_jobs_are_those_of_futures():
    _submitit()
    from submitit.core.utils import FailedJobError, UncompletedJobError

    made = [Job() for _ in range(4)]
    left = iter(made)
    with Jobs(SimpleNamespace(submit=lambda *given: next(left))) as jobs:
        futures: list[Future] = [jobs.submit(print, n) for n in range(4)]
        answers = (7, UncompletedJobError("timed out\nlog"), FailedJobError("trace"))
        for job, answer in zip(made, answers, strict=False):
            job.answer = answer
        assert futures[0].result(timeout=5) == 7
        with pytest.raises(WorkerEndedError, match=r"^timed out$"):
            futures[1].result(timeout=5)
        with pytest.raises(FailedJobError, match="trace"):
            futures[2].result(timeout=5)
        assert not futures[3].done()
        jobs.shutdown(cancel_futures=True)
    assert futures[3].cancelled()
    assert [job.cancelled for job in made] == [False, False, False, True]


@pytest.mark.slow
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
def test_options_that_submitit_refuses_are_one_line(refusal, options, message):
    assert message in refusal("--executor", f"slurm:{options}")
