"""Runs algorithms on simulated clients. It knows the interface, never an algorithm.

How the clients of a cohort are executed is a plan's business, see `plans`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon import tree
from fedjax_muon.core import Algorithm, Exchange, Params, Round, parcels
from fedjax_muon.plans import Plan, Row

Draw = Callable[
    [Any, jax.Array], Any
]  # (one client's entry of batches, key) -> batches


class State(NamedTuple):
    """The state of an algorithm between rounds."""

    # int32 [], rounds played
    index: jax.Array  # type: ignore[assignment]  # hides tuple.index
    server: Any  # the algorithm's server state; has `.params`
    pool: Any  # private states of all N clients, stacked on axis 0, maybe padded


def init(
    algorithm: Algorithm, params: Params, num_clients: int, parts: int = 1
) -> State:
    """The state before the prologue and round 0; `params` are copied.

    The pool is padded with clients that never play until `parts` divides it. Raises
    `ValueError` unless there is at least one client.
    """
    if num_clients < 1:
        raise ValueError(f"num_clients must be at least 1, got {num_clients}")
    params = jax.tree.map(lambda x: jnp.array(x), params)  # the state is donated
    one = algorithm.init_client(params)
    rows = num_clients + -num_clients % parts
    pool = jax.tree.map(lambda x: jnp.broadcast_to(x, (rows, *x.shape)), one)
    server = jax.tree.map(jnp.copy, algorithm.init(params))
    return State(jnp.int32(0), server, pool)  # of rows that are copies already


def _as_given(batches, key):
    del key
    return batches


def _exchange(exchange: Exchange, plan: Plan, draw: Draw, about, server_key):
    """Builds `play(server, pool, rows) -> (server, pool, heard)` for one exchange."""

    def play(server, pool, rows):
        asked = about(key=server_key, present=rows.weight > 0)

        def client(shared, mine, row):
            round = asked._replace(key=row.key)
            batches = draw(row.batches, row.draw_key)
            sent, kept = exchange.client(shared, mine, batches, round)
            tree.check_alike("the client's state that client returns", mine, kept)
            message = exchange.decode(sent)
            heard = (row.weight > 0) & tree.all_finite((message, kept))
            factor = 1 if exchange.summed else row.weight
            weigh = lambda m: jnp.where(heard, jnp.asarray(factor, m.dtype) * m, 0)
            addend = jax.tree.map(weigh, message), jnp.where(heard, row.weight, 0)
            return addend, tree.where(heard, kept, mine), heard

        shared = exchange.broadcast(server, asked)
        (total, weight), pool, heard = plan(client, shared, pool, rows)
        told = about(key=server_key, present=heard)
        if exchange.summed:
            after = exchange.server(server, total, told)
            tree.check_alike("the state that server returns", server, after)
            return after, pool, heard
        safe = jnp.where(weight > 0, weight, 1)
        mean = jax.tree.map(lambda t: t / safe.astype(t.dtype), total)
        after = exchange.server(server, mean, told)
        tree.check_alike("the state that server returns", server, after)
        return tree.where(weight > 0, after, server), pool, heard

    return play


def _player(exchanges, num_clients, plan, draw, first):
    def play(state, cohort, batches, weights, key):
        index, server, pool = state
        one = jax.tree.map(lambda x: x[0], batches)
        steps = jax.tree.leaves(jax.eval_shape(draw, one, key))[0].shape[0]
        talk_key, draw_key = jax.random.split(jax.random.fold_in(key, index))
        fold_each = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        draw_keys = fold_each(jax.random.fold_in(draw_key, first), cohort)

        def about(key, present):
            size = jnp.sum(present).astype(weights.dtype)
            return Round(index, key, steps, size, size / num_clients)

        heard = weights > 0
        for number, exchange in enumerate(exchanges, first):
            exchange_key = jax.random.fold_in(talk_key, number)
            keys = fold_each(exchange_key, cohort)  # by identity, never by position
            left = jnp.where(heard, weights, 0)
            rows = Row(cohort, batches, left, keys, draw_keys)
            server_key = jax.random.fold_in(exchange_key, num_clients)
            run = _exchange(exchange, plan, draw, about, server_key)
            server, pool, heard = run(server, pool, rows)
        return State(index, server, pool), heard

    return play


def make_round(
    algorithm: Algorithm, num_clients: int, plan: Plan, draw: Draw = _as_given
):
    """Builds `round(state, cohort, batches, weights, key) -> (state, heard)`, to be
    jitted with the state donated.

    `cohort` [S] int32 lists distinct client ids. The leaves of `batches` lead with
    [S]; `draw(entry, key)` turns one client's entry into what its local steps scan,
    [K, ...], inside the plan, so that the batches of a large cohort never lie in
    memory at once. By default an entry is that already: [S, K, ...]. `weights` [S]
    are the weights of the mean, not necessarily normalised; 0 means that the client
    dropped out. `key` is the same typed key in every round.

    A message or private state that is not finite is left out of the mean as if its
    sender had dropped out: `heard` [S] is False for it, and its private state stays. A
    round in which nobody is heard leaves the server's state as it was, unless an
    exchange is `summed`.
    """
    first = len(algorithm.prologue)
    play = _player(algorithm.exchanges, num_clients, plan, draw, first)

    def round(state, cohort, batches, weights, key):
        state, heard = play(state, cohort, batches, weights, key)
        return state._replace(index=state.index + 1), heard

    return round


def make_prologue(
    algorithm: Algorithm, num_clients: int, plan: Plan, draw: Draw = _as_given
):
    """As `make_round`, for what happens before round 0; the index stays there.

    The cohort should be all N clients. Without a prologue it changes nothing.
    """
    return _player(algorithm.prologue, num_clients, plan, draw, 0)


class Traffic(NamedTuple):
    """Bytes per client."""

    down: int
    up: int


def traffic(exchanges, algorithm: Algorithm, params, batches) -> Traffic:
    """Bytes that some exchanges send to and receive from one client.

    Read off the interface by shapes, without running anything. `batches` are one
    client's, [K, ...]; arrays may be `ShapeDtypeStruct`s.
    """
    seen = parcels(exchanges, algorithm, params, batches)
    return Traffic(*(tree.nbytes([p[way] for p in seen]) for way in (0, 1)))
