"""Mixing: how agents multiply their messages by the mixing weights.

A *mixer* makes the `mix` of an iteration for one agent. It is called as

    mixer(index, network) -> mix

where `network` has the agent's number and functions that collect what others send.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import Partial
from jax.typing import ArrayLike


class Network(NamedTuple):
    """Access of one agent's mixer to the other agents."""

    agent: jax.Array  # int32 [], number of this agent, from 0
    agents: int  # m
    gather: Callable[
        [jax.Array], jax.Array
    ]  # this agent's [...] -> all agents' [m, ...]
    # this agent's [...], k -> that of agent (agent + k) mod m
    shift: Callable[[jax.Array, int], jax.Array]


Mixer = Callable[[jax.Array, Network], Callable[[Any], Any]]
Weights = ArrayLike | Sequence[Any]  # [m, m], or [T, m, m] for a sequence that repeats


def dense(weights: Weights | Callable[[jax.Array], jax.Array]) -> Mixer:
    """Mixes by a matrix product: x_i <- sum_j W[i, j] x_j.

    Args:
      weights: W, [m, m]; or [T, m, m], a sequence that repeats; or a function of t that
        returns the W of iteration t, which is not checked. All messages of an iteration
        are mixed by the same W.

    Returns:
      A mixer. If weights are arrays, it is a pytree, which may be an argument of a
      compiled function.
    """
    if callable(weights):
        return lambda index, network: _dense(weights(index), network)
    return Partial(_dense_of, _checked(weights))


def shifted(weights: Weights) -> Mixer:
    """Mixes by one shift of all messages for every offset (j - i) mod m in use.

    This is for rings, tori and exponential graphs, which have few offsets. It is
    correct for any weights, but slow for random graphs and stars, which have all
    offsets. Only rows that cross devices are sent, while other mixers gather all.
    """
    matrices = _known(weights)
    agents = matrices.shape[1]
    rows = np.arange(agents)
    by_offset = {k: matrices[:, rows, (rows + k) % agents] for k in range(agents)}
    # offsets are keys, which are static when the mixer is an argument
    return Partial(_shifted, {k: w for k, w in by_offset.items() if w.any()})


def sparse(weights: Weights) -> Mixer:
    """Mixes by a sum over neighbors, for many agents with few neighbors each.

    Lists of neighbors are padded to the largest degree, with weight 0.
    """
    matrices = _known(weights)
    degree = max(1, int((matrices != 0).sum(2).max()))
    # stable: an agent's neighbors in their order, then others, whose weight is zero
    order = np.argsort(matrices == 0, axis=2, kind="stable")[:, :, :degree]
    shares = np.take_along_axis(matrices, order, 2)
    return Partial(_sparse, order.astype(np.int32), shares)


def _dense_of(matrices: Any, index: jax.Array, network: Network) -> Callable:
    return _dense(jnp.asarray(matrices)[index % len(matrices)], network)


def _dense(weights: jax.Array, network: Network) -> Callable:
    row = weights[network.agent]

    def mix(x: jax.Array) -> jax.Array:
        messages = _gathered(x, network, len(row))
        w = row.astype(messages.dtype)
        product = jnp.tensordot(w, messages, 1, precision=lax.Precision.HIGHEST)
        return product.astype(x.dtype)

    return functools.partial(jax.tree.map, mix)


def _sparse(order: Any, shares: Any, index: jax.Array, network: Network) -> Callable:
    place = (index % len(order), network.agent)
    neighbors, row = jnp.asarray(order)[place], jnp.asarray(shares)[place]

    def mix(x: jax.Array) -> jax.Array:
        messages = _gathered(x, network, order.shape[1])

        def add(total: jax.Array, slot: Any) -> tuple[jax.Array, None]:
            neighbor, w = slot
            return total + w.astype(messages.dtype) * messages[neighbor], None

        zero = jnp.zeros_like(x, messages.dtype)
        return lax.scan(add, zero, (neighbors, row))[0].astype(x.dtype)

    return functools.partial(jax.tree.map, mix)


def _shifted(shares: Any, index: jax.Array, network: Network) -> Callable:
    offsets = list(shares)
    _check_agents(shares[offsets[0]].shape[1], network)
    weight = lambda w: jnp.asarray(w)[index % len(w), network.agent]
    row = [weight(shares[k]) for k in offsets]

    def mix(x: jax.Array) -> jax.Array:
        dtype = jnp.promote_types(x.dtype, jnp.float32)
        part = lambda k, w: w.astype(dtype) * network.shift(x, k).astype(dtype)
        total: Any = sum(map(part, offsets, row))
        return total.astype(x.dtype)

    return functools.partial(jax.tree.map, mix)


def _gathered(x: jax.Array, network: Network, agents: int) -> jax.Array:
    """All agents' x in float32 or wider."""
    _check_agents(agents, network)
    return network.gather(x).astype(jnp.promote_types(x.dtype, jnp.float32))


def _check_agents(agents: int, network: Network) -> None:
    if network.agents != agents:
        raise ValueError(
            f"the weights are for {agents} agents, but there are {network.agents}"
        )


def _known(weights: Any) -> np.ndarray:
    """Weights as [T, m, m], if they are not a function."""
    if callable(weights):
        raise TypeError("these weights must be arrays; give a function of t to `dense`")
    return _checked(weights)


def _checked(weights: Any) -> np.ndarray:
    """Weights as [T, m, m]."""
    w = np.asarray(weights, np.float64)
    matrices = w[None] if w.ndim == 2 else w
    m = matrices
    if m.ndim != 3 or m.shape[1] != m.shape[2] or m.size == 0:
        raise ValueError(f"weights must be [m, m] or [T, m, m], got shape {w.shape}")
    off = max(np.abs(matrices.sum(axis) - 1).max() for axis in (1, 2))
    if not off <= 1e-5:
        raise ValueError(
            f"rows and columns of weights must sum to 1, one is off by {off:g}"
        )
    return matrices
