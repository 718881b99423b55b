"""Shapes of what an algorithm sends, read off its interface."""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.core import tree
from fedjax_muon.core.algorithm import Algorithm, Exchange, Objective, Round


class MessageShapes(NamedTuple):
    """The shapes of what one exchange sends to and receives from one client."""

    down: Any
    up: Any


def exchange_shapes(
    exchanges: Iterable[Exchange],
    algorithm: Algorithm,
    objective: Objective,
    params,
    batches,
) -> list[MessageShapes]:
    """What some exchanges of an algorithm send, without running anything.

    Args:
      exchanges: Some of the algorithm's.
      algorithm: Gives the states.
      objective: What is minimized.
      params: Parameters, or their `ShapeDtypeStruct`s, as all arrays here.
      batches: Those of one client, leaves [K, ...].

    Returns:
      `ShapeDtypeStruct`s for each exchange.
    """
    state = jax.eval_shape(algorithm.init, params)
    client_state = jax.eval_shape(algorithm.init_client, params)
    key = jax.eval_shape(lambda: jax.random.key(0))
    steps = jax.tree.leaves(batches)[0].shape[0]

    def sent(exchange, state, client_state, batches, key):
        round = Round(jnp.int32(0), key, steps, 1, 1.0)
        shared = exchange.broadcast(state, round)
        up, _ = exchange.client(objective, shared, client_state, batches, round)
        return MessageShapes(shared, up)

    look = lambda e: jax.eval_shape(partial(sent, e), state, client_state, batches, key)
    return [look(exchange) for exchange in exchanges]


def message_shapes(algorithm: Algorithm, params) -> list[Any]:
    """The shapes of what a client sends in all exchanges, the prologue's first.

    They are the same for any objective.
    """
    batches = jax.ShapeDtypeStruct((1,), jnp.float32)
    exchanges = (*algorithm.prologue, *algorithm.exchanges)
    shapes = exchange_shapes(exchanges, algorithm, Objective(_zero), params, batches)
    return [sent.up for sent in shapes]


def _zero(params, batch, key):
    """A gradient that does not look at its batch."""
    del batch, key
    return tree.zeros_like(params)
