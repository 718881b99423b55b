"""Epsilon of a noise level, and the noise level of an epsilon.

A multiplier is the standard deviation of the noise divided by the L2 sensitivity to one
added or removed record. Accountants are values with `check(sampling, adjacency)`, which
refuses what they do not cover, and `epsilon(...)`. The computations are those of
dp-accounting (optional; `ImportError` says how to install it).
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from scipy import optimize

from fedjax_muon.core import check_count, check_range
from fedjax_muon.privacy.sampling import FixedSize, Poisson, Sampling
from fedjax_muon.versions import install_command


class Adjacency(NamedTuple):
    """Which data sets count as neighbours."""

    meaning: str
    factor: float  # by which it multiplies the sensitivity to one added record
    relation: str  # its name in dp_accounting.NeighboringRelation


ADD_OR_REMOVE = Adjacency(
    "one record is added or removed (zero-out: the others keep their places)",
    1.0,
    "ADD_OR_REMOVE_ONE",
)
REPLACE_ONE = Adjacency("one record is replaced by another", 2.0, "REPLACE_ONE")


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The exact epsilon of one Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""
    check_range("multiplier", multiplier, schedules=False)
    _check_delta(delta)
    return float(_library().get_epsilon_gaussian(multiplier, delta))


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The smallest multiplier of a Gaussian mechanism with this epsilon and delta."""
    check_epsilon(epsilon)
    _check_delta(delta)
    return float(_library().get_sigma_gaussian(epsilon, delta))


def joint(*multipliers: float) -> float:
    """The multiplier of releases that are made together: (sum_i z_i^-2)^(-1/2)."""
    if not multipliers:
        raise ValueError("joint needs at least one multiplier, got none")
    for multiplier in multipliers:
        check_range("multiplier", multiplier, schedules=False)
    if min(multipliers) == 0:
        return 0.0
    return 1 / math.sqrt(sum(z**-2 for z in multipliers))


def mean_only(multiplier: float, agents: int, colluders: int = 0) -> float:
    """The multiplier if only the agents' mean is seen and `colluders` tell theirs."""
    check_range("multiplier", multiplier, schedules=False)
    check_count("agents", agents)
    check_count("colluders", colluders, 0)
    if colluders >= agents:
        raise ValueError(
            f"colluders must be below the {agents} agents, got {colluders}: "
            "the agent itself does not collude"
        )
    return multiplier * math.sqrt(agents - colluders)


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """One Gaussian mechanism over the whole transcript: exact, not amplified."""

    def __str__(self):
        return "exact Gaussian mechanism"

    def check(self, sampling: Sampling, adjacency: Adjacency) -> None:
        if sampling.amplifies:
            raise ValueError(
                f"the exact Gaussian accountant covers Cyclic, Shuffled and FullBatch, "
                f"got {sampling!r}: use Pld or Rdp"
            )

    def epsilon(self, multiplier: float, delta: float, adjacency: Adjacency) -> float:
        """Epsilon for the multiplier of the whole transcript."""
        return gaussian_epsilon(multiplier / adjacency.factor, delta)


@dataclasses.dataclass(frozen=True)
class Pld:
    """Privacy loss distributions, discretised upwards in steps of `interval`.

    Numerical composition, tight up to the discretisation (Koskela et al. 2020,
    arXiv:1906.03049; Doroshenko et al. 2022, arXiv:2207.04380). A coarser interval is
    faster, and its epsilon too large rather than too small.
    """

    interval: float = 1e-4

    def __post_init__(self):
        check_range("interval", self.interval, open_low=True, schedules=False)

    def __str__(self):
        return f"privacy loss distribution, interval {self.interval:g}"

    def check(self, sampling: Sampling, adjacency: Adjacency) -> None:
        """Covers Poisson sampling; truncated only for an added or removed record."""
        if not isinstance(sampling, Poisson):
            raise ValueError(_not_poisson("Pld", sampling))
        if sampling.longest is not None and adjacency != ADD_OR_REMOVE:
            raise ValueError(
                f"Pld covers batches of at most {sampling.longest} only for an added "
                "or removed record: drop longest, or use ADD_OR_REMOVE"
            )

    def epsilon(
        self,
        sampling: Sampling,
        multiplier: float,
        steps: int,
        delta: float,
        adjacency: Adjacency = ADD_OR_REMOVE,
        first: float | None = None,
    ) -> float:
        """Epsilon of `steps` steps, step 0 with the multiplier `first` if given."""
        self.check(sampling, adjacency)
        asked = (sampling, multiplier, steps, _check_delta(delta), adjacency, first)
        return _pld_epsilon(self.interval, *asked)


@functools.lru_cache(maxsize=256)  # seconds each; methods that differ ask for the same
def _pld_epsilon(interval, sampling, multiplier, steps, delta, adjacency, first):
    accounting = _library()
    accountant = accounting.pld.PLDAccountant(
        getattr(accounting.NeighboringRelation, _relation(sampling, adjacency)),
        interval,
    )
    event = _event(accounting, sampling, multiplier, steps, first)
    return float(accountant.compose(event).get_epsilon(delta))


@dataclasses.dataclass(frozen=True)
class Rdp:
    """Renyi differential privacy (Mironov 2017); an upper bound, looser than `Pld`.

    `orders` are those of dp-accounting unless given: 1.1, 1.2, ..., 10.9, 11, ..., 63,
    128, 256, 512, 1024.
    """

    orders: tuple[float, ...] | None = None

    def __post_init__(self):
        for order in self.orders or ():
            check_range("orders", order, 1, open_low=True, schedules=False)

    def __str__(self):
        return "Renyi differential privacy"

    def check(self, sampling: Sampling, adjacency: Adjacency) -> None:
        """Covers Poisson for an added record, fixed size for a replaced one."""
        if isinstance(sampling, FixedSize):
            if adjacency != REPLACE_ONE:
                raise ValueError(
                    "Rdp covers FixedSize sampling only for a replaced record: "
                    "use REPLACE_ONE, or Poisson sampling"
                )
            return
        if not isinstance(sampling, Poisson):
            raise ValueError(_not_poisson("Rdp", sampling))
        if adjacency != ADD_OR_REMOVE or sampling.longest is not None:
            raise ValueError(
                "Rdp covers Poisson sampling only for an added or removed record and "
                f"without longest, got {adjacency.meaning!r}, longest "
                f"{sampling.longest}: use Pld"
            )

    def epsilon(
        self,
        sampling: Sampling,
        multiplier: float,
        steps: int,
        delta: float,
        adjacency: Adjacency = ADD_OR_REMOVE,
        first: float | None = None,
    ) -> float:
        """Epsilon of `steps` steps, see `Pld.epsilon`."""
        self.check(sampling, adjacency)
        accounting = _library()
        accountant = accounting.rdp.RdpAccountant(
            self.orders, getattr(accounting.NeighboringRelation, adjacency.relation)
        )
        # Unlike its PLD, the library's RDP takes the multiplier as the noise over the
        # sensitivity to a replaced record, which is twice that to an added one.
        later = multiplier / adjacency.factor
        start = later if first is None else first / adjacency.factor
        event = _event(accounting, sampling, later, steps, start)
        return float(accountant.compose(event).get_epsilon(_check_delta(delta)))


Accountant = Gaussian | Pld | Rdp


def solve(
    epsilon: Callable[[float], float], target: float, tolerance: float = 1e-5
) -> float:
    """A noise level with epsilon(level) <= target, at most `tolerance` above the least.

    `epsilon` must not increase with the level. `tolerance` is relative. Raises
    `ValueError` if no level between 2^-40 and 2^40 fits.
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
    log = optimize.brentq(excess, *bracket, xtol=tolerance / 2)
    while epsilon(math.exp(log)) > target:
        log += tolerance / 2
    return math.exp(log)


def check_epsilon(epsilon: float) -> None:
    """Refuses an epsilon that is not positive and finite."""
    check_range("epsilon", epsilon, open_low=True, schedules=False)


def _bracket(excess, step: float, largest: float) -> tuple[float, float] | None:
    """Two neighbouring levels around the root of a decreasing function, from 0 on."""
    direction = step if excess(0.0) > 0 else -step
    level = 0.0
    while abs(level) < largest:
        if (excess(level + direction) > 0) != (direction > 0):
            return (min(level, level + direction), max(level, level + direction))
        level += direction
    return None


def _event(
    accounting, sampling, multiplier: float, steps: int, first: float | None
) -> Any:
    """What is composed: step 0, a full batch if there is one, and the sampled steps."""
    first = multiplier if first is None else first
    check_range("multiplier", multiplier, schedules=False)
    check_range("first", first, schedules=False)
    check_count("steps", steps)
    step = _step(accounting, sampling, multiplier)
    if sampling.first is None and first == multiplier:
        return accounting.SelfComposedDpEvent(step, steps)
    if sampling.first is None:
        start = _step(accounting, sampling, first)
    else:
        start = accounting.GaussianDpEvent(first)
    rest = [accounting.SelfComposedDpEvent(step, steps - 1)] if steps > 1 else []
    return accounting.ComposedDpEvent([start, *rest])


def _step(accounting, sampling: Poisson | FixedSize, multiplier: float) -> Any:
    gaussian = accounting.GaussianDpEvent(multiplier)
    n, b = sampling.examples, sampling.batch
    if isinstance(sampling, FixedSize):
        return accounting.SampledWithoutReplacementDpEvent(n, b, gaussian)
    if sampling.longest is None:
        return accounting.PoissonSampledDpEvent(b / n, gaussian)
    return accounting.TruncatedSubsampledGaussianDpEvent(
        n, b / n, sampling.longest, multiplier
    )


def _relation(sampling, adjacency: Adjacency) -> str:
    """The library takes truncated batches for a record that is zeroed out only."""
    return adjacency.relation if sampling.longest is None else "REPLACE_SPECIAL"


def _not_poisson(name: str, sampling: Sampling) -> str:
    return (
        f"{name} does not cover {sampling!r}: batches that are not drawn afresh, such "
        "as shuffled or cyclic ones, must not pass for Poisson (Chua et al. 2024, "
        "arXiv:2403.17673): use Gaussian"
    )


def _check_delta(delta: float) -> float:
    check_range("delta", delta, 0, 1, open_low=True, open_high=True, schedules=False)
    return delta


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise ImportError(
            "privacy accounting needs dp-accounting: "
            f"{install_command('dp-accounting')}"
        ) from error
    return dp_accounting
