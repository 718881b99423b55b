"""Algorithms, models and partitions of users, which are named MODULE:FUNCTION.

A name is imported when something is trained, never when a directory is read.
"""

import difflib
import importlib
import inspect
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedjax_muon.algorithms.registry import Method
from fedjax_muon.core import Algorithm
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.private_methods import PrivateAgents
from fedjax_muon.runs.errors import is_refusal

if TYPE_CHECKING:
    import flax.linen as nn


def is_own(name: str) -> bool:
    """Whether an algorithm, a model or a partition is a user's own."""
    return ":" in name


def file_name(name: str) -> str:
    """The name as a part of paths."""
    return name.replace(":", "-")


def load(name: str) -> Callable[..., Any]:
    """Imports MODULE:FUNCTION of a user, from here or an installed package."""
    module_name, _, attribute = name.partition(":")
    parts = (*module_name.split("."), attribute)
    if not all(map(str.isidentifier, parts)):
        raise ValueError(
            f"{name!r} must be MODULE:FUNCTION, such as my_algorithm:fedfoo for the "
            "function fedfoo in my_algorithm.py"
        )
    module = _imported(name)
    if not hasattr(module, attribute):
        functions = [k for k, v in vars(module).items() if callable(v)]
        near = difflib.get_close_matches(attribute, functions, 1, 0.5)
        advice = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{_place(module)} has no function {attribute!r}{advice}")
    function = getattr(module, attribute)
    if not callable(function):
        kind = type(function).__name__
        raise ValueError(f"{name} must be a function, got a value of type {kind}")
    return function


def _imported(name: str) -> types.ModuleType:
    module, here = name.partition(":")[0], os.getcwd()
    if here not in sys.path:  # as for `python -m`
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = str(error.name)
        if not f"{module}.".startswith(f"{missing}."):
            raise  # the module imports another one that is missing
        raise ValueError(
            f"there is no module {missing!r}, of {name}, in {here}, on PYTHONPATH, or "
            "among the installed packages"
        ) from error
    except SystemExit as error:
        raise ValueError(
            f"{module} ends the program when it is imported; put what it runs below "
            'if __name__ == "__main__"'
        ) from error


def _place(module: types.ModuleType) -> str:
    return getattr(module, "__file__", None) or module.__name__


def method(name: str) -> Method:
    """An own algorithm as an entry of a registry."""
    function = load(name)
    absent = _required(_parameters(name, function))
    if absent:
        raise ValueError(
            f"all arguments of {name} must have defaults; {', '.join(absent)} has none"
        )
    return Method(function, name, _place(_imported(name)))


def _parameters(
    name: str, function: Callable[..., Any]
) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} has no signature that Python can read") from error


def _required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    entries = parameters.items()
    return [k for k, p in entries if p.default is p.empty and p.kind not in several]


def algorithm(
    method: Method, hyper: Mapping[str, Any]
) -> Algorithm | Gossip | PrivateAgents:
    """Calls the function of a method."""
    try:
        algorithm = method.function(**hyper)
    except TypeError as error:
        if not is_refusal(error):
            raise
        raise ValueError(f"{method.label}: {error}") from error
    if not isinstance(algorithm, Algorithm | Gossip | PrivateAgents):
        kind = type(algorithm).__name__
        raise ValueError(
            f"{method.label} must return an Algorithm or a Gossip, got {kind}"
        )
    return algorithm


def model(
    name: str, offered: Mapping[str, Any], *, needed: Sequence[str]
) -> "nn.Module":
    """Calls a user's function that makes a model.

    Args:
      offered: What it is called with, of those arguments that it takes.
      needed: Names of the arguments that it must take.
    """
    import flax.linen as nn  # here, since help does not need it

    function = load(name)
    parameters = _parameters(name, function)
    for argument in needed:
        if argument not in parameters:
            raise ValueError(f"{name} must take the argument {argument}")
    absent = [argument for argument in _required(parameters) if argument not in offered]
    if absent:
        raise ValueError(
            f"{name} is called with those of {', '.join(offered)} that it takes; "
            f"{', '.join(absent)} must have a default"
        )
    module = function(**{k: v for k, v in offered.items() if k in parameters})
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"{name} must return a flax.linen module, or one of flax.nnx by "
            f"models.from_nnx, got {type(module).__name__}"
        )
    return module


def parts(
    name: str, labels: np.ndarray, num_clients: int, *, key: jax.Array
) -> list[np.ndarray]:
    """Calls a user's function that divides examples among clients."""
    function = load(name)
    try:
        inspect.signature(function).bind(labels, num_clients, key=key)
    except (TypeError, ValueError) as error:
        called = name.partition(":")[2]
        raise ValueError(
            f"{name} is called as {called}(labels, num_clients, key=key), which it "
            f"does not take: {error}"
        ) from error
    result = function(np.array(labels), num_clients, key=key)
    if not isinstance(result, Sequence | np.ndarray):
        raise ValueError(
            f"{name} must return a list of {num_clients} arrays of ids, one for each "
            f"client, got {type(result).__name__}"
        )
    if len(result) != num_clients:
        raise ValueError(
            f"{name} must return a list of {num_clients} clients, got {len(result)}"
        )
    for client, part in enumerate(map(np.asarray, result)):
        gives = f"{name} gives client {client}"
        if not part.size:
            raise ValueError(f"{gives} no examples")
        if part.ndim != 1 or part.dtype.kind not in "iu":
            raise ValueError(
                f"{gives} no axis of integers, but {part.dtype}{list(part.shape)}"
            )
        if part.min() < 0 or part.max() >= len(labels):
            raise ValueError(
                f"{gives} examples {part.min()} to {part.max()}, but there are only 0 "
                f"to {len(labels) - 1}"
            )
    ids, counts = np.unique(np.concatenate(result), return_counts=True)
    if counts.max() > 1:
        raise ValueError(
            f"{name} gives example {ids[counts.argmax()]} to two clients, or twice to "
            "one"
        )
    return [np.asarray(part, np.int32) for part in result]
