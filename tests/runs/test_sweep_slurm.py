"""A sweep on jobs of submitit, which run on this machine in place of SLURM."""

from concurrent.futures import Future
from typing import Any

import pytest
from command import refused, run
from packages import needs
from swept import DIGITS, GRID, assert_same_tables, share_programs

from fedjax_muon.runs.executor_names import _submitit
from fedjax_muon.simulation import executors
from fedjax_muon.simulation.executors import Jobs, WorkerEndedError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setenv("SUBMITIT_LOG_LEVEL", "NOCONFIG")  # which would close loggers
    needs("submitit")
    monkeypatch.setattr(executors, "SECONDS_BETWEEN_LOOKS", 0.05)


def test_two_jobs_make_the_same_table(tmp_path, tmp_path_factory, monkeypatch):
    share_programs(tmp_path_factory, monkeypatch)
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
