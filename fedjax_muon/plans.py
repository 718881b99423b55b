"""How the clients of a cohort are executed.

A *plan* is called as

    plan(client, shared, pool, rows) -> (sum, pool, notes)

where `rows` is a `Row` whose leaves lead with the cohort size S, `pool` stacks the
private states of all N clients, and `client(shared, mine, row) -> (addend, mine, note)`
is one client. It returns the sum of all addends, the pool with the cohort's rows
replaced, and the small notes stacked. All plans give the same numbers to float
tolerance, from the same random streams: a client's keys are folded from the round and
its id, never from its position.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon import tree

Plan = Callable[..., tuple[Any, Any, Any]]
NOBODY = jnp.iinfo(jnp.int32).max  # the id of a row that only fills up


class Row(NamedTuple):
    """One client of a cohort, as a plan hands it on."""

    id: jax.Array  # int32
    batches: Any
    weight: jax.Array  # float; 0 if the client dropped out
    key: jax.Array
    draw_key: jax.Array


class Store(NamedTuple):
    """How rows of the pool are read and written, by ids of clients."""

    take: Callable[[Any, jax.Array], Any]  # (pool, ids) -> rows
    put: Callable[[Any, jax.Array, Any], Any]  # (pool, ids, rows) -> pool


def _take(pool, ids):
    rows = lambda pool: jax.tree.map(lambda x: x[ids], pool)
    if ids.ndim or not jax.tree.leaves(pool):
        return rows(pool)
    # A branch, since XLA would else read the one row again wherever it is needed, also
    # after `put`, and to that end copy the whole pool for every client.
    nothing = lambda pool: tree.zeros_like(jax.eval_shape(rows, pool))
    return jax.lax.cond(ids < NOBODY, rows, nothing, pool)


def _put(pool, ids, rows):
    # nobody is past the end: read as the last row or zeros, never written
    return jax.tree.map(lambda x, r: x.at[ids].set(r, mode="drop"), pool, rows)


HERE = Store(_take, _put)


def _one(client, store, shared, pool, row):
    added, mine, note = client(shared, store.take(pool, row.id), row)
    return added, store.put(pool, row.id, mine), note


def _accumulate(play, shared, pool, rows):
    """Scans `play` over the leading axis of rows, with running sums."""
    first = jax.tree.map(operator.itemgetter(0), rows)
    total = tree.zeros_like(jax.eval_shape(play, shared, pool, first)[0])

    def body(carry, row):
        total, pool = carry
        added, pool, note = play(shared, pool, row)
        return (tree.add(total, added), pool), note

    (total, pool), notes = jax.lax.scan(body, (total, pool), rows)
    return total, pool, notes


def loop(client, shared, pool, rows, store: Store = HERE):
    """One client at a time in Python: slow, debuggable, and the oracle of the rest."""
    total, notes = None, []
    for i in range(len(rows.weight)):
        row = jax.tree.map(operator.itemgetter(i), rows)
        added, pool, note = _one(client, store, shared, pool, row)
        total = added if total is None else tree.add(total, added)
        notes.append(note)
    return total, pool, jax.tree.map(lambda *xs: jnp.stack(xs), *notes)


def mapped(client, shared, pool, rows, store: Store = HERE):
    """One client after the other in one compiled loop: the fastest plan on CPUs."""
    return _accumulate(functools.partial(_one, client, store), shared, pool, rows)


def vmapped(client, shared, pool, rows, store: Store = HERE):
    """All clients at once: for accelerators, while their states fit in memory."""
    run = jax.vmap(client, in_axes=(None, 0, 0))
    added, mine, notes = run(shared, store.take(pool, rows.id), rows)
    total = jax.tree.map(lambda x: x.sum(0), added)
    return total, store.put(pool, rows.id, mine), notes


def chunked(size: int) -> Plan:
    """`size` clients at a time; memory does not grow with the cohort.

    Sums run along, and private rows are streamed in and out, in place of stacking
    them. A cohort that `size` does not divide is padded with clients of weight 0.
    Raises `ValueError` for a size below 1.
    """
    if size < 1:
        raise ValueError(f"a chunk holds at least one client, got size {size}")

    def plan(client, shared, pool, rows, store: Store = HERE):
        count = len(rows.weight)
        chunks = jax.tree.map(
            lambda x: x.reshape(-1, size, *x.shape[1:]), filled(rows, size)
        )
        play = functools.partial(vmapped, client, store=store)
        total, pool, notes = _accumulate(play, shared, pool, chunks)
        return total, pool, jax.tree.map(lambda x: x.reshape(-1)[:count], notes)

    return plan


def filled(rows: Row, size: int) -> Row:
    """The rows and, up to a multiple of `size`, some of nobody with weight 0."""
    missing = -len(rows.weight) % size
    last = jax.tree.map(lambda x: jnp.repeat(x[-1:], missing, 0), rows)
    nobody = jnp.full(missing, NOBODY, jnp.int32)
    padding = last._replace(id=nobody, weight=jnp.zeros_like(last.weight))
    return jax.tree.map(lambda *xs: jnp.concatenate(xs), rows, padding)


def default_plan() -> Plan:
    """The plan for this machine's accelerator, or for its CPU if it has none.

    On CPUs one client after the other was measured to be several times faster than
    vmapping them, whose per-client weights leave the cache.
    """
    return mapped if jax.default_backend() == "cpu" else vmapped
