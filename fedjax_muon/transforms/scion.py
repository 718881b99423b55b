"""Scion: steepest descent of an averaged gradient, in a norm chosen for each layer.

Pethick et al., "Training Deep Learning Models with Norm-Constrained LMOs",
arXiv:2502.07529; checked against the authors' code. A matrix is [fan_in, fan_out] here
and its transpose there. The norm of a layer is given as a rule, the ascent direction:

| layer | the code's name | rule |
|---|---|---|
| hidden | Spectral | `spectral_direction()` |
| input | ColNorm | `input_direction()` |
| output | RowNorm, Sign | `output_direction()`, `sign_direction()` |
| vectors | BiasRMS | `rms_direction()` |
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core import Number, check_range
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.transforms.layout import (
    Layout,
    muon_dimension_numbers,
    of_matrices,
    squared_norms,
    widened,
)
from fedjax_muon.transforms.muon import (
    Polar,
    by_rank,
    orthogonalize,
    scale_by_shape,
    spectral,
)

EPS = 1e-8


def spectral_direction(
    polar: Polar = kernel.orthogonalize, *, layout: Layout = muon_dimension_numbers
) -> optax.GradientTransformation:
    """Replaces matrices by sqrt(fan_out / fan_in) times their polar factors.

    For convolutions the code divides by another sqrt(height width).
    """
    return optax.chain(
        orthogonalize(polar, layout=layout), scale_by_shape(spectral, layout=layout)
    )


def input_direction(
    *, layout: Layout = muon_dimension_numbers
) -> optax.GradientTransformation:
    """Gives the vectors of inputs the norm sqrt(fan_out) / fan_in.

    Source: Pethick et al. 2025, arXiv:2502.07529.
    """

    def one(x: jax.Array) -> jax.Array:
        fan_in, fan_out = x.shape[-2:]
        return x / (jnp.sqrt(squared_norms(x, "in") / fan_out) + EPS) / fan_in

    return of_matrices(one, layout)


def output_direction(
    *, layout: Layout = muon_dimension_numbers
) -> optax.GradientTransformation:
    """Gives the vectors of output units the norm 1 / sqrt(fan_in).

    Source: Pethick et al. 2025, arXiv:2502.07529.
    """

    def one(x: jax.Array) -> jax.Array:
        return x / (jnp.sqrt(squared_norms(x, "out") * x.shape[-2]) + EPS)

    return of_matrices(one, layout)


def sign_direction(
    *, layout: Layout = muon_dimension_numbers
) -> optax.GradientTransformation:
    """Replaces matrices by their signs, divided by fan_in.

    Source: Pethick et al. 2025, arXiv:2502.07529.
    """
    return of_matrices(lambda x: jnp.sign(x) / x.shape[-2], layout)


def rms_direction() -> optax.GradientTransformation:
    """Divides every leaf by its root mean square.

    Source: Pethick et al. 2025, arXiv:2502.07529.
    """

    def one(x: jax.Array, _: Any) -> jax.Array:
        wide = widened(x)
        return (wide / (jnp.sqrt(jnp.mean(wide * wide)) + EPS)).astype(x.dtype)

    return optax.stateless_with_tree_map(one)


def scale_by_scion(
    momentum: Number = 0.9,
    direction: optax.GradientTransformation | None = None,
    *,
    radius: Number = 1.0,
) -> optax.GradientTransformation:
    """Scion: d <- momentum d + (1 - momentum) g, u = radius direction(d).

    Source: Pethick et al. 2025, arXiv:2502.07529. Checked against the authors' code.

    `optax.add_decayed_weights(1.0)` after it makes it the constrained form, whose
    parameters stay in the ball of the radius if they begin there and the learning rate
    is below 1 (with exact polar factors; Newton-Schulz may leave it by 20%).

    Args:
      momentum: Weight of the past in [0, 1). The authors' `momentum` is 1 minus it.
      direction: Ascent direction of unit length in the norms of the layers; by default
        `spectral_direction` of matrices and `rms_direction` of the rest.
        `optax.partition` gives layers norms and radii of their own.
      radius: Factor of the direction, such as 50 for hidden layers of nanoGPT.
    """
    check_range("momentum", momentum, 0.0, 1.0, open_high=True, schedules=False)
    check_range("radius", radius, open_low=True, schedules=False)
    if direction is None:
        direction = by_rank(spectral_direction(), rms_direction())
    average = optax.ema(momentum, debias=False)
    return optax.chain(average, direction, optax.scale(radius))


def clip_by_dual_norm(
    direction: optax.GradientTransformation,
    largest: Number,
    *,
    constrained: bool = False,
) -> optax.GradientTransformation:
    """Steps along v = direction(d) of length min(largest, sum <d, v>).

    The sum over all leaves is the dual norm of d. After `optax.ema(0.9, debias=False)`,
    this is Clipped Scion: for a small `largest` it is Scion, and steepest descent for a
    large one. The size of d matters, so that a heavy-ball momentum does not fit; with
    Newton-Schulz <d, v> is approximate.

    The constrained form (Algorithms 2 and 4) steps along v = x + direction(d), of
    length min(largest, sum <d, v> / 4). A step is a convex combination of x and a point
    of the ball, so that parameters stay in the balls of `direction` if they begin there
    and lr times the length is at most 1. 4 is the largest ||v||^2 in norms divided by
    the radii. The paper's other length, with the largest ||v||^2 of the layers, is not
    here: a rule does not say what its norm is.

    Source: Pethick et al. 2025, arXiv:2506.01913, version 3, Algorithms 1 to 4. Checked
    against the paper's text.

    Args:
      direction: As in `scale_by_scion`, radii included.
      largest: Bound of the length.
      constrained: Whether parameters stay in a ball. Needs them in `update`.
    """
    check_range("largest", largest, open_low=True, schedules=False)

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None
    ) -> tuple[Any, Any]:
        steps, state = direction.update(updates, state, params)
        if constrained:
            if params is None:
                raise ValueError("the constrained form needs the parameters in update")
            steps = jax.tree.map(lambda x, v: x + v.astype(x.dtype), params, steps)
        dual = optax.tree.vdot(updates, steps) / (4 if constrained else 1)
        length = jnp.minimum(largest, dual)
        return jax.tree.map(lambda v: (length * v).astype(v.dtype), steps), state

    return optax.GradientTransformation(direction.init, update)
