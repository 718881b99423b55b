"""How far Muon moves at most: a limit on a client's update that no gradient exceeds."""

import math

from fedjax_muon.core import check_count, check_range
from fedjax_muon.transforms.layout import (
    Layout,
    fans,
    leaf_axes,
    map_matrices,
    muon_dimension_numbers,
)
from fedjax_muon.transforms.muon import ShapeScale, unscaled

# The maximum of p on [0, 1] for `orthogonalize.JORDAN`: p maps [0, 1.2024] into itself,
# so that it holds for any number of steps.
JORDAN_LARGEST = 1.2023687


def muon_bound(
    params,
    *,
    lr: float,
    steps: int,
    decay: float = 0.0,
    largest: float = JORDAN_LARGEST,
    shape_scale: ShapeScale = unscaled,
    layout: Layout = muon_dimension_numbers,
) -> float:
    """How far `steps` moves of Muon can take the matrices of `params`, whatever the
    gradients: a limit that needs no tuning, and at which clipping changes nothing.

    A step with weight decay is W <- (1 - lr decay) W - lr a O, a the `shape_scale` and
    ||O||_2 <= `largest`, so ||O||_F <= largest sqrt(r), r the shorter side. Less the
    decay of the start (1 - lr decay)^K W_0, which is public, K steps end at most

        B = sqrt(sum_l (largest a_l lr K_eff sqrt(r_l))^2),
        K_eff = sum_k (1 - lr decay)^k

    from zero. `largest` is 1.2024 for any number of Newton-Schulz steps with Jordan's
    coefficients, 1 for `orthogonalize.QUINTIC`, `CUBIC` and exact polar factors. Real
    arithmetic: clip at B nevertheless. Leaves that `layout` takes for no matrices have
    no such bound: they must be clipped apart, and momenta that are sent too.

    Raises `ValueError` for parameters without a matrix, rates or steps out of range,
    and lr * decay above 1.
    """
    check_range("lr", lr, open_low=True, schedules=False)
    check_count("steps", steps)
    check_range("decay", decay, 0.0, 1 / lr, schedules=False)
    check_range("largest", largest, open_low=True, schedules=False)
    squares: list[float] = []

    def add(numbers, leaf):
        fan_in, fan_out = fans(numbers, leaf)
        number = math.prod(leaf.shape[a] for a in leaf_axes(numbers, leaf).batch)
        scale = shape_scale(fan_in, fan_out)
        squares.append(number * scale**2 * min(fan_in, fan_out))
        return leaf

    map_matrices(add, layout(params), params)
    if not squares:
        raise ValueError("there is no matrix among the parameters, so nothing is bound")
    moves = sum((1 - lr * decay) ** k for k in range(steps))
    return largest * lr * moves * math.sqrt(sum(squares))
