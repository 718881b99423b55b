"""Variants of Muon: what is done before or after the orthogonalization.

A matrix is [fan_in, fan_out] here and its transpose in the papers, whose rows are
output units. All of these leave other leaves as they are, or pass their momentum; use
`by_rank` to give them a rule of their own.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core import Number, check_count, check_range
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.transforms.layout import (
    Layout,
    as_matrices,
    in_float32,
    map_leaves,
    muon_dimension_numbers,
    of_matrices,
    squared_norms,
    to_matrices,
    widened,
)
from fedjax_muon.transforms.muon import (
    Polar,
    ShapeScale,
    jordan,
    orthogonalize,
    scale_by_shape,
)

Side = Literal["out", "in"]  # output units, or inputs


def _check_sides(sides: tuple[Side, ...]) -> None:
    if not sides or len({*sides}) < len(sides) or not {*sides} <= {"out", "in"}:
        raise ValueError(
            f"the sides must be 'out' (output units), 'in' or both, got {sides}"
        )


def normalize_axes(
    *sides: Side, eps: float = 1e-7, layout: Layout = muon_dimension_numbers
) -> optax.GradientTransformation:
    """Divides the vectors of every output unit or input by their norms, in turn.

    After `orthogonalize`, this is Muon+: `x / sqrt(sum(x**2) + eps)`. The length of a
    step changes with it, so that a learning rate of Muon does not carry over.

    Source: Zhang et al. 2026, arXiv:2602.21545. Checked against the authors' code.

    Args:
      sides: "out" for output units (the code's `row`), "in" for inputs (`col`); of
        both, the last one ends with norm 1.

    Example:
      >>> muon_plus = optax.chain(
      ...     optax.trace(0.95, nesterov=True),
      ...     orthogonalize(),
      ...     normalize_axes("out", "in"),
      ...     scale_by_shape(spectral),
      ... )
    """
    _check_sides(sides)

    def one(x: jax.Array) -> jax.Array:
        for side in sides:
            x = x * jax.lax.rsqrt(squared_norms(x, side) + eps)
        return x

    return of_matrices(one, layout)


def equilibrate(
    *sides: Side, eps: float = 1e-8, layout: Layout = muon_dimension_numbers
) -> optax.GradientTransformation:
    """Scales output units or inputs to norm 1; both factors are of the same matrix.

    Before `orthogonalize`, this is MuonEq: its R is "out", the default, its C "in", its
    RC both.

    Source: Chang et al. 2026, arXiv:2603.28254. Checked against the authors' code.

    Example:
      >>> muon_eq = optax.chain(
      ...     optax.trace(0.95, nesterov=True),
      ...     equilibrate("out"),
      ...     orthogonalize(),
      ...     scale_by_shape(moonlight),
      ... )
    """
    sides = sides or ("out",)
    _check_sides(sides)

    def one(x: jax.Array) -> jax.Array:
        factors = [jax.lax.rsqrt(squared_norms(x, side) + eps) for side in sides]
        return math.prod(factors, start=x)

    return of_matrices(one, layout)


# ---------------------------------------------------------------------------- blocks


def blocks_of(shape: tuple[int, int], blocks: int) -> tuple[int, int]:
    """How many blocks a matrix is divided into, along fan_in and along fan_out.

    The shorter side is divided, by the largest number up to `blocks` that divides it.

    Example:
      >>> blocks_of((784, 200), 4), blocks_of((10, 10), 4)
      ((1, 4), (2, 1))
    """
    short = min(shape)
    count = max(n for n in range(1, min(blocks, short) + 1) if short % n == 0)
    return (count, 1) if shape[0] == short else (1, count)


def orthogonalize_blocks(
    period: int = 5,
    blocks: int = 4,
    *,
    polar: Polar = kernel.orthogonalize,
    layout: Layout = muon_dimension_numbers,
) -> optax.GradientTransformation:
    """Orthogonalizes whole matrices in every `period`-th step, otherwise their blocks.

    Newton-Schulz steps of blocks take 1 / blocks of the operations, or less. This is
    MuonBP, where the blocks are those of devices, and block steps can have another
    learning rate. The first step is a whole one. Other leaves pass unchanged.

    Source: Khaled et al. 2025, arXiv:2510.16981, after the paper's abstract and
    summaries of it.

    Args:
      period: P; 1 is `orthogonalize`.
      blocks: See `blocks_of`; 1 is `orthogonalize`.

    Example:
      >>> algorithm = fedmuon(lr=0.01, rule=by_rank(orthogonalize_blocks()))
    """
    check_count("period", period)
    check_count("blocks", blocks)

    def of_blocks(matrices: jax.Array) -> jax.Array:
        fan_in, fan_out = matrices.shape[-2:]
        rows, columns = blocks_of((fan_in, fan_out), blocks)
        axis = -2 if rows > 1 else -1
        parts = jnp.split(matrices, rows * columns, axis)
        return jnp.concatenate([*polar(jnp.stack(parts))], axis)

    whole = orthogonalize(polar, layout=layout)
    divided = orthogonalize(of_blocks, layout=layout)

    def init(params: optax.Params) -> optax.ScaleByScheduleState:
        del params
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    def update(updates: optax.Updates, state: Any, params: Any = None) -> Any:
        del params
        alone = lambda rule: lambda updates: rule.update(updates, optax.EmptyState())[0]
        is_whole = state.count % period == 0
        result = jax.lax.cond(is_whole, alone(whole), alone(divided), updates)
        return result, state._replace(count=optax.safe_increment(state.count))

    return optax.GradientTransformation(init, update)


# -------------------------------------------------------------------- second moments


def _frobenius(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(x * x, (-2, -1), keepdims=True))


def _divide_by_rms(
    decay: Number,
    mean: Callable[[jax.Array], jax.Array],
    length: Callable[[jax.Array], Any],
    eps: tuple[float, float],
    layout: Layout,
) -> optax.GradientTransformation:
    """Divides matrices by the root of their average squares, and sets their length.

    Args:
      mean: Squares of a matrix, or means of them, with as many axes.
      length: The Frobenius norm of the result for a matrix.
      eps: Added to the root, and to the norm that is divided by.
    """

    def init(params: optax.Params) -> Any:
        def zeros(n: Any, x: jax.Array) -> jax.Array:
            if n is None:  # not used
                return jnp.zeros((), x.dtype)
            return jnp.zeros_like(mean(to_matrices(n, x)))

        return map_leaves(zeros, layout(params), params)

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None
    ) -> tuple[Any, Any]:
        del params
        numbers = layout(updates)

        def average(n: Any, x: jax.Array, v: jax.Array) -> jax.Array:
            if n is None:
                return v
            new = mean(to_matrices(n, x))
            return (decay * v + (1 - decay) * new).astype(v.dtype)

        def divide(n: Any, x: jax.Array, v: jax.Array) -> jax.Array:
            def one(x: jax.Array) -> jax.Array:
                scaled = x / (jnp.sqrt(widened(v)) + eps[0])
                return (length(x) / (_frobenius(scaled) + eps[1])) * scaled

            if n is None:
                return x
            return as_matrices(one, n, widened(x)).astype(x.dtype)

        state = map_leaves(average, numbers, updates, state)
        return map_leaves(divide, numbers, updates, state), state

    return optax.GradientTransformation(init, update)


def scale_by_normuon(
    momentum: Number = 0.95,
    b2: Number = 0.95,
    *,
    nesterov: bool = True,
    polar: Polar = kernel.orthogonalize,
    shape_scale: ShapeScale = jordan,
    layout: Layout = muon_dimension_numbers,
) -> optax.GradientTransformation:
    """Muon whose output units have steps of equal size on average.

    With O = polar(n) of the momentum n and an output unit p,

        v_p <- b2 v_p + (1 - b2) mean_q O_pq^2,   u = scale (O / sqrt(v)) c,

    where c restores the Frobenius norm of O. The state is the momentum and one number
    for each output unit.

    Source: NorMuon, Li et al. 2025, arXiv:2510.05491. Checked against the authors' code
    and the paper's text except for its algorithm box.

    Args:
      momentum: Weight of the past in [0, 1).
      b2: Weight of the past in the average of squares, in [0, 1).
      nesterov: Whether `n = g + momentum m`, as in the authors' code.
    """
    check_range("momentum", momentum, 0.0, 1.0, open_high=True, schedules=False)
    check_range("b2", b2, 0.0, 1.0, open_high=True, schedules=False)
    units = lambda x: jnp.mean(x * x, -2, keepdims=True)
    return optax.chain(
        optax.trace(momentum, nesterov),
        orthogonalize(polar, layout=layout),
        _divide_by_rms(b2, units, _frobenius, (1e-10, 1e-10), layout),
        scale_by_shape(shape_scale, layout=layout),
    )


def scale_by_adamuon(
    momentum: Number = 0.95,
    *,
    nesterov: bool = True,
    polar: Polar = kernel.orthogonalize,
    layout: Layout = muon_dimension_numbers,
) -> optax.GradientTransformation:
    """Muon of signs, divided by the root of average squares of every entry.

    With O = polar(sign(n)) of the momentum n, v <- momentum v + (1 - momentum) O^2 and
    u = 0.2 sqrt(fan_in fan_out) X / ||X||_F, X = O / sqrt(v). The first step is
    0.2 sign(O).

    Source: AdaMuon, Si et al. 2025, arXiv:2507.11005. Checked against the authors'
    code.
    """
    check_range("momentum", momentum, 0.0, 1.0, open_high=True, schedules=False)
    length = lambda x: 0.2 * math.sqrt(math.prod(x.shape[-2:]))
    return optax.chain(
        optax.trace(momentum, nesterov),
        of_matrices(jnp.sign, layout),
        orthogonalize(polar, layout=layout),
        _divide_by_rms(momentum, jnp.square, length, (1e-8, 1e-8), layout),
    )


class Muon2State(NamedTuple):
    """The momentum, and the average of squared gradients."""

    trace: Any
    squares: Any


def scale_by_muon2(
    momentum: Number = 0.95,
    b2: Number = 0.95,
    *,
    eps: float = 1e-10,
    nesterov: bool = True,
    polar: Polar = kernel.orthogonalize,
    shape_scale: ShapeScale = jordan,
    layout: Layout = muon_dimension_numbers,
) -> optax.GradientTransformation:
    """Orthogonalizes a momentum that is divided by the root of average squares.

    v <- b2 v + (1 - b2) g^2 and u = scale polar(n / (sqrt(v) + eps)) with the momentum
    n. Sources differ in the place of eps and in the scale.

    Source: Muon^2, Liu et al. 2026, arXiv:2604.09967. Checked against independent code
    and not against the authors'.
    """
    check_range("momentum", momentum, 0.0, 1.0, open_high=True, schedules=False)
    check_range("b2", b2, 0.0, 1.0, open_high=True, schedules=False)
    trace = optax.trace(momentum, nesterov)
    polar_of = optax.chain(
        orthogonalize(polar, layout=layout), scale_by_shape(shape_scale, layout=layout)
    )

    def init(params: optax.Params) -> Muon2State:
        return Muon2State(trace.init(params), optax.tree.zeros_like(params))

    def update(
        updates: optax.Updates, state: Muon2State, params: optax.Params | None = None
    ) -> tuple[Any, Muon2State]:
        del params
        squares = optax.tree.update_moment(updates, state.squares, b2, order=2)
        steps, held = trace.update(updates, state.trace)
        divide = lambda n, x, v: x if n is None else x / (jnp.sqrt(v) + eps)
        steps = map_leaves(divide, layout(updates), steps, squares)
        steps, _ = polar_of.update(steps, polar_of.init(steps))
        return steps, Muon2State(held, squares)

    return in_float32(optax.GradientTransformation(init, update))


# ---------------------------------------------------------------- variance reduction


class MarsState(NamedTuple):
    """The gradient of the last step, and whether there was one."""

    previous: Any
    started: jax.Array


def scale_by_mars(
    momentum: Number = 0.95, gamma: Number = 0.025, *, largest: float | None = 1.0
) -> optax.GradientTransformation:
    """Corrects a gradient by its change since the last step, then clips every leaf.

    c = g + gamma momentum / (1 - momentum) (g - g_last), divided by
    max(1, ||c|| / largest). In the first step c = g. It is the approximate form of
    MARS-M, which compares gradients of different batches.

    Source: Liu et al. 2025, arXiv:2510.21800. Checked against the authors' code, whose
    first step takes g_last = 0.

    Args:
      momentum: Weight of the past in the momentum that follows, in [0, 1).
      largest: The largest norm of a leaf; None for no limit.

    Example:
      >>> mars_m = optax.chain(
      ...     scale_by_mars(0.95),
      ...     optax.trace(0.95),
      ...     orthogonalize(),
      ...     scale_by_shape(moonlight),
      ... )
    """
    check_range("momentum", momentum, 0.0, 1.0, open_high=True, schedules=False)
    check_range("gamma", gamma, schedules=False)

    def init(params: optax.Params) -> MarsState:
        return MarsState(optax.tree.zeros_like(params), jnp.zeros((), bool))

    def update(
        updates: optax.Updates, state: MarsState, params: optax.Params | None = None
    ) -> tuple[Any, MarsState]:
        del params
        factor = gamma * momentum / (1 - momentum)

        def one(g: jax.Array, last: jax.Array) -> jax.Array:
            c = g + jnp.where(state.started, factor, 0) * (g - last)
            if largest is not None:
                c = c / jnp.maximum(1, jnp.linalg.norm(c.ravel()) / largest)
            return c.astype(g.dtype)

        steps = jax.tree.map(one, updates, state.previous)
        return steps, MarsState(updates, jnp.ones((), bool))

    return optax.GradientTransformation(init, update)
