"""Differential privacy for one example of one agent, as an argument of `decentralize`.

    privacy = AgentPrivacy(
        PRIVATE["private_storm"],
        Mechanism(clip_norm=1.0, change_clip_norm=0.1, beta=0.1, batch_size=20),
        epsilon=8.0,
        delta=1e-5,
        rounds=1000,
    )
    simulation = decentralize(gradient_tracking(lr=0.1), ..., privacy=privacy)
    print(simulation.guarantee.statement())

It alone sets how batches are drawn, clipped and noised. The noise is calibrated once
the agents' numbers of examples are known.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from fedjax_muon.core import check_count, check_range
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.private import (
    Mechanism,
    PrivateMethod,
    noise_scale_of,
    private,
)
from fedjax_muon.privacy.accounting import check_epsilon
from fedjax_muon.privacy.guarantees import (
    Guarantee,
    PrivacySpec,
    calibrated,
    check_noise,
    checked_accountant,
    report,
)
from fedjax_muon.privacy.sampling import Cyclic, FullBatch, Poisson, Sampling
from fedjax_muon.simulation.batching import (
    Sampler,
    always,
    cyclic,
    cyclic_poisson,
    poisson,
)

ROOM = 3  # a Poisson batch's, over its expected size


class Calibrated(NamedTuple):
    """A guarantee, and the noise that gives it."""

    guarantee: Guarantee
    noise_scale: float  # of `PrivateMethod.build`


@dataclasses.dataclass(frozen=True)
class AgentPrivacy:
    """Sampling, clip, noise and accounting of decentralized training.

    Batches are Poisson samples if the method's accounting needs them, of groups that
    take turns if its noise has bands, and otherwise cyclic; with a batch size of all
    examples, both are all examples. Every agent is accounted for, and the guarantee
    holds for the agent that is protected least.
    """

    method: PrivateMethod
    mechanism: Mechanism
    _: dataclasses.KW_ONLY
    rounds: int  # after t = 0, that the guarantee covers
    delta: float  # below one over the examples of every agent
    epsilon: float | None = None  # inf: without noise and without privacy
    noise_scale: float | None = None  # in place of epsilon; see `PrivateMethod.build`
    max_batch: int | None = None  # of a Poisson batch; 3 batch_size by default
    # noise from the seed instead of the operating system, for tests; no privacy
    insecure_fixed_noise: bool = False
    # training metrics are computed and recorded; the guarantee does not hold for them
    publish_training_metrics: bool = False

    def __post_init__(self) -> None:
        check_noise(self.epsilon, self.noise_scale, "noise_scale")
        check_count("rounds", self.rounds)
        check_count("batch_size", self.mechanism.batch_size)
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
        if self.noise_scale is not None:
            check_range("noise_scale", self.noise_scale, open_low=True, schedules=False)
        if self.max_batch is not None:
            check_count("max_batch", self.max_batch, self.mechanism.batch_size)

    @property
    def room(self) -> int:
        """The largest size of a Poisson batch."""
        return self.max_batch or ROOM * self.mechanism.batch_size

    @property
    def cycle(self) -> int:
        """Number of groups of examples that take turns in Poisson sampling."""
        return self.method.release(self.mechanism, 1.0).noise.bands or 1

    @property
    def sampler(self) -> Callable[[jax.Array], Sampler]:
        """How batches are drawn, as accounted for."""
        if not self.method.amplified:
            return cyclic
        if self.cycle > 1:
            return cyclic_poisson(self.room, self.cycle)
        return always(poisson(self.room))

    def calibrated(self, sizes: Sequence[int]) -> Calibrated:
        """Derives the noise, and the guarantee of the agent that is protected least."""
        specs = list(map(self._spec, sorted(set(sizes))))
        checked_accountant(specs[0])
        scale = self.noise_scale
        if self.epsilon is not None:
            scale = 0.0
            for spec in specs:  # the search takes seconds: protected agents skip it
                if self._epsilon(spec, scale) > self.epsilon:
                    scale = noise_scale_of(calibrated(spec, self.epsilon))
        assert scale is not None  # checked at the beginning
        worst = specs[0]
        if len(specs) > 1:
            worst = max(specs, key=lambda spec: self._epsilon(spec, scale))
        guarantee = Guarantee(
            self._with_noise(worst, scale),
            self.rounds,
            self.insecure_fixed_noise,
            self.publish_training_metrics,
            mechanism=f"gradients of examples clipped to {self.mechanism.clip_norm:g}, "
            f"their changes to {self.mechanism.change_clip_norm:g}; noise scale "
            f"{scale:.4g}",
        )
        return Calibrated(guarantee, scale)

    def _spec(self, examples: int) -> PrivacySpec:
        batch = self.mechanism.batch_size
        sampling: Sampling
        if examples == batch and self.cycle == 1:  # of either sampler
            sampling = FullBatch(examples)
        elif self.method.amplified:
            room = min(self.room, examples // self.cycle)
            sampling = Poisson(examples, batch, room, cycle=self.cycle)
        else:
            sampling = Cyclic(examples, batch)
        release = self.method.release(self.mechanism, 1.0)
        steps = self.rounds + 1  # t = 0 included
        return PrivacySpec({"estimate": release}, sampling, steps, self.delta)

    def _epsilon(self, spec: PrivacySpec, scale: float) -> float:
        return report(self._with_noise(spec, scale)).epsilon if scale else math.inf

    def _with_noise(self, spec: PrivacySpec, scale: float) -> PrivacySpec:
        release = self.method.release(self.mechanism, scale)
        return dataclasses.replace(spec, releases={"estimate": release})

    def applied(self, algorithm: Gossip, noise_scale: float) -> Gossip:
        """Makes an algorithm private, see `private`; the noise is from `calibrated`."""
        return private(algorithm, self.method, self.mechanism, noise_scale)
