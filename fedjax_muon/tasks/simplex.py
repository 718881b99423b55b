"""Projection of weights onto the simplex.

`optax.projections.projection_simplex` sorts. With one weight for every training example
this took 97 of 100 ms of an iteration of 20 agents. The method here does not sort.
"""

import jax
import jax.numpy as jnp

from fedjax_muon.core.pair import on_y


def nearest_in_simplex(y: jax.Array) -> jax.Array:
    """Projects a vector onto the simplex: entries that are not negative and sum to 1.

    The projection is max(y - t, 0). Newton's method on the sum, which is convex in t,
    finds t: iterates increase and, except for rounding, end after finitely many passes
    over y (Michelot 1986; Condat 2016, "Fast projection onto the simplex", section 2).
    At most about ten passes were observed for 30,000 weights.

    Example:
      >>> nearest_in_simplex(jnp.array([2.0, 0.0])).tolist()
      [1.0, 0.0]
    """
    # Relative to the largest entry, t is at least -1, and the sums below are accurate.
    largest = y.max()
    shifted = y - largest

    def tighten(
        carry: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        t, count, _ = carry
        above = shifted > t
        number = above.sum(dtype=jnp.int32)
        sum_above = jnp.where(above, shifted, 0).sum()
        # Rounding could decrease t; it must not, so that the loop ends.
        return jnp.maximum(t, (sum_above - 1) / number), number, count

    start = jnp.full_like(largest, -1), jnp.int32(-1), jnp.int32(-2)
    t, _, _ = jax.lax.while_loop(lambda carry: carry[1] != carry[2], tighten, start)
    return jnp.maximum(shifted - t, 0)


# `Task.project` of tasks whose dual variable y is a vector of weights
project_weights = on_y(nearest_in_simplex)
