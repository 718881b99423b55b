"""Algorithms whose clients start from earlier broadcasts, for asynchronous rounds."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Objective,
    Round,
    Wrapped,
    after_change,
    before_change,
    message_shapes,
    tree,
    wrapped,
)
from fedjax_muon.simulation.arrivals import Arrivals


class Broadcast(NamedTuple):
    ring: Any
    now: jax.Array  # int32 [], the server step


class Sent(NamedTuple):
    message: Any
    factor: jax.Array  # by its staleness
    behind: Any  # the parameters that it started from minus the current ones, or ()


def asynchronous(algorithm: Algorithm, arrivals: Arrivals) -> Algorithm:
    """Lets clients start from earlier broadcasts; `Round.index` says from which.

    The parameters move by the part of their step that `damping` says.
    """
    (main,) = algorithm.exchanges
    depth = arrivals.depth
    at = lambda ring, index: jax.tree.map(lambda x: x[index % depth], ring)

    def init(params: Any) -> Wrapped:
        inner = algorithm.init(params)
        begin = Round(jnp.int32(0), jax.random.key(0), 1, 1, 1.0)
        first = jax.eval_shape(main.broadcast, inner, begin)
        ring = jax.tree.map(lambda x: jnp.zeros((depth, *x.shape), x.dtype), first)
        return wrapped(inner, ring)

    def prepare(state: Wrapped, round: Round) -> Wrapped:
        inner = main.prepare(state.inner, round)
        put = lambda ring, new: ring.at[round.index % depth].set(new)
        ring = jax.tree.map(put, state.kept, main.broadcast(inner, round))
        return wrapped(inner, ring)

    def client(
        objective: Objective, sent: Broadcast, before: Any, batches: Any, round: Round
    ) -> tuple[Sent, Any]:
        own = at(sent.ring, round.index)
        message, after = main.client(objective, own, before, batches, round)
        behind: Any = ()
        if arrivals.rebase:
            behind = tree.sub(own.params, at(sent.ring.params, sent.now))
        factor = arrivals.staleness(sent.now - round.index)
        return Sent(message, factor, behind), after

    def decode(sent: Sent) -> Any:
        message = main.decode(sent.message)
        change = message.params
        if arrivals.rebase:
            sign = 1.0 if main.local_params is after_change else -1.0
            change = tree.add_scaled(change, sign, sent.behind)
        scaled = jax.tree.map(lambda x: sent.factor.astype(x.dtype) * x, change)
        return message._replace(params=scaled)

    def server(state: Wrapped, mean: Any, round: Round) -> Wrapped:
        after = wrapped(main.server(state.inner, mean, round), state.kept)
        if arrivals.damping is None:
            return after
        part = arrivals.damping(jnp.asarray(round.late))
        return after._replace(params=tree.mix(state.params, part, after.params))

    late = main._replace(
        prepare=prepare,
        broadcast=lambda state, round: Broadcast(state.kept, round.index),
        client=client,
        server=server,
        decode=decode,
        local_params=None,
    )
    return algorithm._replace(
        init=init,
        exchanges=(late,),
        prologue=tuple(map(_inside, algorithm.prologue)),
        recipe=None,
    )


def _inside(exchange: Exchange) -> Exchange:
    """An exchange of the algorithm as one of the whole state."""
    return exchange._replace(
        prepare=lambda state, round: wrapped(
            exchange.prepare(state.inner, round), state.kept
        ),
        broadcast=lambda state, round: exchange.broadcast(state.inner, round),
        server=lambda state, mean, round: wrapped(
            exchange.server(state.inner, mean, round), state.kept
        ),
    )


def check_suits(
    algorithm: Algorithm, arrivals: Arrivals, params: Any, num_clients: int
) -> None:
    """Raises `ValueError` for algorithms whose rounds cannot be asynchronous."""
    if arrivals.concurrency > num_clients:
        raise ValueError(
            f"there is no concurrency={arrivals.concurrency} of {num_clients} clients; "
            "lower concurrency"
        )
    steps = (arrivals.recorded or {}).values()
    last = max((*arrivals.silent, *(max(s.clients) for s in steps)), default=0)
    if last >= num_clients:
        raise ValueError(
            f"the record of arrivals has client {last}, but there are {num_clients} "
            "clients, from 0"
        )
    name = repr(algorithm)
    if arrivals.silent and len(algorithm.prologue) != 1:
        raise ValueError(
            "the record has answers missing in a prologue of one exchange, but that of "
            f"{name} has {len(algorithm.prologue)}; use the algorithm of the record"
        )
    if algorithm.full_participation:
        raise ValueError(
            f"{name} needs the messages of all clients in every round, which do not "
            "arrive together; leave out arrivals"
        )
    if len(algorithm.exchanges) != 1 or algorithm.exchanges[0].reduce_sum:
        raise ValueError(
            f"{name} does not have one exchange with a mean in a round, as arrivals "
            "need; leave out arrivals"
        )
    (main,) = algorithm.exchanges
    message = message_shapes(algorithm, params)[-1]
    if not hasattr(jax.eval_shape(main.decode, message), "params"):
        raise ValueError(
            f"the messages of {name} have no field params, which staleness scales; "
            "leave out arrivals"
        )
    changes = (after_change, before_change)
    if arrivals.rebase and main.local_params not in changes:
        raise ValueError(
            f"the messages of {name} are not changes of parameters alone, as fedasync "
            "needs; use fm.buffered"
        )
