"""Rounds of any algorithm on simulated clients.

This module depends on the interface of algorithms, never on a particular one. A plan
executes the clients of a cohort, see `plans`.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fedjax_muon import core
from fedjax_muon.core import tree
from fedjax_muon.engine.plans import Client, CohortMember, Plan, Result

# (one client's entry of batches, key) -> batches
Draw = Callable[[Any, jax.Array], Any]
# (one client's entry of batches, key) -> its number of local steps, int32 []
Steps = Callable[[Any, jax.Array], jax.Array]
# (state, cohort, batches, weights, key) -> (state, received), see `make_round`
RunRound = Callable[..., tuple["State", jax.Array]]


class State(NamedTuple):
    """State of an algorithm between rounds."""

    # int32 [], number of completed rounds
    index: jax.Array  # type: ignore[assignment]  # hides tuple.index
    server: Any  # server state of the algorithm, has the field `params`
    client_states: Any  # of all N clients, stacked on axis 0, possibly padded


def init(
    algorithm: core.Algorithm,
    params: core.Params,
    num_clients: int,
    shares: int = 1,
    *,
    project: core.Project = core.unconstrained,
) -> State:
    """Makes the state before the prologue and round 0.

    Args:
      shares: Divisor of the number of client states, which are padded if necessary.
    """
    core.check_count("num_clients", num_clients)
    params = project(jax.tree.map(lambda x: jnp.array(x), params))
    one = algorithm.init_client(params)
    rows = num_clients + -num_clients % shares
    client_states = jax.tree.map(lambda x: jnp.broadcast_to(x, (rows, *x.shape)), one)
    # Donated buffers must be distinct; the rows of client states are copies already.
    server = jax.tree.map(jnp.copy, algorithm.init(params))
    return State(jnp.int32(0), server, client_states)


def _unchanged(batches: Any, key: jax.Array) -> Any:
    """`draw` of batches that are drawn already."""
    del key
    return batches


def _projected(objective: core.Objective, server: Any) -> Any:
    """Projects the server's parameters.

    Server rules, rates above 1, compression and noise can leave the constraint set.
    """
    if objective.project is core.unconstrained:
        return server
    return server._replace(params=objective.project(server.params))


def _client(
    exchange: core.Exchange,
    objective: core.Objective,
    draw: Draw,
    round_info: core.Round,
) -> Client:
    """Makes the function of one client of an exchange, which plans call."""

    def client(broadcast: Any, before: Any, member: CohortMember) -> Result:
        batches = draw(member.batches, member.draw_key)
        round = round_info._replace(key=member.key, client=member.id)
        if member.steps is not None:
            round = round._replace(steps=member.steps)
        if member.start is not None:
            round = round._replace(index=member.start)
        sent, after = core.returned(
            exchange.client(objective, broadcast, before, batches, round)
        )
        tree.check_alike("the client's state that client returns", before, after)
        message = exchange.decode(sent)
        received = (member.weight > 0) & tree.all_finite((message, after))
        factor = 1 if exchange.reduce_sum else member.weight
        weigh = lambda m: jnp.where(received, jnp.asarray(factor, m.dtype) * m, 0)
        weight = jnp.where(received, member.weight, 0)
        if _takes_all(exchange):
            message = tree.where(received, message, tree.zeros_like(message))
            state = tree.where(received, after, before)
            return ((), weight), state, (received, message)
        contribution = jax.tree.map(weigh, message), weight
        return contribution, tree.where(received, after, before), received

    return client


class ExchangeKeys(NamedTuple):
    """Typed keys of one exchange: by the ids of clients, never by their positions."""

    server: jax.Array
    members: jax.Array  # [S], of local training
    draws: jax.Array  # [S], of batches, the same in all exchanges of a round


def exchange_keys(
    key: jax.Array,
    index: int | jax.Array,
    number: int,
    first: int,
    cohort: jax.Array,
    num_clients: int,
    starts: jax.Array | None = None,
) -> ExchangeKeys:
    """Derives all keys of an exchange.

    Args:
      number: Number of the exchange, from 0 with those of the prologue.
      first: Number of the first exchange of the round, or of the prologue.
      starts: The rounds that members started in, int32 [S], if not this one.
    """
    if starts is not None:
        one = lambda start, client: exchange_keys(
            key, start, number, first, client[None], num_clients
        )
        _, members, draws = jax.vmap(one)(starts, cohort)
        now = exchange_keys(key, index, number, first, cohort, num_clients)
        return ExchangeKeys(now.server, members[:, 0], draws[:, 0])
    message_key, draw_key = jax.random.split(jax.random.fold_in(key, index))
    exchange_key = jax.random.fold_in(message_key, number)
    fold_each = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return ExchangeKeys(
        jax.random.fold_in(exchange_key, num_clients),
        fold_each(exchange_key, cohort),
        fold_each(jax.random.fold_in(draw_key, first), cohort),
    )


def server_round(
    index: jax.Array,
    key: jax.Array,
    steps: int | jax.Array,
    present: jax.Array,
    num_clients: int,
    dtype: Any = jnp.float32,
) -> core.Round:
    """Makes the server's information about a round."""
    size = jnp.sum(present).astype(dtype)
    return core.Round(index, key, steps, size, size / num_clients)


def staleness_of(
    index: jax.Array, starts: jax.Array | None, present: jax.Array
) -> int | jax.Array:
    """The largest staleness of those who take part; 0 if all started in this round."""
    return 0 if starts is None else jnp.where(present, index - starts, 0).max()


def _takes_all(exchange: core.Exchange) -> bool:
    """Whether a function takes all messages of the exchange together."""
    return bool(exchange.attacks or exchange.stack) or exchange.gather


def _together(
    exchange: core.Exchange,
    messages: Any,
    weight: jax.Array,
    ids: jax.Array,
    key: jax.Array,
) -> tuple[tuple[Any, jax.Array], jax.Array]:
    """Attacks and aggregates all messages.

    Returns:
      Their weighted sum, or all of them with their weights if the exchange gathers
      them; and the sum of their weights. Then which were received, [S].
    """
    one = jax.tree.map(lambda x: x[0], messages)
    _, unravel = ravel_pytree(one)
    values = jax.vmap(lambda message: ravel_pytree(message)[0])(messages)
    rows = core.Messages(values, weight, ids, key)
    for function in exchange.attacks:
        rows = core.only_finite(function(rows))
    received = rows.weight > 0
    for function in exchange.stack:
        rows = core.only_finite(function(rows))
    if exchange.gather:
        kept = core.Gathered(jax.vmap(unravel)(rows.values), rows.weight)
        return (kept, rows.weight.sum()), received
    weights = rows.weight.astype(values.dtype)
    # not in the lower precision that accelerators have by default
    total = jnp.tensordot(weights, rows.values, 1, precision="highest")
    return (unravel(total), rows.weight.sum()), received


def check_stacks(algorithm: core.Algorithm, first: int, cohort_size: int) -> None:
    """Raises `ValueError` if a function of all messages needs more of them.

    Args:
      first: Number of clients in the prologue.
    """
    for exchanges, size in (
        (algorithm.prologue, first),
        (algorithm.exchanges, cohort_size),
    ):
        for exchange in exchanges:
            if exchange.attacks or exchange.stack:
                run = functools.partial(_stacked, exchange, size)
                jax.eval_shape(run, jax.random.key(0))


def _stacked(exchange: core.Exchange, size: int, key: jax.Array) -> core.Messages:
    """The functions of all messages, of so many that are 0."""
    rows = core.Messages(jnp.zeros((size, 1)), jnp.zeros(size), jnp.arange(size), key)
    for function in (*exchange.attacks, *exchange.stack):
        rows = function(rows)
    return rows


def make_exchange(
    exchange: core.Exchange,
    objective: core.Objective,
    plan: Plan,
    draw: Draw,
    round_of: Callable[[jax.Array], core.Round],
) -> Callable[[Any, Any, CohortMember], Result]:
    """Makes a function that runs one exchange.

    Args:
      round_of: Makes the server's `Round` of the present clients, bool [S].

    Returns:
      `run(server, client_states, members) -> (server, client_states, received)`.
    """

    def run(server: Any, client_states: Any, members: CohortMember) -> Result:
        round_info = round_of(members.weight > 0)
        server = exchange.prepare(server, round_info)
        broadcast = exchange.broadcast(server, round_info)
        client = _client(exchange, objective, draw, round_info)
        result = plan(client, broadcast, client_states, members)
        (total, weight), client_states, received = result
        if _takes_all(exchange):
            received, messages = received
            key = jax.random.fold_in(round_info.key, core.streams.STACK)
            there = jnp.where(received, members.weight, 0)
            (total, weight), received = _together(
                exchange, messages, there, members.id, key
            )
        round_after = round_of(received)
        if exchange.reduce_sum:
            after = exchange.server(server, total, round_after)
        else:
            safe = jnp.where(weight > 0, weight, 1)
            share = lambda t: t / safe.astype(t.dtype)
            if exchange.gather:
                mean = total._replace(shares=share(total.shares))
            else:
                mean = jax.tree.map(share, total)
            after = exchange.server(server, mean, round_after)
        tree.check_alike("the state that server returns", server, after)
        after = _projected(objective, after)
        if not exchange.reduce_sum:  # an empty mean changes nothing
            after = tree.where(weight > 0, after, server)
        return after, client_states, received

    return run


def _runner(
    exchanges: Sequence[core.Exchange],
    objective: core.Objective,
    num_clients: int,
    plan: Plan,
    draw: Draw,
    first: int,
    steps_of: Steps | None = None,
) -> RunRound:
    """Makes a function that runs some exchanges, numbered from `first`."""

    def run(
        state: State,
        cohort: jax.Array,
        batches: Any,
        weights: jax.Array,
        key: jax.Array,
        starts: jax.Array | None = None,
    ) -> tuple[State, jax.Array]:
        index, server, client_states = state
        one = jax.tree.map(lambda x: x[0], batches)
        bound = jax.tree.leaves(jax.eval_shape(draw, one, key))[0].shape[0]

        def round_of(
            server_key: jax.Array, own: jax.Array | None, present: jax.Array
        ) -> core.Round:
            steps = bound if own is None else _mean_steps(own, weights, present)
            kind = weights.dtype
            made = server_round(index, server_key, steps, present, num_clients, kind)
            return made._replace(late=staleness_of(index, starts, present))

        received = weights > 0
        for number, exchange in enumerate(exchanges, first):
            keys = exchange_keys(key, index, number, first, cohort, num_clients, starts)
            own = None if steps_of is None else jax.vmap(steps_of)(batches, keys.draws)
            remaining = jnp.where(received, weights, 0)
            members = CohortMember(
                cohort, batches, remaining, keys.members, keys.draws, own, starts
            )
            in_exchange = functools.partial(round_of, keys.server, own)
            run_exchange = make_exchange(exchange, objective, plan, draw, in_exchange)
            server, client_states, received = run_exchange(
                server, client_states, members
            )
        return State(index, server, client_states), received

    return run


def _mean_steps(steps: jax.Array, weights: jax.Array, present: jax.Array) -> jax.Array:
    """The weighted mean of the local steps of the clients that take part, or 1."""
    weights = jnp.where(present, weights, 0)
    total = weights.sum()
    mean = (weights * steps).sum() / jnp.where(total > 0, total, 1)
    return jnp.where(total > 0, mean, 1)


def make_round(
    algorithm: core.Algorithm,
    objective: core.Objective,
    num_clients: int,
    plan: Plan,
    draw: Draw = _unchanged,
    steps_of: Steps | None = None,
) -> RunRound:
    """Makes a function that runs one round, to be jitted with the state donated.

    Args:
      draw: Called as `draw(entry, key)` inside the plan. It maps one client's entry of
        `batches` to the batches of its local steps, [K, ...], so that the batches of a
        large cohort are never in memory together. By default, an entry is the batches
        themselves.
      steps_of: Called as `steps_of(entry, key)`, with the arguments of `draw`. It
        returns the client's number of local steps, at most K. By default, every client
        takes K.

    Returns:
      `round(state, cohort, batches, weights, key) -> (state, received)`. `cohort` [S]
      int32 lists distinct client ids. The leaves of `batches` are [S, ...]. `weights`
      [S] are the weights of the mean, not necessarily normalized, and 0 for a client
      that dropped out. `key` is the same typed key in every round. `received` [S] is
      False for clients that dropped out, and for those whose message or new state is
      not finite: they are excluded from the mean, and their states stay unchanged (but
      those of clients whose attack is not finite are those of their training).
      Without any message the server's state stays unchanged, unless an exchange has
      `reduce_sum`. The optional last argument `starts`, int32 [S], are the rounds that
      members started in, by which their random streams and `Round.index` are chosen.

    Example:
      >>> objective = Objective(lambda params, batch, key: params)
      >>> plan = fm.engine.plans.mapped
      >>> train_round = fm.engine.make_round(fedavg(lr=0.1), objective, 8, plan)
    """
    first = len(algorithm.prologue)
    run = _runner(
        algorithm.exchanges, objective, num_clients, plan, draw, first, steps_of
    )

    def round(
        state: State,
        cohort: jax.Array,
        batches: Any,
        weights: jax.Array,
        key: jax.Array,
        starts: jax.Array | None = None,
    ) -> tuple[State, jax.Array]:
        state, received = run(state, cohort, batches, weights, key, starts)
        return state._replace(index=state.index + 1), received

    return round


def make_prologue(
    algorithm: core.Algorithm,
    objective: core.Objective,
    num_clients: int,
    plan: Plan,
    draw: Draw = _unchanged,
) -> RunRound:
    """Makes a function that runs the prologue; the round index stays 0.

    The cohort is all N clients, or some of them if none keeps a state. Without a
    prologue the function changes nothing.
    """
    return _runner(algorithm.prologue, objective, num_clients, plan, draw, 0)


class Traffic(NamedTuple):
    """Number of bytes; a mean over time-varying graphs may be fractional."""

    down: float  # to clients
    up: float  # from clients


def traffic(
    exchanges: Iterable[core.Exchange],
    algorithm: core.Algorithm,
    objective: core.Objective,
    params: core.Params,
    batches: Any,
) -> Traffic:
    """Counts the bytes that some exchanges send to and receive from one client.

    They follow from the shapes of messages; nothing is run. Arrays may be
    `ShapeDtypeStruct`s.

    Args:
      batches: Batches of one client, leaves [K, ...].
    """
    shapes = core.exchange_shapes(exchanges, algorithm, objective, params, batches)
    return Traffic(
        core.sent_bytes([message.down for message in shapes]),
        core.sent_bytes([message.up for message in shapes]),
    )
