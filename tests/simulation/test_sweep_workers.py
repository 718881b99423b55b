"""`sweep` on an executor: the rows of one process, and what cannot travel."""

import functools
import itertools
import os
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import federation
import numpy as np
import pytest
from federation import cell
from swept import workers

from fedjax_muon.algorithms import ALL, fedavg
from fedjax_muon.core import Algorithm
from fedjax_muon.sweeps import sweep, workers as remote
from fedjax_muon.sweeps.executors import Processes, WorkerEndedError
from fedjax_muon.sweeps.workers import WorkerError, WorkerTask, run_tasks


def make(name: str = "fedavg", batch_size: int = 4):
    """The simulation of a study."""
    return federation.federation(ALL[name].function(), batch_size=batch_size)


CELLS = [cell(lr, seed) for lr in (0.03, 0.3, 1.0) for seed in (0, 1)]
HOW = {"rounds": 3, "evaluate_every": 2}


def rows(groups) -> list:
    """All digits of all cells, without times."""
    untimed = lambda row: {k: v for k, v in row.items() if k != "seconds"}
    return [[*map(untimed, outcome.rows)] for outcome in itertools.chain(*groups)]


@pytest.fixture(scope="module")
def alone():
    return rows(sweep.sweep(make, CELLS, **HOW))


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Workers can import this file."""
    tests = Path(__file__).parents[1]
    places = (tests / "simulation", tests / "support")
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, places)))


@pytest.mark.slow
def test_rows_are_those_of_one_process_in_the_order_of_cells(alone):
    assert rows(sweep.sweep(make(), CELLS, **HOW)) == alone
    with ThreadPoolExecutor(2) as executor:
        for size, count in {None: 6, 4: 2}.items():
            how = HOW | {"cells_at_once": size, "executor": executor}
            groups = list(sweep.sweep(make, CELLS, **how))
            assert len(groups) == count
            assert rows(groups) == alone
    assert len({str(cell) for cell in alone}) == len(CELLS)


def without_recipe():
    """An algorithm that does not know what made it."""
    return federation.federation(Algorithm(*fedavg()[:-1]))


@pytest.mark.parametrize(
    ("simulation", "message"),
    [
        (federation.federation(fedavg()), "with an executor give the function that"),
        (lambda: make(), "workers cannot import .*<lambda>; put the function"),
        (functools.partial(make, np.ones(3)), "is a ndarray; workers get numbers"),
        (functools.partial(make, name=fedavg), "is a function; workers get numbers"),
        (functools.partial(make, [{"a": {1}}]), "is a set; workers get numbers"),
        (without_recipe, "this algorithm does not record the function"),
    ],
)
def test_what_cannot_be_described_is_refused_before_anything_runs(simulation, message):
    class Refusing(ThreadPoolExecutor):
        def submit(self, *given, **named):
            pytest.fail("not refused")

    with Refusing(1) as executor, pytest.raises(ValueError, match=message) as found:
        list(sweep.sweep(simulation, CELLS, **HOW, executor=executor))
    assert "\n" not in str(found.value)


def test_other_arguments_are_refused(monkeypatch):
    for name in ("over", "pause", "validation"):
        given = {name: object(), "executor": ThreadPoolExecutor(1)}
        message = "with an executor, leave out over and pause"
        with pytest.raises(ValueError, match=message):
            list(sweep.sweep(make, CELLS, **HOW, **given))
    with pytest.raises(ValueError, match=r"must be a concurrent.futures.Executor.*str"):
        list(sweep.sweep(make, CELLS, **HOW, executor="dask"))
    monkeypatch.setattr(make, "__module__", "__main__")  # the program itself
    with pytest.raises(ValueError, match="workers cannot import make"):
        remote.remote_call(make)


def test_workers_keep_what_the_last_sweeps_prepared():
    made: list[str] = []
    make_of = lambda key: lambda: made.append(key) or key
    prepare = lambda key: remote.prepared(key, make_of(key))
    assert [prepare(key) for key in "abaabcb"] == list("abaabcb")
    assert made == ["a", "b", "c"]
    prepare("a")
    assert made[-1] == "a"


# --------------------------------------------------- tasks on workers that may end
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


def paths(folder: Path) -> list[str]:
    """Empty files."""
    for name in "abc":
        (folder / name).touch()
    return [str(folder / name) for name in "abc"]


def tasks_of(*arguments) -> list[WorkerTask]:
    return [WorkerTask(given, f"task {n}") for n, given in enumerate(arguments)]


@pytest.mark.slow
def test_a_task_is_tried_three_times_and_the_others_are_finished(tmp_path):
    a, b, c = paths(tmp_path)
    tasks = tasks_of((a, 1), (b, 9), (c, 0))
    found = []
    with Processes(2) as executor, pytest.raises(WorkerError) as lost:
        found.extend(run_tasks(executor, end, tasks))
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


def test_what_dask_gives_up_and_errors_of_tasks_are_raised_at_once():
    KilledWorker = type("KilledWorker", (Exception,), {})
    executor = Here(KilledWorker("Attempted to run task on 4\ndifferent workers"))
    with pytest.raises(WorkerError, match=r"^task 0: Attempted to run task on 4; fin"):
        list(run_tasks(executor, echo, tasks_of((1,), (2,))))
    with pytest.raises(ZeroDivisionError, match="oh"):
        list(run_tasks(Here(ZeroDivisionError("oh")), echo, tasks_of((1,), (2,))))
    # a refusal of a worker is one line
    with pytest.raises(ValueError, match=r"raised ValueError: no such data$") as found:
        list(run_tasks(Here(), refuse, tasks_of(())))
    assert "in refuse" in str(found.value.__cause__)


def test_workers_of_other_versions_are_refused(monkeypatch):
    real = remote.of_computing()
    answers = iter([real | {"jax": "0.1"}, real])
    monkeypatch.setattr(remote, "of_computing", lambda: next(answers))
    with pytest.raises(ValueError, match=r"task 0: jax is .* on the worker .* and 0.1"):
        list(run_tasks(Here(), echo, tasks_of((1,))))


def test_devices_of_several_kinds_are_reported(monkeypatch):
    kinds = iter(["A", "A", "B", "B"])
    whole = remote.perform
    perform = lambda *given: whole(*given)._replace(device=next(kinds))
    monkeypatch.setattr(remote, "perform", perform)
    with pytest.warns(UserWarning, match="kinds of devices: A, B") as seen:
        list(run_tasks(Here(), echo, tasks_of((1,), (2,), (3,), (4,))))
    assert len(seen) == 1


@pytest.mark.slow
def test_a_process_is_replaced_and_the_others_go_on(tmp_path):
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
