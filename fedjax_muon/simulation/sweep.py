"""Sweeps over hyper-parameters and seeds, in one compiled program.

    cells = [Cell({"lr": lr}, key, parts) for lr in rates for key, parts in seeds]
    for group in sweep(simulation, cells, rounds=100):
        for outcome in group: ...

A cell is a run of `simulation` with its own hyper-parameters, key and clients. It gives
the same numbers as a separate run.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import numbers_of, with_numbers
from fedjax_muon.core.recipe import as_arrays
from fedjax_muon.simulation.batching import Clients
from fedjax_muon.simulation.evaluation import Evaluation, Examples, evaluate, measure
from fedjax_muon.simulation.memory import UnknownMemoryError
from fedjax_muon.simulation.memory_check import limit_of, memory_of
from fedjax_muon.simulation.rounds import (
    Metrics,
    Setup,
    init_state,
    run_prologue,
    run_rounds,
)
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.training import Record, calls, check_every
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

    Args:
      function: Function of one cell.
      *stacked: Arguments of all cells, leaves [cells, ...].

    Returns:
      Results of all cells, leaves [cells, ...].
    """
    return jax.lax.map(lambda cell: function(*cell), stacked)


def vectorized(function: Callable[..., Any], *stacked: Any) -> Any:
    """Runs all cells of a group in parallel, for accelerators.

    Args:
      function: Function of one cell.
      *stacked: Arguments of all cells, leaves [cells, ...].

    Returns:
      Results of all cells, leaves [cells, ...].
    """
    return jax.vmap(function)(*stacked)


def default_over() -> Over:
    """Selects `sequential` on a CPU, otherwise `vectorized`."""
    return sequential if jax.default_backend() == "cpu" else vectorized


class _Stacked(NamedTuple):
    """Inputs that differ between the cells of a group, leaves [cells, ...]."""

    numbers: dict[str, Any]  # all hyper-parameters, including those that cells share
    order: jax.Array  # the clients' segments
    start: jax.Array
    size: jax.Array
    shares: jax.Array


class _Data(NamedTuple):
    """Inputs that cells share."""

    x: jax.Array
    y: jax.Array
    test: Examples
    validation: Examples | None
    task: Task


class _Programs(NamedTuple):
    begin: Callable[..., Any]  # (states, stacked, data) -> states, received
    rounds: Callable[..., Any]  # (states, count, stacked, data) -> states, metrics
    score: Callable[..., Any]  # (states, stacked, data) -> metrics by name


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
    pause: Pause | None = None,
) -> Iterator[list[Outcome]]:
    """Trains all cells; yields the outcomes group by group.

    Args:
      simulation: Settings that the cells have in common.
      cells: The runs, each with its hyper-parameters, key and clients.
      rounds: Number of rounds of each cell.
      evaluate_every: Rounds between two evaluations.
      validation: Examples (x [n, ...], y [n]) that no client has, scored as
        `validation_loss`, `validation_accuracy` and, if the task has one,
        `validation_auc` or `validation_mcc`.
      cells_at_once: Number of cells in a group; by default, as many as fit in half of
        the memory by estimate.
      over: Execution of the cells of a group: `sequential`, the default on CPUs, or
        `vectorized`, the default on accelerators.
      drop_nonfinite: Whether messages that are not finite are left out of the mean.
        Otherwise the cell is flagged as diverged, and its records end there.
      tick: Progress callback, called with the number of rounds that the cells of the
        group completed since the last call.
      pause: Interrupts the sweep when it is asked to, and continues it later.

    Returns:
      An iterator over groups, each a list with one outcome for each of its cells.

    Raises:
      KeyboardInterrupt: After `pause` has kept the state of a group.
      ValueError: At the first iteration, if there are no cells, cells differ in the
        names of their hyper-parameters or in the numbers of their clients or examples,
        a size is out of range, or the simulation is on several devices.

    Example:
      >>> cells = [Cell({"lr": lr}, jax.random.key(0), clients) for lr in (0.01, 0.1)]
      >>> for group in sweep(simulation, cells, rounds=10):
      ...     diverged = [outcome.diverged for outcome in group]
    """
    check_every(evaluate_every)
    _check(simulation, cells, cells_at_once)
    prepared = [simulation.vary(parts=cell.parts) for cell in cells]
    max_client_size = max(one.max_client_size for one in prepared)
    programs = _programs(simulation.setup, over or default_over(), max_client_size)
    if validation is not None:
        validation = jnp.asarray(validation[0]), jnp.asarray(validation[1])
    x, y, *_ = simulation.clients
    data = _Data(x, y, simulation.test, validation, simulation.inputs.task)

    def run(group: list[tuple[Cell, Simulation]], missing: int) -> list[Outcome]:
        record = _Record(simulation, len(group), drop_nonfinite)
        states, stacked = _stack([*group, *group[-1:] * missing])
        own = [cell for cell, _ in group]
        found = pause.restore(own, states) if pause else None
        if found is not None:
            states, notes = found
            record.load(notes)
            tick(record.round * len(group))
        else:
            states, received = programs.begin(states, stacked, data)
            record.add_prologue(received)
            record.add_rows(0, programs.score(states, stacked, data))
        train = lambda states, count: programs.rounds(states, count, stacked, data)
        span = {"rounds": rounds, "evaluate_every": evaluate_every}
        for call in calls(train, states, record.round, **span):
            record.add_metrics(call.metrics, call.total)
            tick(call.rounds * len(group))
            if record.is_over():
                tick((rounds - call.total) * len(group))
                break
            if call.due:
                scores = programs.score(call.state, stacked, data)
                record.add_rows(call.total, scores)
            if pause and call.total < rounds and pause.asked():
                pause.save(own, call.state, record.notes())
                raise KeyboardInterrupt
        return record.outcomes()

    largest = cells_at_once or _cells_that_fit(simulation)
    size = -(-len(cells) // -(-len(cells) // largest))  # groups of nearly equal sizes
    runs = list(zip(cells, prepared, strict=True))
    for first in range(0, len(cells), size):
        group = runs[first : first + size]
        # A smaller group runs its last cell again, so that groups share a program.
        yield run(group, size - len(group))


def _programs(setup: Setup, over: Over, max_client_size: int) -> _Programs:
    def each(
        function: Callable[..., Any], states: Any, stacked: _Stacked, data: _Data
    ) -> Any:
        def one(state: Any, cell: _Stacked) -> Any:
            algorithm = with_numbers(setup.algorithm, cell.numbers)
            clients = Clients(data.x, data.y, *cell[1:])
            own = setup._replace(algorithm=algorithm, task=data.task)
            return function(own, state, clients)

        return over(one, states, stacked)

    def begin(states: Any, stacked: _Stacked, data: _Data) -> Any:
        return each(
            partial(run_prologue, max_client_size=max_client_size),
            states,
            stacked,
            data,
        )

    def rounds(states: Any, count: int, stacked: _Stacked, data: _Data) -> Any:
        run = partial(run_rounds, count=count, max_client_size=max_client_size)
        return each(run, states, stacked, data)

    def score(states: Any, stacked: _Stacked, data: _Data) -> Any:
        def one(own: Setup, state: Any, clients: Clients) -> Evaluation:
            found = evaluate(own.task, state.params, clients, data.test)
            if data.validation is not None:
                other = measure(own.task, state.params, *data.validation)
                found |= {f"validation_{name}": v for name, v in other.items()}
            return found

        return each(one, states, stacked, data)

    return _Programs(
        begin=jax.jit(begin, donate_argnums=0),
        rounds=jax.jit(rounds, donate_argnums=0),
        score=jax.jit(score),
    )


def _stack(runs: Sequence[tuple[Cell, Simulation]]) -> tuple[Any, _Stacked]:
    """Stacks the states before the prologue, and the other inputs that differ."""
    states, rest = [], []
    for (hyper, key, _), simulation in runs:
        setup, clients = simulation.setup, simulation.clients
        algorithm = with_numbers(setup.algorithm, hyper)
        states.append(init_state(setup._replace(algorithm=algorithm), key))
        numbers = as_arrays({**numbers_of(setup.algorithm), **hyper})
        rest.append(_Stacked(numbers, *clients[2:]))
    stack = lambda trees: jax.tree.map(lambda *xs: jnp.stack(xs), *trees)
    return stack(states), stack(rest)


class _Record:
    """Records of a group's cells, and which of the cells have diverged."""

    def __init__(self, simulation: Simulation, cells: int, drop_nonfinite: bool):
        self.bytes_after = simulation.bytes_after
        self.drop_nonfinite = drop_nonfinite
        self.began = time.perf_counter()
        self.rows: list[list[Record]] = [[] for _ in range(cells)]
        self.dropped = [0] * cells
        self.diverged: list[int | None] = [None] * cells
        self.round = 0

    def notes(self) -> dict[str, Any]:
        """All that JSON can represent."""
        seconds = time.perf_counter() - self.began
        return {
            "rows": self.rows,
            "dropped": self.dropped,
            "diverged": self.diverged,
            "round": self.round,
            "seconds": seconds,
        }

    def load(self, notes: Mapping[str, Any]) -> None:
        """Becomes what the notes say."""
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

    def is_over(self) -> bool:
        return None not in self.diverged

    def add_rows(self, index: int, scores: Mapping[str, jax.Array]) -> None:
        down, up = self.bytes_after(index)
        seconds = (time.perf_counter() - self.began) / len(self.rows)
        columns = {name: np.asarray(values) for name, values in scores.items()}
        for cell, rows in enumerate(self.rows):
            if index == 0 or self.diverged[cell] is None:
                row: Record = {"round": index, "bytes_down": down, "bytes_up": up}
                row |= {name: float(values[cell]) for name, values in columns.items()}
                row |= {"dropped": self.dropped[cell], "seconds": seconds}
                rows.append(row)

    def outcomes(self) -> list[Outcome]:
        return list(map(Outcome, self.rows, self.diverged))


def _check(
    simulation: Simulation, cells: Sequence[Cell], cells_at_once: int | None
) -> None:
    if not cells:
        raise ValueError("a sweep needs at least one cell")
    if cells_at_once is not None and cells_at_once < 1:
        raise ValueError(f"cells_at_once must be at least 1, got {cells_at_once}")
    if simulation.guarantee is not None:
        raise ValueError(
            "a sweep releases all of its cells, so the guarantee of one does not hold; "
            "run private simulations one by one, with a ledger"
        )
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
        with_numbers(simulation.setup.algorithm, cell.hyper)  # may raise


def _cells_that_fit(simulation: Simulation) -> int:
    """Estimates the number of cells that run in parallel in half of the memory."""
    try:
        need, limit = memory_of(simulation), limit_of()
    except UnknownMemoryError as error:
        warnings.warn(f"memory not checked, one cell at a time: {error}", stacklevel=2)
        return 1
    cell = need.state + need.work + simulation.clients.order.nbytes
    return max(1, (limit // 2 - need.examples) // cell)
