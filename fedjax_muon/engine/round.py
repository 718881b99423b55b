"""Rounds of any algorithm on simulated clients.

It knows the interface, never an algorithm. How the clients of a cohort are executed is
up to a plan, see `plans`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Objective,
    Params,
    Project,
    Round,
    exchange_shapes,
    tree,
    unconstrained,
)
from fedjax_muon.engine.plans import CohortMember, Plan

# (one client's entry of batches, key) -> batches
Draw = Callable[[Any, jax.Array], Any]


class State(NamedTuple):
    """The state of an algorithm between rounds."""

    # int32 [], rounds completed
    index: jax.Array  # type: ignore[assignment]  # hides tuple.index
    server: Any  # the algorithm's server state; has `.params`
    client_states: Any  # of all N clients, stacked on axis 0, maybe padded


def init(
    algorithm: Algorithm,
    params: Params,
    num_clients: int,
    parts: int = 1,
    *,
    project: Project = unconstrained,
) -> State:
    """The state before the prologue and round 0.

    Args:
      algorithm: What is run.
      params: Initial parameters; they are copied, since the state is donated.
      num_clients: N.
      parts: Client states are padded until it divides their number.
      project: Projection of the parameters onto the constraint set.

    Returns:
      The state.

    Raises:
      ValueError: Unless there is at least one client.
    """
    if num_clients < 1:
        raise ValueError(f"num_clients must be at least 1, got {num_clients}")
    params = project(jax.tree.map(lambda x: jnp.array(x), params))
    one = algorithm.init_client(params)
    rows = num_clients + -num_clients % parts
    client_states = jax.tree.map(lambda x: jnp.broadcast_to(x, (rows, *x.shape)), one)
    server = jax.tree.map(jnp.copy, algorithm.init(params))
    return State(jnp.int32(0), server, client_states)  # of rows that are copies already


def _as_given(batches, key):
    del key
    return batches


def _projected(objective: Objective, server):
    """Server rules, rates above 1, compression and noise leave the constraint set."""
    if objective.project is unconstrained:
        return server
    return server._replace(params=objective.project(server.params))


def _client(exchange: Exchange, objective: Objective, draw: Draw, shared, round_info):
    """One client of an exchange, as plans call it."""

    def client(shared, before, member: CohortMember):
        batches = draw(member.batches, member.draw_key)
        round = round_info._replace(key=member.key)
        sent, after = exchange.client(objective, shared, before, batches, round)
        tree.check_alike("the client's state that client returns", before, after)
        message = exchange.decode(sent)
        received = (member.weight > 0) & tree.all_finite((message, after))
        factor = 1 if exchange.reduce_sum else member.weight
        weigh = lambda m: jnp.where(received, jnp.asarray(factor, m.dtype) * m, 0)
        weight = jnp.where(received, member.weight, 0)
        contribution = jax.tree.map(weigh, message), weight
        return contribution, tree.where(received, after, before), received

    return client


def _exchange(
    exchange: Exchange, objective: Objective, plan: Plan, draw: Draw, about, server_key
):
    """Builds `run(server, client_states, members) -> (server, client_states, received)`
    for one exchange."""

    def run(server, client_states, members):
        round_info = about(key=server_key, present=members.weight > 0)
        shared = exchange.broadcast(server, round_info)
        client = _client(exchange, objective, draw, shared, round_info)
        result = plan(client, shared, client_states, members)
        (total, weight), client_states, received = result
        round_after = about(key=server_key, present=received)
        if exchange.reduce_sum:
            after = exchange.server(server, total, round_after)
        else:
            safe = jnp.where(weight > 0, weight, 1)
            mean = jax.tree.map(lambda t: t / safe.astype(t.dtype), total)
            after = exchange.server(server, mean, round_after)
        tree.check_alike("the state that server returns", server, after)
        after = _projected(objective, after)
        if not exchange.reduce_sum:  # an empty mean changes nothing
            after = tree.where(weight > 0, after, server)
        return after, client_states, received

    return run


def _runner(exchanges, objective, num_clients, plan, draw, first):
    def run(state, cohort, batches, weights, key):
        index, server, client_states = state
        one = jax.tree.map(lambda x: x[0], batches)
        steps = jax.tree.leaves(jax.eval_shape(draw, one, key))[0].shape[0]
        talk_key, draw_key = jax.random.split(jax.random.fold_in(key, index))
        fold_each = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        draw_keys = fold_each(jax.random.fold_in(draw_key, first), cohort)

        def about(key, present):
            size = jnp.sum(present).astype(weights.dtype)
            return Round(index, key, steps, size, size / num_clients)

        received = weights > 0
        for number, exchange in enumerate(exchanges, first):
            exchange_key = jax.random.fold_in(talk_key, number)
            keys = fold_each(exchange_key, cohort)  # by identity, never by position
            left = jnp.where(received, weights, 0)
            members = CohortMember(cohort, batches, left, keys, draw_keys)
            server_key = jax.random.fold_in(exchange_key, num_clients)
            exchanged = _exchange(exchange, objective, plan, draw, about, server_key)
            server, client_states, received = exchanged(server, client_states, members)
        return State(index, server, client_states), received

    return run


def make_round(
    algorithm: Algorithm,
    objective: Objective,
    num_clients: int,
    plan: Plan,
    draw: Draw = _as_given,
):
    """Builds one round, to be jitted with the state donated.

    Args:
      algorithm: What is run.
      objective: What is minimized.
      num_clients: N.
      plan: How the clients of a cohort are executed.
      draw: `draw(entry, key)` turns one client's entry of `batches` into what its local
        steps scan, [K, ...], inside the plan, so that the batches of a large cohort
        never lie in memory at once. By default an entry is that already.

    Returns:
      `round(state, cohort, batches, weights, key) -> (state, received)`. `cohort` [S]
      int32 lists distinct client ids; the leaves of `batches` lead with [S]; `weights`
      [S] are the weights of the mean, not necessarily normalized, 0 for a client that
      dropped out; `key` is the same typed key in every round. `received` [S] is False
      for clients that dropped out or sent a message, or kept a state, that is not
      finite: they are left out of the mean, and their states stay. A round without any
      message leaves the server's state as it was, unless an exchange has `reduce_sum`.
    """
    first = len(algorithm.prologue)
    run = _runner(algorithm.exchanges, objective, num_clients, plan, draw, first)

    def round(state, cohort, batches, weights, key):
        state, received = run(state, cohort, batches, weights, key)
        return state._replace(index=state.index + 1), received

    return round


def make_prologue(
    algorithm: Algorithm,
    objective: Objective,
    num_clients: int,
    plan: Plan,
    draw: Draw = _as_given,
):
    """As `make_round`, for what happens before round 0; the index stays there.

    The cohort should be all N clients. Without a prologue it changes nothing.
    """
    return _runner(algorithm.prologue, objective, num_clients, plan, draw, 0)


class Traffic(NamedTuple):
    """Bytes; a mean over graphs that change with time need not be whole."""

    down: float
    up: float


def traffic(
    exchanges, algorithm: Algorithm, objective: Objective, params, batches
) -> Traffic:
    """Bytes that some exchanges send to and receive from one client.

    Read off the interface by shapes, without running anything. `batches` are one
    client's, [K, ...]; arrays may be `ShapeDtypeStruct`s.
    """
    seen = exchange_shapes(exchanges, algorithm, objective, params, batches)
    return Traffic(*(tree.nbytes([p[way] for p in seen]) for way in (0, 1)))
