"""Upper bound of a client's update by Muon, which holds for all gradients."""

import math
from typing import Any

from optax.contrib import MuonDimensionNumbers

from fedjax_muon.core import Params, check_count, check_range
from fedjax_muon.transforms.layout import (
    Layout,
    fans,
    leaf_axes,
    map_matrices,
    muon_dimension_numbers,
)
from fedjax_muon.transforms.muon import ShapeScale, unscaled

# The maximum of p on [0, 1] for `newton_schulz.JORDAN`. It holds for any number of
# steps, since p maps [0, 1.2024] into itself.
JORDAN_LARGEST = 1.2023687


def muon_bound(
    params: Params,
    *,
    lr: float,
    steps: int,
    decay: float = 0.0,
    largest: float = JORDAN_LARGEST,
    shape_scale: ShapeScale = unscaled,
    layout: Layout = muon_dimension_numbers,
) -> float:
    """Bounds the update of the matrices of `params` by local steps of Muon.

    The bound holds for all gradients. It needs no tuning, and clipping at it changes
    no more than rounding does.

    A step with weight decay is W <- (1 - lr decay) W - lr a O, where a is the
    `shape_scale` and ||O||_2 <= `largest`, so ||O||_F <= largest sqrt(r) with the
    shorter side r. The decayed start (1 - lr decay)^K W_0 is public. Without it, the
    Euclidean norm after K steps is at most

        B = sqrt(sum_l (largest a_l lr K_eff sqrt(r_l))^2),
        K_eff = sum_k (1 - lr decay)^k

    This holds in exact arithmetic. In bfloat16, random matrices of 64 to 256 rows
    exceed it by up to 4e-4 of it, so private methods must still clip at B. Leaves
    that are no matrices for `layout` have no such bound. They must be clipped
    separately, and so must momenta that are sent.

    Args:
      largest: Bound of ||O||_2: 1.2024 for any number of Newton-Schulz steps with
        `newton_schulz.JORDAN`; 1 for `QUINTIC`, `CUBIC` and exact polar factors.

    Returns:
      B, in units of the parameters.
    """
    check_range("lr", lr, open_low=True, schedules=False)
    check_count("steps", steps)
    check_range("decay", decay, 0.0, 1 / lr, schedules=False)
    check_range("largest", largest, open_low=True, schedules=False)
    squares: list[float] = []

    def add(numbers: MuonDimensionNumbers, leaf: Any) -> Any:
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
