"""Findings of an audit: tests of a privacy profile, and of what accounting assumes.

The profile of a mechanism is the smallest delta for every epsilon. A claim of it is
refuted by an event E of the releases with

    P[E | record] - e^epsilon P[E | no record] > delta(epsilon),

or with both kinds of worlds exchanged. One half of the worlds chooses epsilon and the
threshold of a score, and the other half bounds both probabilities. A claim of one
(epsilon, delta) alone is harder to refute: its delta is so small that no event of a few
thousand worlds has it.

`audited` tests what `worlds` has seen: the claimed profile, by several attacks, and
what accounting assumes, namely white noise, and how often a record takes part. A false
assumption makes the claim unfounded, even where no event refutes it. Every test has a
`level`, which bounds the probability of an alarm if the claim is true; the bounds hold
for finite numbers of worlds. Without an alarm nothing is proved.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from experiments.audits.worlds import Record, Releases, participation
from fedjax_muon import audits
from fedjax_muon.audits import checked_scores, clopper_pearson
from fedjax_muon.core import check_range
from fedjax_muon.privacy.guarantees import PrivacySpec, without_guarantee
from fedjax_muon.privacy.ledger import (
    ADJACENCIES,
    Cost,
    cost_of,
    joint_gaussian,
    pld_accountant,
)
from fedjax_muon.privacy.sampling import Poisson

LEVEL = 1e-3
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


def audited(
    record: Record, absent: Releases, present: Releases, level: float = LEVEL
) -> list[Finding]:
    """Tests the claim of a private simulation.

    Args:
      absent: What is seen in worlds without the canary.
      present: What is seen in worlds with it.
      level: Probability of any alarm if the claim is true, at most.

    Returns:
      Findings; those of the claimed profile are first.
    """
    claimed = claimed_deltas(record.spec)
    attacks = _attacks(record, absent, present)
    laws = _laws(record, present)
    each = level / (len(attacks) + 1 + len(laws))
    return [
        *(
            refuted_profile(f"profile: {name}", *pair, claimed, each)
            for name, pair in attacks.items()
        ),
        refuted_noise(absent.white, each),
        *(law(record, present, each) for law in laws),
    ]


def audited_together(
    records: list[Record],
    absent: list[Releases],
    present: list[Releases],
    level: float = LEVEL,
) -> list[Finding]:
    """Tests the claims of several simulations, of the same worlds, together."""
    claimed = claimed_deltas(*(record.spec for record in records))
    white = [
        np.concatenate([one.white for one in some], 1) for some in (absent, present)
    ]
    learned = _learned(*white)
    return [
        refuted_profile("profile: learned", *learned, claimed, level / 2),
        refuted_noise(white[0], level / 2),
    ]


def _attacks(
    record: Record, absent: Releases, present: Releases
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Scores of worlds without and with the canary, by the name of the attack."""
    scores = [_scores(record, releases) for releases in (absent, present)]
    pairs = {name: (scores[0][name], scores[1][name]) for name in scores[0]}
    return pairs | {"learned": _learned(absent.white, present.white)}


def _learned(absent: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A score that a quarter of the worlds has learned, of the other worlds."""
    n, m = len(absent) // 4, len(present) // 4
    weights = linear_score(absent[:n], present[:m])
    return absent[n:] @ weights, present[m:] @ weights


def _scores(record: Record, releases: Releases) -> dict[str, np.ndarray]:
    """The scores of every world, [N], by the name of the attack."""
    signal, steps = releases.signal, releases.signal.shape[1]
    scores = {"first release": signal[:, 0]}
    if steps > 1:
        scores["largest difference"] = audits.largest_difference(signal)
        scores["largest release"] = (signal * np.sign(record.pattern)).max(1)
    q = participation(record, steps)
    if q == 1:
        scores["matched filter"] = audits.matched_filter(signal, record.pattern)
        return scores
    scores["likelihood ratio"] = audits.likelihood_ratio(signal, record.pattern, q)
    if releases.others.size:
        scores["exact sizes"] = _exact_sizes(record, releases, q)
    return scores


def _exact_sizes(record: Record, releases: Releases, q: float) -> np.ndarray:
    """Likelihood ratio if every batch has exactly the expected size.

    The canary then takes the place of another record, whose part is missing.
    """
    size = record.spec.sampling.batch
    a, others = record.pattern, releases.others

    def normal(seen: np.ndarray, mean: np.ndarray) -> np.ndarray:
        return -((seen - mean) ** 2) / 2

    joins = np.log(q) + normal(others, (size - 1) * a)
    stays = np.log1p(-q) + normal(others, size * a)
    joined, none = normal(releases.signal, a), normal(releases.signal, 0 * a)
    with_canary = np.logaddexp(joins + joined, stays + none)
    without = np.logaddexp(joins, stays) + none
    return (with_canary - without).sum(-1)


def linear_score(
    absent: np.ndarray, present: np.ndarray, ridge: float = 1e-4
) -> np.ndarray:
    """Learns a score from worlds that are not tested: Fisher's discriminant.

    It finds directions in which noise cancels, whatever noise is shared.

    Args:
      absent: Releases of worlds without the record, [N, d].
      present: Releases of worlds with it, [M, d].
      ridge: Share of the mean variance that is added to all variances.
    """
    covariance = (np.cov(absent.T) + np.cov(present.T)) / 2
    covariance = np.atleast_2d(covariance)
    added = ridge * np.trace(covariance) / len(covariance) + np.finfo(float).tiny
    shift = present.mean(0) - absent.mean(0)
    return np.linalg.solve(covariance + added * np.eye(len(covariance)), shift)


def claimed_deltas(*specs: PrivacySpec) -> dict[float, float]:
    """Computes the profile that is claimed of one run, or of several together.

    Returns:
      Delta for every epsilon of `EPSILONS`.
    """
    if any(without_guarantee(spec.releases) for spec in specs):
        return dict.fromkeys(EPSILONS, 1.0)
    return dict(zip(EPSILONS, _deltas(tuple(map(cost_of, specs))), strict=True))


@functools.lru_cache(maxsize=64)  # takes seconds
def _deltas(costs: tuple[Cost, ...]) -> tuple[float, ...]:
    gaussian = joint_gaussian(costs)
    if gaussian is not None and all(cost.sampling is None for cost in costs):
        mu = ADJACENCIES[costs[0].adjacency].factor / gaussian
        return tuple(gaussian_delta(mu, e) for e in EPSILONS)
    accountant = pld_accountant(costs, INTERVAL)
    return tuple(float(accountant.get_delta(e)) for e in EPSILONS)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Returns the smallest delta of a Gaussian mechanism.

    Balle and Wang 2018, "Improving the Gaussian mechanism for differential privacy",
    Theorem 8; mu is the sensitivity over the standard deviation.
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

    Events are scores above a threshold, and scores below it in the other direction. The
    excess is that of a lower bound of delta.
    """
    _check_level(level)
    absent, present = _checked(absent), _checked(present)
    ways = {"present": (present, absent), "absent": (-absent, -present)}
    findings = [
        _one_way(f"{test}, {way}", one, other, claimed, level / 2)
        for way, (one, other) in ways.items()
    ]
    best = max(findings, key=lambda finding: finding.excess)
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
    """
    _check_level(level)
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
    std = math.sqrt(max(0.0, float(smallest)))
    detail = f"noise: standard deviation {std:.3f}, claimed 1, allowed {least:.3f}"
    return Finding("noise", least - std, detail)


def refuted_law(
    test: str, values: ArrayLike, cdf: Callable[[np.ndarray], np.ndarray], level: float
) -> Finding:
    """Tests that independent values have a continuous distribution function.

    The largest distance of both distribution functions exceeds t with a probability of
    at most 2 exp(-2 n t^2) (Massart 1990).
    """
    _check_level(level)
    values = np.sort(_checked(values))
    n, below = len(values), cdf(values)
    steps = np.arange(n + 1) / n
    distance = max(np.max(steps[1:] - below), np.max(below - steps[:-1]))
    most = math.sqrt(math.log(2 / level) / (2 * n))
    detail = f"{test}: distance of distributions {distance:.4f}, allowed {most:.4f}"
    return Finding(test, float(distance) - most, detail)


def refuted_energy(test: str, residuals: ArrayLike, level: float) -> Finding:
    """Tests that what remains without the claimed signal is no larger than N(0, 1)."""
    _check_level(level)
    residuals = _checked(residuals)
    n = len(residuals)
    most = float(stats.chi2.isf(level, n)) / n
    square = float(np.mean(residuals**2))
    detail = f"{test}: mean square {square:.4f}, claimed 1, allowed {most:.4f}"
    return Finding(test, square - most, detail)


def _laws(
    record: Record, seen: Releases
) -> tuple[Callable[[Record, Releases, float], Finding], ...]:
    if not isinstance(record.spec.sampling, Poisson):
        return (_law_of_cycle,)
    return (_law_of_record, _law_of_others) if seen.others.size else (_law_of_record,)


def _law_of_cycle(record: Record, present: Releases, level: float) -> Finding:
    """The canary takes part where its place in the cycle says, at one of the places."""
    patterns = record.pattern[None] if record.phases is None else record.phases
    results = [
        refuted_energy("participation", present.signal - pattern, level)
        for pattern in patterns
    ]
    return min(results, key=lambda finding: finding.excess)


def _law_of_record(record: Record, present: Releases, level: float) -> Finding:
    """The canary joins every batch with the claimed probability."""
    steps = present.signal.shape[1]
    _, joins = batch_law(record, steps)
    weights = np.array([1 - joins, joins])
    return _mixture("participation", record, present.signal, weights, level)


def _law_of_others(record: Record, present: Releases, level: float) -> Finding:
    """The number of other records in a batch is that of independent coins."""
    steps = present.others.shape[1]
    counts, _ = batch_law(record, steps)
    return _mixture("batch sizes", record, present.others, counts, level)


def _mixture(
    test: str, record: Record, seen: np.ndarray, weights: np.ndarray, level: float
) -> Finding:
    """Tests that k records add k patterns with the probability weights[k]."""
    length = np.abs(record.pattern)
    if not np.allclose(length, length[0]):
        raise ValueError("the noise multiplier must be the same in every step")
    centers = np.arange(len(weights)) * length[0]
    signed = seen * np.sign(record.pattern)

    def cdf(values: ArrayLike) -> np.ndarray:
        total = np.zeros(np.shape(values))
        for center, weight in zip(centers, weights, strict=True):
            if weight > 1e-12:
                total += weight * special.ndtr(np.asarray(values) - center)
        return total

    return refuted_law(test, signed, cdf, level)


def batch_law(record: Record, steps: int) -> tuple[np.ndarray, float]:
    """Returns the claimed law of a Poisson batch, in which the canary is a record.

    Args:
      steps: Number of steps that are seen; one alone may be a full first batch.

    Returns:
      Probabilities of the numbers of other records in a batch, [n], and the probability
      that the canary is in it; larger draws are cut as the sampling says.
    """
    n = record.examples
    if participation(record, steps) == 1:
        return np.eye(n)[n - 1], 1.0
    sampling = record.spec.sampling
    assert isinstance(sampling, Poisson)
    drawn = stats.binom.pmf(np.arange(n + 1), n, sampling.batch / n)
    room = min(n, sampling.max_batch or n)
    kept = np.zeros(n + 1)
    np.add.at(kept, np.minimum(np.arange(n + 1), room), drawn)
    share = np.arange(n + 1) / n  # that the canary is among the kept
    others = kept[:-1] * (1 - share[:-1])
    others += kept[1:] * share[1:]
    return others, float(kept @ share)


def _checked(values: ArrayLike) -> np.ndarray:
    return checked_scores("scores", values, least=2)


def _check_level(level: float) -> None:
    check_range("level", level, 0, 1, open_low=True, open_high=True, schedules=False)
