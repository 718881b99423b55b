"""Two variables, one to be minimised and one to be maximised over.

Minimax needs no engine of its own: parameters are a `Pair`, gradients are negated in y,
and every algorithm, plan, wrapper and sweep applies. A hyper-parameter of one value
holds for both variables, `Pair(0.1, 0.01)` for each its own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from fedjax_muon.core import tree


class Pair(NamedTuple):
    """min over x, max over y; or anything else of which each has its own."""

    x: Any
    y: Any


def descent_ascent(grad_fn):
    """The gradient of a function of a `Pair`, its y turned to descend."""

    def directed(params: Pair, batch, key) -> Pair:
        x, y = grad_fn(params, batch, key)
        return Pair(x, tree.scale(-1, y))

    return directed


def per_variable(
    x: optax.GradientTransformation, y: optax.GradientTransformation | None = None
) -> optax.GradientTransformation:
    """A rule for each variable by itself: norms and clips do not mix x and y.

    Args:
      x: the rule of x.
      y: the rule of y; the same by default.
    """
    rules = Pair(x, x if y is None else y)

    def init(params):
        return Pair(rules.x.init(params.x), rules.y.init(params.y))

    def update(updates, state, params=None):
        mine = Pair(None, None) if params is None else params
        x, state_x = rules.x.update(updates.x, state.x, mine.x)
        y, state_y = rules.y.update(updates.y, state.y, mine.y)
        return Pair(x, y), Pair(state_x, state_y)

    return optax.GradientTransformation(init, update)


def on_y(project: Callable[[jax.Array], jax.Array]) -> Callable[[Pair], Pair]:
    """A projection of an array as one of every leaf of y."""
    return lambda params: Pair(params.x, jax.tree.map(project, params.y))


def both(value) -> Pair:
    """A hyper-parameter's values for x and y, where one value stands for both."""
    return value if isinstance(value, Pair) else Pair(value, value)
