"""SOAP: Adam in the eigenbases of Shampoo's preconditioners."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core import Number, check_count, check_range
from fedjax_muon.transforms.layout import (
    Layout,
    from_matrices,
    is_numbers,
    map_leaves,
    muon_dimension_numbers,
    to_matrices,
)

Pair = tuple[jax.Array | None, jax.Array | None]  # left and right; None: not turned


class Turned(NamedTuple):
    """The state of one leaf. `mean` and `squares` are in the basis."""

    mean: jax.Array
    squares: jax.Array
    grams: Pair  # averages of g g^T and of g^T g
    basis: Pair  # their eigenvectors, in columns


class SoapState(NamedTuple):
    """The number of calls, and a `Turned` for every leaf."""

    calls: jax.Array
    leaves: Any


def _turn(x: jax.Array, basis: Pair, *, back: bool = False) -> jax.Array:
    left, right = basis
    if left is not None:
        x = (left if back else left.mT) @ x
    if right is not None:
        x = x @ (right.mT if back else right)
    return x


def _grams(x: jax.Array, kept: Pair) -> Pair:
    left, right = kept
    return None if left is None else x @ x.mT, None if right is None else x.mT @ x


def _eigenvectors(gram: jax.Array) -> jax.Array:
    """Those of the largest eigenvalues first."""
    shift = 1e-30 * jnp.eye(gram.shape[-1], dtype=gram.dtype)
    return jnp.linalg.eigh(gram + shift)[1][..., ::-1]


def _refreshed(leaf: Turned) -> Turned:
    """One step of power iteration for each basis, and the moments in the new ones."""
    mean = _turn(leaf.mean, leaf.basis, back=True)
    squares, basis = leaf.squares, list(leaf.basis)
    for axis, (gram, old) in enumerate(zip(leaf.grams, leaf.basis, strict=True)):
        if gram is None or old is None:
            continue
        sizes = jnp.einsum("...ji,...jk,...ki->...i", old, gram, old)
        order = jnp.argsort(sizes, axis=-1, descending=True)
        old = jnp.take_along_axis(old, order[..., None, :], -1)
        where = order[..., None] if axis == 0 else order[..., None, :]
        squares = jnp.take_along_axis(squares, where, axis - 2)
        basis[axis] = jnp.linalg.qr(gram @ old)[0]
    new: Pair = basis[0], basis[1]
    return leaf._replace(mean=_turn(mean, new), squares=squares, basis=new)


def scale_by_soap(
    b1: Number = 0.95,
    b2: Number = 0.95,
    *,
    eps: float = 1e-8,
    every: int = 10,
    longest: int = 10_000,
    first_step: bool = False,
    layout: Layout = muon_dimension_numbers,
) -> optax.GradientTransformation:
    """Adam in slowly changing eigenbases of the averages of g g^T and of g^T g.

    Source: Vyas et al. 2025, arXiv:2409.11321. Checked against the authors' code.

    As there, the first call makes the bases and returns zero. So a local rule that
    starts anew in every round loses one local step of each, unless it has `first_step`.
    Leaves that are not matrices get Adam. "grams" names both averages, for
    `averaged_state` of methods: as in FedPAC, they can start from a mean over clients.
    Moments cannot, since bases differ.

    If counts of calls differ between clients under `vmap`, every call computes what is
    otherwise computed in every `every`-th one.

    Args:
      b1: Weight of the past in the average of gradients, in [0, 1).
      b2: The same for squares and for both averages of products.
      eps: Added to the root of the average of squares.
      every: Calls between steps of power iteration.
      longest: Sides with more entries are not turned.
      first_step: Whether the first call also steps, in the bases of the averages before
        its gradient: those of `averaged_state`, or at first the axes, as Adam.
    """
    check_range("b1", b1, 0.0, 1.0, open_high=True, schedules=False)
    check_range("b2", b2, 0.0, 1.0, open_high=True, schedules=False)
    check_count("every", every)

    def matrices(numbers: Any, x: jax.Array) -> jax.Array:
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        return x if numbers is None else to_matrices(numbers, x)

    def start(numbers: Any, x: jax.Array) -> Turned:
        grams: list[jax.Array | None] = [None, None]
        x = matrices(numbers, x)
        if numbers is not None:
            for side in (0, 1):
                size = x.shape[side - 2]
                if size <= longest:
                    grams[side] = jnp.zeros((*x.shape[:-2], size, size), x.dtype)
        pair: Pair = grams[0], grams[1]
        return Turned(jnp.zeros_like(x), jnp.zeros_like(x), pair, pair)

    def init(params: optax.Params) -> SoapState:
        leaves = map_leaves(start, layout(params), params)
        return SoapState(jnp.zeros((), jnp.int32), leaves)

    def average(leaf: Turned, x: jax.Array) -> Pair:
        mix = lambda old, new: None if old is None else b2 * old + (1 - b2) * new
        left, right = map(mix, leaf.grams, _grams(x, leaf.grams))
        return left, right

    def with_basis(leaf: Turned) -> Turned:
        left, right = (None if g is None else _eigenvectors(g) for g in leaf.grams)
        return leaf._replace(basis=(left, right))

    def first(leaf: Turned, x: jax.Array, count: jax.Array) -> tuple[Any, Turned]:
        if first_step:
            return later(with_basis(leaf), x, count)
        return jnp.zeros_like(x), with_basis(leaf._replace(grams=average(leaf, x)))

    def later(leaf: Turned, x: jax.Array, count: jax.Array) -> tuple[Any, Turned]:
        turned = _turn(x, leaf.basis)
        mean = b1 * leaf.mean + (1 - b1) * turned
        squares = b2 * leaf.squares + (1 - b2) * turned**2
        correction = jnp.sqrt(1 - b2**count) / (1 - b1**count)
        step = _turn(mean / (jnp.sqrt(squares) + eps), leaf.basis, back=True)
        leaf = Turned(mean, squares, average(leaf, x), leaf.basis)
        leaf = jax.lax.cond(count % every == 0, _refreshed, lambda leaf: leaf, leaf)
        return correction.astype(x.dtype) * step, leaf

    def update(
        updates: optax.Updates, state: SoapState, params: optax.Params | None = None
    ) -> tuple[Any, SoapState]:
        del params
        tree: Any  # its methods are not typed
        numbers, tree = jax.tree.flatten(layout(updates), is_leaf=is_numbers)
        steps, leaves = [], []
        count = state.calls + first_step  # of steps, this one included
        for n, g, leaf in zip(
            numbers,
            tree.flatten_up_to(updates),
            tree.flatten_up_to(state.leaves),
            strict=True,
        ):
            x = matrices(n, g)
            step, leaf = jax.lax.cond(state.calls == 0, first, later, leaf, x, count)
            step = step if n is None else from_matrices(n, step, g)
            steps.append(step.astype(g.dtype))
            leaves.append(leaf)
        return tree.unflatten(steps), SoapState(state.calls + 1, tree.unflatten(leaves))

    return optax.GradientTransformation(init, update)
