"""The search of a method's options on a track, as RULES.md says.

A point is a rate and at most one other option. They start where a row says, and move by
factors of 3 until no neighbor of the best point is better. What is left of the trials
goes to rates between the best one and its neighbors.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

FACTOR = 3.0
FINEST = 4  # steps of a rate in a factor of 3
MOST_RATES = 9  # a factor of 3 apart
DIVERGED = float("-inf")  # the score of a point whose runs diverge


class Point(NamedTuple):
    """A point by its distance from where the search begins."""

    rate: int = 0  # in steps of which FINEST are a factor of 3
    other: int = 0  # in factors of 3

    def values(self, space: Mapping[str, float]) -> dict[str, float]:
        """The options at this point, to three digits.

        Args:
          space: Where the search begins: `lr`, and at most one other option.
        """
        steps = self.rate / FINEST, float(self.other)
        pairs = zip(space.items(), steps, strict=False)
        return {
            name: float(f"{start * FACTOR**step:.3g}") for (name, start), step in pairs
        }


def best(scores: Mapping[Point, float]) -> Point:
    """The point with the highest score; of equal ones the first that was tried."""
    return max(scores, key=scores.__getitem__)


def following(scores: Mapping[Point, float], options: int, trials: int) -> list[Point]:
    """The points to try next; none if all trials are used.

    Args:
      scores: Those that were tried, in this order, the higher the better.
      options: Number of options, 1 or 2.
    """
    if not scores:
        return [Point(0), Point(-FINEST), Point(FINEST)][:trials]
    found = next((each for each in _asked(scores, options) if each), [])
    return found[: trials - len(scores)]


def _asked(scores: Mapping[Point, float], options: int) -> Iterator[list[Point]]:
    """What each rule asks for, in their order."""
    now = best(scores)
    yield _rates(scores, now, FINEST)
    if options > 1:
        yield [now._replace(other=other) for other in _open_sides(scores, now)]
    for step in (FINEST // 2, FINEST // 4):
        yield _rates(scores, now, step)
    yield _between(scores)


def _open_sides(scores: Mapping[Point, float], now: Point) -> list[int]:
    """The next values of the other option, where none of them was tried at a rate
    within a factor of 3."""
    near = [point.other for point in scores if abs(point.rate - now.rate) <= FINEST]
    return [now.other + side for side in (-1, 1) if now.other + side not in near]


def _rates(scores: Mapping[Point, float], now: Point, step: int) -> list[Point]:
    """The rates a step away on either side, where none is tried within the step."""
    tried = [point.rate for point in scores if point.other == now.other]
    coarse = {point.rate // FINEST for point in scores if point.rate % FINEST == 0}
    asked = []
    for side in (-1, 1):
        if not any(0 < side * (rate - now.rate) <= step for rate in tried):
            rate = now.rate + side * step
            known = rate // FINEST in coarse or step < FINEST
            if known or len(coarse) + len(asked) < MOST_RATES:
                asked.append(now._replace(rate=rate))
    return asked


def _between(scores: Mapping[Point, float]) -> list[Point]:
    """The best point's options at the next rate of the finest steps, going outward."""
    now = best(scores)
    for distance in range(1, MOST_RATES * FINEST):
        for side in (-1, 1):
            point = now._replace(rate=now.rate + side * distance)
            if point not in scores:
                return [point]
    return []


def ends(scores: Mapping[Point, float], options: int) -> list[str]:
    """In which directions the best point has no neighbor that was tried."""
    now, found = best(scores), []
    rates = [point.rate for point in scores if point.other == now.other]
    found += ["lowest rate"] * (min(rates) == now.rate)
    found += ["highest rate"] * (max(rates) == now.rate)
    if options > 1:
        found += ["end of the other option"] * bool(_open_sides(scores, now))
    return found
