"""How the clients of a cohort are executed.

A *plan* is called as

    plan(client, shared, client_states, members) -> (sum, client_states, aux)

where `members` is a `CohortMember` whose leaves lead with the cohort size S,
`client_states` stacks the states of all N clients, and `client(shared, client_state,
member) -> (contribution, client_state, aux)` is one client. It returns the sum of all
contributions, the client states with those of the cohort replaced, and the small `aux`
stacked. All plans give the same numbers to float tolerance, from the same random
streams: a client's keys are folded from the round and its id, never from its position.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.core import tree

Plan = Callable[..., tuple[Any, Any, Any]]
PADDING_ID = jnp.iinfo(jnp.int32).max  # the id of a member that is padding


class CohortMember(NamedTuple):
    """One client of a cohort, as a plan hands it on."""

    id: jax.Array  # int32
    batches: Any
    weight: jax.Array  # float; 0 if the client dropped out
    key: jax.Array
    draw_key: jax.Array


class Store(NamedTuple):
    """How client states are read and written, by ids of clients."""

    take: Callable[[Any, jax.Array], Any]  # (client states, ids) -> rows
    # (client states, ids, rows) -> client states
    put: Callable[[Any, jax.Array, Any], Any]


def _take(client_states, ids):
    rows = lambda states: jax.tree.map(lambda x: x[ids], states)
    if ids.ndim or not jax.tree.leaves(client_states):
        return rows(client_states)
    # A branch, since XLA would else read the one row again wherever it is needed, also
    # after `put`, and to that end copy all client states for every client.
    nothing = lambda states: tree.zeros_like(jax.eval_shape(rows, states))
    return jax.lax.cond(ids < PADDING_ID, rows, nothing, client_states)


def _put(client_states, ids, rows):
    # padding is past the end: read as the last row or zeros, never written
    write = lambda x, row: x.at[ids].set(row, mode="drop")
    return jax.tree.map(write, client_states, rows)


HERE = Store(_take, _put)


def _one(client, store, shared, client_states, member):
    before = store.take(client_states, member.id)
    added, after, aux = client(shared, before, member)
    return added, store.put(client_states, member.id, after), aux


def _accumulate(run, shared, client_states, members):
    """Scans `run` over the leading axis of members, with running sums."""
    first = jax.tree.map(operator.itemgetter(0), members)
    total = tree.zeros_like(jax.eval_shape(run, shared, client_states, first)[0])

    def body(carry, member):
        total, client_states = carry
        added, client_states, aux = run(shared, client_states, member)
        return (tree.add(total, added), client_states), aux

    (total, client_states), aux = jax.lax.scan(body, (total, client_states), members)
    return total, client_states, aux


def loop(client, shared, client_states, members, store: Store = HERE):
    """One client at a time in Python: slow, debuggable, and the oracle of the rest."""
    total, every = None, []
    for i in range(len(members.weight)):
        member = jax.tree.map(operator.itemgetter(i), members)
        added, client_states, aux = _one(client, store, shared, client_states, member)
        total = added if total is None else tree.add(total, added)
        every.append(aux)
    return total, client_states, jax.tree.map(lambda *xs: jnp.stack(xs), *every)


def mapped(client, shared, client_states, members, store: Store = HERE):
    """One client after the other in one compiled loop: the fastest plan on CPUs."""
    run = functools.partial(_one, client, store)
    return _accumulate(run, shared, client_states, members)


def vmapped(client, shared, client_states, members, store: Store = HERE):
    """All clients at once: for accelerators, while their states fit in memory."""
    run = jax.vmap(client, in_axes=(None, 0, 0))
    added, client_state, aux = run(
        shared, store.take(client_states, members.id), members
    )
    total = jax.tree.map(lambda x: x.sum(0), added)
    return total, store.put(client_states, members.id, client_state), aux


def chunked(size: int) -> Plan:
    """`size` clients at a time; memory does not grow with the cohort.

    Sums run along, and private rows are streamed in and out, in place of stacking
    them. A cohort that `size` does not divide is padded with clients of weight 0.
    Raises `ValueError` for a size below 1.
    """
    if size < 1:
        raise ValueError(f"a chunk holds at least one client, got size {size}")

    def plan(client, shared, client_states, members, store: Store = HERE):
        count = len(members.weight)
        chunks = jax.tree.map(
            lambda x: x.reshape(-1, size, *x.shape[1:]), pad_cohort(members, size)
        )
        run = functools.partial(vmapped, client, store=store)
        total, client_states, aux = _accumulate(run, shared, client_states, chunks)
        return total, client_states, jax.tree.map(lambda x: x.reshape(-1)[:count], aux)

    return plan


def pad_cohort(members: CohortMember, size: int) -> CohortMember:
    """The members and, up to a multiple of `size`, padding with weight 0."""
    missing = -len(members.weight) % size
    last = jax.tree.map(lambda x: jnp.repeat(x[-1:], missing, 0), members)
    padding_ids = jnp.full(missing, PADDING_ID, jnp.int32)
    padding = last._replace(id=padding_ids, weight=jnp.zeros_like(last.weight))
    return jax.tree.map(lambda *xs: jnp.concatenate(xs), members, padding)


def default_plan() -> Plan:
    """The plan for this machine's accelerator, or for its CPU if it has none.

    On CPUs one client after the other was measured to be several times faster than
    vmapping them, whose per-client weights leave the cache.
    """
    return mapped if jax.default_backend() == "cpu" else vmapped
