"""Muon as optax transformations, without learning rate.

Jordan et al. 2024, https://kellerjordan.github.io/posts/muon. In a federated algorithm
these are local rules; for ordinary training, chain them with
`optax.scale_by_learning_rate`.
"""

import math
from collections.abc import Callable

import jax
import optax

from fedjax_muon.core import Hyper, check_range
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.transforms.layout import (
    Layout,
    as_matrices,
    fans,
    map_matrices,
    muon_dimension_numbers,
)

Polar = Callable[[jax.Array], jax.Array]  # matrices [..., m, n] -> polar factors
ShapeScale = Callable[[int, int], float]  # (fan_in, fan_out) -> factor


def unscaled(fan_in: int, fan_out: int) -> float:
    """1: the step has unit spectral norm, as in the federated papers."""
    del fan_in, fan_out
    return 1.0


def jordan(fan_in: int, fan_out: int) -> float:
    """sqrt(max(1, fan_out / fan_in)): Jordan et al. 2024."""
    return math.sqrt(max(1.0, fan_out / fan_in))


def moonlight(fan_in: int, fan_out: int) -> float:
    """0.2 sqrt(max(fan_in, fan_out)): the RMS of an AdamW step. Liu et al. 2025,
    arXiv:2502.16982."""
    return 0.2 * math.sqrt(max(fan_in, fan_out))


def spectral(fan_in: int, fan_out: int) -> float:
    """sqrt(fan_out / fan_in): width-independent features. Yang et al. 2023,
    arXiv:2310.17813."""
    return math.sqrt(fan_out / fan_in)


def orthogonalize(
    polar: Polar = kernel.orthogonalize,
    *,
    layout: Layout = muon_dimension_numbers,
) -> optax.GradientTransformation:
    """Replaces every matrix by its (approximate) polar factor; other leaves pass."""

    def update(updates, params=None):
        del params
        one = lambda numbers, leaf: as_matrices(polar, numbers, leaf)
        return map_matrices(one, layout(updates), updates)

    return optax.stateless(update)


def default_rule(
    rule: optax.GradientTransformation | None,
    polar: Polar | None,
    default: Callable[[Polar], optax.GradientTransformation],
) -> optax.GradientTransformation:
    """The rule of an algorithm that takes `rule=` and `polar=`.

    Args:
      rule: What the user gave, if anything.
      polar: Polar factor of matrices that the user gave, if any.
      default: Makes the default rule from a polar factor.

    Returns:
      `rule`, or the default one.

    Raises:
      ValueError: If both are given.
    """
    if rule is None:
        return default(kernel.orthogonalize if polar is None else polar)
    if polar is not None:
        raise ValueError(
            "rule and polar exclude each other: polar changes the default rule; build "
            "it into yours with transforms.orthogonalize(polar)"
        )
    return rule


def scale_by_shape(
    scale: ShapeScale = jordan, *, layout: Layout = muon_dimension_numbers
) -> optax.GradientTransformation:
    """Multiplies every matrix by `scale(fan_in, fan_out)`; other leaves pass."""

    def update(updates, params=None):
        del params

        def one(numbers, leaf):
            # A NumPy scalar would make a 16-bit leaf a 32-bit one.
            return (scale(*fans(numbers, leaf)) * leaf).astype(leaf.dtype)

        return map_matrices(one, layout(updates), updates)

    return optax.stateless(update)


def scale_by_lmo(
    lmo: Callable[[jax.Array], jax.Array],
) -> optax.GradientTransformation:
    """Steepest descent in the norm of `lmo`, leaf by leaf: `g -> -lmo(g)`.

    For norms of whole leaves (`lmo.euclidean`, `lmo.max_norm`); the spectral norm,
    which needs to know the layout of a leaf, is `orthogonalize`.
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
    """Heavy-ball momentum, orthogonalized: `m <- momentum m + g; u = scale polar(m)`.

    With `nesterov`, `u = scale polar(g + momentum m)`. An exponential average in place
    of the heavy ball differs by the factor 1 - momentum, which `polar` does not see.
    All leaves are taken for matrices as far as `layout` says so; the momentum of the
    others passes unchanged. Raises `ValueError` for a momentum outside [0, 1).
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
    """`matrices` for the leaves that `layout` calls so, `rest` for the others.

    `rest` defaults to the identity, i.e. plain gradient steps.
    """
    rules = {"matrix": matrices, "rest": optax.identity() if rest is None else rest}

    def labels(params):
        numbers = layout(params)
        marked = jax.tree.map(lambda _: "rest", params)
        return map_matrices(lambda *_: "matrix", numbers, marked)

    return optax.partition(rules, labels)


def muon(
    momentum: Hyper = 0.95,
    *,
    nesterov: bool = False,
    polar: Polar = kernel.orthogonalize,
    shape_scale: ShapeScale = unscaled,
    rest: optax.GradientTransformation | None = None,
    layout: Layout = muon_dimension_numbers,
) -> optax.GradientTransformation:
    """`scale_by_muon` for matrices and `rest` for the other leaves.

    `rest` defaults to Adam with decays 0.9 and 0.95 and epsilon 1e-10, as in the
    public code of Jordan et al. and of Liu et al., arXiv:2510.27403.
    """
    matrices = scale_by_muon(
        momentum,
        nesterov=nesterov,
        polar=polar,
        shape_scale=shape_scale,
        layout=layout,
    )
    rest = optax.scale_by_adam(0.9, 0.95, 1e-10) if rest is None else rest
    return by_rank(matrices, rest, layout=layout)
