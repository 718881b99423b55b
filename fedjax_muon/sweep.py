"""Grids of hyper-parameters and seeds: all cells of a group in one compiled program.

    cells = [Cell({"lr": lr}, key, parts) for lr in rates for key, parts in seeds]
    for group in sweep(simulation, cells, rounds=100):
        for outcome in group: ...

A cell is what `simulation` would be with these hyper-parameters, this key and these
clients, and gives the same numbers.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.batching import Clients
from fedjax_muon.evaluation import evaluate, means
from fedjax_muon.fitting import limit_of, memory_of
from fedjax_muon.memory import UnknownMemoryError
from fedjax_muon.rounds import Metrics, Setup, play_prologue, play_rounds, untrained
from fedjax_muon.simulation import Simulation
from fedjax_muon.tasks import Task
from fedjax_muon.training import Row, calls, check_every

Over = Callable[..., Any]  # (function, *stacked arguments) -> stacked results
Examples = tuple[Any, Any]  # x [n, ...], y [n]


class Cell(NamedTuple):
    """One run of a sweep."""

    hyper: Mapping[str, float]  # the same names in all cells
    key: jax.Array  # as `Simulation.init` takes it
    parts: Sequence[np.ndarray]  # of every client, the ids of its examples


class Outcome(NamedTuple):
    """What became of a cell: rows as `training.run` has them, and the validation's.

    A row's `seconds` are the cell's share of its group's.
    """

    rows: list[Row]
    diverged: int | None  # the round in which a message was not finite


def one_by_one(function, *stacked):
    """One cell after the other in one compiled loop: nothing is faster on CPUs."""
    return jax.lax.map(lambda cell: function(*cell), stacked)


def at_once(function, *stacked):
    """All cells of a group at once: for accelerators."""
    return jax.vmap(function)(*stacked)


def default_over() -> Over:
    """`one_by_one` on a CPU, else `at_once`."""
    return one_by_one if jax.default_backend() == "cpu" else at_once


class _Stacked(NamedTuple):
    """What cells differ in; leaves lead with the cells of a group."""

    hyper: dict[str, jax.Array]
    order: jax.Array  # the clients' segments
    start: jax.Array
    size: jax.Array
    shares: jax.Array


class _Data(NamedTuple):
    """What they share."""

    x: jax.Array
    y: jax.Array
    test: Examples
    validation: Examples | None
    task: Task


class _Programs(NamedTuple):
    begin: Callable  # (states, stacked, data) -> states, clients heard
    rounds: Callable  # (states, count, stacked, data) -> states, metrics
    score: Callable  # (states, stacked, data) -> scores by name


def sweep(
    simulation: Simulation,
    cells: Sequence[Cell],
    *,
    rounds: int,
    evaluate_every: int = 10,
    validation: Examples | None = None,
    cells_at_once: int | None = None,
    over: Over | None = None,
    drop_nonfinite: bool = False,
    tick: Callable[[int], None] = lambda rounds: None,
) -> Iterator[list[Outcome]]:
    """Trains all cells; yields the outcomes of one group of them after the other.

    Args:
      simulation: everything that the cells have in common.
      cells: the runs.
      rounds: how many to train.
      evaluate_every: rounds between two rows.
      validation: examples that no client has, scored as `validation_loss`,
        `validation_accuracy` and, where there is one, `validation_auc` or
        `validation_mcc`.
      cells_at_once: size of a group; by default what should fit in half the memory.
      over: how the cells of a group are mapped over; by default as is best here.
      drop_nonfinite: leave messages that are not finite out of the mean, in place of
        calling the cell diverged and letting its rows end there.
      tick: is told of rounds as they are played, summed over cells.

    Raises `ValueError` for no cells, cells with other names of hyper-parameters,
    numbers of clients or of examples than the first, sizes out of range, and a
    simulation on several devices.
    """
    check_every(evaluate_every)
    _check(simulation, cells, cells_at_once)
    prepared = [simulation.repartition(cell.parts) for cell in cells]
    longest = max(one.longest for one in prepared)
    programs = _programs(simulation.setup, over or default_over(), longest)
    if validation is not None:
        validation = jnp.asarray(validation[0]), jnp.asarray(validation[1])
    x, y, *_ = simulation.clients
    data = _Data(x, y, simulation.test, validation, simulation.setup.task)

    def play(group, missing) -> list[Outcome]:
        record = _Record(simulation, len(group), drop_nonfinite)
        states, stacked = _stack([*group, *group[-1:] * missing])
        states, heard = programs.begin(states, stacked, data)
        record.hear_prologue(heard)
        record.add_rows(0, programs.score(states, stacked, data))
        train = lambda states, count: programs.rounds(states, count, stacked, data)
        span = {"rounds": rounds, "evaluate_every": evaluate_every}
        for call in calls(train, states, 0, **span):
            record.hear(call.metrics)
            tick(call.rounds * len(group))
            if record.is_over():
                tick((rounds - call.total) * len(group))
                break
            if call.due:
                scores = programs.score(call.state, stacked, data)
                record.add_rows(call.total, scores)
        return record.outcomes()

    largest = cells_at_once or _fitting(simulation)
    size = -(-len(cells) // -(-len(cells) // largest))  # groups as equal as can be
    runs = list(zip(cells, prepared, strict=True))
    for first in range(0, len(cells), size):
        group = runs[first : first + size]
        # a smaller group plays its last cell again, so that one program is enough
        yield play(group, size - len(group))


def _programs(setup: Setup, over: Over, longest: int) -> _Programs:
    def each(function, states, stacked, data):
        def one(state, cell):
            algorithm = partial(setup.algorithm, **cell.hyper)
            clients = Clients(data.x, data.y, *cell[1:])
            own = setup._replace(algorithm=algorithm, task=data.task)
            return function(own, state, clients)

        return over(one, states, stacked)

    def begin(states, stacked, data):
        return each(partial(play_prologue, longest=longest), states, stacked, data)

    def rounds(states, count, stacked, data):
        play = partial(play_rounds, count=count, longest=longest)
        return each(play, states, stacked, data)

    def score(states, stacked, data):
        def one(own, state, clients):
            found = evaluate(own.task, state.params, clients, data.test)._asdict()
            if data.validation is not None:
                other = means(own.task, state.params, *data.validation)
                found["validation_loss"] = other.loss
                found["validation_accuracy"] = other.accuracy
                found["validation_auc"] = other.auc
                found["validation_mcc"] = other.mcc
            return {name: value for name, value in found.items() if value is not None}

        return each(one, states, stacked, data)

    return _Programs(
        begin=jax.jit(begin, donate_argnums=0),
        rounds=jax.jit(rounds, donate_argnums=0),
        score=jax.jit(score),
    )


def _stack(runs: Sequence[tuple[Cell, Simulation]]):
    """The states before the prologue, and what else differs."""
    states, rest = [], []
    for (hyper, key, _), simulation in runs:
        setup, clients = simulation.setup, simulation.clients
        algorithm = partial(setup.algorithm, **hyper)
        states.append(untrained(setup._replace(algorithm=algorithm), key))
        numbers = {name: jnp.float32(value) for name, value in hyper.items()}
        rest.append(_Stacked(numbers, *clients[2:]))
    stack = lambda trees: jax.tree.map(lambda *xs: jnp.stack(xs), *trees)
    return stack(states), stack(rest)


class _Record:
    """The rows of a group's cells, and which of them have diverged."""

    def __init__(self, simulation: Simulation, cells: int, drop_nonfinite: bool):
        self.bytes_after = simulation.bytes_after
        self.drop_nonfinite = drop_nonfinite
        self.began = time.perf_counter()
        self.rows: list[list[Row]] = [[] for _ in range(cells)]
        self.dropped = [0] * cells
        self.diverged: list[int | None] = [None] * cells

    def hear_prologue(self, heard) -> None:
        for cell in np.flatnonzero(~np.asarray(heard)[: len(self.rows)].all(axis=1)):
            self.diverged[cell] = 0

    def hear(self, metrics: Metrics) -> None:
        lost, first = np.asarray(metrics.lost), np.asarray(metrics.lost_round)
        for cell in np.flatnonzero(lost[: len(self.rows)].any(axis=1)):
            self.dropped[cell] += int(lost[cell].sum())
            if self.diverged[cell] is None and not self.drop_nonfinite:
                self.diverged[cell] = int(first[cell][first[cell] >= 0].min())

    def is_over(self) -> bool:
        return None not in self.diverged

    def add_rows(self, index: int, scores: Mapping[str, jax.Array]) -> None:
        down, up = self.bytes_after(index)
        seconds = (time.perf_counter() - self.began) / len(self.rows)
        columns = {name: np.asarray(values) for name, values in scores.items()}
        for cell, rows in enumerate(self.rows):
            if index == 0 or self.diverged[cell] is None:
                row: Row = {"round": index, "bytes_down": down, "bytes_up": up}
                row |= {name: float(values[cell]) for name, values in columns.items()}
                row |= {"dropped": self.dropped[cell], "seconds": seconds}
                rows.append(row)

    def outcomes(self) -> list[Outcome]:
        return list(map(Outcome, self.rows, self.diverged))


def _check(simulation: Simulation, cells, cells_at_once) -> None:
    if not cells:
        raise ValueError("a sweep needs at least one cell")
    if cells_at_once is not None and cells_at_once < 1:
        raise ValueError(f"cells_at_once must be at least 1, got {cells_at_once}")
    if simulation.setup.devices:
        raise ValueError(
            "a sweep runs on one device; prepare its simulation without devices"
        )
    names, examples = set(cells[0].hyper), sum(map(len, cells[0].parts))
    for number, cell in enumerate(cells):
        if set(cell.hyper) != names:
            raise ValueError(
                f"cell {number} has the hyper-parameters {sorted(cell.hyper)}, the "
                f"first has {sorted(names)}"
            )
        if sum(map(len, cell.parts)) != examples:
            raise ValueError(
                f"the clients of cell {number} have {sum(map(len, cell.parts))} "
                f"examples, those of the first {examples}; one program needs equally "
                "many"
            )
        simulation.setup.algorithm(simulation.setup.task.grad, **cell.hyper)


def _fitting(simulation: Simulation) -> int:
    """How many cells should fit in half the memory, all of them at work at once."""
    try:
        need, limit = memory_of(simulation), limit_of()
    except UnknownMemoryError as error:
        warnings.warn(f"memory not checked, one cell at a time: {error}", stacklevel=2)
        return 1
    cell = need.state + need.work + simulation.clients.order.nbytes
    return max(1, (limit // 2 - need.examples) // cell)
