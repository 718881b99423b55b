"""The interface of a decentralized algorithm: agents and neighbours, no server.

One agent's iteration is one function. Where a paper multiplies by W the code calls
`mix`, and all else is local: `mix(message)` is what an agent hears of its neighbours,
the weighted sum of their messages and its own. Whoever hands it over owns the graph,
the bytes, and whatever happens to a message on its way.

A `mix` is called as often in every iteration, and not inside `jax.lax` loops, where
bytes would be counted once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fedjax_muon.core import Objective


class Iteration(NamedTuple):
    """What an agent knows of an iteration besides its state and its batch."""

    # int32 [], t, from 0
    index: jax.Array  # type: ignore[assignment]  # hides tuple.index
    key: jax.Array  # typed key of gradients; another one for every agent and every t
    noise: jax.Array  # typed key of the noise on what is told, apart from `key`


class Gossip(NamedTuple):
    """A decentralized algorithm, as one agent runs it."""

    start: Callable[[Objective, Any, Callable, Any, Iteration], Any]
    # t = 0: (objective, params, mix, batch, iteration) -> state, which has `.params`
    step: Callable[[Objective, Any, Callable, Any, Iteration], Any]
    # t >= 1: (objective, state, mix, batch, iteration) -> state
    # what made it, see `core.recipe`
    recipe: Any = None


class Estimator(NamedTuple):
    """What an agent says its gradient is, from its own memory and one batch."""

    start: Callable[[Objective, Any, Any, Iteration], tuple[Any, Any]]
    # t = 0: (objective, params, batch, iteration) -> (estimate, memory)
    update: Callable[[Objective, Any, Any, Any, Iteration], tuple[Any, Any]]
    # t >= 1: (objective, memory, params, batch, iteration) -> (estimate, memory)
    # what made it, see `core.recipe`
    recipe: Any = None
