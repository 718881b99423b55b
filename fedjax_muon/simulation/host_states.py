"""States of clients that stay on the host: a round moves those of its cohort alone.

In a simulation of examples on disk, a state has the states of all clients as arrays of
NumPy [N, ...]. Programs get `CohortStates` in their place. Initial zeros take no memory
until a client takes part.
"""

import tempfile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import tree
from fedjax_muon.engine.plans import LOCAL, PADDING_ID, Store

LARGE = 2**30  # bytes of an array that is in a temporary file, in TMPDIR


class CohortStates(NamedTuple):
    """The states of the clients of a cohort."""

    ids: jax.Array  # int32 [S]
    values: Any  # leaves [S, ...]


def _places(rows: CohortStates, ids: jax.Array) -> jax.Array:
    """Where the clients with these ids are, past the end for those who are not."""
    there = jnp.expand_dims(ids, -1) == jnp.expand_dims(
        rows.ids, tuple(range(ids.ndim))
    )
    return jnp.where(there.any(-1), jnp.argmax(there, -1), PADDING_ID)


def _take(rows: CohortStates, ids: jax.Array) -> Any:
    return LOCAL.take(rows.values, _places(rows, ids))


def _put(rows: CohortStates, ids: jax.Array, values: Any) -> CohortStates:
    return rows._replace(values=LOCAL.put(rows.values, _places(rows, ids), values))


OF_COHORT = Store(_take, _put)  # of plans, in place of `plans.LOCAL`


def of_all(first: Any, number: int) -> Any:
    """The initial states of N clients on the host, from one, leaves [1, ...]."""

    def rows(x: jax.Array) -> np.ndarray:
        shape, one = (number, *x.shape[1:]), np.asarray(x)
        states = np.zeros(shape, one.dtype) if number * one.nbytes < LARGE else None
        if states is None:  # more than the system may promise
            with tempfile.TemporaryFile() as file:
                states = np.memmap(file, one.dtype, "w+", shape=shape)
        if one.any():
            states[:] = one
        return states

    return tree.map(rows, first)


def shapes_of_all(some: Any, number: int) -> Any:
    """The shapes of the states of so many clients, from those of some."""
    shape = lambda x: jax.ShapeDtypeStruct((number, *x.shape[1:]), x.dtype)
    return tree.map(shape, some)


def taken(states: Any, ids: np.ndarray) -> tuple[Any, CohortStates]:
    """The states of all clients, which can be written, and those of a cohort."""

    def own(x: Any) -> np.ndarray:  # a checkpoint has arrays of JAX
        is_own = isinstance(x, np.ndarray) and x.flags.writeable
        return x if is_own else np.array(x)

    states = tree.map(own, states)
    return states, CohortStates(jnp.asarray(ids), tree.map(lambda x: x[ids], states))


def put_back(states: Any, rows: CohortStates) -> Any:
    """The states of all clients with those of a cohort replaced, in place."""
    ids = np.asarray(rows.ids)
    for all_of_them, some in zip(
        jax.tree.leaves(states), jax.tree.leaves(rows.values), strict=True
    ):
        all_of_them[ids] = np.asarray(some)
    return states
