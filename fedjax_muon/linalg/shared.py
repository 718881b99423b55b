"""Newton-Schulz orthogonalization whose work several devices share.

Devices that run a round together compute the server's step in full, each for itself. If
this step orthogonalizes large matrices, they can divide its work:

    polar = functools.partial(shared.orthogonalize, axis_name="clients")
    fm.fedavg(lr=0.1, server_rule=fm.transforms.scale_by_muon(0.9, polar=polar))

A stack of matrices is divided into equal parts. Of a single matrix, every device has
some columns: A = X X^T is a sum over devices, A^2 is computed by rows, and X <- W X is
a product on each device. With D devices and an m x n matrix, m <= n, a step then has

    (4 m^2 n + 2 m^3) / D        operations on each device, and
    3 m^2 (D - 1) / D            numbers that it sends.

It is faster than the whole product if F / B < (4 n + 2 m) / 3, for devices that compute
F operations and send B numbers a second. On TPUs v5e, with 197e12 operations and 50e9
numbers in float32 by their published peaks, these are matrices of more than about 2000
x 2000.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from fedjax_muon.linalg import newton_schulz
from fedjax_muon.linalg.newton_schulz import Coefficients, Normalization
from fedjax_muon.linalg.products import large_product, prescaled, small_product


def orthogonalize(
    x: ArrayLike,
    *,
    axis_name: str,
    coefficients: Coefficients = newton_schulz.JORDAN,
    steps: int = 5,
    normalization: Normalization = newton_schulz.frobenius,
    dtype: DTypeLike | None = None,
) -> jax.Array:
    """Computes `newton_schulz.orthogonalize` together with other devices.

    All devices of the axis must have the same matrices. Those of local training differ,
    and sharing them would give wrong results. Outside of `jax.shard_map` over the axis,
    nothing is shared.

    Args:
      x: Floating-point array [..., m, n], the same on all devices.
      axis_name: Axis of the devices; in a round of `federate`, "clients".
      coefficients: As for `newton_schulz.orthogonalize`, like all further arguments.
    """
    x = jnp.asarray(x)

    def alone(x: jax.Array) -> jax.Array:
        return newton_schulz.orthogonalize(
            x,
            coefficients=coefficients,
            steps=steps,
            normalization=normalization,
            dtype=dtype,
        )

    jax.eval_shape(alone, x)  # checks the arguments
    is_mapped = axis_name in jax.sharding.get_abstract_mesh().manual_axes
    if not is_mapped or x.size == 0:
        return alone(x)
    count = math.prod(x.shape[:-2])
    if count > 1:
        own = _own_part(x.reshape(count, *x.shape[-2:]), 0, axis_name)
        return _gathered(alone(own), 0, axis_name)[:count].reshape(x.shape)
    is_tall = x.shape[-2] > x.shape[-1]
    wide = prescaled(x.mT if is_tall else x).reshape(sorted(x.shape[-2:]))
    compute = jnp.dtype(wide.dtype if dtype is None else dtype)
    schedule = newton_schulz.rows(coefficients, steps)
    own = _own_part(wide, 1, axis_name)
    own = _newton_schulz(own, schedule, normalization, compute, axis_name)
    wide = _gathered(own, 1, axis_name)[:, : wide.shape[1]]
    return (wide.T if is_tall else wide).reshape(x.shape).astype(x.dtype)


def _newton_schulz(
    own: jax.Array,
    schedule: Coefficients,
    normalization: Normalization,
    dtype: jnp.dtype,
    axis_name: str,
) -> jax.Array:
    """The steps, for this device's columns of X."""
    total = lambda: lax.psum(large_product(own, own.T, dtype), axis_name)
    if not schedule:
        return normalization(total()) * own
    scale: jax.Array | float | None = None
    for a, b, c in schedule:
        outer = total()
        scale = normalization(outer) if scale is None else 1.0
        factor = a * scale * jnp.eye(len(outer), dtype=outer.dtype)
        factor += b * scale**3 * outer
        if c != 0:
            rows = small_product(_own_part(outer, 0, axis_name), outer, dtype)
            square = _gathered(rows, 0, axis_name)[: len(outer)]
            factor += c * scale**5 * square
        own = large_product(factor, own, dtype)
    return own


def _own_part(x: jax.Array, axis: int, axis_name: str) -> jax.Array:
    """This device's part of an array, padded with zeros to equal parts."""
    size = -(-x.shape[axis] // lax.axis_size(axis_name))
    pads = [(0, 0)] * x.ndim
    pads[axis] = 0, size * lax.axis_size(axis_name) - x.shape[axis]
    at = size * lax.axis_index(axis_name)
    return lax.dynamic_slice_in_dim(jnp.pad(x, pads), at, size, axis)


def _gathered(own: jax.Array, axis: int, axis_name: str) -> jax.Array:
    """Inverts `_own_part`, up to the padding."""
    return lax.all_gather(own, axis_name, axis=axis, tiled=True)
