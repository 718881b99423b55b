"""Audits of a whole privacy profile, and of the noise that accounting assumes.

The profile of a mechanism is the smallest delta for every epsilon. A claim of it is
refuted by an event E of the releases with

    P[E | record] - e^epsilon P[E | no record] > delta(epsilon),

or with both kinds of worlds exchanged. One half of the worlds chooses epsilon and the
threshold of a score, and the other half bounds both probabilities:

    claimed = claimed_deltas(simulation.guarantee.spec)
    finding = refuted_profile(absent, present, claimed, level=1e-4)

A claim of one (epsilon, delta) alone is harder to refute: its delta is so small that no
event of a few thousand worlds has it.

`refuted_noise` and `refuted_law` test what accounting assumes: noise that is white, and
how often a record takes part. A false assumption makes the claim unfounded, even where
no event refutes it. Every test has a `level`, which bounds the probability of an alarm
if the claim is true; the bounds hold for finite numbers of worlds.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from fedjax_muon.core import check_range
from fedjax_muon.privacy.accounting import (
    ADD_OR_REMOVE,
    Gaussian,
    Pld,
    joint_multiplier,
    library,
    steps_event,
)
from fedjax_muon.privacy.audit import clopper_pearson
from fedjax_muon.privacy.guarantees import (
    PrivacySpec,
    checked_accountant,
    step_multipliers,
    transcript_multiplier,
    without_guarantee,
)
from fedjax_muon.privacy.sampling import Poisson

EPSILONS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0)
INTERVAL = 1e-3  # of privacy losses, which are rounded up
THRESHOLDS = 200


class Finding(NamedTuple):
    """Result of a test: an alarm if `excess` is positive."""

    test: str
    excess: float  # of a statistic over the largest value that the claim allows
    detail: str

    @property
    def alarm(self) -> bool:
        """Whether the claim, or what it assumes, is refuted."""
        return self.excess > 0


def claimed_deltas(*specs: PrivacySpec) -> dict[float, float]:
    """Computes the privacy profile that is claimed of one run, or of several together.

    Args:
      *specs: What every run releases.

    Returns:
      Delta for every epsilon of `EPSILONS`.

    Raises:
      ImportError: If dp-accounting is not installed.
    """
    if any(without_guarantee(spec.releases) for spec in specs):
        return dict.fromkeys(EPSILONS, 1.0)
    accountants = [checked_accountant(spec) for spec in specs]
    whole = [
        transcript_multiplier(spec) / spec.adjacency.factor
        for spec, accountant in zip(specs, accountants, strict=True)
        if isinstance(accountant, Gaussian)
    ]
    if len(whole) == len(specs):
        mu = 1 / joint_multiplier(*whole)
        return {e: gaussian_delta(mu, e) for e in EPSILONS}
    if not all(isinstance(found, Gaussian | Pld) for found in accountants):
        raise ValueError(f"profiles are those of Gaussian and Pld, got {accountants}")
    if any(spec.adjacency != ADD_OR_REMOVE for spec in specs):
        raise ValueError("profiles of sampled batches are those of ADD_OR_REMOVE")
    return dict(zip(EPSILONS, _pld_deltas(specs), strict=True))


@functools.lru_cache(maxsize=64)  # takes seconds
def _composed(events: tuple[tuple[Any, ...], ...]) -> tuple[float, ...]:
    accounting = library()
    # zeroing a record out is REPLACE_SPECIAL in the library, which cut batches need
    relation = accounting.NeighboringRelation.REPLACE_SPECIAL
    accountant = accounting.pld.PLDAccountant(relation, INTERVAL)
    for sampling, later, steps, first in events:
        accountant.compose(
            accounting.GaussianDpEvent(later)
            if sampling is None
            else steps_event(accounting, sampling, later, steps, first)
        )
    return tuple(float(accountant.get_delta(e)) for e in EPSILONS)


def _pld_deltas(specs: Sequence[PrivacySpec]) -> tuple[float, ...]:
    events: list[tuple[Any, ...]] = []
    for spec in specs:
        if isinstance(spec.sampling, Poisson):
            first, later = step_multipliers(spec)
            events.append((spec.sampling, later, spec.steps, first))
        else:
            events.append((None, transcript_multiplier(spec), 1, None))
    return _composed(tuple(events))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Returns the smallest delta of a Gaussian mechanism.

    Balle and Wang 2018, "Improving the Gaussian mechanism for differential privacy",
    Theorem 8.

    Args:
      mu: Sensitivity over standard deviation, positive.
      epsilon: Not negative.
    """
    inside = special.ndtr(mu / 2 - epsilon / mu)
    outside = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    return float(inside - math.exp(outside))


def refuted_profile(
    test: str,
    absent: ArrayLike,
    present: ArrayLike,
    claimed: Mapping[float, float],
    level: float,
) -> Finding:
    """Tests a claimed profile by the scores of one attack.

    Events are scores above a threshold, and scores below it in the other direction.

    Args:
      test: Name of the attack.
      absent: Scores of worlds without the record, [N].
      present: Scores of worlds with it, [M].
      claimed: Delta by epsilon, as from `claimed_deltas`.

    Returns:
      The finding; its excess is that of a lower bound of delta.
    """
    check_range("level", level, 0, 1, open_low=True, open_high=True, schedules=False)
    absent, present = _scores(absent), _scores(present)
    ways = {"present": (present, absent), "absent": (-absent, -present)}
    found = [
        _one_way(f"{test}, {way}", one, other, claimed, level / 2)
        for way, (one, other) in ways.items()
    ]
    best = max(found, key=lambda finding: finding.excess)
    return best._replace(test=test)


def _one_way(
    name: str,
    one: np.ndarray,
    other: np.ndarray,
    claimed: Mapping[float, float],
    level: float,
) -> Finding:
    """Tests P[one > threshold] <= e^epsilon P[other > threshold] + delta."""
    choosing = one[: len(one) // 2], other[: len(other) // 2]
    testing = one[len(one) // 2 :], other[len(other) // 2 :]
    epsilon, threshold = _chosen(*choosing, claimed)
    hits, false = (int((scores > threshold).sum()) for scores in testing)
    n, m = map(len, testing)
    confidence = 1 - level / 2
    least = 1 - clopper_pearson(n - hits, n, confidence)
    most = clopper_pearson(false, m, confidence)
    bound = least - math.exp(epsilon) * most
    detail = (
        f"{name}: delta({epsilon:g}) >= {bound:.4f}, claimed {claimed[epsilon]:.4f}"
    )
    return Finding(name, bound - claimed[epsilon], detail)


def _chosen(
    one: np.ndarray, other: np.ndarray, claimed: Mapping[float, float]
) -> tuple[float, float]:
    """The epsilon and the threshold that promise the largest excess."""
    both = np.sort(np.concatenate([one, other]))
    places = np.linspace(0, len(both) - 1, THRESHOLDS + 2)[1:-1].astype(int)
    extremes = np.array([both[-2], other.max(), other.min()])
    levels = np.unique(np.concatenate([both[places], extremes]))
    p = 1 - np.searchsorted(np.sort(one), levels, "right") / len(one)
    q = 1 - np.searchsorted(np.sort(other), levels, "right") / len(other)
    epsilons = np.array(list(claimed))[:, None]
    deltas = np.array(list(claimed.values()))[:, None]
    factor = np.exp(epsilons)
    # a rough bound: four standard deviations, and Poisson's for no events
    spread = lambda p, n: 4 * np.sqrt(p * (1 - p) / n) + 8 / n
    promise = p - spread(p, len(one)) - factor * (q + spread(q, len(other))) - deltas
    row, column = np.unravel_index(np.argmax(promise), promise.shape)
    return float(epsilons[row, 0]), float(levels[column])


def refuted_noise(noise: ArrayLike, level: float) -> Finding:
    """Tests that noise is white, with at least unit variance in every direction.

    The smallest singular value of N draws from N(0, I) in d dimensions is below
    sqrt(N) - sqrt(d) - t with a probability of at most exp(-t^2 / 2) (Davidson and
    Szarek 2001). Noise that is too small, shared or used again has a direction of small
    variance.

    Args:
      noise: All noise of every world, [N, d], in claimed standard deviations.

    Returns:
      The finding; its excess is that of a standard deviation below the least.
    """
    check_range("level", level, 0, 1, open_low=True, open_high=True, schedules=False)
    noise = np.asarray(noise, np.float64)
    worlds, dimensions = noise.shape
    if worlds <= dimensions:
        raise ValueError(
            f"there must be more worlds than the {dimensions} dimensions of the noise, "
            f"got {worlds}"
        )
    t = math.sqrt(-2 * math.log(level))
    least = 1 - (math.sqrt(dimensions) + t) / math.sqrt(worlds)
    smallest = np.linalg.eigvalsh(noise.T @ noise / worlds)[0]
    found = math.sqrt(max(0.0, float(smallest)))
    detail = f"noise: standard deviation {found:.3f}, claimed 1, allowed {least:.3f}"
    return Finding("noise", least - found, detail)


def refuted_law(
    test: str, values: ArrayLike, cdf: Callable[[np.ndarray], np.ndarray], level: float
) -> Finding:
    """Tests that independent values have a distribution.

    The largest distance of both distribution functions exceeds t with a probability of
    at most 2 exp(-2 n t^2) (Massart 1990).

    Args:
      values: Independent values, any shape.
      cdf: The claimed distribution function, continuous.

    Returns:
      The finding; its excess is that of the distance.
    """
    check_range("level", level, 0, 1, open_low=True, open_high=True, schedules=False)
    values = np.sort(_scores(values))
    n, below = len(values), cdf(values)
    steps = np.arange(n + 1) / n
    distance = max(np.max(steps[1:] - below), np.max(below - steps[:-1]))
    most = math.sqrt(math.log(2 / level) / (2 * n))
    detail = f"{test}: distance of distributions {distance:.4f}, allowed {most:.4f}"
    return Finding(test, float(distance) - most, detail)


def refuted_energy(test: str, residuals: ArrayLike, level: float) -> Finding:
    """Tests that residuals are no larger than noise N(0, 1).

    Args:
      residuals: What remains without the claimed signal, any shape.

    Returns:
      The finding; its excess is that of the mean square.
    """
    check_range("level", level, 0, 1, open_low=True, open_high=True, schedules=False)
    residuals = _scores(residuals)
    n = len(residuals)
    most = float(stats.chi2.isf(level, n)) / n
    found = float(np.mean(residuals**2))
    detail = f"{test}: mean square {found:.4f}, claimed 1, allowed {most:.4f}"
    return Finding(test, found - most, detail)


def linear_score(
    absent: np.ndarray, present: np.ndarray, ridge: float = 1e-4
) -> np.ndarray:
    """Learns a score from worlds that are not tested: Fisher's discriminant.

    It finds directions in which noise cancels, whatever noise is shared.

    Args:
      absent: Releases of worlds without the record, [N, d].
      present: Releases of worlds with it, [M, d].
      ridge: Share of the mean variance that is added to all variances.

    Returns:
      Weights of the releases, [d].
    """
    covariance = (np.cov(absent.T) + np.cov(present.T)) / 2
    covariance = np.atleast_2d(covariance)
    own = ridge * np.trace(covariance) / len(covariance) + np.finfo(float).tiny
    shift = present.mean(0) - absent.mean(0)
    return np.linalg.solve(covariance + own * np.eye(len(covariance)), shift)


def _scores(values: ArrayLike) -> np.ndarray:
    values = np.asarray(values, float).ravel()
    if len(values) < 2 or np.isnan(values).any():
        raise ValueError("scores must be at least two, and all of them numbers")
    return values
