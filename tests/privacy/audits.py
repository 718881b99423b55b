"""Audits of what a private simulation claims, and of what its accounting assumes.

The claim is an epsilon for every delta. Scores of worlds with and without the canary
bound epsilon from below (`jax_privacy.auditing`); a bound above the claim refutes it.
Accounting assumes that noise is white, and how often a record takes part. A false
assumption makes the claim unfounded, even where no score refutes it. `level` bounds the
probability that anything is refuted that is true; without an alarm nothing is proved.
"""

import functools
import math

import numpy as np
from jax_privacy.auditing import CanaryScoreAuditor, Split
from scipy import special, stats

from fedjax_muon.privacy.accounting import gaussian_epsilon
from fedjax_muon.privacy.guarantees import PrivacySpec
from fedjax_muon.privacy.ledger import (
    ADJACENCIES,
    Cost,
    cost_of,
    joint_gaussian,
    pld_accountant,
)
from fedjax_muon.privacy.sampling import Poisson
from tests.privacy.canaries import Record, Releases, participation

LEVEL = 1e-3
DELTAS = (0.003, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8)
INTERVAL = 1e-3  # of privacy losses, which are rounded up


def audited(record: Record, absent: Releases, present: Releases) -> list[str]:
    """What is refuted of a claim by what is seen without and with the canary."""
    scores = [_scores(record, releases) for releases in (absent, present)]
    attacks = {name: (scores[0][name], scores[1][name]) for name in scores[0]}
    attacks["learned"] = learned(absent.white, present.white)
    each = LEVEL / (len(attacks) + 3)
    claimed = claimed_epsilons(record.spec)
    return [
        *(
            f"profile: {name}"
            for name, pair in attacks.items()
            if refutes_profile(*pair, claimed, each)
        ),
        *(["noise"] if refutes_white(absent.white, each) else []),
        *_laws_refuted(record, present, each),
    ]


def audited_together(
    records: list[Record], absent: list[Releases], present: list[Releases]
) -> list[str]:
    """The same of several simulations, of the same worlds, together."""
    white = [
        np.concatenate([one.white for one in some], 1) for some in (absent, present)
    ]
    claimed = claimed_epsilons(*(record.spec for record in records))
    found = refutes_profile(*learned(*white), claimed, LEVEL / 2)
    noise = refutes_white(white[0], LEVEL / 2)
    refuted = {"profile: learned": found, "noise": noise}
    return [name for name, is_refuted in refuted.items() if is_refuted]


# ------------------------------------------------------------------------ the claim
def claimed_epsilons(*specs: PrivacySpec) -> tuple[float, ...]:
    """What is claimed of one run, or of several together, for each of `DELTAS`."""
    return _epsilons(tuple(map(cost_of, specs)))


@functools.lru_cache(maxsize=64)  # takes seconds
def _epsilons(costs: tuple[Cost, ...]) -> tuple[float, ...]:
    gaussian = joint_gaussian(costs)
    if gaussian is not None and all(cost.sampling is None for cost in costs):
        multiplier = gaussian / ADJACENCIES[costs[0].adjacency].factor
        return tuple(gaussian_epsilon(multiplier, delta) for delta in DELTAS)
    accountant = pld_accountant(costs, INTERVAL)
    return tuple(float(accountant.get_epsilon(delta)) for delta in DELTAS)


def refutes_profile(
    absent: np.ndarray, present: np.ndarray, claimed: tuple[float, ...], level: float
) -> bool:
    """Whether scores of one attack bound epsilon above the claim, at any delta."""
    auditor = CanaryScoreAuditor(present, absent)
    for delta, epsilon in zip(DELTAS, claimed, strict=True):
        bound = auditor.epsilon_clopper_pearson(
            level / len(DELTAS),
            delta,
            one_sided=False,
            threshold_strategy=Split(seed=0),
        )
        if bound > epsilon:
            return True
    return False


def _scores(record: Record, releases: Releases) -> dict[str, np.ndarray]:
    """The scores of every world, [N], by the name of the attack."""
    seen, pattern = releases.signal, record.pattern
    scores = {"first release": seen[:, 0]}
    if seen.shape[1] > 1:  # of noise that is used again
        scores["largest difference"] = np.abs(np.diff(seen, axis=-1)).max(-1)
    q = participation(record, seen.shape[1])
    if q == 1:
        return scores | {"matched filter": seen @ pattern / np.linalg.norm(pattern)}
    joins = np.log(q) + pattern * (seen - pattern / 2)
    return scores | {"likelihood ratio": np.logaddexp(np.log1p(-q), joins).sum(-1)}


def learned(absent: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores that a quarter of the worlds has learned, of the others.

    Fisher's discriminant finds directions in which noise cancels, whatever is shared.
    """
    n, m = len(absent) // 4, len(present) // 4
    covariance = (np.cov(absent[:n].T) + np.cov(present[:m].T)) / 2
    covariance = np.atleast_2d(covariance)
    added = 1e-4 * np.trace(covariance) / len(covariance) + np.finfo(float).tiny
    shift = present[:m].mean(0) - absent[:n].mean(0)
    weights = np.linalg.solve(covariance + added * np.eye(len(covariance)), shift)
    return absent[n:] @ weights, present[m:] @ weights


# ------------------------------------------------------------------- the assumptions
def refutes_white(noise: np.ndarray, level: float) -> bool:
    """Whether noise [N, d] has less than unit variance in some direction.

    The smallest singular value of N draws from N(0, I) in d dimensions is below
    sqrt(N) - sqrt(d) - t with a probability of at most exp(-t^2 / 2) (Davidson and
    Szarek 2001). Noise that is too small, shared or used again has such a direction.
    """
    worlds, dimensions = noise.shape
    assert worlds > dimensions
    t = math.sqrt(-2 * math.log(level))
    least = 1 - (math.sqrt(dimensions) + t) / math.sqrt(worlds)
    smallest = np.linalg.eigvalsh(noise.T @ noise / worlds)[0]
    return math.sqrt(max(0.0, float(smallest))) < least


def _laws_refuted(record: Record, seen: Releases, level: float) -> list[str]:
    """Whether the canary and the others take part as the sampling says."""
    if not isinstance(record.spec.sampling, Poisson):  # at one place of the cycle
        phases = record.pattern[None] if record.phases is None else record.phases
        energies = [float(((seen.signal - phase) ** 2).sum()) for phase in phases]
        p = float(stats.chi2.sf(min(energies), seen.signal.size))
        return ["participation"] if p < level else []
    others, joins = batch_law(record, seen.signal.shape[1])
    laws = {"participation": (seen.signal, np.array([1 - joins, joins]))}
    if seen.others.size:
        laws["batch sizes"] = seen.others, others
    return [
        name
        for name, (values, weights) in laws.items()
        if refutes_mixture(record.pattern, values, weights, level)
    ]


def refutes_mixture(
    pattern: np.ndarray, seen: np.ndarray, weights: np.ndarray, level: float
) -> bool:
    """Whether k records do not add k patterns with the probability weights[k]."""
    length = np.abs(pattern)
    assert np.allclose(length, length[0])  # the same noise in every step
    signed = (seen * np.sign(pattern)).ravel()

    def cdf(values: np.ndarray) -> np.ndarray:
        centers = np.arange(len(weights))[weights > 1e-12] * length[0]
        chances = weights[weights > 1e-12]
        return special.ndtr(values[:, None] - centers) @ chances

    return bool(stats.kstest(signed, cdf, method="asymp").pvalue < level)


def batch_law(record: Record, steps: int) -> tuple[np.ndarray, float]:
    """Returns the claimed law of a Poisson batch, in which the canary is a record."""
    n = record.examples
    if participation(record, steps) == 1:
        return np.eye(n)[n - 1], 1.0
    sampling = record.spec.sampling
    drawn = stats.binom.pmf(np.arange(n + 1), n, sampling.batch / n)
    room = min(n, sampling.max_batch or n)
    kept = np.zeros(n + 1)
    np.add.at(kept, np.minimum(np.arange(n + 1), room), drawn)
    share = np.arange(n + 1) / n  # that the canary is among the kept
    others = kept[:-1] * (1 - share[:-1]) + kept[1:] * share[1:]
    return others, float(kept @ share)
