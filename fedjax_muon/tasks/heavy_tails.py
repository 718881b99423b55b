"""Noise on gradients, from light to heavy tails, to study what algorithms stand.

A noise is a function `(key, shape, dtype) -> array` of independent entries that are
symmetric about zero, so that a gradient with finite mean stays unbiased. Entries are
drawn in float32 or better and brought into the range of `dtype`, never infinite; a
`dtype` that is not a real floating-point type raises `TypeError`. All factories raise
`ValueError` for numbers out of range, and let tracers pass.

    task = tasks.classification(model, shape)
    task = task._replace(grad=noisy(task.grad, alpha_stable(1.5, scale=0.01)))
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jax.typing import DTypeLike

from fedjax_muon.core import GradFn, check_range, streams
from fedjax_muon.tasks.classification import as_partial

Noise = Callable[[jax.Array, tuple[int, ...], DTypeLike], jax.Array]


def noisy(grad_fn: GradFn, noise: Noise) -> GradFn:
    """`grad_fn` plus noise, drawn independently for every leaf and every key.

    The noise is a function of the key that the gradient is given, so a method that
    asks for the gradient at two points with the same batch and key meets the same
    noise twice, as it would meet the same examples.
    """

    def grad(grad_fn, params, batch, key):
        leaves, structure = jax.tree.flatten(grad_fn(params, batch, key))
        noises = (
            noise(jax.random.fold_in(key, stream), g.shape, g.dtype)
            for stream, g in enumerate(leaves, streams.HEAVY_TAILS)
        )
        return jax.tree.unflatten(structure, map(jnp.add, leaves, noises))

    return Partial(grad, as_partial(grad_fn))


def gaussian(scale: float | jax.Array = 1.0) -> Noise:
    """Normal entries of standard deviation `scale`, which must not be negative."""
    check_range("scale", scale, schedules=False)

    def noise(key, shape, dtype):
        return _within(scale * jax.random.normal(key, shape, _wide(dtype)), dtype)

    return noise


def pareto(tail: float | jax.Array, scale: float | jax.Array = 1.0) -> Noise:
    """Symmetric Pareto entries: a random sign times `scale` U^(-1/tail), U uniform.

    The moment E|x|^p is scale^p tail / (tail - p) for p < tail and infinite for
    p >= tail: the papers' assumption E||noise||^p <= sigma^p with p in (1, 2] is met by
    every p below `tail`, never by p = tail, and a variance exists for tail > 2 only.
    No entry is smaller than `scale` in size. U has the grain of its float type, so
    that float32 draws end at scale 2^(23 / tail), their quantile of 1 - 2^-23.

    Args:
      tail: the tail index, above 1: without a mean a gradient could not be unbiased.
      scale: the least size, not negative.
    """
    check_range("tail", tail, 1.0, open_low=True, schedules=False)
    check_range("scale", scale, schedules=False)

    def noise(key, shape, dtype):
        u, v = _positive_uniform(key, (2, *shape), _wide(dtype))
        return _within(_sign(v) * scale * u ** (-1 / tail), dtype)

    return noise


def alpha_stable(alpha: float | jax.Array, scale: float | jax.Array = 1.0) -> Noise:
    """Symmetric stable entries, with E exp(i t x) = exp(-|scale t|^alpha).

    E|x|^p is finite for p < alpha and infinite for p >= alpha, except for alpha = 2,
    which is the Gaussian of variance 2 scale^2. The sum of n of them is one of them
    with the scale n^(1/alpha). Float32 draws end near the quantile of 1 - 2^-23.

    Chambers, Mallows and Stuck, JASA 71 (1976): with V uniform in (-pi/2, pi/2) and W
    exponential, c = cos((1 - alpha) V),

        x = scale sin(alpha V) / cos(V)^(1 / alpha) (W / c)^(1 - 1 / alpha).

    Args:
      alpha: in (1, 2]: without a mean a gradient could not be unbiased.
      scale: not negative.
    """
    check_range("alpha", alpha, 1.0, 2.0, open_low=True, schedules=False)
    check_range("scale", scale, schedules=False)

    def noise(key, shape, dtype):
        angle, size, sign = _positive_uniform(key, (3, *shape), _wide(dtype))
        # |V| = pi/2 - d. All sines below are of sums of positive numbers: taken of V,
        # the cosines would cancel, or turn negative, exactly where tails are made.
        d = jnp.pi / 2 * angle
        rest = jnp.pi / 2 * (2 - alpha)
        wide = (-jnp.log(size) / jnp.sin(rest + (alpha - 1) * d)) ** (1 - 1 / alpha)
        x = jnp.sin(rest + alpha * d) / jnp.sin(d) ** (1 / alpha) * wide
        return _within(_sign(sign) * scale * x, dtype)

    return noise


def _wide(dtype: DTypeLike) -> Any:
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"noise is drawn in real floating-point types, got {jnp.dtype(dtype)}"
        )
    return jnp.promote_types(dtype, jnp.float32)


def _positive_uniform(key, shape, dtype):
    """Uniform in (0, 1]: zero, which would be an infinity, is left out."""
    return 1 - jax.random.uniform(key, shape, dtype)


def _sign(u):
    """-1 or 1, of u in (0, 1] by halves."""
    return jnp.where(u > 0.5, 1, -1).astype(u.dtype)


def _within(x, dtype):
    largest = float(jnp.finfo(dtype).max)
    return jnp.clip(x, -largest, largest).astype(dtype)
