"""Execution plans for the clients of a cohort.

A *plan* is called as

    plan(client, broadcast, client_states, members) -> (sum, client_states, aux)

where `members` is a `CohortMember` whose leaves have the leading axis [S] of the
cohort, `client_states` stacks the states of all N clients, and `client(broadcast,
client_state, member) -> (contribution, client_state, aux)` runs one client. The plan
returns the sum of all contributions, the client states with those of the cohort
replaced, and `aux` stacked: whether messages arrived, and for an exchange with
`attacks` or a `stack`, the messages. All plans give the same numbers up to rounding,
from the same random streams: a client's keys depend on the round and its id, never on
its position.
"""

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.core import check_count, tree

Result = tuple[Any, Any, Any]
Plan = Callable[..., Result]
Client = Callable[[Any, Any, "CohortMember"], Result]
PADDING_ID = jnp.iinfo(jnp.int32).max  # id of a member that is padding


class CohortMember(NamedTuple):
    """One client of a cohort, or all of them with leaves [S, ...]."""

    id: jax.Array  # int32
    batches: Any
    weight: jax.Array  # float; 0 if the client dropped out
    key: jax.Array  # of the client's local training
    draw_key: jax.Array  # of the client's batches
    steps: jax.Array | None = None  # int32, if clients take different numbers
    start: jax.Array | None = None  # int32, the round it started in, if earlier


class Store(NamedTuple):
    """Functions that read and write client states by client ids."""

    take: Callable[[Any, jax.Array], Any]  # (client states, ids) -> rows
    # (client states, ids, rows) -> client states
    put: Callable[[Any, jax.Array, Any], Any]


def _take(client_states: Any, ids: jax.Array) -> Any:
    rows = lambda states: jax.tree.map(lambda x: x[ids], states)
    if ids.ndim or not jax.tree.leaves(client_states):
        return rows(client_states)
    # A branch, since XLA would otherwise read the row again at each use, even after
    # `put`, and therefore copy all client states for every client.
    zeros = lambda states: tree.zeros_like(jax.eval_shape(rows, states))
    return jax.lax.cond(ids < PADDING_ID, rows, zeros, client_states)


def _put(client_states: Any, ids: jax.Array, rows: Any) -> Any:
    # The id of padding is past the end: read as the last row or zeros, never written.
    write = lambda x, row: x.at[ids].set(row, mode="drop")
    return jax.tree.map(write, client_states, rows)


LOCAL = Store(_take, _put)


def _run_client(
    client: Client,
    store: Store,
    broadcast: Any,
    client_states: Any,
    member: CohortMember,
) -> Result:
    before = store.take(client_states, member.id)
    contribution, after, aux = client(broadcast, before, member)
    return contribution, store.put(client_states, member.id, after), aux


def _accumulate(
    run: Callable[..., Result],
    broadcast: Any,
    client_states: Any,
    members: CohortMember,
) -> Result:
    """Scans `run` over the leading axis of members, with running sums."""
    first = jax.tree.map(operator.itemgetter(0), members)
    total = tree.zeros_like(jax.eval_shape(run, broadcast, client_states, first)[0])

    def body(carry: tuple[Any, Any], member: CohortMember) -> tuple[Any, Any]:
        total, client_states = carry
        contribution, client_states, aux = run(broadcast, client_states, member)
        return (tree.add(total, contribution), client_states), aux

    (total, client_states), aux = jax.lax.scan(body, (total, client_states), members)
    return total, client_states, aux


def loop(
    client: Client,
    broadcast: Any,
    client_states: Any,
    members: CohortMember,
    store: Store = LOCAL,
) -> Result:
    """Runs clients one by one in Python: slow, but easy to debug, and a reference."""
    total: Any = None
    all_aux = []
    for i in range(len(members.weight)):
        member = jax.tree.map(operator.itemgetter(i), members)
        contribution, client_states, aux = _run_client(
            client, store, broadcast, client_states, member
        )
        total = contribution if total is None else tree.add(total, contribution)
        all_aux.append(aux)
    return total, client_states, jax.tree.map(lambda *xs: jnp.stack(xs), *all_aux)


def mapped(
    client: Client,
    broadcast: Any,
    client_states: Any,
    members: CohortMember,
    store: Store = LOCAL,
) -> Result:
    """Runs clients sequentially in one compiled loop: the fastest plan on CPUs."""
    run = functools.partial(_run_client, client, store)
    return _accumulate(run, broadcast, client_states, members)


def vmapped(
    client: Client,
    broadcast: Any,
    client_states: Any,
    members: CohortMember,
    store: Store = LOCAL,
) -> Result:
    """Runs all clients in parallel: for accelerators, if their states fit in memory."""
    run = jax.vmap(client, in_axes=(None, 0, 0))
    contributions, client_state, aux = run(
        broadcast, store.take(client_states, members.id), members
    )
    total = jax.tree.map(lambda x: x.sum(0), contributions)
    return total, store.put(client_states, members.id, client_state), aux


def chunked(size: int) -> Plan:
    """Makes a plan that runs `size` clients in parallel at a time.

    Its memory does not grow with the cohort, since sums are accumulated, and client
    states are read and written chunk by chunk. A cohort that `size` does not divide is
    padded with clients of weight 0.
    """
    check_count("chunk_size", size)

    def plan(
        client: Client,
        broadcast: Any,
        client_states: Any,
        members: CohortMember,
        store: Store = LOCAL,
    ) -> Result:
        count = len(members.weight)
        chunks = jax.tree.map(
            lambda x: x.reshape(-1, size, *x.shape[1:]), pad_cohort(members, size)
        )
        run = functools.partial(vmapped, client, store=store)
        total, client_states, aux = _accumulate(run, broadcast, client_states, chunks)
        flat = lambda x: x.reshape(-1, *x.shape[2:])[:count]
        return total, client_states, jax.tree.map(flat, aux)

    return plan


def pad_cohort(members: CohortMember, size: int) -> CohortMember:
    """Pads a cohort to a multiple of `size` with members of weight 0."""
    missing = -len(members.weight) % size
    last = jax.tree.map(lambda x: jnp.repeat(x[-1:], missing, 0), members)
    padding_ids = jnp.full(missing, PADDING_ID, jnp.int32)
    padding = last._replace(id=padding_ids, weight=jnp.zeros_like(last.weight))
    return jax.tree.map(lambda *xs: jnp.concatenate(xs), members, padding)


def smaller_plans(count: int) -> Iterator[tuple[str, Plan]]:
    """Lists plans that need less memory than `vmapped` does.

    Example:
      >>> for name, plan in smaller_plans(8):
      ...     print(name)
      chunked with chunk_size 4
      chunked with chunk_size 2
      mapped
    """
    size = count // 2
    while size > 1:
        yield f"chunked with chunk_size {size}", chunked(size)
        size //= 2
    yield "mapped", mapped


def default_plan() -> Plan:
    """Selects the plan for this machine: `mapped` on CPUs, otherwise `vmapped`.

    On CPUs `mapped` was measured to be several times faster than `vmapped`, whose
    weights of all clients do not fit in the cache.
    """
    return mapped if jax.default_backend() == "cpu" else vmapped
