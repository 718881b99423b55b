"""Clipping of pytrees to a norm, which bounds the contribution of one record."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_muon.core import tree


def clipped(clip_norm: Any, g: Any) -> Any:
    """Scales a pytree down to a norm of at most `clip_norm`.

    A part that is short enough keeps every bit. A part with an entry that
    is not finite becomes zero. The result is exact to rounding for numbers of any size.

    Args:
      clip_norm: Largest L2 norm of `g` as a whole; or a prefix of its tree, with one
        norm for each part, which is then clipped separately.
      g: Gradient or message, a pytree of arrays.

    Returns:
      The clipped tree, with the dtypes of `g`.
    """

    def one(norm_limit: Any, part: Any) -> Any:
        leaves = jax.tree.leaves(part)
        dtype = jnp.result_type(jnp.float32, *leaves)
        largest = jnp.stack([jnp.max(jnp.abs(x)).astype(dtype) for x in leaves]).max()
        # A power of two, by which squares stay in range. Division by the largest entry
        # would not work: it compiles to a product with its reciprocal, which may be
        # subnormal, so that huge gradients would become zero and appear short.
        far = jnp.finfo(dtype).maxexp * 5 // 16
        up, down = 2.0 ** (2 * far), 2.0 ** (-2 * far)
        small, large = largest < 2.0**-far, largest > 2.0**far
        scale = jnp.where(large, down, jnp.where(small, up, 1)).astype(dtype)
        unit = jax.tree.map(lambda x: scale * x, part)
        norm = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(unit)))
        long = norm > scale * norm_limit
        safe = jnp.where(long, norm, 1)
        cut = jax.tree.map(
            lambda x, u: (norm_limit * (u / safe)).astype(x.dtype), part, unit
        )
        finite = tree.all_finite(part)
        return tree.where(finite, tree.where(long, cut, part), tree.zeros_like(part))

    return jax.tree.map(one, clip_norm, g)
