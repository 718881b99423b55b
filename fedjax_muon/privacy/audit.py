"""Lower bounds of epsilon from what an attack found out: a check of a privacy claim.

A mechanism is run in worlds with a record, the *canary*, and in worlds without it, and
an attack tells them apart by a score. Its errors bound epsilon from below. A bound that
is above the claim says that the claim is false, or that something improbable happened;
one below it proves nothing. Two kinds of audit:

- Many runs, one canary (Nasr et al. 2023, arXiv:2302.07956). Scores above a threshold
  say that the record was there. The threshold must not depend on the scores that are
  counted: take one fixed beforehand, or `best_threshold` of *other* worlds.
- One run, many canaries, each of which is there by a coin (Steinke, Nasr and Jagielski
  2023, arXiv:2305.08846). The attack guesses the coins of the clearest.

`confidence` is the probability, over the worlds, that a bound is true.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import optimize, special, stats

from fedjax_muon.core import check_count, check_range
from fedjax_muon.privacy.accounting import gaussian_epsilon


class Errors(NamedTuple):
    """How often an attack was wrong, in independent worlds."""

    false_positives: int  # of `absent` worlds without the record
    absent: int
    false_negatives: int  # of `present` worlds with it
    present: int


def errors(absent, present, threshold: float) -> Errors:
    """Of the attack that says "there" for scores above `threshold`.

    `absent` and `present` are the scores of worlds without and with the record, of any
    shape. Raises `ValueError` for scores that are not numbers, or for none.
    """
    absent, present = _scores("absent", absent), _scores("present", present)
    return Errors(
        int((absent > threshold).sum()),
        absent.size,
        int((present <= threshold).sum()),
        present.size,
    )


def clopper_pearson(events: int, trials: int, confidence: float) -> float:
    """The upper end of a one-sided interval for a rate (Clopper and Pearson 1934)."""
    check_count("trials", trials)
    check_count("events", events, 0)
    if events > trials:
        raise ValueError(f"events must be at most the {trials} trials, got {events}")
    _check_confidence(confidence)
    if events == trials:
        return 1.0
    return float(special.betaincinv(events + 1, trials - events, confidence))


def gdp_bound(found: Errors, confidence: float = 0.95) -> float:
    """A lower bound of mu for mechanisms that are mu-GDP, as Gaussian ones without
    sampling are: any attack has

        mu >= Phi^-1(1 - false positive rate) - Phi^-1(false negative rate)

    (Dong, Roth and Su 2019, arXiv:1905.02383). The difference has a sign: of rates that
    are bounds its absolute value would be large for attacks that are merely bad.
    """
    positive, negative = _rates(found, confidence)
    return max(0.0, -float(special.ndtri(positive) + special.ndtri(negative)))


def gaussian_epsilon_bound(
    found: Errors, delta: float, confidence: float = 0.95
) -> float:
    """A lower bound of the epsilon at `delta` of a Gaussian mechanism, see `gdp_bound`.

    It is the epsilon of the Gaussian mechanism that is no more private than was found.
    """
    mu = gdp_bound(found, confidence)
    return gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0


def epsilon_bound(found: Errors, delta: float, confidence: float = 0.95) -> float:
    """A lower bound of the epsilon at `delta`, whatever the mechanism:

        exp(epsilon) >= (1 - delta - one rate) / the other rate

    both ways round (Kairouz, Oh and Viswanath 2015, arXiv:1311.0776). It never exceeds
    about log(worlds / 4): to refute a larger claim takes more worlds.
    """
    _check_delta(delta)
    positive, negative = _rates(found, confidence)
    ways = (positive, negative), (negative, positive)
    ratios = ((1 - delta - one) / other for one, other in ways)
    return math.log(max(1.0, *ratios))


def best_threshold(absent, present, bound: Callable[[Errors], float]) -> float:
    """The threshold with the largest `bound(errors)` on these scores.

    A bound holds for errors at this threshold in other worlds, not in these. Of 200
    quantiles; raises `ValueError` as `errors` does.
    """
    absent, present = _scores("absent", absent), _scores("present", present)
    both = np.concatenate([absent, present])
    levels = np.unique(np.quantile(both, np.linspace(0, 1, 202)[1:-1]))
    found = [bound(errors(absent, present, level)) for level in levels]
    return float(levels[int(np.argmax(found))])


def correct_guesses(scores, included, guesses: int) -> int:
    """How many of an attack's guesses in one run are right.

    Args:
      scores: of the canaries, [m]; large for those that seem to be there.
      included: their coins, [m] booleans.
      guesses: r, even, at most m, fixed beforehand: the r / 2 largest scores are said
        to be there, the r / 2 smallest not, and nothing is said of the others.
    """
    scores, included = _scores("scores", scores), np.asarray(included, bool)
    if scores.shape != included.shape:
        raise ValueError(
            "scores and included must have one entry for each canary, got shapes "
            f"{scores.shape} and {included.shape}"
        )
    check_count("guesses", guesses, 2)
    if guesses % 2 or guesses > scores.size:
        raise ValueError(
            f"guesses must be even and at most the {scores.size} canaries, "
            f"got {guesses}"
        )
    order = included[np.argsort(scores, kind="stable")]
    half = guesses // 2
    return int(order[-half:].sum() + (~order[:half]).sum())


def one_run_p_value(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """How probable so many right guesses are, at most, if the claim is true.

    With W a binomial of `guesses` and e^epsilon / (1 + e^epsilon), it is

        P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i

    for m canaries and v correct guesses (Steinke et al. 2023, Theorem 5.2).
    """
    check_count("canaries", canaries)
    check_count("guesses", guesses)
    check_count("correct", correct, 0)
    if not correct <= guesses <= canaries:
        raise ValueError(
            "correct must be at most guesses, and guesses at most canaries, got "
            f"{correct}, {guesses} and {canaries}"
        )
    check_range("epsilon", epsilon, schedules=False)
    _check_delta(delta)
    right = 1 / (1 + math.exp(-epsilon))
    tail = stats.binom.sf(correct - 1, guesses, right)
    below = np.cumsum(stats.binom.pmf(np.arange(correct)[::-1], guesses, right))
    most = np.max(below / np.arange(1, correct + 1), initial=0.0)
    return float(min(1.0, tail + 2 * canaries * delta * most))


def one_run_bound(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """The smallest epsilon at `delta` whose `one_run_p_value` is 1 - `confidence`."""
    _check_confidence(confidence)

    def excess(epsilon):
        p = one_run_p_value(canaries, guesses, correct, epsilon, delta)
        return p - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high))


def _rates(found: Errors, confidence: float) -> tuple[float, float]:
    """Upper bounds of both rates that hold together."""
    _check_confidence(confidence)
    each = (1 + confidence) / 2
    return (
        clopper_pearson(found.false_positives, found.absent, each),
        clopper_pearson(found.false_negatives, found.present, each),
    )


def _scores(name: str, values) -> np.ndarray:
    values = np.asarray(values, float).ravel()
    if not values.size or np.isnan(values).any():
        what = "NaN among them" if values.size else "none"
        raise ValueError(f"{name} must be scores, at least one and all numbers: {what}")
    return values


def _check_confidence(confidence: float) -> None:
    ends = {"open_low": True, "open_high": True, "schedules": False}
    check_range("confidence", confidence, 0, 1, **ends)


def _check_delta(delta: float) -> None:
    check_range("delta", delta, 0, 1, open_high=True, schedules=False)
