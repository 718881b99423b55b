"""Hyperball: steps of matrices on the sphere of their Frobenius norm.

With R = ||W|| and N(v) = v / ||v||, from any
direction u,

    W <- R N(W - lr R N(u)),

so that the learning rate is about the angle that a step turns W by. `hyperball` is the
inner part, R N(u); `wrappers.keep_norms` is the outer one.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core import Params
from fedjax_muon.transforms.layout import (
    Layout,
    from_matrices,
    hidden_matrices,
    map_leaves,
    to_matrices,
    widened,
)


def _norms(matrices: jax.Array) -> jax.Array:
    """Frobenius norms, [..., 1, 1], whose squares may be out of range."""
    largest = jnp.max(jnp.abs(matrices), (-2, -1), keepdims=True)
    unit = matrices / jnp.where(largest > 0, largest, 1)
    return largest * jnp.sqrt(jnp.sum(unit * unit, (-2, -1), keepdims=True))


def with_norms_of(
    like: Params, params: Params, layout: Layout = hidden_matrices
) -> Params:
    """Scales every matrix of `params` to the Frobenius norm that it has in `like`.

    Matrices that are 0 stay 0, and other leaves pass unchanged.

    Example:
      >>> with_norms_of(jnp.array([[3.0, 4.0]]), jnp.array([[0.0, 0.1]]))
      Array([[0., 5.]], dtype=float32)
    """

    def one(numbers: Any, w: jax.Array, x: jax.Array) -> jax.Array:
        if numbers is None:
            return x
        matrices = to_matrices(numbers, widened(x))
        have, want = _norms(matrices), _norms(to_matrices(numbers, widened(w)))
        scaled = matrices * jnp.where(have > 0, want / have, 0)
        return from_matrices(numbers, scaled, x).astype(x.dtype)

    return map_leaves(one, layout(like), like, params)


def hyperball(layout: Layout = hidden_matrices) -> optax.GradientTransformation:
    """Scales the direction of every matrix to the Frobenius norm of its parameter.

    It may follow any rule, without weight decay; other leaves pass unchanged. Wrap the
    algorithm with `wrappers.keep_norms`, which projects the matrices.

    Source: Wen et al. 2026, arXiv:2606.16899. Checked against the authors' code; of the
    paper, the abstract was read.

    Example:
      >>> muonh = optax.chain(muon(0.95, layout=hidden_matrices), hyperball())
      >>> algorithm = keep_norms(fedprox(lr=0.018, rule=muonh))
    """

    def update(updates: optax.Updates, params: optax.Params | None = None) -> Any:
        if params is None:
            raise ValueError("hyperball needs the parameters; call update with them")
        return with_norms_of(params, updates, layout)

    return optax.stateless(update)
