"""Accounting: epsilon of a noise level, and the noise level of an epsilon.

A noise multiplier is the standard deviation of the noise over the L2 sensitivity to one
added or removed record. An accountant's `check(sampling, adjacency)` raises
`ValueError` for what it does not cover. The computations are those of dp-accounting, an
optional package.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_muon.core import check_count, check_range
from fedjax_muon.privacy.sampling import Poisson, Sampling
from fedjax_muon.versions import optional

# Epsilons for which noise is found to a thousandth; the largest protect nothing.
LEAST, MOST = 1e-4, 1e7
# Points of the distribution of losses in one step, and in all of them: memory.
STEP_POINTS, POINTS = 1.5e5, 1e6
USUAL_STEP, USUAL_TOTAL = 100.0, 400.0  # losses up to which the usual interval fits
# The error of the probability of large losses that Fourier transforms add per step. It
# is below 1e-16 in comparisons with an accountant whose probabilities are tilted.
ROUNDING = 1e-15


class Adjacency(NamedTuple):
    """Which datasets count as neighbors."""

    meaning: str  # in words, for the statement
    factor: float  # sensitivity over the sensitivity to one added record
    relation: str  # name in dp_accounting.NeighboringRelation


ADD_OR_REMOVE = Adjacency(
    "one record is added or removed (zero-out: the others keep their places)",
    1.0,
    "ADD_OR_REMOVE_ONE",
)
REPLACE_ONE = Adjacency("one record is replaced by another", 2.0, "REPLACE_ONE")


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """Returns the exact epsilon of one Gaussian mechanism.

    Balle and Wang 2018, "Improving the Gaussian mechanism for differential privacy",
    Theorem 8. It is infinite without noise.
    """
    check_range("multiplier", multiplier, schedules=False)
    check_delta(delta)
    with np.errstate(divide="ignore"):  # the logarithm of a delta that is 0
        return float(library().get_epsilon_gaussian(multiplier, delta))


def joint_multiplier(*multipliers: float) -> float:
    """Returns the noise multiplier of several releases together: (sum_i z_i^-2)^(-1/2).

    Example:
      >>> joint_multiplier(3.0, 4.0)
      2.4
    """
    if not multipliers:
        raise ValueError("joint_multiplier needs at least one multiplier, got none")
    for multiplier in multipliers:
        check_range("multiplier", multiplier, schedules=False)
    if min(multipliers) == 0:
        return 0.0
    return 1 / math.sqrt(sum(z**-2 for z in multipliers))


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """One exact Gaussian mechanism over the whole transcript, not amplified."""

    def __str__(self) -> str:
        return "exact Gaussian mechanism"

    def check(self, sampling: Sampling, adjacency: Adjacency) -> None:
        """Raises `ValueError` for sampling that amplifies privacy."""
        if sampling.amplifies:
            raise ValueError(
                f"the exact Gaussian accountant covers Cyclic and FullBatch, "
                f"got {sampling!r}: use Pld"
            )

    def epsilon(self, multiplier: float, delta: float, adjacency: Adjacency) -> float:
        """Returns the epsilon of a whole transcript with this noise multiplier."""
        return gaussian_epsilon(multiplier / adjacency.factor, delta)


@dataclasses.dataclass(frozen=True)
class Pld:
    """Privacy loss distributions, composed numerically.

    Tight up to the discretization (Koskela et al. 2020, arXiv:1906.03049; Doroshenko et
    al. 2022, arXiv:2207.04380). A coarser interval is faster and overestimates epsilon.
    """

    # of privacy losses, which are rounded up, where the losses are neither small nor
    # large; see `interval_of`
    interval: float = 1e-4

    def __post_init__(self) -> None:
        check_range("interval", self.interval, open_low=True, schedules=False)

    def __str__(self) -> str:
        return f"privacy loss distribution, interval {self.interval:g}"

    def check(self, sampling: Sampling, adjacency: Adjacency) -> None:
        """Raises `ValueError` unless the sampling is Poisson.

        Batches of limited size are covered only for an added or removed record.
        """
        if not isinstance(sampling, Poisson):
            raise ValueError(
                f"Pld does not cover {sampling!r}: batches that are not drawn "
                "independently, such as shuffled or cyclic ones, must not be treated "
                "as Poisson samples (Chua et al. 2024, arXiv:2403.17673): use Gaussian"
            )
        if sampling.max_batch is not None and adjacency != ADD_OR_REMOVE:
            raise ValueError(
                f"Pld covers batches of at most {sampling.max_batch} only for an added "
                "or removed record: drop max_batch, or use ADD_OR_REMOVE"
            )

    def epsilon(
        self,
        sampling: Sampling,
        multiplier: float,
        steps: int,
        delta: float,
        adjacency: Adjacency = ADD_OR_REMOVE,
        first_multiplier: float | None = None,
    ) -> float:
        """Returns the epsilon of a run."""
        self.check(sampling, adjacency)
        check_delta(delta)
        run = (sampling, multiplier, steps, delta, adjacency, first_multiplier)
        return _pld_epsilon(self.interval, *run)


class Turns(NamedTuple):
    """Steps in which a record may take part, as needed to bound the losses."""

    probability: float
    ratio: float  # of the sensitivity to the noise
    steps: int
    cut: bool  # whether batches have a largest size


def turns_of(
    sampling: Poisson,
    multiplier: float,
    steps: int,
    adjacency: Adjacency,
    first_multiplier: float | None,
) -> list[Turns]:
    """The steps of a run; all multipliers must be positive."""
    probability, cut = sampling.batch / sampling.group, sampling.max_batch is not None
    steps = -(-steps // sampling.cycle)  # of the first group, which has most turns
    turns = [Turns(probability, adjacency.factor / multiplier, steps, cut)]
    if first_multiplier not in (None, multiplier) or sampling.first_batch is not None:
        first_multiplier = first_multiplier or multiplier
        turns.append(Turns(1.0, adjacency.factor / first_multiplier, 1, False))
    return turns


def interval_of(interval: float, turns: Sequence[Turns]) -> float:
    """The interval of losses at which noise is found to about 3e-4.

    It is finer than `Pld.interval` if the losses of a step are that small, and coarser
    where the distribution would not fit in memory, which is for losses of hundreds.
    """
    finest, step, total = 1e-4, 0.0, 0.0
    for probability, ratio, steps, cut in turns:
        spread = probability * math.sqrt(math.expm1(min(ratio**2, 100.0)))
        if spread / 20 < 5e-5:  # else the usual interval is near enough
            finest = min(finest, spread / 20)
        mean = steps * probability  # of the number of turns; then almost their largest
        most = min(steps, mean + 8 * math.sqrt(mean) + 15)
        total += most * ratio**2 / 2 + 10 * ratio * math.sqrt(most)
        wide = 4 * ratio if cut else ratio  # what `_step` composes with a small weight
        step = max(step, wide**2 / 2 + 10 * wide)
    if finest == 1e-4 and step <= USUAL_STEP and total <= USUAL_TOTAL:
        return interval
    return interval / 1e-4 * max(finest, step / STEP_POINTS, total / POINTS)


def composed_delta(delta: float, turns: Sequence[Turns]) -> float:
    """Delta less the possible error of numerical composition."""
    steps = sum(each.steps for each in turns)
    least = 30 * ROUNDING * steps
    if delta < least:
        raise ValueError(
            f"delta must be at least {least:.2g} where {steps} steps are sampled, got "
            f"{delta:g}: their accounting resolves no less; raise delta, or let all "
            "take part in every step, which has no such limit"
        )
    return delta - ROUNDING * steps


@np.errstate(over="ignore")  # in a tail bound, of which another is used then
@functools.lru_cache(maxsize=256)  # takes seconds, and methods share their epsilons
def _pld_epsilon(
    interval: float,
    sampling: Poisson,
    multiplier: float,
    steps: int,
    delta: float,
    adjacency: Adjacency,
    first_multiplier: float | None,
) -> float:
    accounting = library()
    # which accepts truncated batches only for a record that is zeroed out
    relation = adjacency.relation if sampling.max_batch is None else "REPLACE_SPECIAL"
    event = steps_event(accounting, sampling, multiplier, steps, first_multiplier)
    if multiplier == 0 or first_multiplier == 0:
        return math.inf
    turns = turns_of(sampling, multiplier, steps, adjacency, first_multiplier)
    accountant = accounting.pld.PLDAccountant(
        getattr(accounting.NeighboringRelation, relation), interval_of(interval, turns)
    )
    accountant.compose(event)
    return float(accountant.get_epsilon(composed_delta(delta, turns)))


Accountant = Gaussian | Pld


def calibrate_noise(
    epsilon: Callable[[float], float],
    target: float,
    tolerance: float = 1e-5,
    rough: Callable[[float], float] | None = None,
) -> float:
    """Finds the smallest noise level that reaches a target epsilon.

    Args:
      epsilon: Function of the noise level, which must not increase.
      target: Largest epsilon allowed; infinity needs no noise.
      rough: A fast approximation of `epsilon`, to evaluate that only a few times.

    Returns:
      A level with epsilon(level) <= target that exceeds the smallest such level by at
      most `tolerance`, relative to it. With `rough` this is judged by its slope.
    """
    check_epsilon(target)
    if target == math.inf:
        return 0.0
    level = None
    if rough is not None:
        level = _by_rough_epsilon(epsilon, rough, target, tolerance)
    if level is None:
        level = _smallest_level(epsilon, target, tolerance)
    if level is None:
        raise ValueError(
            f"no noise level reaches epsilon {target:g}, got {epsilon(2.0**40):g} at "
            "the largest and more noise does not help: raise epsilon or delta"
        )
    # Both searches end at a level whose epsilon is at most the target.
    if epsilon(level * (1 - max(tolerance, 1e-3))) <= target:
        raise ValueError(
            f"the least noise for epsilon {target:g} was not found: {level:g} exceeds "
            "it by over a thousandth; give another epsilon, or the noise"
        )
    return level


def _by_rough_epsilon(
    epsilon: Callable[[float], float],
    rough: Callable[[float], float],
    target: float,
    tolerance: float,
) -> float | None:
    """The level where the rough epsilon, plus its error there, is the target.

    None if the error differs so much between levels that this does not converge.
    """
    aim = target
    for _ in range(5):
        level = _smallest_level(rough, aim, tolerance / 4) if aim > 0 else None
        if level is None:
            return None
        exact = epsilon(level)
        error = exact - rough(level)
        if exact <= target < rough(level * (1 - tolerance)) + error:
            return level
        aim = target - error
    return None


def _smallest_level(
    epsilon: Callable[[float], float], target: float, tolerance: float
) -> float | None:
    """As `calibrate_noise`; None if no level reaches the target."""

    def excess(log: float) -> float:  # between -1 and 1 even if epsilon is 0 or inf
        return 1 - 2 * target / (epsilon(math.exp(log)) + target)

    bracket = _bracket(excess, 0.5 * math.log(2), 40 * math.log(2))
    if bracket is None:
        return None
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


def check_epsilon(epsilon: float) -> None:
    """Checks that noise can be found for an epsilon; an infinite one needs none."""
    if not isinstance(epsilon, (int, float)) or isinstance(epsilon, bool):
        raise TypeError(f"epsilon must be a number, got {epsilon!r}")
    if not (LEAST <= epsilon <= MOST or epsilon == math.inf):
        raise ValueError(
            f"epsilon must lie in [{LEAST:g}, {MOST:g}], or be inf, for a run without "
            f"noise and without privacy, got {epsilon:g}"
        )


def steps_event(
    accounting: Any,
    sampling: Poisson,
    multiplier: float,
    steps: int,
    first_multiplier: float | None,
) -> Any:
    """The composition of step 0, a full batch if there is one, and the later steps."""
    first = multiplier if first_multiplier is None else first_multiplier
    for name, one in (("multiplier", multiplier), ("first_multiplier", first)):
        check_range(name, one, schedules=False)
    check_count("steps", steps)
    if sampling.cycle > 1:
        if first != multiplier:
            raise ValueError(
                f"a cycle of {sampling.cycle} groups needs the same noise in every "
                f"step, got multipliers {first} at step 0 and {multiplier} later"
            )
        steps = -(-steps // sampling.cycle)  # of the first group, which has most turns
    step = _step(accounting, sampling, multiplier)
    if sampling.first_batch is None and first == multiplier:
        return accounting.SelfComposedDpEvent(step, steps)
    if sampling.first_batch is None:
        start = _step(accounting, sampling, first)
    else:
        start = accounting.GaussianDpEvent(first)
    rest = [accounting.SelfComposedDpEvent(step, steps - 1)] if steps > 1 else []
    return accounting.ComposedDpEvent([start, *rest])


def _step(accounting: Any, sampling: Poisson, multiplier: float) -> Any:
    n, b = sampling.group, sampling.batch
    if sampling.max_batch is None:
        gaussian = accounting.GaussianDpEvent(multiplier)
        return accounting.PoissonSampledDpEvent(b / n, gaussian)
    return accounting.TruncatedSubsampledGaussianDpEvent(
        n, b / n, sampling.max_batch, multiplier
    )


def check_delta(delta: float) -> float:
    """Returns a delta; raises `ValueError` if it is not in (0, 1)."""
    check_range("delta", delta, 0, 1, open_low=True, open_high=True, schedules=False)
    return delta


def library() -> Any:
    """Imports dp-accounting."""
    return optional("dp-accounting", "privacy accounting", module="dp_accounting")
