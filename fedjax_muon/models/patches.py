"""Convolutions as one product of patches by the kernel.

Under `jax.vmap` over clients, whose kernels differ, lax's convolution becomes one with
groups, which accelerators may run slowly. The product of patches becomes a batched
product of matrices instead. Its patches take as many times the memory of the data as
the kernel has places. Which of the two is faster depends on the device and the model;
`fedjax_muon.tune` measures it.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_muon.models.convolution import windows_of


def by_patches(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *,
    precision: Any = None,
    **options: Any,
) -> jax.Array:
    """`lax.conv_general_dilated` as a product of matrices.

    It is for data [B, *space, I], neither dilated nor of several groups of channels,
    and kernels [*space, I, O]. The result is the same up to rounding.
    """
    windows = windows_of(lhs, rhs, window_strides, padding, **options)
    if windows is None:
        raise ValueError(
            "by_patches is for data [B, *space, I] and kernels [*space, I, O] without "
            "groups and without dilation of the data; use lax.conv_general_dilated"
        )
    *window, inputs, outputs = rhs.shape
    pads = [(0, 0, 0), *((*pad, 0) for pad in windows.padding), (0, 0, 0)]
    lhs = lax.pad(lhs, jnp.zeros((), lhs.dtype), pads)
    # from the first to the last place that an entry of the kernel meets
    span = [
        (n - r - 1) // s * s + 1
        for n, r, s in zip(
            lhs.shape[1:-1], windows.reach(window), windows.strides, strict=True
        )
    ]
    parts = []
    for entry in itertools.product(*map(range, window)):
        start = [k * d for k, d in zip(entry, windows.dilation, strict=True)]
        stop = [a + n for a, n in zip(start, span, strict=True)]
        every = zip(start, stop, windows.strides, strict=True)
        parts.append(lhs[:, *(slice(*one) for one in every)])
    patches = jnp.concatenate(parts, axis=-1)
    kernel = rhs.reshape(math.prod(window) * inputs, outputs)
    return jnp.matmul(patches, kernel, precision=precision)
