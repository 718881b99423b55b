"""Convolutions with kernels of 3 x 3 in four ninths of the multiplications, for CPUs.

Winograd's F(2, 3): a square of 2 x 2 outputs depends on a tile of 4 x 4 inputs. Sums of
the tile's entries, and of the kernel's, reduce the 36 multiplications per channel to
16. Each of the 16 is one product of matrices for all tiles and channels. From "Fast
Algorithms for Convolutional Neural Networks" (arXiv:1509.09308), section 4.1, from
memory, checked against lax.

A part of the images is computed at a time, so that what is between the steps stays in
the cache. In float32, errors are about as large as those of a plain convolution.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Padding = tuple[tuple[int, int], ...]  # low and high, for height and width

# Larger parts leave the cache. Parts of 1 to 2 MB were the fastest in measurements.
_BYTES_OF_PART = 2**21


def tiles_of(x: jax.Array, padding: Padding) -> tuple[int, int]:
    """The tiles along the height and the width of data [B, H, W, I]."""
    (top, bottom), (left, right) = padding
    _, height, width, _ = x.shape
    return (height + top + bottom - 1) // 2, (width + left + right - 1) // 2


def convolve(x: jax.Array, w: jax.Array, padding: Padding, precision: Any) -> jax.Array:
    """The convolution of data [B, H, W, I] by a kernel [3, 3, I, O], with strides 1."""
    kernel = _kernel(w)
    step = lambda _, x: (None, _convolve(x, kernel, padding, precision))
    return _by_parts(step, None, _images_of_part(x, w, padding), x)[1]


def gradients(
    x: jax.Array, w: jax.Array, g: jax.Array, padding: Padding, precision: Any
) -> tuple[jax.Array, jax.Array]:
    """The gradients by data and kernel of `convolve`, for the gradient g of outputs."""
    # By the data, it is the convolution of g by the mirrored kernel.
    mirror = _kernel(lax.rev(w, (0, 1)).swapaxes(2, 3))
    opposite = tuple((2 - low, 2 - high) for low, high in padding)

    def step(total: jax.Array, x: jax.Array, g: jax.Array) -> Any:
        inputs, outputs = _inputs(x, padding), _gradients_of_outputs(g)
        part = jnp.matmul(inputs.swapaxes(1, 2), outputs, precision=precision)
        return total + part, _convolve(g, mirror, opposite, precision)

    zero = jnp.zeros_like(w, shape=(16, *w.shape[2:]))
    images = _images_of_part(x, w, padding)
    total, dx = _by_parts(step, zero, images, x, g)
    return dx, _gradient_of_kernel(total)


def _by_parts(
    step: Callable[..., Any], total: Any, images: int, *arrays: jax.Array
) -> tuple[Any, jax.Array]:
    """`lax.scan` over parts of so many images, whose results are images again."""
    parts = [a.reshape(-1, images, *a.shape[1:]) for a in arrays]
    _, part = jax.eval_shape(step, total, *(p[0] for p in parts))
    # Every entry is replaced. With zeros, as in `lax.scan`, XLA would keep the results
    # of all convolutions in memory from the start of the program.
    results = jnp.full((len(parts[0]), *part.shape), arrays[-1][0, 0, 0, 0])

    def put(state: tuple[Any, jax.Array], now: tuple[jax.Array, ...]) -> Any:
        (total, results), (place, *parts) = state, now
        total, part = step(total, *parts)
        return (total, lax.dynamic_update_index_in_dim(results, part, place, 0)), None

    places = jnp.arange(len(parts[0]))
    (total, results), _ = lax.scan(put, (total, results), (places, *parts))
    return total, results.reshape(-1, *part.shape[1:])


def _images_of_part(x: jax.Array, w: jax.Array, padding: Padding) -> int:
    """The largest divisor of the number of images whose tiles stay in the cache."""
    height, width = tiles_of(x, padding)
    image = height * width * 16 * max(w.shape[2:]) * x.dtype.itemsize
    most = max(1, _BYTES_OF_PART // image)
    return max(n for n in range(1, len(x) + 1) if len(x) % n == 0 and n <= most)


def _convolve(
    x: jax.Array, kernel: jax.Array, padding: Padding, precision: Any
) -> jax.Array:
    """Equals `convolve`, given the sums of the kernel's entries."""
    height, width = tiles_of(x, padding)
    y = jnp.matmul(_inputs(x, padding), kernel, precision=precision)
    y = y.reshape(4, 4, len(x), height, width, -1)
    for axis in (4, 2):  # the columns, then the rows of the squares
        a, b, c, d = y
        y = jnp.stack([a + b + c, b - c - d], axis)
    y = y.reshape(len(x), 2 * height, 2 * width, -1)
    have = [
        n + low + high - 2 for n, (low, high) in zip(x.shape[1:3], padding, strict=True)
    ]
    return y[:, : have[0], : have[1]]


def _kernel(w: jax.Array) -> jax.Array:
    """Sums of the entries of a kernel [3, 3, I, O]: [16, I, O]."""
    for axis in (0, 1):  # rows, then columns, after the new axis of the sums
        a, b, c = jnp.unstack(w, axis=axis)
        w = jnp.stack([a, (a + b + c) / 2, (a - b + c) / 2, c])
    return w.reshape(16, *w.shape[2:])


def _gradient_of_kernel(sums: jax.Array) -> jax.Array:
    """The transpose of `_kernel`: [16, I, O] to [3, 3, I, O]."""
    w = sums.reshape(4, 4, *sums.shape[1:])
    for axis in (1, 0):
        a, b, c, d = w
        half = (b + c) / 2
        w = jnp.stack([a + half, (b - c) / 2, half + d], axis)
    return w


def _inputs(x: jax.Array, padding: Padding) -> jax.Array:
    """Sums of the entries of all tiles of [B, H, W, I]: [16, tiles, I]."""
    places = [2 * n + 2 for n in tiles_of(x, padding)]
    x = _padded(x, [low for low, _ in padding], places)
    for axis in (1, 3):  # rows, then columns, after the new axis of the sums
        pairs = x.reshape(*x.shape[:axis], -1, 2, *x.shape[axis + 1 :])
        first = lax.slice_in_dim(pairs, 0, -1, axis=axis)
        last = lax.slice_in_dim(pairs, 1, None, axis=axis)
        (a, b), (c, d) = (jnp.unstack(p, axis=axis + 1) for p in (first, last))
        x = jnp.stack([a - c, b + c, c - b, b - d])
    return x.reshape(16, -1, x.shape[-1])


def _gradients_of_outputs(g: jax.Array) -> jax.Array:
    """The transpose of the sums of `_convolve`: [B, H', W', O] to [16, tiles, O]."""
    g = _padded(g, (0, 0), [n + n % 2 for n in g.shape[1:3]])
    for axis in (1, 3):
        pairs = g.reshape(*g.shape[:axis], -1, 2, *g.shape[axis + 1 :])
        a, b = jnp.unstack(pairs, axis=axis + 1)
        g = jnp.stack([a, a + b, a - b, -b])
    return g.reshape(16, -1, g.shape[-1])


def _padded(x: jax.Array, low: Any, places: Any) -> jax.Array:
    """Pads (or, below 0, cuts) height and width to this many places."""
    space = [
        (a, m - n - a, 0) for a, m, n in zip(low, places, x.shape[1:3], strict=True)
    ]
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *space, (0, 0, 0)])
