"""Normal noise with tails that single-precision draws do not have."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LAST = 13  # power of a Taylor series; on quarter turns the rest is below 6e-8


def standard_normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """N(0, 1) with tails: float64 where that is enabled, else float32 by Box and Muller
    (1958, "A note on the generation of random normal deviates").

    One float32 draw of `jax.random.normal` never exceeds 5.42 and shows it; here the
    radius is made of 64 random bits and reaches 9.5. This is noise for simulations:
    attacks on the rounding of floating-point sums (Haney et al., arXiv:2207.13793) are
    not covered.
    """
    best = jnp.result_type(float)
    if best == jnp.float64:
        return jax.random.normal(key, shape, best)
    size = math.prod(shape)
    pair = box_muller(*_words(key, 3, -(-size // 2)))
    return jnp.concatenate(pair)[:size].reshape(shape)


def box_muller(high, low, angle) -> tuple[jax.Array, jax.Array]:
    """Two independent N(0, 1) in float32 of three uint32 words, of any one shape.

    `high` and `low` make the radius, `angle` the point on the circle.
    """
    # in (0, 1]: what the low word adds is seen where the high one is small
    uniform = high * np.float32(2**-32) + (low + np.float32(0.5)) * np.float32(2**-64)
    radius = jnp.sqrt(-2 * jnp.log(uniform))
    cosine, sine = _on_circle(angle)
    return radius * cosine, radius * sine


def _words(key, count: int, size: int):
    """Independent random 32-bit words [count, size].

    They are read off keys that are split, which keeps both words that the generator
    makes at a time; `jax.random.bits` returns one, at twice the time.
    """
    blocks = jax.random.key_data(jax.random.split(key, -(-count * size // 2)))
    words = jnp.concatenate([blocks[:, 0], blocks[:, 1]])
    return words[: count * size].reshape(count, size)


def _on_circle(word):
    """Cosine and sine of a uniform angle: of a half turn, in which the cosine is not
    negative, and then a sign. The lowest bit is the sign, the angle has the highest 23.

    Series are several times as fast as XLA's own functions on a CPU, which must reduce
    any angle first.
    """
    half = (word >> 9) + np.float32(0.5 - 2**22)
    angle = half * np.float32(math.pi * 2**-23)
    sign = 1 - 2 * (word & 1).astype(jnp.float32)
    square = angle * angle
    return sign * _series(square, 0), sign * angle * _series(square, 1)


def _series(square, first: int):
    """sum_k (-1)^k square^k / (2 k + first)!"""
    powers = range(first, LAST + 1, 2)
    terms = [(-1) ** k / math.factorial(power) for k, power in enumerate(powers)]
    total = np.float32(terms[-1])
    for term in reversed(terms[:-1]):
        total = total * square + np.float32(term)
    return total


def wide(x) -> Any:
    """The type that sums of `x` and noise are taken in: float32 or better."""
    return jnp.promote_types(x.dtype, jnp.float32)


def add_normal(key: jax.Array, sigma, g):
    """g + sigma N(0, 1), independent in every coordinate; `sigma` is a prefix of g.

    Drawn and added in float32 or better, whatever the dtype of g, in which the result
    is returned. Where sigma is 0, g is returned to the bit.
    """
    leaves, structure = jax.tree.flatten(g)
    if not leaves:
        return g
    # one draw for all leaves: every call of a generator is compiled by itself
    ends = list(itertools.accumulate(x.size for x in leaves))
    parts = jnp.split(standard_normal(key, (ends[-1],)), ends[:-1])
    noise = [part.reshape(x.shape) for part, x in zip(parts, leaves, strict=True)]

    def one(sigma, x, n):
        total = x.astype(jnp.promote_types(wide(x), n.dtype)) + sigma * n
        return jnp.where(sigma > 0, total.astype(x.dtype), x)

    below = lambda sigma, *parts: jax.tree.map(lambda *p: one(sigma, *p), *parts)
    return jax.tree.map(below, sigma, g, jax.tree.unflatten(structure, noise))
