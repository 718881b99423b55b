"""Tasks on the workers of an executor, some of which end."""

import os
import signal
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from swept import workers

from fedjax_muon.simulation import sweep_tasks
from fedjax_muon.simulation.executors import Processes, WorkerEndedError
from fedjax_muon.simulation.sweep_tasks import Task, WorkerError, run_tasks


def echo(value):
    """A task."""
    return value


def end(path: str, times: int):
    """Ends its process the first few times."""
    done = Path(path)
    if len(done.read_text()) < times:
        with done.open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    return times


def refuse():
    """A task that a worker can't run."""
    raise ValueError("no such data")


@pytest.fixture
def importable(monkeypatch):
    """Workers can import this file."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def paths(folder: Path) -> list[str]:
    """Empty files."""
    found = [folder / name for name in "abc"]
    for path in found:
        path.touch()
    return list(map(str, found))


def tasks_of(*arguments) -> list[Task]:
    return [Task(given, f"task {n}") for n, given in enumerate(arguments)]


@pytest.mark.slow
def test_a_task_is_tried_three_times_and_the_others_are_finished(tmp_path, importable):
    a, b, c = paths(tmp_path)
    tasks = tasks_of((a, 1), (b, 9), (c, 0))
    found = []
    with Processes(2) as executor:
        groups = run_tasks(executor, end, tasks)
        with pytest.raises(WorkerError) as lost:
            found.extend(groups)
    assert sorted(found) == [(0, 1), (2, 0)]
    assert Path(b).read_text() == "xxx"
    assert str(lost.value) == (
        "task 1: the worker ended in each of 3 attempts; finished cells are kept"
    )


class Here(Processes):
    """Runs tasks at once, in this process, or fails as often as it is told."""

    def __init__(self, *failures: BaseException):
        self.failures = list(failures)

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        if self.failures:
            future.set_exception(self.failures.pop(0))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def test_a_task_that_dask_gives_up_is_not_tried_again():
    KilledWorker = type("KilledWorker", (Exception,), {})
    executor = Here(KilledWorker("Attempted to run task on 4\ndifferent workers"))
    with pytest.raises(WorkerError, match=r"^task 0: Attempted to run task on 4; fin"):
        list(run_tasks(executor, echo, tasks_of((1,), (2,))))


def test_an_error_of_a_task_is_raised_at_once():
    executor = Here(ZeroDivisionError("oh"))
    with pytest.raises(ZeroDivisionError, match="oh"):
        list(run_tasks(executor, echo, tasks_of((1,), (2,))))


def test_workers_of_other_versions_are_refused(monkeypatch):
    real = sweep_tasks.versions()
    answers = iter([real | {"jax": "0.1"}, real])
    monkeypatch.setattr(sweep_tasks, "versions", lambda: next(answers))
    with pytest.raises(ValueError, match=r"task 0: jax is .* on the worker .* and 0.1"):
        list(run_tasks(Here(), echo, tasks_of((1,))))


def test_a_refusal_of_a_worker_is_one_line():
    with pytest.raises(ValueError, match=r"raised ValueError: no such data$") as found:
        list(run_tasks(Here(), refuse, tasks_of(())))
    assert "in refuse" in str(found.value.__cause__)


def test_devices_of_several_kinds_are_reported(monkeypatch):
    kinds = iter(["A", "A", "B", "B"])
    whole = sweep_tasks.perform
    perform = lambda *given: whole(*given)._replace(device=next(kinds))
    monkeypatch.setattr(sweep_tasks, "perform", perform)
    with pytest.warns(UserWarning, match="kinds of devices: A, B") as seen:
        list(run_tasks(Here(), echo, tasks_of((1,), (2,), (3,), (4,))))
    assert len(seen) == 1


@pytest.mark.slow
def test_a_pool_that_is_broken_is_named(tmp_path, importable):
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        a, b, _ = paths(tmp_path)
        tasks = tasks_of((a, 9), (b, 0))
        with pytest.raises(WorkerError, match=r"^task 0; task 1: the executor"):
            list(run_tasks(pool, end, tasks))


@pytest.mark.slow
def test_a_process_is_replaced_and_the_others_go_on(tmp_path, importable):
    with Processes(1) as executor:
        lost = executor.submit(end, paths(tmp_path)[0], 1)
        kept = executor.submit(echo, 5)
        assert kept.result() == 5
        with pytest.raises(WorkerEndedError, match="ended by -9"):
            lost.result()
        with pytest.raises(ValueError, match="no such data"):
            executor.submit(refuse).result()
    assert workers() == []
    with pytest.raises(ValueError, match="processes must be at least 1, got 0"):
        Processes(0)
