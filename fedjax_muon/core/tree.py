"""Arithmetic on pytrees.

A scalar may also be a prefix of the tree, as `in_axes` of `jax.vmap`: `Pair(0.1, 0.01)`
scales all leaves of x by 0.1 and all of y by 0.01. Scalars may be tracers of any float
type: leaves keep the dtype they came with, so that a schedule in float32 never widens
bfloat16 state.
"""

import chex
import jax
import jax.numpy as jnp

map = jax.tree.map


def add(a, b):
    return jax.tree.map(jnp.add, a, b)


def sub(a, b):
    return jax.tree.map(jnp.subtract, a, b)


def _with_prefix(function, prefix, *trees):
    """`function(scalar, *leaves)`, where a scalar belongs to all leaves below it."""

    def below(scalar, *parts):
        keep = lambda x, *rest: function(scalar, x, *rest).astype(x.dtype)
        return jax.tree.map(keep, *parts)

    return jax.tree.map(below, prefix, *trees)


def scale(s, a):
    return _with_prefix(lambda s, x: s * x, s, a)


def add_scaled(a, s, b):
    """a + s b"""
    return _with_prefix(lambda s, x, y: x + s * y, s, a, b)


def sub_scaled(a, s, b):
    """a - s b"""
    return _with_prefix(lambda s, x, y: x - s * y, s, a, b)


def mix(old, weight, new):
    """(1 - weight) old + weight new"""
    return _with_prefix(lambda w, x, y: (1 - w) * x + w * y, weight, old, new)


def fade(weight, a):
    """(1 - weight) a"""
    return _with_prefix(lambda w, x: (1 - w) * x, weight, a)


def zeros_like(a):
    """Zeros of the shapes and dtypes of `a`, which may be `ShapeDtypeStruct`s."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), a)


def where(condition, a, b):
    """`a` if the scalar `condition` holds, else `b`."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def all_finite(a):
    """Whether no leaf holds a NaN or an infinity; typed keys and integers never do."""
    leaves = [x for x in jax.tree.leaves(a) if jnp.issubdtype(x.dtype, jnp.inexact)]
    each = jnp.array([True, *(jnp.all(jnp.isfinite(x)) for x in leaves)])
    # A loop, since XLA copies the conjunction of all into every place that asks for
    # it, which are as many: minutes of compilation for a model of 200 arrays.
    both = lambda ok, one: (ok & one, None)
    return jax.lax.scan(both, jnp.array(True), each)[0]


def nbytes(a) -> int:
    """Bytes of a pytree of arrays or `ShapeDtypeStruct`s."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(a))


def _named(path, names):
    return any(getattr(key, "name", None) in names for key in path)


def pick(a, names):
    """The leaves of `a` under attributes called `names`, as `"trace"` of an optax
    state, through chains and partitions. `optax.tree.get` takes one such leaf only."""
    return [x for p, x in jax.tree_util.tree_leaves_with_path(a) if _named(p, names)]


def put(a, names, leaves):
    """`a` with the leaves that `pick(a, names)` finds replaced."""
    leaves = iter(leaves)
    return jax.tree_util.tree_map_with_path(
        lambda p, x: next(leaves) if _named(p, names) else x, a
    )


def check_alike(name: str, before, after) -> None:
    """Raises `ValueError` unless two trees have the same structure, shapes and dtypes.

    Args:
      name: What the second tree is, as in "the state that server returns".
      before: The tree as it was.
      after: The tree that takes its place.
    """
    try:
        chex.assert_trees_all_equal_shapes_and_dtypes(after, before)
    except AssertionError as error:
        detail = " ".join(str(error).split())
        raise ValueError(
            f"{name} must keep structure, shapes and dtypes: {detail[:500]}"
        ) from error
