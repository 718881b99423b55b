"""`run_cells` on an executor: the rows of one process, and what cannot travel."""

import functools
import itertools
import multiprocessing
from concurrent.futures import (
    BrokenExecutor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from pathlib import Path

import pytest

from fedjax_muon.algorithms import ALL, fedavg
from fedjax_muon.simulation import sweeps
from fedjax_muon.versions import of_computing
from tests.support import federation
from tests.support.federation import cell
from tests.support.packages import needs


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
    return rows(sweeps.run_cells(make, CELLS, **HOW))


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Workers can import this file."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def on(executor, **how) -> list:
    return rows(sweeps.run_cells(make, CELLS, **HOW | how, executor=executor))


class Losing(ThreadPoolExecutor):
    """The workers of its first tasks end."""

    def __init__(self, losses: int):
        super().__init__(2)
        self.losses = losses

    def submit(self, function, /, *arguments):
        if self.losses == 0:
            return super().submit(function, *arguments)
        self.losses -= 1
        lost: Future = Future()
        lost.set_exception(BrokenExecutor("a worker ended"))
        return lost


@pytest.mark.slow
def test_rows_are_those_of_one_process_in_the_order_of_cells(alone):
    assert len({str(cell) for cell in alone}) == len(CELLS)
    with ThreadPoolExecutor(2) as executor:
        for size, count in {None: 6, 4: 2}.items():
            how = HOW | {"cells_at_once": size, "executor": executor}
            groups = list(sweeps.run_cells(make, CELLS, **how))
            assert len(groups) == count
            assert rows(groups) == alone


@pytest.mark.slow
def test_rows_from_processes_are_bitwise_those_of_one(alone):
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as executor:
        assert on(executor, cells_at_once=3) == alone


@pytest.mark.slow
def test_rows_from_a_local_cluster_of_dask_are_bitwise_those_of_one(alone):
    needs("distributed")
    from distributed import Client

    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        assert on(client.get_executor(), cells_at_once=3) == alone


@pytest.mark.slow
def test_a_lost_group_is_submitted_again_once(alone):
    with pytest.warns(UserWarning, match="group 0 of cells is submitted again, after "):
        assert on(Losing(1), cells_at_once=3) == alone
    with (
        pytest.warns(UserWarning, match="submitted again"),
        pytest.raises(BrokenExecutor, match="a worker ended"),
    ):
        on(Losing(6), cells_at_once=3)


@pytest.mark.parametrize(
    ("simulation", "how", "message"),
    [
        (lambda: make(), {}, "with an executor, give a function that pickles"),
        (federation.federation(fedavg()), {}, "give a function that pickles"),
        (functools.partial(make, lambda: 1), {}, "give a function that pickles"),
        (make, {"executor": "dask"}, r"must be a concurrent.futures.Executor.* str"),
        (make, {"over": object()}, "with an executor, leave out over"),
        (make, {"validation": object()}, "with an executor, leave out over"),
    ],
)
def test_what_cannot_travel_is_refused_before_anything_runs(simulation, how, message):
    class Refusing(ThreadPoolExecutor):
        def submit(self, *given, **named):
            pytest.fail("not refused")

    how = {"executor": Refusing(1), **how}
    with pytest.raises(ValueError, match=message) as found:
        list(sweeps.run_cells(simulation, CELLS, **HOW, **how))
    assert "\n" not in str(found.value)


def test_workers_of_other_versions_are_refused():
    other = of_computing() | {"jax": "0.1"}
    with pytest.raises(ValueError, match=r"jax is .* on the worker .* and 0.1 here"):
        sweeps.run_group(b"", (), other, CELLS, 1)
