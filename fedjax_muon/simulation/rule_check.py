"""Checks of users' update rules: their sign and their scale.

Rules are optax transformations of an ascent direction without a learning rate. Most
optimizers of optax, such as `optax.adam(1e-3)`, flip the sign and scale. With them
training would increase the loss, without any other symptom.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core.recipe import Recipe, recipe_of

LARGEST_AXIS = 4  # of the arrays that rules are tested on
SMALL_UPDATE = 0.02  # relative to the gradient; probably scaled by a learning rate


def check_rules(algorithm: Any, params: Any) -> None:
    """Tests every rule in an algorithm's recipe once.

    It warns if the scale of a rule looks like a learning rate.

    Args:
      algorithm: An algorithm; one without a recipe is not checked.
      params: Parameters, or their `ShapeDtypeStruct`s. Rules are tested on small arrays
        of the same structure.
    """
    for name, rule in _rules(recipe_of(algorithm)):
        _check(name, rule, params)


def _rules(recipe: Recipe | None) -> Iterator[tuple[str, Any]]:
    if recipe is None:
        return
    for name, value in recipe.arguments.items():
        if name in ("rule", "server_rule") and value is not None:
            yield name, value
        if isinstance(getattr(value, "recipe", None), Recipe):
            yield from _rules(recipe_of(value))


def _check(name: str, rule: optax.GradientTransformation, params: Any) -> None:
    small = lambda x: jnp.zeros([min(n, LARGEST_AXIS) for n in x.shape], x.dtype)
    params = jax.tree.map(small, params)
    gradient = jax.tree.map(_alternating, params)
    gradient = optax.tree.scale(1 / optax.tree.norm(gradient), gradient)
    updates, _ = rule.update(gradient, rule.init(params), params)
    along = float(optax.tree.vdot(updates, gradient))
    if along < 0:
        raise ValueError(
            f"{name} flips the sign of the gradient, as optax.adam(1e-3) and other "
            "optimizers do; give a transformation without a learning rate, such as "
            "optax.scale_by_adam(), and the learning rate as lr"
        )
    if 0 < float(optax.tree.norm(updates)) < SMALL_UPDATE:
        warnings.warn(
            f"{name} shrinks a gradient of norm 1 to {optax.tree.norm(updates):.2g}, "
            "as if it had a learning rate; that belongs to lr",
            stacklevel=4,
        )


def _alternating(x: jax.Array) -> jax.Array:
    """Makes entries of both signs and of several sizes."""
    count = jnp.arange(1, x.size + 1, dtype=jnp.float32)
    return (jnp.cos(2 * count) + 0.1).reshape(x.shape).astype(x.dtype)
