"""Linear minimization oracles: lmo(g) = argmin <g, d> over the unit ball of a norm.

All have <g, lmo(g)> = -||g||_*, with the dual norm named below, and lmo(0) = 0, one of
the minimizers. Each takes one array; `jax.tree.map` applies them to the leaves of a
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
    """-U V^T of every matrix U S V^T in `g` (..., m, n); dual: the nuclear norm.

    Args:
      g: floating, at least two axes.
      orthogonalize: how U V^T is found. The default is Muon's approximation, which may
        leave the unit ball; `functools.partial` gives it other arguments, and
        `fedjax_muon.linalg.newton_schulz.polar` is exact.
    """
    return -orthogonalize(g)


def euclidean(g: ArrayLike) -> jax.Array:
    """-g / ||g||, the norm taken over all axes; self-dual.

    As `orthogonalize` does, it stands any scale of `g`, and gives NaN everywhere if any
    entry is NaN or infinite.
    """
    g = jnp.asarray(g)
    if g.size == 0:
        return g
    work = g.astype(jnp.promote_types(g.dtype, jnp.float32))
    largest = jnp.max(jnp.abs(work))
    unit = work / jnp.where(largest == 0, 1, largest)
    # At least 1 unless g = 0, so that the maximum acts on zeros alone.
    return (-unit / jnp.maximum(jnp.linalg.norm(unit.ravel()), 1)).astype(g.dtype)


def max_norm(g: ArrayLike) -> jax.Array:
    """-sign(g) of every entry; dual: the sum of absolute values."""
    return -jnp.sign(g)
