"""Checks of the arguments of simulations, before anything is compiled."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from fedjax_muon import data
from fedjax_muon.data import Dataset
from fedjax_muon.tasks.task import Task


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raises `ValueError` unless a value is an integer of at least `least`."""
    try:
        if operator.index(value) >= least and not isinstance(value, bool):
            return
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    raise ValueError(f"{name} must be at least {least}, got {value}")


def check_functions(functions: Mapping[str, Any]) -> None:
    """Raises `TypeError` unless all values, by the names of arguments, are functions.

    Names of functions belong to the command line.
    """
    for name, value in functions.items():
        if not callable(value):
            raise TypeError(
                f"{name} must be a function, got {value!r}; see the examples in "
                "help(fedjax_muon.federate)"
            )


def check_algorithm(algorithm: Any, kind: type, other: str) -> None:
    """Raises `TypeError` unless an algorithm is of a kind; others are for `other`."""
    if isinstance(algorithm, kind):
        return
    if isinstance(algorithm, tuple) and hasattr(algorithm, "recipe"):
        advice = f"simulate it with {other}"
    elif callable(algorithm):
        name = getattr(algorithm, "__name__", "the function")
        advice = f"call it first: {name}(...)"
    else:
        advice = "the algorithm comes first, then the task"
    raise TypeError(
        f"algorithm must be made by a function such as fedjax_muon.fedavg(lr=0.1), got "
        f"{type(algorithm).__name__}; {advice}"
    )


def check_task(task: Any) -> None:
    """Raises `TypeError` unless this is a task."""
    if not isinstance(task, Task):
        model = isinstance(task, (nn.Module, type))
        make = "make one of the model with tasks.classification(model, dataset)"
        advice = make if model else "see fedjax_muon.tasks"
        raise TypeError(f"task must be a Task, got {type(task).__name__}; {advice}")


def check_dataset(dataset: Any) -> Dataset:
    """Validates a data set; floating-point examples become float32."""
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"dataset must be a data.Dataset, got {type(dataset).__name__}; arrays "
            "become one with data.Dataset(x_train, y_train, x_test, y_test, classes)"
        )
    x_train, x_test = np.asarray(dataset.x_train), np.asarray(dataset.x_test)
    if x_train.dtype.kind == x_test.dtype.kind == "f":
        x_train = x_train.astype(np.float32, copy=False)
        x_test = x_test.astype(np.float32, copy=False)
    checked = data.check(dataset._replace(x_train=x_train, x_test=x_test))
    given = dataset.x_train
    if isinstance(given, jax.Array) and given.dtype == x_train.dtype:
        return checked._replace(x_train=given)  # not copied to the device again
    return checked


def check_parts(parts: Any) -> Sequence[np.ndarray]:
    """Raises `TypeError` unless there is an array of ids for every client."""
    if isinstance(parts, np.ndarray | jax.Array) and parts.ndim < 2:
        raise TypeError(
            "parts must be a list with an array of ids for every client, got one "
            "array; if it names the owner of every example, use "
            "[np.flatnonzero(owner == i) for i in np.unique(owner)]"
        )
    return list(parts)


def check_key(key: Any) -> None:
    """Raises `TypeError` unless this is a typed key."""
    dtype = getattr(key, "dtype", None)
    if dtype is None or not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        raise TypeError(
            f"key must be a typed key, such as jax.random.key(0), got {key}"
        )


def check_not_donated(state: Any) -> None:
    """Raises `ValueError` if a state was given to an earlier call."""
    leaves = jax.tree.leaves(state)
    if any(isinstance(x, jax.Array) and x.is_deleted() for x in leaves):
        raise ValueError(
            "this state was donated to an earlier call; continue with the state that "
            "the call returned"
        )
