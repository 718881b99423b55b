"""Tasks on the workers of an executor.

A task is a function of this library, by its import path, and plain arguments. It can be
run again: it changes nothing but its result. The result is used once.
"""

import functools
import importlib
import platform
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from fedjax_muon.versions import of_computing

T = TypeVar("T")
ATTEMPTS = 3  # of a task whose workers end
SECONDS_BETWEEN_LOOKS = 0.1
NAMED = 5  # tasks in a message
KEPT = 2  # sweeps whose programs a worker keeps
_LOCK = threading.Lock()
_PREPARED: dict[str, Any] = {}


class WorkerError(RuntimeError):
    """Workers ended while they ran a task, as often as it is tried."""


class RemoteCall(NamedTuple):
    """A call of a function that workers import, with plain values."""

    path: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        return function_at(self.path)(*self.args, **self.kwargs)


class WorkerTask(NamedTuple):
    """Arguments of a task, and its name in messages."""

    arguments: tuple[Any, ...]
    name: str


class Answer(NamedTuple):
    """Answer of a worker."""

    result: Any = None
    device: str = ""
    refusal: str = ""  # why there is no result
    trace: str = ""  # of the refusal


def path_of(function: Callable[..., Any]) -> str:
    """The import path of a function, as "module:name"."""
    return f"{function.__module__}:{function.__qualname__}"


def function_at(path: str) -> Callable[..., Any]:
    """Imports the function that `path_of` describes."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def remote_call(function: Any) -> RemoteCall:
    """Describes the call of the function that makes a simulation."""
    args, kwargs = (), {}
    if isinstance(function, functools.partial):
        function, args, kwargs = function.func, function.args, function.keywords
    if not callable(function):
        raise ValueError(
            "a simulation holds functions and data, which do not travel to workers; "
            "with an executor give the function that makes it, as in "
            'sweep(functools.partial(my_module.make, "digits"), cells, executor=...)'
        )
    for value in (*args, *kwargs.values()):
        _check_plain(value)
    name = getattr(function, "__qualname__", repr(function))
    module = getattr(function, "__module__", "__main__")
    if module == "__main__" or "." in name or _imported(module, name) is not function:
        raise ValueError(
            f"workers cannot import {name}; put the function that makes the "
            "simulation at the top level of a module that they can import"
        )
    return RemoteCall(path_of(function), args, kwargs)


def _imported(module: str, name: str) -> Any:
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


def prepared(key: str, prepare: Callable[[], T]) -> T:
    """What a worker has prepared, now or for an earlier task with the same key."""
    with _LOCK:  # workers may have several threads
        if key not in _PREPARED:
            while len(_PREPARED) >= KEPT:
                del _PREPARED[next(iter(_PREPARED))]
            _PREPARED[key] = prepare()
        return _PREPARED[key]


def perform(path: str, arguments: tuple[Any, ...], wanted: dict[str, str]) -> Answer:
    """Runs a task in a worker, if its packages have the versions of the asker's."""
    here = of_computing()
    for name, asked in wanted.items():
        if here[name] != asked:
            where = platform.node()
            return Answer(
                refusal=f"{name} is {here[name]} on the worker {where} and {asked} "
                "here; install the same versions on all machines"
            )
    try:
        result = function_at(path)(*arguments)
    except (ValueError, OSError, ImportError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return Answer(
            refusal=f"the worker {platform.node()} raised {what}",
            trace=traceback.format_exc(),
        )
    return Answer(result, jax.devices()[0].device_kind)


def run_tasks(
    executor: Executor,
    function: Callable[..., Any],
    tasks: Sequence[WorkerTask],
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, Any]]:
    """Runs tasks; yields their numbers and results, in the order of completion.

    A task whose worker ends is submitted again. If its workers end three times, the
    other tasks are finished before the error is raised.

    Args:
      function: The tasks' function, at the top level of a module of this library.
      stop: Whether to stop, asked several times a second.
    """
    waiting: dict[Future[Answer], int] = {}
    attempts, lost, kinds = [0] * len(tasks), dict[int, str](), set[str]()
    left = dict.fromkeys(range(len(tasks)))

    def submit(number: int) -> None:
        attempts[number] += 1
        asked = (path_of(function), tasks[number].arguments, of_computing())
        waiting[executor.submit(perform, *asked)] = number

    try:
        for number in range(len(tasks)):
            submit(number)
        while waiting:
            ended, _ = wait(waiting, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
            again = []
            for future in ended:
                number = waiting.pop(future)
                reason, final = _end_of(future)
                if not reason:
                    result = _result(future, tasks[number], kinds)
                    del left[number]
                    yield number, result
                elif final or attempts[number] == ATTEMPTS:
                    lost[number] = reason
                else:
                    again.append(number)
            for number in again:
                submit(number)
            if stop():
                raise KeyboardInterrupt
    except BrokenExecutor as error:  # it takes no more tasks
        raise _lost(tasks, [*left], f"the executor ended: {error}") from None
    finally:
        for future in waiting:
            future.cancel()
    if lost:
        raise _lost(tasks, sorted(lost), next(iter(lost.values())))


def _end_of(future: Future) -> tuple[str, bool]:
    """How a task's worker ended, empty if it did not, and whether that is final."""
    if future.cancelled():
        return "cancelled by the executor", True
    error = future.exception()
    if error is None:
        return "", False
    if isinstance(error, CancelledError):
        return "cancelled by the executor", True
    if type(error).__name__ == "KilledWorker":  # Dask's, after attempts of its own
        return " ".join(str(error).split("\n")[0].split()), True
    if isinstance(error, BrokenExecutor):
        return f"the worker ended in each of {ATTEMPTS} attempts", False
    return "", False


def _result(future: Future[Answer], task: WorkerTask, kinds: set[str]) -> Any:
    answer = future.result()
    if answer.refusal:
        cause = RuntimeError(answer.trace) if answer.trace else None
        raise ValueError(f"{task.name}: {answer.refusal}") from cause
    if kinds and answer.device not in kinds:
        several = ", ".join(sorted({answer.device, *kinds}))
        warnings.warn(
            f"workers have several kinds of devices: {several}; numbers of different "
            "kinds differ in rounding",
            stacklevel=3,
        )
    kinds.add(answer.device)
    return answer.result


def _lost(
    tasks: Sequence[WorkerTask], numbers: Sequence[int], reason: str
) -> WorkerError:
    names = [tasks[number].name for number in numbers[:NAMED]]
    more = len(numbers) - len(names)
    names += [f"{more} more"] * (more > 0)
    return WorkerError(f"{'; '.join(names)}: {reason}; finished cells are kept")
