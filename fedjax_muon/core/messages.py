"""Shapes of the messages of an algorithm, from its interface."""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.core import tree
from fedjax_muon.core.algorithm import (
    Algorithm,
    Exchange,
    Messages,
    Objective,
    Params,
    Round,
)


class MessageShapes(NamedTuple):
    """Shapes of an exchange's messages to and from one client."""

    down: Any  # broadcast
    up: Any  # message of the client


class Reconstructed(NamedTuple):
    """A broadcast or a message that is put together from less than it has."""

    value: Any
    nbytes: float  # sent for it; a mean if it differs between rounds or clients


jax.tree_util.register_pytree_node(
    Reconstructed,
    lambda broadcast: ((broadcast.value,), broadcast.nbytes),
    lambda nbytes, value: Reconstructed(*value, nbytes),
)


def sent_bytes(message: Any) -> float:
    """Counts the bytes of a message to or from a client."""
    is_known = lambda node: isinstance(node, Reconstructed)
    parts = jax.tree.leaves(message, is_leaf=is_known)
    return sum(x.nbytes if is_known(x) else tree.nbytes(x) for x in parts)


def only_finite(messages: Messages) -> Messages:
    """Leaves out messages that are not finite, as if they had not arrived."""
    finite = jnp.isfinite(messages.values).all(1)
    values = jnp.where(finite[:, None], messages.values, 0)
    return messages._replace(
        values=values, weight=jnp.where(finite, messages.weight, 0)
    )


def returned(pair: Any) -> tuple[Any, Any]:
    """What a client has returned, if it is a message and a state."""
    if type(pair) is tuple and len(pair) == 2:
        return pair
    raise TypeError(
        "client must return a tuple (message, client state), got "
        f"{type(pair).__name__}; without a state, return the state that it was given"
    )


def exchange_shapes(
    exchanges: Iterable[Exchange],
    algorithm: Algorithm,
    objective: Objective,
    params: Params,
    batches: Any,
) -> list[MessageShapes]:
    """Finds the shapes of the messages of some exchanges, without running anything."""
    state = jax.eval_shape(algorithm.init, params)
    client_state = jax.eval_shape(algorithm.init_client, params)
    key = jax.eval_shape(lambda: jax.random.key(0))
    steps = jax.tree.leaves(batches)[0].shape[0]

    def shapes(
        exchange: Exchange, state: Any, client_state: Any, batches: Any, key: Any
    ) -> MessageShapes:
        round = Round(jnp.int32(0), key, steps, 1, 1.0)
        broadcast = exchange.broadcast(state, round)
        up, _ = returned(
            exchange.client(objective, broadcast, client_state, batches, round)
        )
        return MessageShapes(broadcast, up)

    return [
        jax.eval_shape(partial(shapes, exchange), state, client_state, batches, key)
        for exchange in exchanges
    ]


def message_shapes(algorithm: Algorithm, params: Params) -> list[Any]:
    """Finds the shapes of a client's messages in all exchanges, the prologue's first.

    They are the same for any objective.
    """
    batches = jax.ShapeDtypeStruct((1,), jnp.float32)
    exchanges = (*algorithm.prologue, *algorithm.exchanges)
    loss = lambda *given: (jnp.zeros(()), _zero(*given))
    zero = Objective(_zero, value_and_grad=loss)
    shapes = exchange_shapes(exchanges, algorithm, zero, params, batches)
    return [sent.up for sent in shapes]


def received_shapes(algorithm: Algorithm, params: Params) -> list[Any]:
    """Finds the shapes of what is averaged in all exchanges, the prologue's first."""
    exchanges = (*algorithm.prologue, *algorithm.exchanges)
    received = lambda exchange, sent: jax.eval_shape(exchange.decode, sent)
    return list(map(received, exchanges, message_shapes(algorithm, params)))


def _zero(params: Params, batch: Any, key: jax.Array) -> Params:
    """A gradient that does not depend on its batch."""
    del batch, key
    return tree.zeros_like(params)
