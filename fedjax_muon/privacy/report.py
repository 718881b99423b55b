"""What a private run promises, with every condition of the promise.

spec = PrivacySpec(
    releases={"x": Release(Each(1.0), Inside(0.8), beta=0.1)},
    sampling=Poisson(examples=6512, batch=20, longest=64),
    steps=1000,
    delta=1e-5,
)
print(report(spec).statement())
spec = calibrated(spec, epsilon=1.0)
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import cast

import numpy as np

from fedjax_muon.core import check_count, check_range
from fedjax_muon.privacy.accounting import (
    ADD_OR_REMOVE,
    Accountant,
    Adjacency,
    Gaussian,
    Pld,
    joint,
    mean_only,
    solve,
)
from fedjax_muon.privacy.sampling import FullBatch, Patterned, Sampling, Shuffled
from fedjax_muon.privacy.sensitivity import Clip, transcript_norm


@dataclasses.dataclass(frozen=True)
class Inside:
    """Noise on the fresh term d_t, of `multiplier` times the sensitivity of d_t.

    At step 0 the sensitivity is that of d_0, and the multiplier `first` if given.
    """

    multiplier: float
    first: float | None = None

    def __post_init__(self):
        check_range("multiplier", self.multiplier, schedules=False)
        if self.first is not None:
            check_range("first", self.first, schedules=False)

    @property
    def least(self) -> float:
        return min(self.multiplier, self._start)

    @property
    def _start(self) -> float:
        return self.multiplier if self.first is None else self.first

    def scaled(self, factor: float) -> "Inside":
        first = None if self.first is None else self.first * factor
        return Inside(self.multiplier * factor, first)

    def steps(self) -> tuple[float, float]:
        """The multipliers of step 0 and of every later one."""
        return self._start, self.multiplier

    def transcript(self, changes: np.ndarray, beta: float) -> float:
        """The multiplier of the whole transcript; every change is seen only once."""
        del beta
        ratios = (changes > 0) / self.multiplier
        ratios[0] = (changes[0] > 0) / self._start
        return 1 / transcript_norm(ratios, 0.0)


@dataclasses.dataclass(frozen=True)
class Output:
    """Noise of standard deviation `sigma` on every released g_t, the memory clean."""

    sigma: float

    def __post_init__(self):
        check_range("sigma", self.sigma, schedules=False)

    @property
    def least(self) -> float:
        return self.sigma

    def scaled(self, factor: float) -> "Output":
        return Output(self.sigma * factor)

    def steps(self) -> tuple[float, float]:
        raise ValueError(
            "noise on the output repeats a record's part in all later releases, so "
            "sampling does not hide it: use Cyclic sampling, or noise Inside"
        )

    def transcript(self, changes: np.ndarray, beta: float) -> float:
        """The multiplier of the whole transcript, which repeats what it remembers."""
        return self.sigma / transcript_norm(changes, 1 - beta)


@dataclasses.dataclass(frozen=True)
class Release:
    """One noisy stream, such as an agent's estimate of its gradient in x.

    `beta` is one for what has no memory: the gradients of DP-SGD(A), or the updates of
    clients, where a record is a client and `Each` the bound on its update.
    """

    clip: Clip
    noise: Inside | Output
    beta: float = 1.0

    def __post_init__(self):
        self.clip.sensitivity(self.beta, 1)  # which refuses a beta out of range


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """Everything an agent sends is seen, and all other agents may collude."""

    assumptions: tuple[str, ...] = dataclasses.field(default=(), init=False)

    def __str__(self):
        return "every message of the agent is seen, all other agents may collude"

    def strengthened(self, multiplier: float) -> float:
        return multiplier


@dataclasses.dataclass(frozen=True)
class MeanOnly:
    """Only the mean over `agents` is seen, and `colluders` of them tell their part."""

    agents: int
    colluders: int = 0

    def __post_init__(self):
        mean_only(1.0, self.agents, self.colluders)

    def __str__(self):
        return (
            f"only the mean over {self.agents} agents is seen, {self.colluders} of "
            "them collude"
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            "secure aggregation hides single messages (gossip alone does not)",
            "all agents hold the same parameters in every step",
            "every agent adds independent noise of the same standard deviation",
        )

    def strengthened(self, multiplier: float) -> float:
        return mean_only(multiplier, self.agents, self.colluders)


@dataclasses.dataclass(frozen=True)
class TrustedServer:
    """Everything that the server broadcasts is seen, but not what it receives."""

    def __str__(self):
        return (
            "every model that the server broadcasts is seen; the server and the "
            "channels to it are trusted"
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            "the server keeps single messages, and who took part, to itself",
            "what is measured on clients' own examples, such as the training loss, "
            "is not published, and nothing is tuned on it",
        )

    def strengthened(self, multiplier: float) -> float:
        return multiplier


@dataclasses.dataclass(frozen=True)
class PrivacySpec:
    """What an agent releases in `steps` steps (step 0 included), and who looks.

    `releases` holds the streams that are released together by name (x and y in a
    minimax problem). `accountant`, unless given, is `Pld()` for sampling that amplifies
    and `Gaussian()` for the others. `unit` is what is protected, in words. Raises
    `ValueError` if `delta >= 1 / examples`, with which publishing a random record would
    be private.
    """

    releases: Mapping[str, Release]
    sampling: Sampling
    steps: int
    delta: float
    adjacency: Adjacency = ADD_OR_REMOVE
    threat: Neighbour | MeanOnly | TrustedServer = Neighbour()
    accountant: Accountant | None = None
    unit: str = "one example of one agent"

    def __post_init__(self):
        if not self.releases:
            raise ValueError("releases must name at least one stream, got none")
        check_count("steps", self.steps)
        bound = 1 / self.sampling.examples
        check_range(
            "delta",
            self.delta,
            0,
            bound,
            open_low=True,
            open_high=True,
            schedules=False,
        )


@dataclasses.dataclass(frozen=True)
class PrivacyReport:
    """A promise of (epsilon, delta)-differential privacy and its conditions."""

    epsilon: float  # inf: no promise, `caveats` say why
    delta: float
    unit: str
    adjacency: str
    threat: str
    sampling: str
    accountant: str
    released: tuple[str, ...]
    steps: int
    assumptions: tuple[str, ...]
    caveats: tuple[str, ...]

    def statement(self) -> str:
        """The report in plain lines, to be printed and kept with the results."""
        guarantee = f"({self.epsilon:.4g}, {self.delta:g})-differential privacy"
        if math.isinf(self.epsilon):
            guarantee = "NO differential privacy (epsilon = inf)"
        lines = (
            f"{guarantee} for {self.unit}",
            f"  released:   {', '.join(self.released)} together, {self.steps} steps",
            f"  adjacency:  {self.adjacency}",
            f"  seen by:    {self.threat}",
            f"  sampling:   {self.sampling}",
            f"  accountant: {self.accountant}",
            *(f"  assumed:    {assumption}" for assumption in self.assumptions),
            *(f"  caveat:     {caveat}" for caveat in self.caveats),
        )
        return "\n".join(lines)


def report(spec: PrivacySpec) -> PrivacyReport:
    """The epsilon of a run and what it rests on.

    Epsilon is `inf` for a stream without clipping or without noise. Raises `ValueError`
    for an accountant or a place of the noise that does not go with the sampling.
    """
    accountant = spec.accountant or (Pld() if spec.sampling.amplifies else Gaussian())
    accountant.check(spec.sampling, spec.adjacency)
    if spec.sampling.amplifies:
        for release in spec.releases.values():
            release.noise.steps()  # which refuses noise on the output
    reasons = _without_promise(spec.releases)
    secret = (_SECRET_COINS,) if spec.sampling.amplifies else ()
    steady = (_STEADY,) if _telescopes(spec) else ()
    return PrivacyReport(
        epsilon=math.inf if reasons else _epsilon(spec, accountant),
        delta=spec.delta,
        unit=spec.unit,
        adjacency=spec.adjacency.meaning,
        threat=str(spec.threat),
        sampling=str(spec.sampling),
        accountant=str(accountant),
        released=tuple(spec.releases),
        steps=spec.steps,
        assumptions=(*_ASSUMPTIONS, *secret, *steady, *spec.threat.assumptions),
        caveats=(*reasons, *_CAVEATS),
    )


def calibrated(
    spec: PrivacySpec, epsilon: float, tolerance: float = 1e-5
) -> PrivacySpec:
    """`spec` with all noise scaled by one factor to an epsilon of at most `epsilon`.

    The factor is at most `tolerance` (relative) above the least. Raises `ValueError` if
    no amount of noise gets there, as without clipping.
    """
    report(spec)  # refuses what does not go together before the search
    reasons = _without_promise(spec.releases)
    if reasons:
        raise ValueError(f"no factor makes the run private: {reasons[0]}")

    def scaled(factor: float) -> PrivacySpec:
        releases = {
            name: dataclasses.replace(release, noise=release.noise.scaled(factor))
            for name, release in spec.releases.items()
        }
        return dataclasses.replace(spec, releases=releases)

    level = solve(lambda factor: report(scaled(factor)).epsilon, epsilon, tolerance)
    return scaled(level)


_ASSUMPTIONS = (
    "every step is noised, step 0 included, with fresh and independent noise",
    "sums are divided by the expected batch size, never by the realised one",
    "the parameters depend on the agent's data only through what is released",
)
# without it a record in consecutive batches does not telescope, see `Each.always`
_STEADY = (
    "an example's gradient is a function of the parameters alone: no dropout, no "
    "augmentation that differs between steps"
)
_SECRET_COINS = "the coins of the sampling are fresh in every step and stay secret"
_CAVEATS = (
    "real numbers are assumed: attacks on floating-point noise are not covered",
    "who owns several units is protected less than each of them",
)


def _telescopes(spec: PrivacySpec) -> bool:
    """Whether a record's parts in consecutive batches must cancel for the promise."""
    return isinstance(spec.sampling, Shuffled | FullBatch) and any(
        isinstance(release.noise, Output) and release.beta < 1
        for release in spec.releases.values()
    )


def _without_promise(releases: Mapping[str, Release]) -> tuple[str, ...]:
    """Why there is no promise at all, empty if there is one."""
    unclipped = (
        f"{name} is not clipped: one record can change it without limit"
        for name, release in releases.items()
        if math.isinf(release.clip.sensitivity(release.beta, 1))
    )
    silent = (
        f"{name} is released without noise"
        for name, release in releases.items()
        if release.noise.least == 0
    )
    return (*unclipped, *silent)


def _epsilon(spec: PrivacySpec, accountant: Accountant) -> float:
    releases = spec.releases.values()
    strengthened = spec.threat.strengthened
    if isinstance(accountant, Gaussian):
        sampling = cast(Patterned, spec.sampling)  # which the accountant has checked
        whole = joint(
            *(
                release.noise.transcript(
                    sampling.changes(release.clip, release.beta, spec.steps),
                    release.beta,
                )
                for release in releases
            )
        )
        return accountant.epsilon(strengthened(whole), spec.delta, spec.adjacency)
    first, later = zip(*(release.noise.steps() for release in releases), strict=True)
    return accountant.epsilon(
        spec.sampling,
        strengthened(joint(*later)),
        spec.steps,
        spec.delta,
        spec.adjacency,
        strengthened(joint(*first)),
    )
