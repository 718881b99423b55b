"""Light-tailed and heavy-tailed noise on gradients.

A noise is a function `(key, shape, dtype) -> array` of independent entries that are
symmetric about zero, so that a gradient with finite mean stays unbiased. Entries are
drawn in float32 or a wider type and clipped to the finite range of `dtype`. A `dtype`
that is not a real floating-point type raises `TypeError`.

    task = tasks.classification(model, dataset)
    task = task._replace(grad=noisy(task.grad, alpha_stable(1.5, scale=0.01)))
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jax.typing import DTypeLike

from fedjax_muon.core import GradFn, Params, check_range, streams
from fedjax_muon.tasks.task import Batch, as_partial

Noise = Callable[[jax.Array, tuple[int, ...], DTypeLike], jax.Array]


def noisy(grad_fn: GradFn, noise: Noise) -> GradFn:
    """Adds noise to a gradient, independently for every leaf and every key.

    The noise is a function of the key of the gradient. A method that evaluates the
    gradient at two points with the same batch and key gets the same noise twice, like
    the same examples.

    Args:
      noise: Function `(key, shape, dtype)` that draws an array.
    """

    def grad(grad_fn: GradFn, params: Params, batch: Batch, key: jax.Array) -> Params:
        leaves, structure = jax.tree.flatten(grad_fn(params, batch, key))
        noises = (
            noise(jax.random.fold_in(key, stream), g.shape, g.dtype)
            for stream, g in enumerate(leaves, streams.HEAVY_TAILS)
        )
        return jax.tree.unflatten(structure, map(jnp.add, leaves, noises))

    return Partial(grad, as_partial(grad_fn))


def gaussian(scale: float | jax.Array = 1.0) -> Noise:
    """Gaussian noise."""
    check_range("scale", scale, schedules=False)
    return _within_type(lambda *how: scale * jax.random.normal(*how))


def pareto(tail: float | jax.Array, scale: float | jax.Array = 1.0) -> Noise:
    """Symmetric Pareto noise: a random sign times scale U^(-1/tail), with U uniform.

    The moment E|x|^p is scale^p tail / (tail - p) for p < tail, and infinite for
    p >= tail. So the assumption E||noise||^p <= sigma^p of papers, with p in (1, 2],
    holds for every p below `tail` but not for p = tail; the variance is finite for
    tail > 2 only. U has the resolution of its floating-point type: float32 draws end at
    scale 2^(23 / tail), their quantile of 1 - 2^-23.

    Args:
      tail: Tail index, above 1, since noise without a mean would bias the gradient.
    """
    check_range("tail", tail, 1.0, open_low=True, schedules=False)
    check_range("scale", scale, schedules=False)

    def draw(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        u, v = _positive_uniform(key, (2, *shape), dtype)
        return _sign(v) * scale * u ** (-1 / tail)

    return _within_type(draw)


def alpha_stable(alpha: float | jax.Array, scale: float | jax.Array = 1.0) -> Noise:
    """Symmetric alpha-stable noise, with E exp(i t x) = exp(-|scale t|^alpha).

    E|x|^p is finite for p < alpha and infinite for p >= alpha, except for alpha = 2,
    the Gaussian of variance 2 scale^2. The sum of n entries has the same distribution
    as one entry times n^(1/alpha). Float32 draws end near the quantile of 1 - 2^-23.

    Chambers, Mallows and Stuck, JASA 71 (1976): with V uniform in (-pi/2, pi/2), W
    exponential and c = cos((1 - alpha) V),

        x = scale sin(alpha V) / cos(V)^(1 / alpha) (W / c)^(1 - 1 / alpha).

    Args:
      alpha: Stability index in (1, 2]; noise without a mean would bias the gradient.
    """
    check_range("alpha", alpha, 1.0, 2.0, open_low=True, schedules=False)
    check_range("scale", scale, schedules=False)

    def draw(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        angle, size, sign = _positive_uniform(key, (3, *shape), dtype)
        # |V| = pi/2 - d. All sines below are of sums of positive numbers. In terms of
        # V, the cosines would cancel or turn negative in the tails.
        d = jnp.pi / 2 * angle
        rest = jnp.pi / 2 * (2 - alpha)
        wide = (-jnp.log(size) / jnp.sin(rest + (alpha - 1) * d)) ** (1 - 1 / alpha)
        x = jnp.sin(rest + alpha * d) / jnp.sin(d) ** (1 / alpha) * wide
        return _sign(sign) * scale * x

    return _within_type(draw)


def _within_type(draw: Callable[..., jax.Array]) -> Noise:
    """Draws in float32 or a wider type, and clips to the finite numbers of a type."""

    def noise(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        if not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(
                f"noise is drawn in real floating-point types, got {jnp.dtype(dtype)}"
            )
        x = draw(key, shape, jnp.promote_types(dtype, jnp.float32))
        largest = float(jnp.finfo(dtype).max)
        return jnp.clip(x, -largest, largest).astype(dtype)

    return noise


def _positive_uniform(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Uniform in (0, 1], since zero would give an infinite entry."""
    return 1 - jax.random.uniform(key, shape, dtype)


def _sign(u: jax.Array) -> jax.Array:
    """-1 or 1 with equal probabilities, for u uniform in (0, 1]."""
    return jnp.where(u > 0.5, 1, -1).astype(u.dtype)
