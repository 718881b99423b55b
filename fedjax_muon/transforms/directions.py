"""Maps of a direction: normalization, signs, momentum, two-sided clipping."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core import Number, check_range


def normalize() -> optax.GradientTransformation:
    """Divides by the Euclidean norm of the whole pytree; zero stays zero."""

    def update(updates: optax.Updates, params: optax.Params | None = None) -> Any:
        del params
        norm = optax.tree.norm(updates)
        safe = jnp.where(norm > 0, norm, 1)
        return jax.tree.map(lambda u: (u / safe).astype(u.dtype), updates)

    return optax.stateless(update)


def sign_scalars() -> optax.GradientTransformation:
    """Replaces every leaf without axes by its sign; other leaves pass unchanged."""
    return optax.stateless_with_tree_map(lambda g, _: g if g.ndim else jnp.sign(g))


def heavy_ball(momentum: Number = 0.9) -> optax.GradientTransformation:
    """Momentum without dampening.

    Args:
      momentum: Weight of the past in the momentum, in [0, 1), usually 0.9.
    """
    check_range("momentum", momentum, 0.0, 1.0, open_high=True, schedules=False)
    return optax.trace(momentum)


def biclip(low: Number, high: Number) -> optax.GradientTransformation:
    """Clips the magnitude of every entry to [low, high]; zero stays zero.

    Source: Lee, Zaheer and Li 2025, ICML, arXiv:2502.04164.

    Args:
      low: Smallest magnitude of an entry that is not zero.
      high: Largest magnitude of an entry.
    """
    check_range("low", low, schedules=False)
    check_range("high", high, schedules=False)
    if not isinstance(low, jax.core.Tracer) and not isinstance(high, jax.core.Tracer):
        check_range("low", low, 0.0, high, schedules=False)

    def one(g: jax.Array, _: Any) -> jax.Array:
        return (jnp.sign(g) * jnp.clip(jnp.abs(g), low, high)).astype(g.dtype)

    return optax.stateless_with_tree_map(one)
