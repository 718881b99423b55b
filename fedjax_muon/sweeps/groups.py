"""Groups of cells of a sweep, which share compiled programs."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_muon.core import numbers_of, with_numbers
from fedjax_muon.core.recipe import as_arrays
from fedjax_muon.engine import sharding
from fedjax_muon.engine.programs import promoting
from fedjax_muon.engine.sharding import REPLICATED, SHARDED
from fedjax_muon.simulation.batching import Clients
from fedjax_muon.simulation.evaluation import Evaluation, Examples, evaluate, measure
from fedjax_muon.simulation.rounds import (
    Metrics,
    Setup,
    init_state,
    run_prologue,
    run_rounds,
)
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.timing import Timing
from fedjax_muon.simulation.training import Record, calls
from fedjax_muon.tasks.task import Task

Over = Callable[..., Any]  # (function, *stacked arguments) -> stacked results


class Cell(NamedTuple):
    """One run of a sweep."""

    hyper: Mapping[str, float]  # the same names in all cells
    key: jax.Array  # argument of `Simulation.init`
    parts: Sequence[np.ndarray]  # for every client, the ids of its training examples


class Outcome(NamedTuple):
    """Results of a cell: records of `training.train`, with validation metrics.

    `seconds` of a record are the cell's share of the time of its group.
    """

    rows: list[Record]
    diverged: int | None  # the round in which a message was not finite


class Pause(Protocol):
    """Interrupts a sweep within a group, and continues it there later."""

    def asked(self) -> bool:
        """Whether to stop, asked between calls of about a tenth of a second."""
        ...

    def save(self, cells: Sequence[Cell], state: Any, notes: dict[str, Any]) -> None:
        """Keeps the state of a group, and notes that JSON can represent."""
        ...

    def restore(
        self, cells: Sequence[Cell], state: Any
    ) -> tuple[Any, dict[str, Any]] | None:
        """The state and notes of a group, if they were kept, given a first state."""
        ...


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
    changes the last bits. So the number of iterations is hidden from it.
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


class _Stacked(NamedTuple):
    """Inputs that differ between the cells of a group, leaves [cells, ...]."""

    numbers: dict[str, Any]  # all hyperparameters, including those that cells share
    order: jax.Array  # the clients' segments
    start: jax.Array
    size: jax.Array
    shares: jax.Array
    timing: Any  # see `simulation.timing`


class _Shared(NamedTuple):
    x: jax.Array
    y: jax.Array
    test: Examples
    validation: Examples | None
    task: Task


class _Programs(NamedTuple):
    begin: Callable[..., Any]  # (states, stacked, shared) -> states, received
    rounds: Callable[..., Any]  # (states, count, stacked, shared) -> states, metrics
    score: Callable[..., Any]  # (states, stacked, shared) -> metrics by name


class Groups:
    """Groups of cells of one simulation, which run in the same compiled programs.

    The numbers of a cell do not depend on the other cells of its group, nor on how many
    they are, if the cells run sequentially. Programs are compiled when the first group
    runs. Arguments are those of `sweep`; `max_client_size` bounds the sizes of the
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
    ):
        if validation is not None:
            validation = jnp.asarray(validation[0]), jnp.asarray(validation[1])
        if over is None:
            over = sequential if jax.default_backend() == "cpu" else vectorized
        self.simulation, self.drop_nonfinite = simulation, drop_nonfinite
        clients, task = simulation.clients, simulation.inputs.task
        shared = _Shared(clients.x, clients.y, simulation.test, validation, task)
        self.devices = devices
        self.shared = self._on_devices(shared, REPLICATED)
        self.over = over
        self.programs = make_programs(simulation.setup, over, max_client_size, devices)
        self.rounds, self.evaluate_every = rounds, evaluate_every

    @promoting
    def run(
        self,
        cells: Sequence[Cell],
        size: int,
        tick: Callable[[int], None] = lambda rounds: None,
        pause: Pause | None = None,
    ) -> list[Outcome]:
        """Trains a group of cells.

        Args:
          size: Size of all groups. A smaller one runs its last cell again, so that
            groups share a program.
        """
        shared, number = self.shared, len(cells)
        record = GroupRecord(self.simulation, number, self.drop_nonfinite)
        runs = [(cell, self.simulation.vary(parts=cell.parts)) for cell in cells]
        states, stacked, timings, answered = stack(
            [*runs, *runs[-1:] * (size - number)], self.rounds
        )
        record.timings, record.answered = timings[:number], answered[:number]
        states, stacked = self._on_devices((states, stacked), SHARDED)
        kept = pause.restore(cells, states) if pause else None
        if kept is not None:
            states, notes = kept
            record.load(notes)
            tick(record.round * number)
        else:
            states, received = self.programs.begin(states, stacked, shared)
            record.add_prologue(received)
            record.add_rows(0, self.programs.score(states, stacked, shared))
        train = lambda states, count: self.programs.rounds(
            states, count, stacked, shared
        )
        span = {"rounds": self.rounds, "evaluate_every": self.evaluate_every}
        for call in calls(train, states, record.round, **span):
            record.add_metrics(call.metrics, call.total)
            tick(call.rounds * number)
            if None not in record.diverged:
                tick((self.rounds - call.total) * number)
                break
            if call.due:
                scores = self.programs.score(call.state, stacked, shared)
                record.add_rows(call.total, scores)
            if pause and call.total < self.rounds and pause.asked():
                pause.save(cells, call.state, record.notes())
                raise KeyboardInterrupt
        return list(map(Outcome, record.rows, record.diverged))

    def _on_devices(self, tree: Any, specs: Any) -> Any:
        return sharding.placed(tree, self.devices, specs) if self.devices else tree


def make_programs(
    setup: Setup, over: Over, max_client_size: int, devices: Sequence[jax.Device] = ()
) -> _Programs:
    """Makes the programs of a group, which are compiled when they are first used.

    Args:
      devices: Devices that divide the cells of a group evenly; by default one.
    """

    def each(
        function: Callable[..., Any], states: Any, stacked: _Stacked, shared: _Shared
    ) -> Any:
        def here(states: Any, stacked: _Stacked, shared: _Shared) -> Any:
            def one(state: Any, cell: _Stacked) -> Any:
                algorithm = with_numbers(setup.algorithm, cell.numbers)
                segments = (cell.order, cell.start, cell.size, cell.shares)
                clients = Clients(shared.x, shared.y, *segments, max_client_size)
                given = {"task": shared.task, "timing": cell.timing}
                with_cell = setup._replace(algorithm=algorithm, **given)
                return function(with_cell, state, clients, shared)

            return over(one, states, stacked)

        if not devices:
            return here(states, stacked, shared)
        specs = (SHARDED, SHARDED, REPLICATED)
        run = sharding.across(devices, here, specs, SHARDED)
        return run(states, stacked, shared)

    def begin(states: Any, stacked: _Stacked, shared: _Shared) -> Any:
        run = lambda setup, state, clients, _: run_prologue(setup, state, clients)
        return each(run, states, stacked, shared)

    def rounds(states: Any, count: int, stacked: _Stacked, shared: _Shared) -> Any:
        run = lambda setup, state, clients, _: run_rounds(setup, state, clients, count)
        return each(run, states, stacked, shared)

    return _Programs(
        begin=jax.jit(begin, donate_argnums=0),
        rounds=jax.jit(rounds, donate_argnums=0),
        score=jax.jit(partial(each, _score)),
    )


def _score(setup: Setup, state: Any, clients: Clients, shared: _Shared) -> Evaluation:
    scores = evaluate(setup.task, state.params, clients, shared.test)
    if shared.validation is not None:
        held_out = measure(setup.task, state.params, *shared.validation)
        scores |= {f"validation_{name}": v for name, v in held_out.items()}
    return scores


Answered = Callable[[int], int | None]  # rounds -> answers in them, see `Simulation`


def stack(
    runs: Sequence[tuple[Cell, Simulation]], rounds: int
) -> tuple[Any, _Stacked, list[Timing | None], list[Answered]]:
    """Stacks the states before the prologue, and the other inputs that differ.

    Returns:
      Them, and the times and the numbers of answers of all runs.
    """
    states, rest, timings = [], [], []
    answered: list[Answered] = []
    for (hyper, key, _), simulation in runs:
        setup, clients = simulation.setup, simulation.clients
        algorithm = with_numbers(setup.algorithm, hyper)
        states.append(init_state(setup._replace(algorithm=algorithm), key))
        numbers = as_arrays({**numbers_of(setup.algorithm), **hyper})
        segments = (clients.order, clients.start, clients.size, clients.shares)
        timing = simulation.timing(states[-1].key)
        timings.append(timing)
        answered.append(functools.partial(simulation.answered, states[-1].key))
        timed = None if timing is None else timing.inputs(0, rounds)
        rest.append(_Stacked(numbers, *segments, timed))
    stacked = lambda trees: jax.tree.map(lambda *xs: jnp.stack(xs), *trees)
    return stacked(states), stacked(rest), timings, answered


class GroupRecord:
    """Records of a group's cells, and which of the cells have diverged."""

    def __init__(self, simulation: Simulation, cells: int, drop_nonfinite: bool):
        self.bytes_after = simulation.bytes_after
        self.drop_nonfinite = drop_nonfinite
        self.began = time.perf_counter()
        self.rows: list[list[Record]] = [[] for _ in range(cells)]
        self.dropped = [0] * cells
        self.diverged: list[int | None] = [None] * cells
        self.timings: list[Timing | None] = [None] * cells
        self.answered: list[Answered] = [lambda rounds: None] * cells
        self.round = 0

    def notes(self) -> dict[str, Any]:
        """The record in values that JSON can represent, for `load`."""
        kept = {"rows": self.rows, "dropped": self.dropped, "diverged": self.diverged}
        seconds = time.perf_counter() - self.began
        return kept | {"round": self.round, "seconds": seconds}

    def load(self, notes: Mapping[str, Any]) -> None:
        """Restores the record from the notes of an interrupted group."""
        self.rows, self.dropped = notes["rows"], notes["dropped"]
        self.diverged, self.round = notes["diverged"], notes["round"]
        self.began = time.perf_counter() - notes["seconds"]

    def add_prologue(self, received: jax.Array) -> None:
        if self.drop_nonfinite:
            return
        for cell in np.flatnonzero(~np.asarray(received)[: len(self.rows)].all(axis=1)):
            self.diverged[cell] = 0

    def add_metrics(self, metrics: Metrics, index: int) -> None:
        self.round = index
        lost, first = np.asarray(metrics.lost), np.asarray(metrics.lost_round)
        for cell in np.flatnonzero(lost[: len(self.rows)].any(axis=1)):
            self.dropped[cell] += int(lost[cell].sum())
            if self.diverged[cell] is None and not self.drop_nonfinite:
                self.diverged[cell] = int(first[cell][first[cell] >= 0].min())

    def add_rows(self, index: int, scores: Mapping[str, jax.Array]) -> None:
        seconds = (time.perf_counter() - self.began) / len(self.rows)
        columns = {name: np.asarray(values) for name, values in scores.items()}
        for cell, rows in enumerate(self.rows):
            if index == 0 or self.diverged[cell] is None:
                answered = self.answered[cell](index)
                down, up = self.bytes_after(index, answered)
                row: Record = {"round": index, "bytes_down": down, "bytes_up": up}
                if answered is not None:
                    row["answered"] = answered
                row |= {name: float(values[cell]) for name, values in columns.items()}
                timing = self.timings[cell]
                if timing is not None:
                    row["virtual_seconds"] = timing.seconds(index)
                row |= {"dropped": self.dropped[cell], "seconds": seconds}
                rows.append(row)
