"""Which leaves are matrices, and how: the axes of Flax kernels that a layer sums over.

The same specification as `optax.contrib.muon` uses (`MuonDimensionNumbers`), so that
one tree of them serves both libraries. A leaf of any rank is seen as a stack of
matrices of shape (fan_in, fan_out): reduction axes, output axes, and the rest a batch.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from optax.contrib import MuonDimensionNumbers

Layout = Callable[[Any], Any]  # params -> tree of MuonDimensionNumbers, None: no matrix

# Where Flax's attention keeps the kernels that map (in) to (heads, width).
PROJECTIONS = {(name, "kernel") for name in ("query", "key", "value")}


def _name(key) -> str:
    return str(getattr(key, "key", getattr(key, "name", key)))


def muon_dimension_numbers(
    params, *, exclude: Sequence[str] = ("bias", "scale")
) -> Any:
    """The matrices among the leaves of a Flax model's `params`.

    Dense kernels (in, out) and convolutions (height, width, in, out) are summed over
    all axes but the last, as are attention's output kernels (heads, width, out); its
    query, key and value kernels (in, heads, width) over the first. Leaves with fewer
    than two axes, and all under a name in `exclude`, are no matrices: `None`. Add
    "embedding" or the name of the head to `exclude` to keep those from Muon.

    Call it on one client's parameters, never on a stack of clients; layers that
    `nn.scan` stacks need a layout of their own. Raises `TypeError` if `exclude` is one
    string, whose letters would be taken for names.
    """
    if isinstance(exclude, str):
        raise TypeError(f"exclude must be a sequence of names, got {exclude!r}")

    def numbers(path, leaf):
        names = [_name(key) for key in path]
        if leaf.ndim < 2 or any(name in exclude for name in names):
            return None
        last = leaf.ndim - 1
        # Not the last two names: boxed parameters have one more, "value", at the end.
        if leaf.ndim == 3 and PROJECTIONS & set(itertools.pairwise(names)):
            return MuonDimensionNumbers(0, (1, 2))
        return MuonDimensionNumbers(tuple(range(last)), last)

    return jax.tree_util.tree_map_with_path(numbers, params)


class Axes(NamedTuple):
    """The axes of one leaf, non-negative."""

    batch: tuple[int, ...]
    reduction: tuple[int, ...]
    output: tuple[int, ...]


def _tuple(axes, ndim):
    return tuple(a % ndim for a in ((axes,) if isinstance(axes, int) else axes))


def leaf_axes(numbers: MuonDimensionNumbers, leaf) -> Axes:
    """Raises `ValueError` where reduction and output axes overlap or do not exist."""
    given = (numbers.reduction_axis, numbers.output_axis)
    flat = [a for g in given for a in ((g,) if isinstance(g, int) else g)]
    if any(not -leaf.ndim <= a < leaf.ndim for a in flat):
        raise ValueError(f"{numbers} name axes that a leaf {leaf.shape} does not have")
    reduction, output = (_tuple(g, leaf.ndim) for g in given)
    if len({*reduction, *output}) != len(flat):
        raise ValueError(f"{numbers} name an axis twice for a leaf {leaf.shape}")
    batch = tuple(a for a in range(leaf.ndim) if a not in (*reduction, *output))
    return Axes(batch, reduction, output)


def fans(numbers: MuonDimensionNumbers, leaf) -> tuple[int, int]:
    """(fan_in, fan_out) of a leaf: products of its reduction and its output axes."""
    axes = leaf_axes(numbers, leaf)
    size = lambda which: math.prod(leaf.shape[a] for a in which)
    return size(axes.reduction), size(axes.output)


def as_matrices(function, numbers: MuonDimensionNumbers, leaf):
    """Applies a function of matrices [..., fan_in, fan_out], keeping their shape."""
    axes = leaf_axes(numbers, leaf)
    order = axes.batch + axes.reduction + axes.output
    turned = leaf.transpose(order)
    batch = turned.shape[: len(axes.batch)]
    result = function(turned.reshape(*batch, *fans(numbers, leaf)))
    back = sorted(range(leaf.ndim), key=order.__getitem__)
    return result.reshape(turned.shape).transpose(back)


def map_matrices(function, numbers, updates):
    """`function(numbers, leaf)` on every matrix of `updates`; other leaves pass."""
    one = lambda n, leaf: leaf if n is None else function(n, leaf)
    special = lambda n: n is None or isinstance(n, MuonDimensionNumbers)
    return jax.tree.map(one, numbers, updates, is_leaf=special)
