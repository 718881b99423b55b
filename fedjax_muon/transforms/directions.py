"""Maps of a whole direction, without state: normalised, or clipped from both sides."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core import check_range


def normalize() -> optax.GradientTransformation:
    """Divides by the Euclidean norm of the whole pytree; zero stays zero."""

    def update(updates, params=None):
        del params
        norm = optax.tree.norm(updates)
        safe = jnp.where(norm > 0, norm, 1)
        return jax.tree.map(lambda u: (u / safe).astype(u.dtype), updates)

    return optax.stateless(update)


def sign_scalars() -> optax.GradientTransformation:
    """Replaces every leaf without axes by its sign; arrays pass."""
    return optax.stateless_with_tree_map(lambda g, _: g if g.ndim else jnp.sign(g))


def biclip(low: Any, high: Any) -> optax.GradientTransformation:
    """Brings the size of every coordinate into [low, high]; zero stays zero.

    Lee, Zaheer and Li, ICML 2025, arXiv:2502.04164. Raises `ValueError` unless
    0 <= low <= high.
    """
    check_range("low", low, schedules=False)
    check_range("high", high, schedules=False)
    if not isinstance(low, jax.core.Tracer) and not isinstance(high, jax.core.Tracer):
        check_range("low", low, 0.0, high, schedules=False)

    def one(g, _):
        return (jnp.sign(g) * jnp.clip(jnp.abs(g), low, high)).astype(g.dtype)

    return optax.stateless_with_tree_map(one)
