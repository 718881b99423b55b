"""Pairs of variables for minimax problems: minimization over x, maximization over y.

Parameters are a `Pair`, and gradients are negated in y. Every algorithm, plan, wrapper
and sweep then applies to minimax problems. A hyperparameter is one value for both
variables, or `Pair(0.1, 0.01)` with one value each.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from fedjax_muon.core import tree


class Pair(NamedTuple):
    """Variables x (minimization) and y (maximization), or a value for each of them.

    Example:
      >>> fm.Pair(x=1.0, y=2.0).y
      2.0
    """

    x: Any
    y: Any


def descent_ascent(
    grad_fn: Callable[[Pair, Any, Any], Any],
) -> Callable[[Pair, Any, Any], Pair]:
    """Negates the y part of a gradient, so that descent becomes ascent in y.

    Example:
      >>> grad = descent_ascent(lambda params, batch, key: params)
      >>> grad(Pair(jnp.ones(2), jnp.ones(2)), None, None).y.tolist()
      [-1.0, -1.0]
    """

    def directed(params: Pair, batch: Any, key: Any) -> Pair:
        x, y = grad_fn(params, batch, key)
        return Pair(x, tree.scale(y, -1))

    return directed


def per_variable(
    x: optax.GradientTransformation, y: optax.GradientTransformation | None = None
) -> optax.GradientTransformation:
    """Applies separate rules to x and y, so that norms and clips do not mix them."""
    rules = Pair(x, x if y is None else y)

    def init(params: Pair) -> Pair:
        return Pair(rules.x.init(params.x), rules.y.init(params.y))

    def update(
        updates: Pair, state: Pair, params: Pair | None = None
    ) -> tuple[Pair, Pair]:
        current = Pair(None, None) if params is None else params
        x, state_x = rules.x.update(updates.x, state.x, current.x)
        y, state_y = rules.y.update(updates.y, state.y, current.y)
        return Pair(x, y), Pair(state_x, state_y)

    return optax.GradientTransformation(init, update)


def on_y(project: Callable[[jax.Array], jax.Array]) -> Callable[[Pair], Pair]:
    """Extends a projection of arrays to pairs: it applies to every leaf of y."""
    return lambda params: Pair(params.x, jax.tree.map(project, params.y))


def as_pair(value: Any) -> Pair:
    """Returns the values of a hyperparameter for x and y."""
    return value if isinstance(value, Pair) else Pair(value, value)
