"""Clipping of pytrees to a norm: what bounds the part of one record."""

import jax
import jax.numpy as jnp

from fedjax_muon.core import tree


def clipped(limit, g):
    """Shrinks every part of g that has its own `limit` to a norm of at most that.

    Shorter parts pass to the bit, longer ones end at the limit, however huge, and a
    part with an entry that is not finite becomes zero. Exact to rounding.
    """

    def one(limit, part):
        leaves = jax.tree.leaves(part)
        work = jnp.result_type(jnp.float32, *leaves)
        largest = jnp.stack([jnp.max(jnp.abs(x)).astype(work) for x in leaves]).max()
        # A power of two, by which squares stay in range. To divide by the largest would
        # not do: compiled to the product with its reciprocal, which may be subnormal,
        # huge gradients would come out as zero and pass for short ones.
        far = jnp.finfo(work).maxexp * 5 // 16
        up, down = 2.0 ** (2 * far), 2.0 ** (-2 * far)
        small, large = largest < 2.0**-far, largest > 2.0**far
        scale = jnp.where(large, down, jnp.where(small, up, 1)).astype(work)
        unit = jax.tree.map(lambda x: scale * x, part)
        norm = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(unit)))
        long = norm > scale * limit
        safe = jnp.where(long, norm, 1)
        cut = jax.tree.map(
            lambda x, u: (limit * (u / safe)).astype(x.dtype), part, unit
        )
        finite = tree.all_finite(part)
        return tree.where(finite, tree.where(long, cut, part), tree.zeros_like(part))

    return jax.tree.map(one, limit, g)
