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


def by_patches(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    precision: Any = None,
    **options: Any,
) -> jax.Array:
    """`lax.conv_general_dilated` as a product of matrices.

    Args:
      lhs: Data [B, *space, I].
      rhs: Kernel [*space, I, O].
      window_strides: Stride of each spatial dimension.
      padding: Name "SAME" or "VALID", or the low and high padding of each spatial
        dimension.
      lhs_dilation: Dilation of the data; must be 1.
      rhs_dilation: Dilation of the kernel.
      dimension_numbers: Layout of data, kernel and result; those of flax's layers.
      feature_group_count: Number of groups of channels; must be 1.
      precision: Precision of the product.
      **options: Further arguments of `lax.conv_general_dilated`; must be their
        defaults.

    Returns:
      The convolution, up to rounding.

    Raises:
      ValueError: If the data is dilated, there are several groups, or the layout is
        another one.

    Example:
      >>> model = fm.models.LeNet(10, convolution=by_patches)
    """
    strides = tuple(window_strides)
    dilation = tuple(rhs_dilation or (1,) * len(strides))
    spatial = "".join("HWD"[: len(strides)])
    layout = lax.conv_dimension_numbers(
        lhs.shape, rhs.shape, (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    )
    given = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    is_dilated = any(one != 1 for one in lhs_dilation or ())
    others = [name for name, value in options.items() if value not in (None, 1)]
    if given != layout or is_dilated or feature_group_count != 1 or others:
        raise ValueError(
            "by_patches is for data [B, *space, I] and kernels [*space, I, O] without "
            "groups and without dilation of the data; use lax.conv_general_dilated"
        )
    *window, inputs, outputs = rhs.shape
    reach = [(k - 1) * d for k, d in zip(window, dilation, strict=True)]
    if isinstance(padding, str):
        sizes = [r + 1 for r in reach]
        padding = lax.padtype_to_pads(lhs.shape[1:-1], sizes, strides, padding)
    pads = [(0, 0, 0), *((int(low), int(high), 0) for low, high in padding), (0, 0, 0)]
    lhs = lax.pad(lhs, jnp.zeros((), lhs.dtype), pads)
    # of the first and, exclusively, the last place that an entry of the kernel meets
    span = [
        (n - r - 1) // s * s + 1
        for n, r, s in zip(lhs.shape[1:-1], reach, strides, strict=True)
    ]
    parts = []
    for entry in itertools.product(*map(range, window)):
        start = [k * d for k, d in zip(entry, dilation, strict=True)]
        stop = [a + n for a, n in zip(start, span, strict=True)]
        every = zip(start, stop, strides, strict=True)
        parts.append(lhs[:, *(slice(*one) for one in every)])
    patches = jnp.concatenate(parts, axis=-1)
    kernel = rhs.reshape(math.prod(window) * inputs, outputs)
    return jnp.matmul(patches, kernel, precision=precision)
