"""Layouts: the leaves that are matrices, and the axes that their layers sum over.

The specification is that of `optax.contrib.muon` (`MuonDimensionNumbers`), so that one
tree works in both libraries. A leaf of any rank is a stack of matrices of shape
(fan_in, fan_out), with reduction axes and output axes. The other axes are batch axes.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax.contrib import MuonDimensionNumbers

from fedjax_muon.core import Params

# params -> tree of MuonDimensionNumbers, or None for a leaf that is not a matrix
Layout = Callable[[Params], Any]
Numbers = Any  # such a tree

# Entries of a stack of matrices, for one client. It bounds the memory of a stack, and
# matrices as large as this fill a device alone.
STACK = 2**22

# Matrices of one shape from which CPUs loop over them. Fewer compile as fast apart.
LOOPED = 3

# Paths of the kernels in Flax's attention that map (in) to (heads, width).
PROJECTIONS = {(name, "kernel") for name in ("query", "key", "value")}


def _name(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "name", key)))


def muon_dimension_numbers(
    params: Params,
    *,
    exclude: Sequence[str] = ("bias", "scale"),
    stacked: Sequence[str] = (),
) -> Numbers:
    """Finds the matrices among the parameters of a Flax model.

    Dense kernels (in, out), convolutions (height, width, in, out) and the output
    kernels of attention (heads, width, out) are summed over all axes but the last. The
    query, key and value kernels of attention (in, heads, width) are summed over the
    first. Leaves with fewer than two axes are not matrices.

    Args:
      params: Parameters of one client, never of a stack of clients.
      exclude: Names in the paths of leaves to treat as vectors, not matrices. Add
        "embedding" or the name of the head to exclude these from Muon.
      stacked: Names in the paths of layers that `nn.scan`, `nn.vmap` or `nnx.vmap` has
        stacked, whose first axis counts them. If a layer looks stacked and is not
        named here, there is a warning.

    Returns:
      A tree of `MuonDimensionNumbers`, with None for leaves that are not matrices.

    Example:
      >>> numbers = muon_dimension_numbers({"kernel": jnp.ones((4, 3))})
      >>> numbers["kernel"].output_axis
      1
    """
    for argument, value in {"exclude": exclude, "stacked": stacked}.items():
        if isinstance(value, str):
            raise TypeError(f"{argument} must be a sequence of names, got {value!r}")
    _warn_of_stacks(params, {*exclude, *stacked})

    def numbers(path: Iterable[Any], leaf: Any) -> MuonDimensionNumbers | None:
        names = [_name(key) for key in path]
        first = int(any(name in stacked for name in names))
        if leaf.ndim < 2 + first or any(name in exclude for name in names):
            return None
        last = leaf.ndim - 1
        if leaf.ndim == 3 + first and _is_projection(names):
            return MuonDimensionNumbers(first, (first + 1, first + 2))
        return MuonDimensionNumbers(tuple(range(first, last)), last)

    return jax.tree_util.tree_map_with_path(numbers, params)


def _is_projection(names: Iterable[str]) -> bool:
    # Any two names in a row, since boxed parameters have another, "value", at the end.
    return bool(PROJECTIONS & set(itertools.pairwise(names)))


def _shapes(params: Params) -> dict[tuple[str, ...], tuple[int, ...]]:
    """The shapes of a whole model by paths; none of a part, which `masked` leaves."""
    masked = lambda node: isinstance(node, optax.MaskedNode)
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=masked)
    if any(masked(leaf) for _, leaf in leaves):
        return {}
    return {tuple(map(_name, path)): np.shape(leaf) for path, leaf in leaves}


def _warn_of_stacks(params: Params, known: set[str]) -> None:
    """Warns of leaves that look like matrices of several layers.

    Vectors tell: if all of a module have an axis too many, it is stacked. Where there
    is none, an axis too many of a kernel may also be that of a convolution.
    """
    shapes = _shapes(params)
    vectors: dict[tuple[str, ...], list[Any]] = {}  # axes too many, and sizes
    for names, shape in shapes.items():
        if {"bias", "scale"} & {*names}:
            usual = 2 if {"query", "key", "value"} & {*names[:-1]} else 1
            found = len(shape) - usual, {*shape}
            for depth in range(len(names)):
                vectors.setdefault(names[:depth], []).append(found)
    for names, shape in shapes.items():
        modules = [names[:depth] for depth in range(1, len(names))]
        stacked = [
            module
            for module in ((), *modules)
            if module in vectors
            and all(more > 0 and sizes & {*shape} for more, sizes in vectors[module])
        ]
        if not stacked and not any(m in vectors for m in modules[-1:]):
            usual = 3 if _is_projection(names) or "out" in names else 2
            plain = "kernel" not in names or "conv" in ".".join(names).lower()
            stacked = [] if plain or len(shape) != usual + 1 else modules[:1]
        if stacked and len(shape) > 2 and not {*names} & known:
            name = (stacked[0] or names[:1])[-1]
            warnings.warn(
                f"{'.'.join(names)} {[*shape]} may be the layers of an nn.scan or "
                "nn.vmap, and the layout takes it for one matrix; if they are, use "
                f"layout=partial(muon_dimension_numbers, stacked=({name!r},)), and if "
                "it is a convolution, name it conv",
                stacklevel=3,
            )


def _warn_of_heads(params: Params) -> None:
    """Warns of a model whose last layer would be taken for a hidden one."""
    shapes = _shapes(params)
    tied = any(names[-2:] == ("tokens", "embedding") for names in shapes)
    if shapes and not tied and not any("head" in names for names in shapes):
        warnings.warn(
            "no layer is named head, so the layout takes the last one for a hidden "
            "matrix; name it head, or use layout=partial(muon_dimension_numbers, "
            "exclude=(...)) with the names of the first and the last layer",
            stacklevel=3,
        )


def hidden_matrices(params: Params, *, stacked: Sequence[str] = ()) -> Numbers:
    """Finds the matrices of hidden layers: all but embeddings and the head.

    That is the layout of language models in the code of Muon and of MuLoCo. Layers and
    leaves that are named "embedding" or "head" are not matrices. There is a warning if
    no layer is named "head": the last layer would be taken for a hidden one.

    Args:
      stacked: As for `muon_dimension_numbers`.

    Example:
      >>> params = {"head": {"kernel": jnp.ones((4, 3))}, "up": jnp.ones((4, 4))}
      >>> numbers = hidden_matrices(params)
      >>> numbers["head"]["kernel"] is None, numbers["up"] is None
      (True, False)
    """
    hidden = ("bias", "scale", "embedding", "head")
    _warn_of_heads(params)
    return muon_dimension_numbers(params, exclude=hidden, stacked=stacked)


class Axes(NamedTuple):
    """Axes of one leaf, all of them non-negative."""

    batch: tuple[int, ...]
    reduction: tuple[int, ...]
    output: tuple[int, ...]


def _tuple(axes: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    return tuple(a % ndim for a in ((axes,) if isinstance(axes, int) else axes))


def leaf_axes(numbers: MuonDimensionNumbers, leaf: Any) -> Axes:
    """Finds the batch, reduction and output axes of a leaf.

    Args:
      numbers: Reduction and output axes, which may be negative.
    """
    given = (numbers.reduction_axis, numbers.output_axis)
    flat = [a for g in given for a in ((g,) if isinstance(g, int) else g)]
    if any(not -leaf.ndim <= a < leaf.ndim for a in flat):
        raise ValueError(f"{numbers} name axes that a leaf {leaf.shape} does not have")
    reduction, output = (_tuple(g, leaf.ndim) for g in given)
    if len({*reduction, *output}) != len(flat):
        raise ValueError(f"{numbers} name an axis twice for a leaf {leaf.shape}")
    batch = tuple(a for a in range(leaf.ndim) if a not in (*reduction, *output))
    return Axes(batch, reduction, output)


def fans(numbers: MuonDimensionNumbers, leaf: Any) -> tuple[int, int]:
    """Computes fan_in and fan_out of a leaf.

    Returns:
      The product of the sizes of the reduction axes, and that of the output axes.
    """
    axes = leaf_axes(numbers, leaf)
    size = lambda some: math.prod(leaf.shape[a] for a in some)
    return size(axes.reduction), size(axes.output)


def to_matrices(numbers: MuonDimensionNumbers, leaf: jax.Array) -> jax.Array:
    """Arranges a leaf as matrices.

    Returns:
      The same entries, shape [*batch axes, fan_in, fan_out].
    """
    axes = leaf_axes(numbers, leaf)
    turned = leaf.transpose(axes.batch + axes.reduction + axes.output)
    batch = turned.shape[: len(axes.batch)]
    return turned.reshape(*batch, *fans(numbers, leaf))


def from_matrices(
    numbers: MuonDimensionNumbers, matrices: jax.Array, leaf: jax.Array
) -> jax.Array:
    """Inverts `to_matrices`.

    Args:
      leaf: An array with the shape of the result.
    """
    axes = leaf_axes(numbers, leaf)
    order = axes.batch + axes.reduction + axes.output
    back = sorted(range(leaf.ndim), key=order.__getitem__)
    return matrices.reshape([leaf.shape[a] for a in order]).transpose(back)


def as_matrices(
    function: Callable[[jax.Array], jax.Array],
    numbers: MuonDimensionNumbers,
    leaf: jax.Array,
) -> jax.Array:
    """Applies a function of matrices to a leaf."""
    return from_matrices(numbers, function(to_matrices(numbers, leaf)), leaf)


def is_numbers(node: Any) -> bool:
    return node is None or isinstance(node, MuonDimensionNumbers)


def map_matrices(
    function: Callable[[MuonDimensionNumbers, Any], Any], numbers: Numbers, updates: Any
) -> Any:
    """Applies a function to every matrix of a pytree; other leaves pass unchanged."""
    one = lambda n, leaf: leaf if n is None else function(n, leaf)
    return jax.tree.map(one, numbers, updates, is_leaf=is_numbers)


def widened(x: jax.Array) -> jax.Array:
    """In float32 or wider: in float16, an eps of 1e-8 is 0."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def in_float32(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """A rule that computes, and keeps its state, in float32 or wider."""
    wide = lambda tree: jax.tree.map(widened, tree)

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None
    ) -> tuple[Any, Any]:
        steps, state = rule.update(wide(updates), state, wide(params))
        return jax.tree.map(lambda u, g: u.astype(g.dtype), steps, updates), state

    return optax.GradientTransformation(lambda params: rule.init(wide(params)), update)


def of_matrices(
    function: Callable[[jax.Array], jax.Array], layout: Layout
) -> optax.GradientTransformation:
    """A transformation of every matrix alone, computed in float32 or wider.

    Other leaves pass unchanged.

    Args:
      function: Function of an array [..., fan_in, fan_out] that keeps its shape.
    """

    def update(updates: optax.Updates, params: optax.Params | None = None) -> Any:
        del params

        def one(numbers: MuonDimensionNumbers, leaf: jax.Array) -> jax.Array:
            return as_matrices(function, numbers, widened(leaf)).astype(leaf.dtype)

        return map_matrices(one, layout(updates), updates)

    return optax.stateless(update)


def map_leaves(function: Callable[..., Any], numbers: Numbers, *trees: Any) -> Any:
    """Applies `function(numbers or None, leaf, ...)` to the leaves of pytrees."""
    return jax.tree.map(function, numbers, *trees, is_leaf=is_numbers)


def squared_norms(matrices: jax.Array, side: str) -> jax.Array:
    """Squared norms of the vectors of output units, or of inputs.

    Args:
      matrices: [..., fan_in, fan_out].
      side: "out" for sums over fan_in, "in" for sums over fan_out.

    Returns:
      [..., 1, fan_out] or [..., fan_in, 1].
    """
    axis = {"out": -2, "in": -1}[side]
    return jnp.sum(matrices * matrices, axis, keepdims=True)


def map_stacks(
    function: Callable[[jax.Array], jax.Array], numbers: Numbers, updates: Any
) -> Any:
    """Applies a function of matrices to a pytree, to matrices of one shape at once.

    Small matrices of many layers then fill an accelerator. CPUs compute them one after
    the other; a loop over three or more compiles in a fraction of the time.

    Args:
      function: Function of an array [..., fan_in, fan_out] that keeps its shape and
        treats every matrix alike.
    """
    tree: Any  # its methods are not typed
    known, tree = jax.tree.flatten(numbers, is_leaf=is_numbers)
    leaves = tree.flatten_up_to(updates)
    places = [i for i, n in enumerate(known) if n is not None]

    def one_by_one(stack: jax.Array) -> jax.Array:
        if len(stack) >= LOOPED:
            return jax.lax.map(function, stack)
        return jnp.stack([*map(function, stack)])

    matrices = [to_matrices(known[i], leaves[i]) for i in places]
    results = jax.lax.platform_dependent(
        *matrices,
        cpu=partial(in_stacks, one_by_one),
        default=partial(in_stacks, function),
    )
    for i, result in zip(places, results, strict=True):
        leaves[i] = from_matrices(known[i], result, leaves[i])
    return jax.tree.unflatten(tree, leaves)


def in_stacks(
    function: Callable[[jax.Array], jax.Array], *matrices: jax.Array
) -> list[jax.Array]:
    """Applies a function of matrices to stacks of those that have the same shape."""
    alike: dict[Any, list[int]] = {}
    for i, x in enumerate(matrices):
        # Arrays that vary over other axes of a `jax.shard_map` are kept apart.
        kind = x.shape[-2:], x.dtype, jax.typeof(x).manual_axis_type.varying
        alike.setdefault(kind, []).append(i)
    results = dict[int, jax.Array]()
    for (shape, *_), places in alike.items():
        for some in _cut(places, [matrices[i].size for i in places]):
            flat = [matrices[i].reshape(-1, *shape) for i in some]
            ends = np.cumsum([len(x) for x in flat])[:-1]
            parts = jnp.split(function(jnp.concatenate(flat)), ends)
            results |= {
                i: part.reshape(matrices[i].shape)
                for i, part in zip(some, parts, strict=True)
            }
    return [results[i] for i in range(len(matrices))]


def _cut(places: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Cuts a list where a stack would have more than `STACK` entries."""
    cuts: list[list[int]] = []
    room = 0
    for place, size in zip(places, sizes, strict=True):
        if size > room:
            cuts.append([])
            room = STACK
        cuts[-1].append(place)
        room -= size
    return cuts
