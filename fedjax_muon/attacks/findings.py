"""Findings of an audit of a private simulation.

`audited` tests what `attacks.simulated` has seen: the claimed privacy profile, by
several attacks, and what accounting assumes, namely white noise and the claimed
participation. Any alarm means that the claim is false or unfounded; without an alarm
nothing is proved.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from fedjax_muon.attacks import canary
from fedjax_muon.attacks.simulated import Record, Releases, participation
from fedjax_muon.privacy.profile_audit import (
    Finding,
    claimed_deltas,
    linear_score,
    refuted_energy,
    refuted_law,
    refuted_noise,
    refuted_profile,
)
from fedjax_muon.privacy.sampling import Poisson

LEVEL = 1e-3


def audited(
    record: Record, absent: Releases, present: Releases, level: float = LEVEL
) -> list[Finding]:
    """Tests the claim of a private simulation.

    Args:
      record: The claim.
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
    """Tests the claim of several private simulations with the same canary.

    Args:
      records: The claims.
      absent: What is seen of each simulation in the same worlds without the canary.
      present: The same, with it.
      level: Probability of any alarm if the claims are true, at most.

    Returns:
      Findings about all releases together.
    """
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
    found = {"first release": signal[:, 0]}
    if steps > 1:
        found["largest difference"] = canary.largest_difference(signal)
        found["largest release"] = (signal * np.sign(record.pattern)).max(1)
    q = participation(record, steps)
    if q == 1:
        return found | {"matched filter": canary.matched_filter(signal, record.pattern)}
    found["likelihood ratio"] = canary.likelihood_ratio(signal, record.pattern, q)
    if releases.others.size:
        found["exact sizes"] = _exact_sizes(record, releases, q)
    return found


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
    own, none = normal(releases.signal, a), normal(releases.signal, 0 * a)
    with_canary = np.logaddexp(joins + own, stays + none)
    without = np.logaddexp(joins, stays) + none
    return (with_canary - without).sum(-1)


# --------------------------------------------------------------- claimed participation


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
        found = np.zeros(np.shape(values))
        for center, weight in zip(centers, weights, strict=True):
            if weight > 1e-12:
                found += weight * special.ndtr(np.asarray(values) - center)
        return found

    return refuted_law(test, signed, cdf, level)


def batch_law(record: Record, steps: int) -> tuple[np.ndarray, float]:
    """Returns the claimed law of a Poisson batch, in which the canary is a record.

    Args:
      record: The claim.
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
