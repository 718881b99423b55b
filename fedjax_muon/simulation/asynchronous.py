"""Algorithms whose clients start from earlier broadcasts, for asynchronous rounds."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon import core
from fedjax_muon.core import tree
from fedjax_muon.core.variables import refuse_statistics
from fedjax_muon.simulation.staleness import Staleness


class Broadcast(NamedTuple):
    ring: Any
    now: jax.Array  # int32 [], the server step


class Sent(NamedTuple):
    message: Any
    factor: jax.Array  # by its staleness
    behind: Any  # the parameters that it started from minus the current ones, or ()


def asynchronous(
    algorithm: core.Algorithm,
    depth: int,
    staleness: Staleness,
    damping: Staleness | None,
    *,
    rebase: bool,
) -> core.Algorithm:
    """Lets clients start from earlier broadcasts; `Round.index` says from which.

    Args:
      depth: Number of broadcasts that are kept.
      staleness: Factor of the parameters in a message.
      damping: The part of their step that the parameters move by.
      rebase: Whether messages are changes from the server's current parameters.
    """
    (main,) = algorithm.exchanges
    at = lambda ring, index: jax.tree.map(lambda x: x[index % depth], ring)

    def init(params: Any) -> core.Wrapped:
        inner = algorithm.init(params)
        begin = core.Round(jnp.int32(0), jax.random.key(0), 1, 1, 1.0)
        first = jax.eval_shape(main.broadcast, inner, begin)
        ring = jax.tree.map(lambda x: jnp.zeros((depth, *x.shape), x.dtype), first)
        return core.wrapped(inner, ring)

    def prepare(state: core.Wrapped, round: core.Round) -> core.Wrapped:
        inner = main.prepare(state.inner, round)
        put = lambda ring, new: ring.at[round.index % depth].set(new)
        ring = jax.tree.map(put, state.kept, main.broadcast(inner, round))
        return core.wrapped(inner, ring)

    def client(
        objective: core.Objective,
        sent: Broadcast,
        before: Any,
        batches: Any,
        round: core.Round,
    ) -> tuple[Sent, Any]:
        own = at(sent.ring, round.index)
        message, after = main.client(objective, own, before, batches, round)
        behind: Any = ()
        if rebase:
            behind = tree.sub(own.params, at(sent.ring.params, sent.now))
        factor = staleness(sent.now - round.index)
        return Sent(message, factor, behind), after

    def decode(sent: Sent) -> Any:
        message = main.decode(sent.message)
        change = message.params
        if rebase:
            sign = 1.0 if main.local_params is core.after_change else -1.0
            change = tree.add_scaled(change, sign, sent.behind)
        scaled = jax.tree.map(lambda x: sent.factor.astype(x.dtype) * x, change)
        return message._replace(params=scaled)

    def server(state: core.Wrapped, mean: Any, round: core.Round) -> core.Wrapped:
        after = core.wrapped(main.server(state.inner, mean, round), state.kept)
        if damping is None:
            return after
        part = damping(jnp.asarray(round.late))
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


def _inside(exchange: core.Exchange) -> core.Exchange:
    """An exchange of the algorithm as one of the whole state."""
    return exchange._replace(
        prepare=lambda state, round: core.wrapped(
            exchange.prepare(state.inner, round), state.kept
        ),
        broadcast=lambda state, round: exchange.broadcast(state.inner, round),
        server=lambda state, mean, round: core.wrapped(
            exchange.server(state.inner, mean, round), state.kept
        ),
    )


def check_suits(algorithm: core.Algorithm, params: Any, *, rebase: bool) -> None:
    """Raises `ValueError` for algorithms whose rounds cannot be asynchronous."""
    name = repr(algorithm)
    refuse_statistics(params, "asynchronous rounds, whose late changes shrink")
    if algorithm.full_participation:
        raise ValueError(
            f"{name} needs the messages of all clients in every round, which do not "
            "arrive together; give a cohort of all clients"
        )
    main = algorithm.exchanges[0]
    if len(algorithm.exchanges) != 1 or main.reduce_sum or main.gather:
        raise ValueError(
            f"{name} does not have one exchange with a mean in a round, as "
            "asynchronous rounds need; give another cohort"
        )
    message = core.message_shapes(algorithm, params)[-1]
    if not hasattr(jax.eval_shape(main.decode, message), "params"):
        raise ValueError(
            f"the messages of {name} have no field params, which staleness scales; "
            "give another cohort"
        )
    changes = (core.after_change, core.before_change)
    if rebase and main.local_params not in changes:
        raise ValueError(
            f"the messages of {name} are not changes of parameters alone, as fedasync "
            "needs; use fm.buffered"
        )
