"""Sweeps over hyperparameters and seeds, in one compiled program.

    cells = [Cell({"lr": lr}, key, parts) for lr in rates for key, parts in seeds]
    for group in run_cells(simulation, cells, rounds=100):
        for outcome in group: ...

A cell is a run of `simulation` with its own hyperparameters, key and clients. It gives
the same numbers as a separate run. Cells run in groups of one size, which share
compiled programs, in this process or on the workers of an executor.
"""

import functools
import pickle
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax

from fedjax_muon.core import check_count, with_numbers
from fedjax_muon.simulation.batching import max_client_size_of
from fedjax_muon.simulation.evaluation import Examples
from fedjax_muon.simulation.groups import (
    Cell,
    Groups,
    Outcome,
    Over,
    Programs,
    sequential,
)
from fedjax_muon.simulation.memory import (
    UnknownMemoryError,
    held_by,
    limit_of,
    memory_of,
)
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.versions import of_computing

__all__ = ["Cell", "Executor", "Outcome", "Over", "run_cells"]

Prepared = Simulation | tuple[Simulation, Examples | None]


class Executor(Protocol):
    """Any `concurrent.futures.Executor`, or one of submitit."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        """Starts a call, and returns a future with its `result`."""
        ...


def run_cells(
    simulation: Simulation | Callable[[], Prepared],
    cells: Sequence[Cell],
    *,
    rounds: int,
    evaluate_every: int = 10,
    validation: Examples | None = None,
    cells_at_once: int | None = None,
    over: Over | None = None,
    drop_nonfinite: bool = False,
    tick: Callable[[int], None] = lambda rounds: None,
    executor: Executor | None = None,
    devices: Sequence[jax.Device] = (),
    programs: Programs | None = None,
) -> Iterator[list[Outcome]]:
    """Trains all cells; yields the outcomes group by group, in the order of `cells`.

    With an executor, groups of cells are its tasks. A simulation holds functions, data
    and compiled programs, which do not travel to other processes. So you pass the
    function that makes it, and every worker calls it. On a CPU the outcomes are bitwise
    identical to those of one machine, except for `seconds`, if all workers have the
    same processor and the same number of cores. On accelerators the size of a group can
    change the last bits; give the same `cells_at_once` to compare.

    Args:
      simulation: Settings that the cells have in common, or a function without
        arguments that returns them, alone or as a pair with `validation`. With an
        executor, it is a function that pickles, such as one at the top level of a
        module, or a `functools.partial` of one.
      validation: Examples (x [n, ...], y [n]) that no client has, scored as
        `validation_loss`, `validation_accuracy` and, if the task has one,
        `validation_auc` or `validation_mcc`.
      cells_at_once: Number of cells in a group; by default, as many as fit in half of
        the memory, and one with an executor.
      over: Execution of the cells of a group: `sequential`, the default on CPUs, or
        `vectorized`, the default on accelerators.
      drop_nonfinite: Whether messages that are not finite are left out of the mean.
        Otherwise the cell is flagged as diverged, and its records end there.
      tick: Progress callback, called with the number of rounds that the cells of the
        group completed since the last call.
      executor: Runs groups of cells on its workers: a `ProcessPoolExecutor` with the
        context "spawn", Dask's `Client.get_executor()`, submitit's `AutoExecutor`. A
        group that fails is submitted again once.
      devices: Devices of this process that divide the cells of every group, instead
        of `over`; by default one.
      programs: From `groups.make_programs`, which several calls may share.

    Example:
      >>> key = jax.random.key(0)
      >>> cells = [fm.Cell({"lr": lr}, key, clients) for lr in (0.03, 0.1)]
      >>> results = fm.run_cells(simulation, cells, rounds=2)
    """
    check_count("evaluate_every", evaluate_every)
    recipe = b""
    if executor is not None:
        _check_executor(executor, validation, over)
        recipe = _pickled(simulation)
    if devices and (executor is not None or over is not None):
        raise ValueError("give only one of devices, executor and over")
    if not isinstance(simulation, Simulation):
        simulation, validation = _with_validation(simulation(), validation)
    _check(simulation, cells, cells_at_once)
    bounds = (max_client_size_of(cell.parts) for cell in cells)
    settings: dict[str, Any] = {
        "rounds": rounds,
        "evaluate_every": evaluate_every,
        "max_client_size": max(bounds),
        "drop_nonfinite": drop_nonfinite,
    }
    if executor is not None:
        asked = recipe, tuple(settings.items()), of_computing()
        size = group_size(len(cells), cells_at_once or 1)
        parts = [cells[first : first + size] for first in range(0, len(cells), size)]
        for outcomes in _on(executor, asked, parts, size):
            tick(rounds * len(outcomes))
            yield outcomes
        return
    settings |= {"validation": validation, "over": over, "devices": devices}
    settings["programs"] = programs
    groups = Groups(simulation, **settings)
    number = max(1, len(devices))
    in_turn = groups.over is sequential
    largest = cells_at_once or number * _cells_that_fit(simulation, devices, in_turn)
    size = group_size(len(cells), largest, number)
    for first in range(0, len(cells), size):
        yield groups.run(cells[first : first + size], size, tick)


def _with_validation(
    prepared: Prepared, validation: Examples | None
) -> tuple[Simulation, Examples | None]:
    if isinstance(prepared, Simulation):
        return prepared, validation
    if validation is not None:
        raise ValueError(
            "the function that makes the simulation returns validation examples; leave "
            "out validation"
        )
    return prepared


def _check(
    simulation: Simulation, cells: Sequence[Cell], cells_at_once: int | None
) -> None:
    if not cells:
        raise ValueError("a sweep needs at least one cell")
    if cells_at_once is not None:
        check_count("cells_at_once", cells_at_once)
    if simulation.guarantee is not None:
        raise ValueError(
            "a sweep releases all of its cells, so the guarantee of one does not hold; "
            "run private simulations one by one, with a ledger"
        )
    if simulation.source is not None:
        raise ValueError(
            "a sweep trains many runs together, whose examples do not stay on disk; "
            "give every method its rates, or read the examples with data.from_npz"
        )
    if simulation.settings.devices:
        raise ValueError(
            "a sweep runs on one device; prepare its simulation without devices"
        )
    names, examples = set(cells[0].hyper), sum(map(len, cells[0].parts))
    mixing = _mixing(simulation, cells[0])
    for number, cell in enumerate(cells):
        if set(cell.hyper) != names:
            raise ValueError(
                f"cell {number} has the hyperparameters {sorted(cell.hyper)}, but "
                f"the first has {sorted(names)}"
            )
        if sum(map(len, cell.parts)) != examples:
            raise ValueError(
                f"the clients of cell {number} have {sum(map(len, cell.parts))} "
                f"examples, but those of the first have {examples}; one program needs "
                "equally many"
            )
        with_numbers(simulation.settings.algorithm, cell.hyper)  # may raise
        if _mixing(simulation, cell) != mixing:
            raise ValueError(
                f"the weights of cell {number} need another program than those of "
                "cell 0; prepare the simulation with mixer=dense"
            )


def _mixing(simulation: Simulation, cell: Cell) -> Any:
    """The structure and the shapes of what multiplies agents' messages."""
    varied = simulation.at(parts=cell.parts, weights=cell.weights)  # may raise
    mixer = varied.run.mixer
    return jax.tree.structure(mixer), [x.shape for x in jax.tree.leaves(mixer)]


def _cells_that_fit(
    simulation: Simulation, devices: Sequence[jax.Device], in_turn: bool
) -> int:
    """How many cells fit in half of the memory of a device, where all are at work, or
    one at a time."""
    try:
        need = held_by(simulation) if in_turn else memory_of(simulation)
        limit = limit_of(devices)
    except UnknownMemoryError as error:
        warnings.warn(f"memory not checked, one cell at a time: {error}", stacklevel=2)
        return 1
    if need is None:
        return 1
    cell = need.state + need.work + simulation.run.partition.order.nbytes
    return max(1, (limit // 2 - need.examples) // cell)


def group_size(cells: int, largest: int, multiple: int = 1) -> int:
    """The size of groups that are nearly equal; the last one may be smaller.

    Args:
      multiple: Divisor of the size, for which it may be larger than `largest`.
    """
    even = -(-cells // -(-cells // largest))
    return -(-even // multiple) * multiple


def _pickled(make: Any) -> bytes:
    try:
        return pickle.dumps(make)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            "with an executor, give a function that pickles, such as one at the top "
            f"level of a module, which makes the simulation; {error}"
        ) from error


def _on(
    executor: Executor, asked: tuple, groups: Sequence[Sequence[Cell]], size: int
) -> Iterator[list[Outcome]]:
    """Trains groups of cells on an executor."""
    submit = lambda group: executor.submit(run_group, *asked, group, size)
    futures = [submit(group) for group in groups]
    try:
        for number, future in enumerate(futures):
            try:
                outcomes = future.result()
            except Exception as error:  # executors have their own for a lost worker
                warnings.warn(
                    f"group {number} of cells is submitted again, after "
                    f"{type(error).__name__}: {error}",
                    stacklevel=3,
                )
                futures[number] = submit(groups[number])
                outcomes = futures[number].result()
            yield outcomes
    finally:
        for future in futures:
            if not future.done():
                future.cancel()


def run_group(
    recipe: bytes,
    settings: tuple[tuple[str, Any], ...],
    versions: dict[str, str],
    cells: Sequence[Cell],
    size: int,
) -> list[Outcome]:
    """Trains a group of cells in a worker, with the `versions` of who asks."""
    here = of_computing()
    for name, asked in versions.items():
        if here[name] != asked:
            raise ValueError(
                f"{name} is {here[name]} on the worker {platform.node()} and {asked} "
                "here; install the same versions on all machines"
            )
    return _groups(recipe, settings).run(cells, size)


@functools.lru_cache(maxsize=2)
def _groups(recipe: bytes, settings: tuple[tuple[str, Any], ...]) -> Groups:
    """What a worker keeps for the next groups of a sweep."""
    simulation, validation = _with_validation(pickle.loads(recipe)(), None)
    return Groups(simulation, validation=validation, **dict(settings))


def _check_executor(executor: Any, *functions: Any) -> None:
    if not callable(getattr(executor, "submit", None)):
        raise ValueError(
            "executor must be a concurrent.futures.Executor, such as Dask's "
            f"Client.get_executor(), got {type(executor).__name__}"
        )
    if any(value is not None for value in functions):
        raise ValueError(
            "with an executor, leave out over, and return validation "
            "examples together with the simulation from the function that makes it"
        )
