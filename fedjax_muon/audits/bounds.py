"""Lower bounds of epsilon from the success of an attack.

A mechanism is run in worlds with a record, the *canary*, and in worlds without it, and
an attack tells them apart by a score. Its error rates bound epsilon from below. If the
bound is above the claim, the claim is false, or something improbable happened. A bound
below the claim proves nothing. There are two kinds of audit:

- Many runs, one canary (Nasr et al. 2023, arXiv:2302.07956). A score above a threshold
  says that the record was present. The threshold must not depend on the scores that are
  counted: it is fixed beforehand, or `best_threshold` of *other* worlds.
- One run, many canaries, each of which is present with probability 1/2 (Steinke, Nasr
  and Jagielski 2023, arXiv:2305.08846). The attack guesses the most certain ones.

`confidence` is the probability, over the worlds, that a bound is true.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special, stats

from fedjax_muon.core import check_count, check_range
from fedjax_muon.privacy.accounting import gaussian_epsilon


class Errors(NamedTuple):
    """How often an attack was wrong, in independent worlds."""

    false_positives: int  # of `absent` worlds without the record
    absent: int
    false_negatives: int  # of `present` worlds with it
    present: int


def errors(absent: ArrayLike, present: ArrayLike, threshold: float) -> Errors:
    """Counts the errors of an attack that says "present" above a threshold.

    Scores are those of worlds without and with the record, of any shape.

    Example:
      >>> errors([0.1, 0.9], [0.8, 1.2], threshold=0.5)
      Errors(false_positives=1, absent=2, false_negatives=0, present=2)
    """
    absent, present = (
        checked_scores("absent", absent),
        checked_scores("present", present),
    )
    return Errors(
        int((absent > threshold).sum()),
        absent.size,
        int((present <= threshold).sum()),
        present.size,
    )


def clopper_pearson(events: int, trials: int, confidence: float) -> float:
    """Returns the upper end of a one-sided interval for a rate.

    Clopper and Pearson 1934, "The use of confidence or fiducial limits".
    """
    check_count("trials", trials)
    check_count("events", events, 0)
    if events > trials:
        raise ValueError(f"events must be at most the {trials} trials, got {events}")
    _check_confidence(confidence)
    if events == trials:
        return 1.0
    return float(special.betaincinv(events + 1, trials - events, confidence))


def gdp_bound(counts: Errors, confidence: float = 0.95) -> float:
    """Returns a lower bound of mu for a mechanism that is mu-GDP.

    Gaussian mechanisms without sampling are. Any attack has

        mu >= Phi^-1(1 - false positive rate) - Phi^-1(false negative rate)

    (Dong, Roth and Su 2019, arXiv:1905.02383). The difference keeps its sign: the rates
    are upper bounds, so that its absolute value would be large for a poor attack.
    """
    positive, negative = _rates(counts, confidence)
    return max(0.0, -float(special.ndtri(positive) + special.ndtri(negative)))


def gaussian_epsilon_bound(
    counts: Errors, delta: float, confidence: float = 0.95
) -> float:
    """Returns the epsilon of the Gaussian mechanism whose mu is `gdp_bound`."""
    mu = gdp_bound(counts, confidence)
    return gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0


def epsilon_bound(counts: Errors, delta: float, confidence: float = 0.95) -> float:
    """Returns a lower bound of epsilon for any mechanism.

        exp(epsilon) >= (1 - delta - one rate) / the other rate,

    in both directions (Kairouz, Oh and Viswanath 2015, arXiv:1311.0776). The bound
    never exceeds about log(worlds / 4): refuting a larger claim takes more worlds.
    """
    _check_delta(delta)
    positive, negative = _rates(counts, confidence)
    ways = (positive, negative), (negative, positive)
    ratios = ((1 - delta - one) / other for one, other in ways)
    return math.log(max(1.0, *ratios))


def best_threshold(
    absent: ArrayLike, present: ArrayLike, bound: Callable[[Errors], float]
) -> float:
    """Finds the threshold with the largest bound, of 200 quantiles of all scores.

    The bound is valid for the errors of other worlds at this threshold, not for these.
    """
    absent, present = (
        checked_scores("absent", absent),
        checked_scores("present", present),
    )
    both = np.concatenate([absent, present])
    levels = np.unique(np.quantile(both, np.linspace(0, 1, 202)[1:-1]))
    bounds = [bound(errors(absent, present, level)) for level in levels]
    return float(levels[int(np.argmax(bounds))])


def correct_guesses(scores: ArrayLike, included: ArrayLike, guesses: int) -> int:
    """Counts an attack's correct guesses in one run.

    Args:
      guesses: r, even and at most m, fixed beforehand: the r / 2 largest scores are
        guessed to be present, the r / 2 smallest to be absent, and the others are left
        out.
    """
    scores, included = checked_scores("scores", scores), np.asarray(included, bool)
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
    """Bounds the probability of so many correct guesses if a claim is true.

    With W binomial with `guesses` trials of probability e^epsilon / (1 + e^epsilon),
    the bound is

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
    """Returns the epsilon at which `one_run_p_value` is 1 - `confidence`, or 0."""
    _check_confidence(confidence)

    def excess(epsilon: float) -> float:
        p = one_run_p_value(canaries, guesses, correct, epsilon, delta)
        return p - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high))


def _rates(counts: Errors, confidence: float) -> tuple[float, float]:
    """Upper bounds of both error rates, which hold together."""
    _check_confidence(confidence)
    each = (1 + confidence) / 2
    return (
        clopper_pearson(counts.false_positives, counts.absent, each),
        clopper_pearson(counts.false_negatives, counts.present, each),
    )


def checked_scores(name: str, values: ArrayLike, least: int = 1) -> np.ndarray:
    """Returns scores as a flat array; refuses NaN, and fewer than `least`."""
    values = np.asarray(values, float).ravel()
    if values.size < least or np.isnan(values).any():
        what = "NaN among them" if np.isnan(values).any() else len(values) or "none"
        raise ValueError(
            f"{name} must be scores, at least {least} and all of them numbers, got "
            f"{what}"
        )
    return values


def _check_confidence(confidence: float) -> None:
    ends = {"open_low": True, "open_high": True, "schedules": False}
    check_range("confidence", confidence, 0, 1, **ends)


def _check_delta(delta: float) -> None:
    check_range("delta", delta, 0, 1, open_high=True, schedules=False)
