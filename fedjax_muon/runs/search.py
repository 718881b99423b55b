"""The search of a method's numbers: a rate, and at most one other.

A trial starts where it is told, and its rate moves by factors of 3 until the best one
has neighbors; the rest of the trials goes to rates between the best and its neighbors.
`compare` and the board search by it, and `sweep` extends its grids by it.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

FACTOR = 3.0
FINEST = 4  # steps of a rate in a factor of 3
SLACK = 0.45  # of a step; 3.3 is a factor of 3
MOST_RATES = 9  # a factor of 3 apart
DIVERGED = float("-inf")  # the score of a trial whose runs diverge


class Trial(NamedTuple):
    """A trial by its distance from where the search begins."""

    rate: float = 0  # in steps of which FINEST are a factor of 3
    other: int = 0  # in factors of 3

    def values(self, space: Mapping[str, float]) -> dict[str, float]:
        """The numbers of this trial, to three digits.

        Args:
          space: Where the search begins: `lr`, and at most one other number.
        """
        steps = self.rate / FINEST, float(self.other)
        pairs = zip(space.items(), steps, strict=False)
        return {
            name: float(f"{start * FACTOR**step:.3g}") for (name, start), step in pairs
        }


def best(scores: Mapping[Trial, float]) -> Trial:
    """The trial with the highest score; of equal ones the first that was made."""
    return max(scores, key=scores.__getitem__)


def following(
    scores: Mapping[Trial, float],
    options: int,
    trials: int,
    *,
    finest: int = 1,
    fill: bool = True,
) -> list[Trial]:
    """The next trials; none if the search is over.

    Args:
      scores: Scores of the trials so far, in order; higher is better.
      options: How many numbers are searched, 1 or 2.
      trials: The most that are made.
      finest: The smallest step of a rate that is asked for, where FINEST are a factor
        of 3.
      fill: Whether to spend the remaining trials on further rates around the best.
    """
    if not scores:
        return [Trial(0), Trial(-FINEST), Trial(FINEST)][:trials]
    asked = _asked(scores, options, finest, fill=fill)
    found: list[Trial] = next((each for each in asked if each), [])
    return found[: trials - len(scores)]


def _asked(
    scores: Mapping[Trial, float], options: int, finest: int, *, fill: bool
) -> Iterator[list[Trial]]:
    """What each rule asks for, in their order."""
    now = best(scores)
    if scores[now] == DIVERGED:  # all have
        yield [Trial(min(trial.rate for trial in scores) - FINEST)]
        return
    yield _rates(scores, now, FINEST)
    if options > 1:
        yield [now._replace(other=other) for other in _open_sides(scores, now)]
    for step in (FINEST // 2, FINEST // 4):
        if step >= finest:
            yield _rates(scores, now, step)
    if fill:
        yield _between(scores)


def _open_sides(scores: Mapping[Trial, float], now: Trial) -> list[int]:
    """The next values of the other number, where none of them was tried at a rate
    within a factor of 3."""
    near = [trial.other for trial in scores if abs(trial.rate - now.rate) <= FINEST]
    return [now.other + side for side in (-1, 1) if now.other + side not in near]


def _rates(scores: Mapping[Trial, float], now: Trial, step: int) -> list[Trial]:
    """The rates a step away on either side, where none is tried within the step."""
    tried = [trial.rate for trial in scores if trial.other == now.other]
    coarse = {trial.rate // FINEST for trial in scores if trial.rate % FINEST == 0}
    asked = list[Trial]()
    for side in (-1, 1):
        if not any(0 < side * (rate - now.rate) <= step + SLACK for rate in tried):
            rate = now.rate + side * step
            known = rate // FINEST in coarse or step < FINEST
            if known or len(coarse) + len(asked) < MOST_RATES:
                asked.append(now._replace(rate=rate))
    return asked


def _between(scores: Mapping[Trial, float]) -> list[Trial]:
    """The best trial's numbers at the next rate of the finest steps, going outward."""
    now = best(scores)
    for distance in range(1, MOST_RATES * FINEST):
        for side in (-1, 1):
            trial = now._replace(rate=now.rate + side * distance)
            if trial not in scores:
                return [trial]
    return []


def ends(scores: Mapping[Trial, float], options: int) -> list[str]:
    """In which directions the best trial has no neighbor."""
    now, found = best(scores), []
    rates = [trial.rate for trial in scores if trial.other == now.other]
    found += ["lowest rate"] * (min(rates) == now.rate)
    found += ["highest rate"] * (max(rates) == now.rate)
    if options > 1:
        found += ["end of the other option"] * bool(_open_sides(scores, now))
    return found


def wider(
    start: float, scores: Mapping[float, float], most: int, *, finer: bool = False
) -> list[float]:
    """The next rates, where rates were tried; none if the best one has neighbors.

    Args:
      start: A rate that others are whole steps away from.
      scores: Scores of the rates that were tried; DIVERGED if a run diverged.
      most: The most rates that are tried.
      finer: Whether rates between the best one and its neighbors are tried too.
    """
    steps = lambda rate: round(FINEST * math.log(rate / start, FACTOR), 6)
    rated = {Trial(steps(rate)): score for rate, score in scores.items()}
    finest = FINEST // 2 if finer else FINEST
    asked = following(rated, 1, 2 * most, finest=finest, fill=False)
    low, high = min(rated).rate, max(rated).rate
    asked = [each for each in asked if finer or not low < each.rate < high]
    more = asked[: max(0, most - len(scores))]
    return [each.values({"lr": start})["lr"] for each in more]


def around(start: float) -> tuple[float, ...]:
    """The first rates of a search."""
    return tuple(each.values({"lr": start})["lr"] for each in following({}, 1, 3))
