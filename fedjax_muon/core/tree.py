"""Arithmetic on pytrees. The first argument is a tree, and a number follows it.

A scalar may also be a prefix of the tree, like `in_axes` of `jax.vmap`:
`Pair(0.1, 0.01)` scales all leaves of x by 0.1 and all of y by 0.01. Scalars may be
tracers of any float type: leaves keep their dtype, so that a schedule in float32 never
widens bfloat16 state.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp

Tree = Any  # a pytree of arrays
Scalars = Any  # a scalar, or a prefix of a pytree with scalars as leaves

map = jax.tree.map


def add(a: Tree, b: Tree) -> Tree:
    """a + b"""
    return jax.tree.map(jnp.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    """a - b"""
    return jax.tree.map(jnp.subtract, a, b)


def _with_prefix(function: Callable[..., Any], prefix: Scalars, *trees: Tree) -> Tree:
    """`function(scalar, *leaves)`, where a scalar belongs to all leaves below it."""

    def below(scalar: Any, *parts: Tree) -> Tree:
        keep = lambda x, *rest: function(scalar, x, *rest).astype(x.dtype)
        return jax.tree.map(keep, *parts)

    return jax.tree.map(below, prefix, *trees)


def scale(a: Tree, s: Scalars) -> Tree:
    """s a"""
    return _with_prefix(lambda s, x: s * x, s, a)


def add_scaled(a: Tree, s: Scalars, b: Tree) -> Tree:
    """a + s b"""
    return _with_prefix(lambda s, x, y: x + s * y, s, a, b)


def sub_scaled(a: Tree, s: Scalars, b: Tree) -> Tree:
    """a - s b"""
    return _with_prefix(lambda s, x, y: x - s * y, s, a, b)


def mix(old: Tree, weight: Scalars, new: Tree) -> Tree:
    """(1 - weight) old + weight new"""
    return _with_prefix(lambda w, x, y: (1 - w) * x + w * y, weight, old, new)


def fade(a: Tree, weight: Scalars) -> Tree:
    """(1 - weight) a"""
    return _with_prefix(lambda w, x: (1 - w) * x, weight, a)


def zeros_like(a: Tree) -> Tree:
    """Zeros of the shapes and dtypes of `a`, which may be `ShapeDtypeStruct`s."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), a)


def where(condition: jax.Array | bool, a: Tree, b: Tree) -> Tree:
    """`a` if the scalar `condition` holds, else `b`."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def all_finite(a: Tree) -> jax.Array:
    """Bool []: no leaf has a NaN or an infinity; typed keys and integers never do."""
    leaves = [x for x in jax.tree.leaves(a) if jnp.issubdtype(x.dtype, jnp.inexact)]
    each = jnp.array([True, *(jnp.all(jnp.isfinite(x)) for x in leaves)])
    # A loop, since XLA would copy the conjunction of all leaves to each place that
    # uses it, one per leaf: minutes of compilation for a model of 200 arrays.
    both = lambda ok, one: (ok & one, None)
    return jax.lax.scan(both, jnp.array(True), each)[0]


def nbytes(a: Tree) -> int:
    """Bytes of a pytree of arrays or `ShapeDtypeStruct`s."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(a))


MOMENTUM = {"momentum", "trace", "mu"}  # names of it in states of optax and of ours


def shapes(a: Tree) -> dict[str, str]:
    """The dtypes and shapes of all leaves, in words, by their paths.

    Example:
      >>> shapes({"w": jnp.zeros((2, 3))})
      {"['w']": 'float32[2, 3]'}
    """
    leaves = jax.tree_util.tree_leaves_with_path(a)
    keystr = jax.tree_util.keystr
    return {keystr(path): f"{x.dtype}{list(x.shape)}" for path, x in leaves}


def difference(have: Mapping[str, str], want: Mapping[str, str]) -> str:
    """Where two results of `shapes` differ first, and how; empty if they do not.

    Example:
      >>> difference({"['w']": "float32[2]"}, {"['w']": "float32[3]"})
      "['w'] is float32[2] and must be float32[3]"
    """
    for path in {**want, **have}:
        has, wants = have.get(path, "missing"), want.get(path, "missing")
        if has != wants:
            return f"{path} is {has} and must be {wants}"
    return ""


def _names(path: Iterable[Any]) -> set[str]:
    """Names of the attributes in the path of a leaf, and "momentum" for all of its."""
    found = {key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)}
    return found | {"momentum"} if found & MOMENTUM else found


def pick(a: Tree, names: Collection[str]) -> list[jax.Array]:
    """Lists the leaves of `a` under attributes called `names`, in order.

    An attribute is, for example, "trace" of an optax state, through chains and
    partitions. "momentum" stands for all names of a momentum: "trace" of
    `optax.trace`, "mu" of Adam. `optax.tree.get` takes one such leaf only.

    Raises:
      ValueError: If no leaf has one of the names.
    """
    if isinstance(names, str):
        raise TypeError(f"names must be a tuple, such as ({names!r},), got {names!r}")
    leaves = [(_names(p), x) for p, x in jax.tree_util.tree_leaves_with_path(a)]
    known = set[str]().union(*(own for own, _ in leaves))
    for name in names:
        if name not in known:
            raise ValueError(
                f"the rule's state has no {name!r}; it has "
                f"{', '.join(sorted(known)) or 'no named parts'}"
            )
    return [x for own, x in leaves if own & set(names)]


def put(a: Tree, names: Collection[str], leaves: Iterable[jax.Array]) -> Tree:
    """Replaces the leaves of `a` that `pick(a, names)` lists."""
    rest = iter(leaves)
    return jax.tree_util.tree_map_with_path(
        lambda p, x: next(rest) if _names(p) & set(names) else x, a
    )


def check_alike(name: str, before: Tree, after: Tree) -> None:
    """Checks that two trees have the same structure, shapes and dtypes."""
    try:
        chex.assert_trees_all_equal_shapes_and_dtypes(after, before)
    except AssertionError as error:
        detail = " ".join(str(error).split())
        raise ValueError(
            f"{name} must keep structure, shapes and dtypes: {detail[:500]}"
        ) from error
