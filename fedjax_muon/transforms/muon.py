"""Muon as optax transformations without a learning rate.

They serve as local rules of federated algorithms. For centralized training, chain them
with `optax.scale_by_learning_rate`.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers

from fedjax_muon.core import Hyper, check_range
from fedjax_muon.linalg import lmo as oracles, newton_schulz as kernel
from fedjax_muon.transforms.directions import sign_scalars
from fedjax_muon.transforms.layout import (
    Layout,
    fans,
    in_float32,
    map_matrices,
    map_stacks,
    muon_dimension_numbers,
)

Polar = Callable[[jax.Array], jax.Array]  # matrices [..., m, n] -> polar factors
ShapeScale = Callable[[int, int], float]  # (fan_in, fan_out) -> factor


def unscaled(fan_in: int, fan_out: int) -> float:
    """Returns 1: the step has unit spectral norm, as in the federated papers."""
    del fan_in, fan_out
    return 1.0


def jordan(fan_in: int, fan_out: int) -> float:
    """Computes sqrt(max(1, fan_out / fan_in)), as Jordan et al. 2024.

    Example:
      >>> jordan(4, 16)
      2.0
    """
    return math.sqrt(max(1.0, fan_out / fan_in))


def moonlight(fan_in: int, fan_out: int) -> float:
    """Computes 0.2 sqrt(max(fan_in, fan_out)), the RMS of an AdamW step.

    Source: Liu et al. 2025, arXiv:2502.16982.

    Example:
      >>> moonlight(4, 16)
      0.8
    """
    return 0.2 * math.sqrt(max(fan_in, fan_out))


def spectral(fan_in: int, fan_out: int) -> float:
    """Computes sqrt(fan_out / fan_in), for features that do not depend on the width.

    Source: Yang et al. 2023, arXiv:2310.17813.

    Example:
      >>> spectral(4, 16)
      2.0
    """
    return math.sqrt(fan_out / fan_in)


def orthogonalize(
    polar: Polar = kernel.orthogonalize, *, layout: Layout = muon_dimension_numbers
) -> optax.GradientTransformation:
    """Replaces every matrix by its (approximate) polar factor.

    Other leaves pass unchanged. On accelerators, `polar` gets all matrices of one shape
    at once, up to the size of `layout.STACK`.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural
    networks", https://kellerjordan.github.io/posts/muon.
    """

    def update(updates: optax.Updates, params: optax.Params | None = None) -> Any:
        del params
        return map_stacks(polar, layout(updates), updates)

    return optax.stateless(update)


def default_rule(
    rule: optax.GradientTransformation | None,
    polar: Polar | None,
    default: Callable[[Polar], optax.GradientTransformation],
) -> optax.GradientTransformation:
    """Selects the rule of an algorithm with the arguments `rule` and `polar`.

    Args:
      default: Function that makes the default rule from a function for polar factors.
    """
    if rule is None:
        return default(kernel.orthogonalize if polar is None else polar)
    if polar is not None:
        raise ValueError(
            "give either rule or polar: polar changes the default rule; build it into "
            "yours with transforms.orthogonalize(polar)"
        )
    return rule


def scale_by_shape(
    scale: ShapeScale = jordan, *, layout: Layout = muon_dimension_numbers
) -> optax.GradientTransformation:
    """Multiplies every matrix by `scale(fan_in, fan_out)`.

    Other leaves pass unchanged.
    """

    def update(updates: optax.Updates, params: optax.Params | None = None) -> Any:
        del params

        def one(numbers: MuonDimensionNumbers, leaf: jax.Array) -> jax.Array:
            # A NumPy scalar would turn a 16-bit leaf into a 32-bit one.
            return (scale(*fans(numbers, leaf)) * leaf).astype(leaf.dtype)

        return map_matrices(one, layout(updates), updates)

    return optax.stateless(update)


def scale_by_lmo(lmo: Callable[[jax.Array], jax.Array]) -> optax.GradientTransformation:
    """Steepest descent in the norm of `lmo`, leaf by leaf: `g -> -lmo(g)`.

    Use it for norms of whole leaves. The spectral norm depends on the layout of a leaf;
    its transformation is `orthogonalize`.
    """
    return optax.stateless_with_tree_map(lambda g, _: -lmo(g))


def scale_by_muon(
    momentum: Hyper = 0.95,
    *,
    nesterov: bool = False,
    polar: Polar = kernel.orthogonalize,
    shape_scale: ShapeScale = unscaled,
    layout: Layout = muon_dimension_numbers,
) -> optax.GradientTransformation:
    """Orthogonalizes a heavy-ball momentum: `m <- momentum m + g; u = scale polar(m)`.

    An exponential average instead of the heavy ball differs by the factor 1 - momentum,
    which does not change the polar factor. The momentum of leaves that are not matrices
    passes unchanged.

    Args:
      momentum: Weight of the past in [0, 1).
      nesterov: Whether `u = scale polar(g + momentum m)`.
    """
    check_range("momentum", momentum, 0.0, 1.0, open_high=True, schedules=False)
    return optax.chain(
        optax.trace(momentum, nesterov),
        orthogonalize(polar, layout=layout),
        scale_by_shape(shape_scale, layout=layout),
    )


def by_rank(
    matrices: optax.GradientTransformation,
    rest: optax.GradientTransformation | None = None,
    *,
    layout: Layout = muon_dimension_numbers,
) -> optax.GradientTransformation:
    """Applies one rule to matrices and another to the other leaves.

    Args:
      rest: Rule for the other leaves; by default the identity, which means plain
        gradient steps.
    """
    rules = {"matrix": matrices, "rest": optax.identity() if rest is None else rest}

    def labels(params: optax.Params) -> Any:
        numbers = layout(params)
        marked = jax.tree.map(lambda _: "rest", params)
        return map_matrices(lambda *_: "matrix", numbers, marked)

    return optax.partition(rules, labels)


def muon(
    momentum: Hyper = 0.95,
    *,
    nesterov: bool = False,
    polar: Polar | None = None,
    shape_scale: ShapeScale = unscaled,
    rest: optax.GradientTransformation | None = None,
    layout: Layout = muon_dimension_numbers,
) -> optax.GradientTransformation:
    """Applies `scale_by_muon` to matrices and another rule to the other leaves.

    Args:
      momentum: Weight of the past in [0, 1).
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.
      rest: Rule for the other leaves; by default Adam with decays 0.9 and 0.95 and
        epsilon 1e-10, as in the public code of Jordan et al. and of Liu et al.,
        arXiv:2510.27403.
    """
    polar = polar or kernel.orthogonalize
    matrices = scale_by_muon(
        momentum, nesterov=nesterov, polar=polar, shape_scale=shape_scale, layout=layout
    )
    if rest is None:
        rest = in_float32(optax.scale_by_adam(0.9, 0.95, 1e-10))
    return by_rank(matrices, rest, layout=layout)


def unit_directions(
    polar: Polar | None = None,
    *,
    normalize_vectors: bool = True,
    layout: Layout = muon_dimension_numbers,
) -> optax.GradientTransformation:
    """Replaces matrices by polar factors, and other leaves by unit vectors.

    Every other leaf is divided by its Euclidean norm, which makes a scalar its sign. A
    vector as a matrix of one column has the same polar factor. So the length of a step
    does not depend on the gradient.

    Args:
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.
      normalize_vectors: Whether vectors are divided by their norms. If not, they pass
        unchanged, and a step is as long as the gradient.
    """
    rest = scale_by_lmo(oracles.euclidean) if normalize_vectors else sign_scalars()
    matrices = orthogonalize(polar or kernel.orthogonalize, layout=layout)
    return by_rank(matrices, rest, layout=layout)
