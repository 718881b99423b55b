"""The interface of a decentralized algorithm: agents and neighbors without a server.

One agent's iteration is one function. Where a paper multiplies by W, the code calls
`mix`; everything else is local. `mix(message)` is the weighted sum of the neighbors'
messages and the agent's own. The engine that provides it owns the graph and counts
the bytes.

Every iteration must call `mix` the same number of times, and never inside a `jax.lax`
loop, where the bytes would be counted once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fedjax_muon.core import Objective


class Iteration(NamedTuple):
    """Information about an iteration, besides an agent's state and batch."""

    # int32 [], t, from 0
    index: jax.Array  # type: ignore[assignment]  # hides tuple.index
    key: jax.Array  # typed key of gradients; every agent and every t has its own
    noise: jax.Array  # typed key of the noise on what is sent, independent of `key`


class Gossip(NamedTuple):
    """A decentralized algorithm, as one agent runs it."""

    start: Callable[[Objective, Any, Callable, Any, Iteration], Any]
    # t = 0: (objective, params, mix, batch, iteration) -> state, which has `.params`
    step: Callable[[Objective, Any, Callable, Any, Iteration], Any]
    # t >= 1: (objective, state, mix, batch, iteration) -> state
    # the function and arguments that it was made from, see `core.recipe`
    recipe: Any = None

    def __repr__(self) -> str:
        name = type(self).__name__
        return name if self.recipe is None else self.recipe.call()


class Estimator(NamedTuple):
    """How an agent estimates its gradient, from its memory and one batch."""

    start: Callable[[Objective, Any, Any, Iteration], tuple[Any, Any]]
    # t = 0: (objective, params, batch, iteration) -> (estimate, memory)
    update: Callable[[Objective, Any, Any, Any, Iteration], tuple[Any, Any]]
    # t >= 1: (objective, memory, params, batch, iteration) -> (estimate, memory)
    # the function and arguments that it was made from, see `core.recipe`
    recipe: Any = None
