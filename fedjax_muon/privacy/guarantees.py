"""Guarantees of private runs, with all their conditions.

A specification says what is released. It determines the statement of a guarantee, and
the smallest noise that reaches a given epsilon:

    spec = PrivacySpec(
        releases={"x": Release(Each(1.0), Inside(0.8), beta=0.1)},
        sampling=Poisson(examples=6512, batch=20, max_batch=64),
        steps=1000,
        delta=1e-5,
    )
    print(report(spec).statement())
    spec = calibrated(spec, epsilon=1.0)

A `Threat` is an adversary: who sees what, and the noise multiplier of what they see. A
mechanism, `ExamplePrivacy` or `ClientPrivacy`, is an argument of a simulation. It alone
sets the sampling, the clip and the noise of the run, and derives a `Guarantee` from
them. The simulation enforces it: the number of rounds, secret noise, and what is
published.
"""

import dataclasses
import functools
import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from fedjax_muon.core import check_count, check_range
from fedjax_muon.privacy.accounting import (
    ADD_OR_REMOVE,
    Accountant,
    Adjacency,
    Gaussian,
    Pld,
    calibrate_noise,
    check_epsilon,
    joint_multiplier,
)
from fedjax_muon.privacy.releases import Correlated, Output, Release
from fedjax_muon.privacy.sampling import (
    FullBatch,
    Patterned,
    Poisson,
    Sampling,
)

CLIENT = "one client with all its examples"  # what `ClientPrivacy` protects
# scores that depend on the training data only through what is released
PUBLIC = ("test_", "consensus")
FIXED = "the noise and the coins are drawn from the seed: whoever knows it removes them"
TRAINING = (
    "training metrics are published without noise; the guarantee does not hold for them"
)


@dataclasses.dataclass(frozen=True)
class Neighbor:
    """An adversary who sees all that an agent sends; all other agents may collude."""

    assumptions: tuple[str, ...] = dataclasses.field(default=(), init=False)

    def __str__(self) -> str:
        return "every message of the agent is seen, all other agents may collude"

    def effective_multiplier(self, multiplier: float) -> float:
        """Returns the noise multiplier of what is seen."""
        return multiplier


@dataclasses.dataclass(frozen=True)
class TrustedServer:
    """An adversary who sees all that the server broadcasts, not what it receives."""

    def __str__(self) -> str:
        return (
            "every model that the server broadcasts is seen; the server and the "
            "channels to it are trusted"
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Its conditions, in words."""
        return (
            "the server keeps single messages, and who took part, to itself",
            "what is measured on clients' own examples, such as the training loss, "
            "is not published, and nothing is tuned on it",
        )

    def effective_multiplier(self, multiplier: float) -> float:
        """Returns the noise multiplier of what is seen."""
        return multiplier


Threat = Neighbor | TrustedServer


@dataclasses.dataclass(frozen=True)
class PrivacySpec:
    """What an agent releases, and to which adversary."""

    releases: Mapping[str, Release]
    # by name; all are released together, such as x and y in a minimax problem
    sampling: Sampling
    steps: int  # step 0 included
    delta: float
    adjacency: Adjacency = ADD_OR_REMOVE
    threat: Threat = dataclasses.field(default_factory=Neighbor)
    accountant: Accountant | None = None
    # by default `Pld()` for sampling that amplifies, `Gaussian()` otherwise
    unit: str = "one example of one agent"  # what is protected, in words

    def __post_init__(self) -> None:
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
    """A guarantee of (epsilon, delta)-differential privacy and its conditions."""

    epsilon: float  # inf: no guarantee; `caveats` has the reasons
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
    mechanism: str = ""  # the clip and the noise, where they are known

    def statement(self) -> str:
        """Returns the report as lines of text, to print and to store with results."""
        guarantee = f"({self.epsilon:.4g}, {self.delta:g})-differential privacy"
        private = not math.isinf(self.epsilon)
        if not private:
            guarantee = "NO differential privacy (epsilon = inf)"
        lines = (
            *(_in_plain_words(self) if private and self.unit == CLIENT else ()),
            f"{guarantee} for {self.unit}",
            f"  released:   {', '.join(self.released)} together, {self.steps} steps",
            f"  adjacency:  {self.adjacency}",
            f"  seen by:    {self.threat}",
            f"  sampling:   {self.sampling}",
            *([f"  mechanism:  {self.mechanism}"] if self.mechanism else ()),
            f"  accountant: {self.accountant}",
            *(f"  assumed:    {assumption}" for assumption in self.assumptions),
            *(f"  caveat:     {caveat}" for caveat in self.caveats),
        )
        return "\n".join(lines)


def _in_plain_words(report: PrivacyReport) -> Iterator[str]:
    """What a statement promises to clients, for those who never read another one."""
    odds = math.exp(min(report.epsilon, 700))  # exp(700) is still finite
    yield "This run protects each client from everybody who sees what is released."
    yield (
        "What they conclude about a client is at most "
        f"{odds:.4g} times as likely with its examples as without them,\n"
        f"plus a probability of {report.delta:g}."
    )


# what the words for examples are called where clients are protected
_OF_CLIENTS = {
    "record": "client",
    "batch size": "cohort size",
    "batch": "cohort",
    "the agent's": "a client's",
    "several units": "several clients",
}


def _said(text: str, unit: str) -> str:
    """Words of a statement, for the unit that is protected."""
    for word, client in _OF_CLIENTS.items() if unit == CLIENT else ():
        text = text.replace(word, client)
    return text


def report(spec: PrivacySpec) -> PrivacyReport:
    """Computes the epsilon of a run and lists its conditions.

    It is infinite if a stream has no noise, or if its clip bounds nothing.
    """
    accountant = checked_accountant(spec)
    reasons = without_guarantee(spec.releases)
    secret = (_SECRET_COINS,) if spec.sampling.amplifies else ()
    steady = (_STEADY,) if _telescopes(spec) else ()
    said = functools.partial(_said, unit=spec.unit)
    return PrivacyReport(
        epsilon=math.inf if reasons else _epsilon(spec, accountant),
        delta=spec.delta,
        unit=spec.unit,
        adjacency=said(spec.adjacency.meaning),
        threat=str(spec.threat),
        sampling=said(str(spec.sampling)),
        accountant=str(accountant),
        released=tuple(spec.releases),
        steps=spec.steps,
        assumptions=(
            *_noise_assumptions(spec.releases),
            *map(said, _ASSUMPTIONS),
            *secret,
            *steady,
            *spec.threat.assumptions,
        ),
        caveats=tuple(map(said, (*reasons, *_CAVEATS))),
    )


def calibrated(
    spec: PrivacySpec, epsilon: float, tolerance: float = 1e-5
) -> PrivacySpec:
    """Scales all noise of a run by one factor, to reach an epsilon.

    The factor exceeds the smallest one by at most `tolerance`, relative to it.
    """
    accountant = checked_accountant(spec)
    reasons = without_guarantee(spec.releases)
    if reasons:
        raise ValueError(f"no factor makes the run private: {reasons[0]}")

    def scaled(spec: PrivacySpec, factor: float) -> PrivacySpec:
        releases = {
            name: dataclasses.replace(release, noise=release.noise.scaled(factor))
            for name, release in spec.releases.items()
        }
        return dataclasses.replace(spec, releases=releases)

    def epsilon_by(
        accountant: Accountant, spec: PrivacySpec
    ) -> Callable[[float], float]:
        return lambda factor: _epsilon(scaled(spec, factor), accountant)

    rough = None
    if isinstance(accountant, Pld):
        rough = epsilon_by(Pld(10 * accountant.interval), spec)
    exact = epsilon_by(accountant, spec)
    return scaled(spec, calibrate_noise(exact, epsilon, tolerance, rough))


_INDEPENDENT = "every step is noised, step 0 included, with fresh and independent noise"
_ASSUMPTIONS = (
    "sums are divided by the expected batch size, never by the actual one",
    "the parameters depend on the agent's data only through what is released",
)
# without it a record in consecutive batches does not telescope, see
# `Each.full_batch_change`
_STEADY = (
    "an example's gradient is a function of the parameters alone: no dropout, no "
    "augmentation that differs between steps"
)
_SECRET_COINS = "the coins of the sampling are fresh in every step and stay secret"
_CAVEATS = (
    "real numbers are assumed: attacks on floating-point noise are not covered",
    "owning several units weakens the guarantee",
)


def _noise_assumptions(releases: Mapping[str, Release]) -> tuple[str, ...]:
    """What is assumed of the noise, once for every way to draw it."""
    words = (
        f"every step is noised, step 0 included, with noise that is correlated between "
        f"steps ({release.noise.strategy}) and made of fresh and independent noise"
        if isinstance(release.noise, Correlated)
        else _INDEPENDENT
        for release in releases.values()
        if release.noise.smallest > 0
    )
    return tuple(dict.fromkeys(words))


def _telescopes(spec: PrivacySpec) -> bool:
    """Whether a record's shares of consecutive batches must cancel."""
    return isinstance(spec.sampling, FullBatch) and any(
        isinstance(release.noise, Output) and release.beta < 1
        for release in spec.releases.values()
    )


def without_guarantee(releases: Mapping[str, Release]) -> tuple[str, ...]:
    """Reasons why there is no guarantee; empty if there is one."""
    unclipped = (
        f"{name} is not clipped: one record can change it by any amount"
        for name, release in releases.items()
        if math.isinf(release.clip.sensitivity(release.beta, 1))
    )
    silent = (
        f"{name} is released without noise"
        for name, release in releases.items()
        if release.noise.smallest == 0
    )
    return (*unclipped, *silent)


def checked_accountant(spec: PrivacySpec) -> Accountant:
    """Returns the accountant of a run; raises `ValueError` if it does not fit."""
    accountant = spec.accountant or (Pld() if spec.sampling.amplifies else Gaussian())
    accountant.check(spec.sampling, spec.adjacency)
    if spec.sampling.amplifies:
        for release in spec.releases.values():
            release.noise.step_multipliers()  # raises for noise on the output
            _check_bands(release.noise.bands or 1, spec.sampling)
    return accountant


def _check_bands(bands: int, sampling: Sampling) -> None:
    """Checks that no record is drawn again while its last gradient is in releases."""
    cycle = sampling.cycle if isinstance(sampling, Poisson) else 1
    if bands > cycle:
        raise ValueError(
            f"noise of {bands} bands needs groups that take turns, got a cycle of "
            f"{cycle}: use Poisson sampling with cycle={bands}"
        )


def transcript_multiplier(spec: PrivacySpec) -> float:
    """Returns the noise multiplier of all that the adversary sees, not amplified."""
    sampling = cast(Patterned, spec.sampling)  # the accountant has checked it
    whole = joint_multiplier(
        *(
            release.noise.transcript_multiplier(
                sampling.changes(release.clip, release.beta, spec.steps), release.beta
            )
            for release in spec.releases.values()
        )
    )
    return spec.threat.effective_multiplier(whole)


def step_multipliers(spec: PrivacySpec) -> tuple[float, float]:
    """Returns the joint multipliers of all releases, in step 0 and in later steps."""
    noises = (release.noise for release in spec.releases.values())
    first, later = zip(*(noise.step_multipliers() for noise in noises), strict=True)
    effective = spec.threat.effective_multiplier
    return effective(joint_multiplier(*first)), effective(joint_multiplier(*later))


def _epsilon(spec: PrivacySpec, accountant: Accountant) -> float:
    delta, adjacency = spec.delta, spec.adjacency
    if isinstance(accountant, Gaussian):
        return accountant.epsilon(transcript_multiplier(spec), delta, adjacency)
    first, later = step_multipliers(spec)
    run = (spec.sampling, later, spec.steps, delta, adjacency, first)
    return accountant.epsilon(*run)


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """The guarantee of a private run, derived from what the run executes."""

    spec: PrivacySpec  # of the records that are protected least
    rounds: int  # that it covers, after the first release
    fixed_noise: bool = False  # noise from the seed, for tests; no privacy
    training_metrics: bool = False  # whether they are published
    assumptions: tuple[str, ...] = ()  # in addition to those of the report
    mechanism: str = ""  # the clip and the noise, in words

    def report(self) -> PrivacyReport:
        """Computes epsilon, which is infinite if the noise is fixed."""
        plain = report(self.spec)
        reasons = (FIXED,) if self.fixed_noise else ()
        voids = (TRAINING,) if self.training_metrics else ()
        return dataclasses.replace(
            plain,
            epsilon=math.inf if reasons else plain.epsilon,
            assumptions=(*plain.assumptions, *self.assumptions),
            caveats=(*reasons, *voids, *plain.caveats),
            mechanism=self.mechanism,
        )

    def statement(self) -> str:
        """Returns the report as text, to print and to publish with results."""
        return self.report().statement()

    def check_rounds(self, completed: int, count: int) -> None:
        """Checks that the guarantee covers `count` further rounds."""
        if completed + count > self.rounds:
            raise ValueError(
                f"the noise is for {self.rounds} rounds, got {completed} completed and "
                f"{count} more; make a simulation whose privacy has more rounds"
            )

    def published(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        """Selects the scores that may be published: all if training metrics are.

        Otherwise, they are the scores of the test set, which must be public, and of the
        parameters.
        """
        if self.training_metrics:
            return dict(scores)
        return {name: x for name, x in scores.items() if name.startswith(PUBLIC)}

    def run_words(self) -> np.ndarray | None:
        """Draws the key of some rounds' noise and coins from the operating system.

        Returns:
          uint32 [2], 64 bits of entropy, which are kept nowhere; None if the noise is
          fixed, which leaves it to the seed.
        """
        if self.fixed_noise:
            return None
        return np.frombuffer(secrets.token_bytes(8), np.uint32)


def check_epsilons(epsilon: float | tuple[float, ...] | None) -> None:
    """Checks the epsilon of a promise, or several."""
    for one in epsilon if isinstance(epsilon, tuple) else (epsilon,):
        if one is not None:
            check_epsilon(one)


def the_epsilon(epsilon: float | tuple[float, ...] | None) -> float | None:
    """The epsilon of a promise for one run; raises `ValueError` for several."""
    if isinstance(epsilon, tuple):
        raise ValueError(
            f"a run has one epsilon, got {', '.join(f'{e:g}' for e in epsilon)}; "
            "compare takes several"
        )
    return epsilon


def check_complete(counts: Mapping[str, int]) -> None:
    """Checks that a promise has what `train` and `compare` take from their call."""
    for name, count in counts.items():
        if not count:
            raise ValueError(f"give the promise {name}, which train and compare know")


def check_noise(epsilon: Any, noise: float | None, name: str) -> None:
    """Checks that either epsilon or the noise is given, and not both."""
    if (epsilon is None) == (noise is None):
        raise ValueError(
            f"give either epsilon or {name}, got epsilon={epsilon}, {name}={noise}"
        )


def check_left_out(arguments: Mapping[str, Any]) -> None:
    """Refuses arguments that the mechanism sets itself."""
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(
                f"privacy decides {name}; leave it out, and set it in the mechanism"
            )
