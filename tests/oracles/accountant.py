"""An accountant of Gaussian mechanisms on Poisson samples, by privacy loss on a grid.

A step has the outputs P = (1 - q) N(0, z^2) + q N(1, z^2) with a record that joins with
probability q, and Q = N(0, z^2) without it. The privacy loss L(x) = log P(x) / Q(x) is
increasing, so that the mass between two losses follows from two values of its inverse,

    x(l) = 1/2 + z^2 log((e^l - 1 + q) / q).

A cell of the grid has exact masses p and r under both distributions. From above, they
are split between its ends so that both are kept, which makes the outputs easier to tell
apart. From below, the outputs of a cell are merged, which makes them harder to tell
apart, and their common loss log p / r is rounded down. Both orders hold for any number
of steps. The sum of losses is computed by one FFT; what could wrap around is bounded by
Chernoff's inequality, and the rounding of the FFT by `ROUNDING`.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

ROUNDING = (
    1e-12  # of a probability of the FFT, ten times what was measured for 2^19 points
)
ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0)  # of Chernoff's inequality


class Steps(NamedTuple):
    """Equal steps: noise of standard deviation z on a sum that one record changes by 1.

    The record takes part in a step with probability q, 1 without sampling.
    """

    z: float
    q: float = 1.0
    count: int = 1


class Interval(NamedTuple):
    """Bounds of epsilon."""

    low: float
    high: float


class _Losses(NamedTuple):
    """Masses at the losses (start + i) h + shift, and at infinity."""

    start: int
    shift: float
    mass: np.ndarray
    infinite: float


def epsilon_interval(
    parts: Sequence[Steps], delta: float, h: float, points: int = 2**19
) -> Interval:
    """Bounds of epsilon for steps on the same data, in any order."""
    bounds = [
        [_epsilon(parts, removed, above, delta, h, points) for removed in (True, False)]
        for above in (False, True)
    ]
    return Interval(max(bounds[0]), max(bounds[1]))


def _epsilon(parts, removed, above, delta, h, points) -> float:
    single = [_losses(part, removed, above, h, points) for part in parts]
    counts = [part.count for part in parts]
    whole = _composed(single, counts, above, h, points)
    return _inverse(whole, delta, above, h)


def _losses(part: Steps, removed: bool, above: bool, h: float, points: int) -> _Losses:
    """The privacy loss of one step, for a removed or an added record."""
    edges = np.arange(-points // 4, points // 4 + 1)
    mixed, plain = _masses(part.z, part.q, h, points)  # the edges are symmetric
    p, r = (mixed, plain) if removed else (plain[::-1], mixed[::-1])
    below, inside, over = slice(0, 1), slice(1, -1), slice(-1, None)
    lowest, cells, highest = p[below].sum(), p[inside], p[over].sum()
    if above:
        # a + b = p and a e^-l + b e^-(l + h) = r, for a cell from l to l + h
        upper = (cells - r[inside] * np.exp(edges[:-1] * h)) / -math.expm1(-h)
        upper = np.clip(upper, 0, cells)
        mass = np.zeros(len(edges))
        mass[:-1] += cells - upper
        mass[1:] += upper
        mass[0] += lowest
        return _Losses(int(edges[0]), 0.0, mass, highest)
    # Losses of merged cells are near the middle of a cell, by about h^2 times the slope
    # of the log-density / 12. Those further below are rounded down by a whole cell.
    with np.errstate(divide="ignore", invalid="ignore"):
        merged = np.log(cells) - np.log(r[inside])
    offset = merged - edges[:-1] * h
    typical = offset[(cells > 1e-9) & (offset > 0.4 * h)]
    shift = min(typical.min(), h / 2) if typical.size else 0.0
    # without a loss that can be computed, it counts as the smallest
    exact = np.isfinite(offset) & (offset >= shift)
    mass = np.zeros(len(edges))
    mass[:-1] += np.where(exact, cells, 0.0)
    mass[:-2] += np.where(exact, 0.0, cells)[1:]  # below the grid it is left out
    mass[-2] += highest
    return _Losses(int(edges[0]), shift, mass, 0.0)


@functools.lru_cache(maxsize=4)  # both records and both bounds need them
def _masses(z: float, q: float, h: float, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Masses of P and of Q below, between and above the edges of the grid."""
    losses = np.arange(-points // 4, points // 4 + 1) * h
    inner = np.expm1(losses) + q  # e^l - 1 + q, positive where there are outcomes
    x = np.full(len(losses), -np.inf)
    x[inner > 0] = 0.5 + z**2 * np.log(inner[inner > 0] / q)
    absent, present = _normal_masses(x / z), _normal_masses((x - 1) / z)
    return (1 - q) * absent + q * present, absent


def _normal_masses(x: np.ndarray) -> np.ndarray:
    """Masses of N(0, 1) below, between and above increasing points, exact in tails."""
    ends = np.concatenate([[-np.inf], x, [np.inf]])
    left, right = np.diff(special.ndtr(ends)), -np.diff(special.ndtr(-ends))
    return np.where(ends[:-1] > 0, right, left)


def _composed(
    single: Sequence[_Losses], counts: Sequence[int], above: bool, h: float, points: int
) -> _Losses:
    """The sum of independent losses, `counts[i]` times the i-th."""
    product = np.ones(points // 2 + 1, complex)
    start, shift, finite, mean = 0, 0.0, 0.0, 0.0
    for one, count in zip(single, counts, strict=True):
        product *= np.fft.rfft(one.mass, points) ** count
        start += count * one.start
        shift += count * one.shift
        finite += count * math.log1p(-one.infinite)
        mean += count * float(one.mass @ np.arange(len(one.mass)))
    window = round(mean) - points // 2  # of indices that are told apart
    mass = np.roll(np.fft.irfft(product, points), -window)
    ends = [(start + window + i) * h + shift for i in (0, points)]
    outside = _outside(single, counts, h, *ends)
    infinite = -math.expm1(finite)
    slack = outside if above else -outside
    return _Losses(start + window, shift, np.maximum(mass, 0), infinite + slack)


def _outside(single, counts, h: float, low: float, high: float) -> float:
    """Bounds the probability that the sum of losses is outside [low, high)."""
    terms = []  # counts, losses and logarithms of their masses
    for one, count in zip(single, counts, strict=True):
        seen = np.flatnonzero(one.mass)
        losses = (one.start + seen) * h + one.shift
        terms.append((count, losses, np.log(one.mass[seen])))

    def chernoff(order: float, end: float) -> float:
        sums = (n * special.logsumexp(logs + order * x) for n, x, logs in terms)
        return sum(sums) - order * end

    over = min(0.0, *(chernoff(order, high) for order in ORDERS))
    under = min(0.0, *(chernoff(-order, low) for order in ORDERS))
    return math.exp(over) + math.exp(under)


def _inverse(whole: _Losses, delta: float, above: bool, h: float) -> float:
    """The smallest epsilon >= 0 with delta(epsilon) <= delta.

    Between two losses, delta(epsilon) = A - e^epsilon B with the sums A of the masses
    at larger losses, and B of these masses times e^-loss.
    """
    losses = (whole.start + np.arange(len(whole.mass))) * h + whole.shift
    seen = slice(int(np.searchsorted(losses, 0.0)), None)
    losses, mass = losses[seen], whole.mass[seen]
    suffix = lambda x: np.cumsum(x[::-1])[::-1]
    a, b = suffix(mass), suffix(mass * np.exp(-losses))
    rounding = ROUNDING if above else -ROUNDING
    target = delta - whole.infinite - rounding
    after = np.append(a[1:] - np.exp(losses[:-1]) * b[1:], 0.0)  # delta at a loss
    (enough,) = np.nonzero(after <= target)
    if not enough.size:
        return math.inf
    i = enough[0]
    return max(0.0, math.log((a[i] - target) / b[i]))
