"""Groups of cells of a sweep, which share compiled programs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_muon.core import numbers_of, with_numbers
from fedjax_muon.core.recipe import as_arrays
from fedjax_muon.engine import sharding
from fedjax_muon.engine.sharding import REPLICATED, SHARDED
from fedjax_muon.simulation.batching import Clients
from fedjax_muon.simulation.evaluation import Evaluation, Examples, evaluate, measure
from fedjax_muon.simulation.rounds import (
    Setup,
    init_state,
    run_prologue,
    run_rounds,
)
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.sweep_record import GroupRecord, Outcome
from fedjax_muon.simulation.training import calls
from fedjax_muon.tasks.task import Task

Over = Callable[..., Any]  # (function, *stacked arguments) -> stacked results


class Cell(NamedTuple):
    """One run of a sweep."""

    hyper: Mapping[str, float]  # the same names in all cells
    key: jax.Array  # argument of `Simulation.init`
    parts: Sequence[np.ndarray]  # for every client, the ids of its training examples


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

    Args:
      function: Function of one cell.
      *stacked: Arguments of all cells, leaves [cells, ...].

    Returns:
      Results of all cells, leaves [cells, ...].
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


def group_size(cells: int, largest: int, multiple: int = 1) -> int:
    """Computes the size of groups that are nearly equal.

    Args:
      multiple: Divisor of the size, for which it may be larger.

    Returns:
      The size of all groups but the last, which may be smaller.
    """
    even = -(-cells // -(-cells // largest))
    return -(-even // multiple) * multiple


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


class Groups:
    """Groups of cells of one simulation, which run in the same compiled programs.

    The numbers of a cell do not depend on the other cells of its group, nor on how many
    they are, if the cells run sequentially.
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
        """Prepares the programs, which are compiled when the first group runs.

        Args:
          simulation: Settings that the cells have in common.
          rounds: Number of rounds of each cell.
          max_client_size: Upper bound of the sizes of the clients of all groups.
          validation: Examples (x [n, ...], y [n]) that no client has.
          over: Execution of the cells of a group.
          drop_nonfinite: Whether messages that are not finite are left out of the mean.
          devices: Devices that divide the cells of a group, instead of `over`.
        """
        if validation is not None:
            validation = jnp.asarray(validation[0]), jnp.asarray(validation[1])
        x, y, *_ = simulation.clients
        self.simulation, self.drop_nonfinite = simulation, drop_nonfinite
        data = _Data(x, y, simulation.test, validation, simulation.inputs.task)
        self.devices = devices
        self.data = self._placed(data, REPLICATED)
        over = over or default_over()
        self.programs = make_programs(simulation.setup, over, max_client_size, devices)
        self.rounds, self.evaluate_every = rounds, evaluate_every

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
          tick: Progress callback.
          pause: Interrupts the group, and continues it later.

        Raises:
          KeyboardInterrupt: After `pause` has kept the state of the group.
        """
        data, number = self.data, len(cells)
        record = GroupRecord(self.simulation, number, self.drop_nonfinite)
        runs = [(cell, self.simulation.vary(parts=cell.parts)) for cell in cells]
        states, stacked = stack([*runs, *runs[-1:] * (size - number)])
        states, stacked = self._placed((states, stacked), SHARDED)
        found = pause.restore(cells, states) if pause else None
        if found is not None:
            states, notes = found
            record.load(notes)
            tick(record.round * number)
        else:
            states, received = self.programs.begin(states, stacked, data)
            record.add_prologue(received)
            record.add_rows(0, self.programs.score(states, stacked, data))
        train = lambda states, count: self.programs.rounds(states, count, stacked, data)
        span = {"rounds": self.rounds, "evaluate_every": self.evaluate_every}
        for call in calls(train, states, record.round, **span):
            record.add_metrics(call.metrics, call.total)
            tick(call.rounds * number)
            if record.is_over():
                tick((self.rounds - call.total) * number)
                break
            if call.due:
                scores = self.programs.score(call.state, stacked, data)
                record.add_rows(call.total, scores)
            if pause and call.total < self.rounds and pause.asked():
                pause.save(cells, call.state, record.notes())
                raise KeyboardInterrupt
        return record.outcomes()

    def _placed(self, tree: Any, specs: Any) -> Any:
        return sharding.placed(tree, self.devices, specs) if self.devices else tree


def make_programs(
    setup: Setup,
    over: Over,
    max_client_size: int,
    devices: Sequence[jax.Device] = (),
) -> _Programs:
    """Makes the programs of a group.

    Args:
      over: Execution of the cells of a group, or of a device's part of them.
      devices: Devices that divide the cells of a group evenly; by default one.

    Returns:
      The programs, which are compiled when they are first used.
    """

    def each(
        function: Callable[..., Any], states: Any, stacked: _Stacked, data: _Data
    ) -> Any:
        def here(states: Any, stacked: _Stacked, data: _Data) -> Any:
            def one(state: Any, cell: _Stacked) -> Any:
                algorithm = with_numbers(setup.algorithm, cell.numbers)
                clients = Clients(data.x, data.y, *cell[1:])
                own = setup._replace(algorithm=algorithm, task=data.task)
                return function(own, state, clients, data)

            return over(one, states, stacked)

        if not devices:
            return here(states, stacked, data)
        given = (SHARDED, SHARDED, REPLICATED)
        run = sharding.across(devices, here, given, SHARDED)
        return run(states, stacked, data)

    def begin(states: Any, stacked: _Stacked, data: _Data) -> Any:
        def one(own: Setup, state: Any, clients: Clients, _: _Data) -> Any:
            return run_prologue(own, state, clients, max_client_size)

        return each(one, states, stacked, data)

    def rounds(states: Any, count: int, stacked: _Stacked, data: _Data) -> Any:
        def one(own: Setup, state: Any, clients: Clients, _: _Data) -> Any:
            return run_rounds(own, state, clients, count, max_client_size)

        return each(one, states, stacked, data)

    def score(states: Any, stacked: _Stacked, data: _Data) -> Any:
        def one(own: Setup, state: Any, clients: Clients, data: _Data) -> Evaluation:
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


def stack(runs: Sequence[tuple[Cell, Simulation]]) -> tuple[Any, _Stacked]:
    """Stacks the inputs of cells.

    Args:
      runs: Cells, each with the simulation of its own clients.

    Returns:
      The states before the prologue, and the other inputs that differ.
    """
    states, rest = [], []
    for (hyper, key, _), simulation in runs:
        setup, clients = simulation.setup, simulation.clients
        algorithm = with_numbers(setup.algorithm, hyper)
        states.append(init_state(setup._replace(algorithm=algorithm), key))
        numbers = as_arrays({**numbers_of(setup.algorithm), **hyper})
        rest.append(_Stacked(numbers, *clients[2:]))
    stacked = lambda trees: jax.tree.map(lambda *xs: jnp.stack(xs), *trees)
    return stacked(states), stacked(rest)
