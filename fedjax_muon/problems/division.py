"""How the examples of a problem are divided among clients, or agents."""

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_muon.data import Dataset, client_tests as of_clients, imbalance, partition
from fedjax_muon.problems.problem import Parts

Divide = Callable[..., Parts]  # (labels, number of clients, key=) -> parts


def ratios(
    labels: np.ndarray,
    num_clients: int,
    *,
    key: jax.Array,
    shares: Sequence[float] = (0.05, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25),
) -> Parts:
    """Divides two classes; `shares` are every client's share of positives."""
    if len(shares) != num_clients:
        raise ValueError(
            f"shares must have one number for each of the {num_clients} clients, got "
            f"{len(shares)}"
        )
    return imbalance.with_ratios(labels, shares, key=key)


def divided(
    divide: Divide,
    clients: int,
    positives: float | None,
    dataset: Dataset,
    key: jax.Array,
) -> Parts:
    """The parts of a seed; `divide` gets the labels that are kept, or their owners."""
    labels, owners = np.asarray(dataset.y_train), dataset.owners
    kept: np.ndarray | None = None
    if positives is not None:
        drop_key = jax.random.fold_in(key, 0)
        kept = imbalance.drop_positives(labels, positives, key=drop_key)
        labels, owners = labels[kept], None if owners is None else owners[kept]
    if divide is partition.by_owner:
        parts: Parts = partition.by_owner(owners_of(owners))
    else:
        parts = divide(labels, clients, key=key)
        _check_parts(divide, parts, clients, len(labels))
    return parts if kept is None else [kept[part] for part in parts]


def owners_of(owners: np.ndarray | None) -> np.ndarray:
    if owners is None:
        raise ValueError(
            "the dataset does not say which clients its examples belong to; name the "
            "column with from_csv(..., owner=...), or divide the examples otherwise"
        )
    return owners


def _check_parts(divide: Divide, parts: Any, clients: int, examples: int) -> None:
    """Raises `ValueError` unless a function has divided examples among clients."""
    is_list = isinstance(parts, Sequence | np.ndarray)
    if not is_list or len(parts) != clients:
        got = len(parts) if is_list else type(parts).__name__
        raise ValueError(
            f"{function_name(divide)} must return a list of {clients} arrays of ids, "
            f"one for each client, got {got}"
        )
    name, ids = function_name(divide), [np.asarray(part) for part in parts]
    for client, part in enumerate(ids):
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
            got = f"{part.dtype}{list(part.shape)} for client {client}"
            raise ValueError(f"{name} must return ids, whole numbers, got {got}")
    found, counts = np.unique(np.concatenate(ids).astype(int), return_counts=True)
    for wrong in found[(found < 0) | (found >= examples)]:
        known = f"there are only 0 to {examples - 1}"
        raise ValueError(f"{name} names example {wrong}, but {known}")
    most = np.inf if name == "dirichlet_per_client" else 1  # clients of an example
    for wrong in found[counts > most]:
        raise ValueError(
            f"{name} gives example {wrong} to two clients, or twice to one"
        )


def function_name(function: Any) -> str:
    """The name of a function, also within `functools.partial`."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def alike(dataset: Dataset, key: jax.Array, parts: Parts) -> Parts:
    return of_clients.like(parts, dataset.y_train, dataset.y_test, key=key)


def of_owners(dataset: Dataset, key: jax.Array, parts: Parts) -> Parts:
    del key, parts
    if dataset.owners is None or dataset.test_owners is None:
        raise ValueError(
            "the dataset does not say which clients its test examples belong to; leave "
            "out client_tests"
        )
    return of_clients.by_owner(dataset.owners, dataset.test_owners)


def division_of(
    divide: Divide | None,
    usual: Divide,
    unheeded: Mapping[str, tuple[float, float]] = types.MappingProxyType({}),
) -> Divide:
    """How examples are divided: as is given, or as usual.

    Args:
      unheeded: Values and defaults of the arguments that a division by owners ignores,
        and that may thus not be given.
    """
    given = [f"{name}={value:g}" for name, (value, d) in unheeded.items() if value != d]
    if given and (divide or usual) is partition.by_owner:
        raise ValueError(
            f"every owner is a client, so {' and '.join(given)} would have no effect; "
            "leave it out, or give divide=fedjax_muon.partition.iid or another function"
        )
    if divide is None:
        return usual
    check_function("divide", divide, "fedjax_muon.partition.iid")
    if divide is partition.by_owner:
        return divide
    try:
        inspect.signature(divide).bind(np.zeros(0), 1, key=None)
    except TypeError as error:
        name = function_name(divide)
        raise ValueError(
            f"{name} is called as {name}(labels, clients, key=key), which it does not "
            f"take: {error}; functools.partial gives it further arguments"
        ) from error
    return divide


def check_function(name: str, value: Any, example: str) -> None:
    if not callable(value):
        raise TypeError(
            f"{name} must be a function, such as {example}, got {value!r:.60}"
        )
