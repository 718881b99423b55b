"""Linear minimization oracles: lmo(g) = argmin <g, d> over the unit ball of a norm.

They satisfy <g, lmo(g)> = -||g||_*, with the dual norm named below, and lmo(0) = 0, one
of the minimizers. Each takes one array; `jax.tree.map` applies them to the leaves of a
pytree (Pethick et al., "Training Deep Learning Models with Norm-Constrained LMOs",
arXiv:2502.07529).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from fedjax_muon.linalg.newton_schulz import orthogonalize as newton_schulz


def spectral(
    g: ArrayLike, orthogonalize: Callable[[ArrayLike], jax.Array] = newton_schulz
) -> jax.Array:
    """Computes -U V^T of every matrix U S V^T; the dual norm is the nuclear norm.

    Args:
      orthogonalize: Function that computes U V^T. The default is Muon's approximation,
        which may leave the unit ball; `functools.partial` sets its other arguments.
        `fedjax_muon.linalg.newton_schulz.polar` is exact.
    """
    return -orthogonalize(g)


def euclidean(g: ArrayLike) -> jax.Array:
    """Computes -g / ||g||, with the norm over all axes, which is its own dual.

    The result does not depend on the scale of `g`. A NaN or an infinity makes all
    entries NaN.
    """
    g = jnp.asarray(g)
    if g.size == 0:
        return g
    work = g.astype(jnp.promote_types(g.dtype, jnp.float32))
    largest = jnp.max(jnp.abs(work))
    unit = work / jnp.where(largest == 0, 1, largest)
    # The norm is at least 1 unless g = 0, so the maximum changes only zero arrays.
    return (-unit / jnp.maximum(jnp.linalg.norm(unit.ravel()), 1)).astype(g.dtype)


def max_norm(g: ArrayLike) -> jax.Array:
    """Computes -sign(g) of every entry; the dual norm is the sum of absolute values."""
    return -jnp.sign(g)
