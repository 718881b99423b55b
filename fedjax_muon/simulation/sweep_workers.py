"""Groups of cells of `sweep` on the workers of an executor."""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.sweep_groups import Cell, Groups
from fedjax_muon.simulation.sweep_record import Outcome
from fedjax_muon.simulation.sweep_tasks import Task, function_at, path_of, run_tasks

T = TypeVar("T")
KEPT = 2  # sweeps whose programs a worker keeps
_LOCK = threading.Lock()
_PREPARED: dict[str, Any] = {}


class Described(NamedTuple):
    """A call of a function: its import path and plain values."""

    path: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def described(function: Any) -> Described:
    """Describes the function that makes a simulation.

    Args:
      function: A function at the top level of a module, or a `functools.partial`.

    Returns:
      Its description.
    """
    if isinstance(function, Simulation):
        raise ValueError(
            "a simulation holds functions and data, which do not travel to workers; "
            "with an executor give the function that makes it, as in "
            'sweep(functools.partial(my_module.make, "digits"), cells, executor=...)'
        )
    args, kwargs = (), {}
    if isinstance(function, functools.partial):
        function, args, kwargs = function.func, function.args, function.keywords
    for value in (*args, *kwargs.values()):
        _check_plain(value)
    name = getattr(function, "__qualname__", repr(function))
    module = getattr(function, "__module__", "__main__")
    if module == "__main__" or "." in name or _at(module, name) is not function:
        raise ValueError(
            f"workers cannot import {name}; put the function that makes the "
            "simulation at the top level of a module that they can import"
        )
    return Described(path_of(function), args, kwargs)


def _at(module: str, name: str) -> Any:
    try:
        return function_at(f"{module}:{name}")
    except (ImportError, AttributeError):
        return None


def _check_plain(value: Any) -> None:
    if isinstance(value, dict):
        value = (*value.keys(), *value.values())
    if isinstance(value, tuple | list):
        for each in value:
            _check_plain(each)
    elif not (value is None or isinstance(value, bool | int | float | str | Path)):
        raise ValueError(
            f"an argument of the function that makes the simulation is a "
            f"{type(value).__name__}; workers get numbers, strings, paths and None, "
            "and tuples, lists and dictionaries of them"
        )


def check_executor(executor: Any, *functions: Any) -> None:
    """Raises `ValueError` for what is no executor, or can't be used with one."""
    if not isinstance(executor, Executor):
        raise ValueError(
            "executor must be a concurrent.futures.Executor, such as Dask's "
            f"Client.get_executor(), got {type(executor).__name__}"
        )
    if any(value is not None for value in functions):
        raise ValueError(
            "with an executor, leave out over and pause, and return validation "
            "examples beside the simulation from the function that makes it"
        )


def sweep_on(
    executor: Executor,
    recipe: Described,
    cells: Sequence[Cell],
    size: int,
    settings: dict[str, Any],
    tick: Callable[[int], None],
) -> Iterator[list[Outcome]]:
    """Runs the groups of a sweep on an executor.

    Args:
      executor: Runs the groups.
      recipe: Description of the simulation.
      size: Cells in a group.
      settings: Arguments of `Groups`.
      tick: Progress callback.

    Yields:
      The outcomes of groups, in the order of `cells`.
    """
    tasks = []
    for first in range(0, len(cells), size):
        group = cells[first : first + size]
        numbers = ", ".join(str(first + i) for i in range(len(group)))
        given = (recipe, [_sent(cell) for cell in group], size, settings)
        tasks.append(Task(given, f"cells {numbers}"))
    found: dict[int, list[Outcome]] = {}
    following = 0
    for number, outcomes in run_tasks(executor, run_described, tasks):
        found[number] = outcomes
        tick(settings["rounds"] * len(outcomes))
        while following in found:
            yield found.pop(following)
            following += 1


def _sent(cell: Cell) -> tuple[Any, ...]:
    """A cell without arrays of JAX, which belong to a device."""
    hyper = jax.tree.map(_number, dict(cell.hyper))
    key, kind = jax.random.key_data(cell.key), str(jax.random.key_impl(cell.key))
    return hyper, np.asarray(key), kind, [np.asarray(part) for part in cell.parts]


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) else np.asarray(value)


def _received(hyper: Any, key: np.ndarray, kind: str, parts: Any) -> Cell:
    return Cell(hyper, jax.random.wrap_key_data(jnp.asarray(key), impl=kind), parts)


def run_described(
    recipe: Described, cells: Sequence[Any], size: int, settings: dict[str, Any]
) -> list[Outcome]:
    """Runs a group of cells in a worker.

    Args:
      recipe: Description of the simulation.
      cells: The cells, as they are sent.
      size: Size of all groups.
      settings: Arguments of `Groups`.

    Returns:
      Outcomes of the cells.
    """

    def make() -> Groups:
        made = function_at(recipe.path)(*recipe.args, **recipe.kwargs)
        simulation, validation = made if isinstance(made, tuple) else (made, None)
        return Groups(simulation, validation=validation, **settings)

    groups = prepared(repr((recipe, settings)), make)
    return groups.run([_received(*cell) for cell in cells], size)


def prepared(key: str, make: Callable[[], T]) -> T:
    """Keeps what a worker has prepared, for the next groups of the same sweep.

    Args:
      key: Identifies it.

    Returns:
      What was prepared now or before.
    """
    with _LOCK:  # workers may have several threads
        if key not in _PREPARED:
            while len(_PREPARED) >= KEPT:
                del _PREPARED[next(iter(_PREPARED))]
            _PREPARED[key] = make()
        return _PREPARED[key]
