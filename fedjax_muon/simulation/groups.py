"""Groups of cells of a sweep, which share compiled programs."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_muon.engine import sharding
from fedjax_muon.engine.programs import promoting
from fedjax_muon.engine.sharding import REPLICATED, SHARDED
from fedjax_muon.simulation.evaluation import Examples
from fedjax_muon.simulation.meter import (
    Meter,
    NonFiniteError,
    Record,
    end_at_start,
    end_of_messages,
    end_of_row,
)
from fedjax_muon.simulation.program import Data, Program, Run
from fedjax_muon.simulation.rounds import Metrics
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.training import calls

Over = Callable[..., Any]  # (function, *stacked arguments) -> stacked results


class Cell(NamedTuple):
    """One run of a sweep.

    Example:
      >>> cell = fm.Cell({"lr": 0.1}, jax.random.key(0), clients)
    """

    hyper: Mapping[str, float]  # the same names in all cells
    key: jax.Array  # argument of `Simulation.init`
    parts: Sequence[np.ndarray]  # for every client, the ids of its training examples
    weights: Any = None  # of a decentralized simulation, if it has other ones


class Outcome(NamedTuple):
    """Results of a cell: records of `training.run`, with validation metrics.

    `seconds` of a record are the cell's share of the time of its group.
    """

    rows: list[Record]
    end: NonFiniteError | None = None  # what ended the cell, as it would end a run

    @property
    def diverged(self) -> int | None:
        """The round in which a message or the loss was not finite; None of no such."""
        return None if self.end is None else self.end.round


def sequential(function: Callable[..., Any], *stacked: Any) -> Any:
    """Runs cells sequentially in one compiled loop, the fastest way on CPUs.

    The bits of a cell do not depend on the number of cells.
    """
    if len(jax.tree.leaves(stacked)[0]) == 1:
        return _alone(function, stacked)
    return jax.lax.map(lambda cell: function(*cell), stacked)


def _alone(function: Callable[..., Any], stacked: Any) -> Any:
    """Runs one cell in a loop of two, which ends after the first.

    XLA removes loops of one iteration, and then fuses operations in another way, which
    changes the last bits of scores. So the number of iterations is hidden from it, and
    the numbers of a sweep do not depend on how its cells are divided among machines.
    """
    pair = jax.tree.map(lambda x: jnp.concatenate([x, x]), stacked)

    def one(index: Any) -> Any:
        at = lambda x: lax.dynamic_index_in_dim(x, index, keepdims=False)
        return function(*jax.tree.map(at, pair))

    def body(index: Any, results: Any) -> Any:
        put = lambda old, new: lax.dynamic_update_index_in_dim(old, new, index, 0)
        return jax.tree.map(put, results, one(index))

    shapes = jax.eval_shape(one, 0)
    empty = jax.tree.map(lambda s: lax.full((2, *s.shape), 0, s.dtype), shapes)
    count = lax.optimization_barrier(jnp.int32(1))
    return jax.tree.map(lambda x: x[:1], lax.fori_loop(0, count, body, empty))


def vectorized(function: Callable[..., Any], *stacked: Any) -> Any:
    """Runs all cells of a group in parallel, for accelerators; else as `sequential`."""
    return jax.vmap(function)(*stacked)


def default_over() -> Over:
    """How the cells of a group run here, if nothing else is asked for."""
    return sequential if jax.default_backend() == "cpu" else vectorized


class Programs(NamedTuple):
    """Programs of groups of cells, which groups of one simulation may share."""

    begin: Callable[..., Any]  # (data, runs, states) -> states, received
    rounds: Callable[..., Any]  # (data, runs, states, count) -> states, metrics
    score: Callable[..., Any]  # (data, runs, states) -> metrics by name


class Groups:
    """Groups of cells of one simulation, which run in the same compiled programs.

    The numbers of a cell do not depend on the other cells of its group, nor on how many
    they are, if the cells run sequentially. Programs are compiled when the first group
    runs. Arguments are those of `run_cells`; `max_client_size` bounds the sizes of the
    clients of all groups.
    """

    def __init__(
        self,
        simulation: Simulation,
        *,
        rounds: int,
        evaluate_every: int,
        max_client_size: int,
        validation: Examples | None = None,
        over: Over | None = None,
        drop_nonfinite: bool = False,
        devices: Sequence[jax.Device] = (),
        programs: Programs | None = None,
    ):
        if validation is not None:
            validation = jnp.asarray(validation[0]), jnp.asarray(validation[1])
        over = over or default_over()
        self.simulation, self.drop_nonfinite = simulation, drop_nonfinite
        self.max_client_size, self.devices, self.over = max_client_size, devices, over
        data = simulation.data._replace(validation=validation)
        self.data = self._on_devices(data, REPLICATED)
        self.programs = programs or make_programs(simulation.program, over, devices)
        self.rounds, self.evaluate_every = rounds, evaluate_every

    @promoting
    def run(
        self,
        cells: Sequence[Cell],
        size: int,
        tick: Callable[[int], None] = lambda rounds: None,
    ) -> list[Outcome]:
        """Trains a group of cells.

        Args:
          size: Size of all groups. A smaller one runs its last cell again, so that
            groups share a program.
        """
        data, number = self.data, len(cells)
        each = [(cell.key, self._of(cell)) for cell in cells]
        filled = [*each, *each[-1:] * (size - number)]
        runs, states, meters = stack(filled, self.max_client_size, self.rounds)
        record = GroupRecord(meters[:number], self.drop_nonfinite)
        runs, states = self._on_devices((runs, states), SHARDED)
        states, received = self.programs.begin(data, runs, states)
        record.begin(received, self.programs.score(data, runs, states))
        train = partial(self.programs.rounds, data, runs)
        span = {"rounds": self.rounds, "evaluate_every": self.evaluate_every}
        for call in calls(train, states, 0, **span):
            record.add_metrics(call.metrics)
            tick(call.rounds * number)
            if None not in record.ends:
                tick((self.rounds - call.total) * number)
                break
            if call.due:
                scores = self.programs.score(data, runs, call.state)
                record.add_rows(call.total, scores)
        return list(map(Outcome, record.rows, record.ends))

    def _of(self, cell: Cell) -> Simulation:
        given = {"parts": cell.parts, "weights": cell.weights}
        return self.simulation.at(cell.hyper, **given)

    def _on_devices(self, tree: Any, specs: Any) -> Any:
        return sharding.placed(tree, self.devices, specs) if self.devices else tree


def make_programs(
    program: Program, over: Over | None = None, devices: Sequence[jax.Device] = ()
) -> Programs:
    """Maps the functions of a program over the cells of a group.

    They are compiled when they are first used, once for every size of a group.

    Args:
      devices: Devices that divide the cells of a group evenly; by default one.
    """

    mapped = over or default_over()

    def each(
        function: Callable[..., Any], data: Data, runs: Run, states: Any, *rest: Any
    ) -> Any:
        def here(data: Data, runs: Run, states: Any, *rest: Any) -> Any:
            one = lambda run, state: function(data, run, state, *rest)
            return mapped(one, runs, states)

        if devices:
            specs = (REPLICATED, SHARDED, SHARDED, *(REPLICATED for _ in rest))
            here = sharding.across(devices, here, specs, SHARDED)
        return here(data, runs, states, *rest)

    def score(data: Data, run: Run, state: Any) -> Any:
        return program.score(data, run.partition, None, state.params)

    return Programs(
        begin=jax.jit(partial(each, program.begin), donate_argnums=2),
        rounds=jax.jit(partial(each, program.rounds), donate_argnums=2),
        score=jax.jit(partial(each, score)),
    )


Metered = tuple[Meter, jax.Array]  # of a cell, and the key of its run


def stack(
    runs: Sequence[tuple[jax.Array, Simulation]], max_client_size: int, rounds: int
) -> tuple[Run, Any, list[Metered]]:
    """Stacks runs, and their states before `begin`.

    Args:
      runs: The key and the simulation of every cell.

    Returns:
      Them, and the meter and the key of every run.
    """
    stacked, states, meters = [], [], []
    for key, simulation in runs:
        state = simulation.program.create(simulation.data, simulation.run, key)
        _, run_key = state
        run = simulation.meter.timed(run_key, 0, rounds)
        partition = dataclasses.replace(run.partition, max_size=max_client_size)
        stacked.append(run._replace(partition=partition, client_tests=None))
        states.append(state)
        meters.append((simulation.meter, run_key))
    together = lambda trees: jax.tree.map(lambda *xs: jnp.stack(xs), *trees)
    return together(stacked), together(states), meters


class GroupRecord:
    """Records of a group's cells, and what has ended them."""

    def __init__(self, meters: Sequence[Metered], drop_nonfinite: bool):
        self.meters, self.drop_nonfinite, cells = meters, drop_nonfinite, len(meters)
        self.began = time.perf_counter()
        self.rows: list[list[Record]] = [[] for _ in range(cells)]
        self.dropped = [0] * cells
        self.ends: list[NonFiniteError | None] = [None] * cells

    def begin(self, received: jax.Array, scores: Mapping[str, jax.Array]) -> None:
        """Adds the first rows; a cell that has ended has one too."""
        self.add_rows(0, scores)
        for cell, one in enumerate(np.asarray(received)[: len(self.rows)]):
            if not self.drop_nonfinite and (end := end_at_start(one)):
                self.ends[cell] = end

    def add_metrics(self, metrics: Metrics) -> None:
        lost, first = np.asarray(metrics.lost), np.asarray(metrics.lost_round)
        for cell, end in enumerate(self.ends):
            self.dropped[cell] += int(lost[cell].sum())
            if end is None and not self.drop_nonfinite:
                self.ends[cell] = end_of_messages(first[cell])

    def add_rows(self, index: int, scores: Mapping[str, jax.Array]) -> None:
        seconds = (time.perf_counter() - self.began) / len(self.rows)
        columns = {name: np.asarray(values) for name, values in scores.items()}
        for cell, rows in enumerate(self.rows):
            if self.ends[cell] is None:
                meter, key = self.meters[cell]
                own = {name: values[cell] for name, values in columns.items()}
                counts: Any = {"dropped": self.dropped[cell], "seconds": seconds}
                row = meter.row(key, index, own, **counts)
                if not self.drop_nonfinite:
                    self.ends[cell] = end_of_row(row)
                if index == 0 or self.ends[cell] is None:
                    rows.append(row)
