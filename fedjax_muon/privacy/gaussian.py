"""Gaussian noise with longer tails than single-precision draws have."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LAST = 13  # power of a Taylor series; on quarter turns the rest is below 6e-8


def standard_normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws from N(0, 1), with tails up to 9.5 in float32.

    One float32 draw of `jax.random.normal` never exceeds 5.42, which an adversary can
    see. Here the radius of the Box-Muller method (1958, "A note on the generation of
    random normal deviates") is made of 64 random bits. This is noise for simulations:
    attacks on the rounding of floating-point sums (Haney et al., arXiv:2207.13793) are
    not covered. The result is in float64 where that is enabled.
    """
    best = jnp.result_type(float)
    if best == jnp.float64:
        return jax.random.normal(key, shape, best)
    size = math.prod(shape)
    pair = box_muller(*_words(key, 3, -(-size // 2)))
    return jnp.concatenate(pair)[:size].reshape(shape)


def box_muller(
    high: jax.Array, low: jax.Array, angle: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns two independent N(0, 1) draws in float32 from three uint32 words."""
    # in (0, 1]; the low word matters where the high word is small
    uniform = high * np.float32(2**-32) + (low + np.float32(0.5)) * np.float32(2**-64)
    radius = jnp.sqrt(-2 * jnp.log(uniform))
    cosine, sine = _on_circle(angle)
    return radius * cosine, radius * sine


def _words(key: jax.Array, count: int, size: int) -> jax.Array:
    """Independent random 32-bit words [count, size].

    They are taken from split keys, which have both words that the generator makes at a
    time; `jax.random.bits` returns one of them, in twice the time.
    """
    blocks = jax.random.key_data(jax.random.split(key, -(-count * size // 2)))
    words = jnp.concatenate([blocks[:, 0], blocks[:, 1]])
    return words[: count * size].reshape(count, size)


def _on_circle(word: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of a uniform angle.

    The highest 23 bits give an angle of a half turn, in which the cosine is not
    negative; the lowest bit gives a sign. Series are several times as fast on a CPU as
    XLA's own functions, which must first reduce the angle.
    """
    half = (word >> 9) + np.float32(0.5 - 2**22)
    angle = half * np.float32(math.pi * 2**-23)
    sign = 1 - 2 * (word & 1).astype(jnp.float32)
    square = angle * angle
    return sign * _series(square, 0), sign * angle * _series(square, 1)


def _series(square: jax.Array, first: int) -> Any:
    """sum_k (-1)^k square^k / (2 k + first)!"""
    powers = range(first, LAST + 1, 2)
    terms = [(-1) ** k / math.factorial(power) for k, power in enumerate(powers)]
    total: Any = np.float32(terms[-1])
    for term in reversed(terms[:-1]):
        total = total * square + np.float32(term)
    return total


def sum_dtype(x: jax.Array) -> Any:
    """Returns the dtype in which `x` and noise are added: float32 or wider."""
    return jnp.promote_types(x.dtype, jnp.float32)


def add_normal(key: jax.Array, sigma: Any, g: Any) -> Any:
    """Returns g + sigma N(0, 1), independent in every coordinate.

    Noise is drawn and added in float32 or wider, whatever the dtype of `g`. Where
    `sigma` is 0, every bit of `g` is kept.

    Args:
      sigma: Standard deviation; one number, or a prefix of the tree of `g`.
    """
    leaves, structure = jax.tree.flatten(g)
    if not leaves:
        return g
    # one draw for all leaves: every call of a generator compiles separately
    ends = list(itertools.accumulate(x.size for x in leaves))
    parts = jnp.split(standard_normal(key, (ends[-1],)), ends[:-1])
    noise = [part.reshape(x.shape) for part, x in zip(parts, leaves, strict=True)]

    def one(sigma: Any, x: jax.Array, n: jax.Array) -> jax.Array:
        total = x.astype(jnp.promote_types(sum_dtype(x), n.dtype)) + sigma * n
        return jnp.where(sigma > 0, total.astype(x.dtype), x)

    below = lambda sigma, *parts: jax.tree.map(lambda *p: one(sigma, *p), *parts)
    return jax.tree.map(below, sigma, g, jax.tree.unflatten(structure, noise))
