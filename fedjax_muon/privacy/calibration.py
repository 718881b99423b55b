"""Search for the smallest noise level that reaches an epsilon."""

import math
from collections.abc import Callable

from fedjax_muon.privacy.accounting import check_epsilon


def calibrate_noise(
    epsilon: Callable[[float], float], target: float, tolerance: float = 1e-5
) -> float:
    """Finds the smallest noise level that reaches a target epsilon.

    Args:
      epsilon: Function of the noise level, which must not increase.
      target: Largest epsilon allowed, positive.
      tolerance: Relative tolerance of the level.

    Returns:
      A level with epsilon(level) <= target, at most `tolerance` above the smallest.
    """
    check_epsilon(target)

    def excess(log: float) -> float:  # between -1 and 1 even if epsilon is 0 or inf
        return 1 - 2 * target / (epsilon(math.exp(log)) + target)

    bracket = _bracket(excess, 0.5 * math.log(2), 40 * math.log(2))
    if bracket is None:
        raise ValueError(
            f"no noise level reaches epsilon {target:g}, got {epsilon(2.0**40):g} at "
            "the largest and more noise does not help: raise epsilon or delta"
        )
    from scipy import optimize  # slow to import, for private runs alone

    log = optimize.brentq(excess, *bracket, xtol=tolerance / 2)
    while epsilon(math.exp(log)) > target:
        log += tolerance / 2
    return math.exp(log)


def _bracket(
    excess: Callable[[float], float], step: float, largest: float
) -> tuple[float, float] | None:
    """Two neighboring levels around the root of a decreasing function, from 0 on."""
    direction = step if excess(0.0) > 0 else -step
    level = 0.0
    while abs(level) < largest:
        if (excess(level + direction) > 0) != (direction > 0):
            return (min(level, level + direction), max(level, level + direction))
        level += direction
    return None
