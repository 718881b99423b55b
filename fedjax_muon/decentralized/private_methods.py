"""Private methods of agents, and what they promise for each of their examples.

    method = fm.decentralized.dpmixsgd(lr=0.1)
    privacy = ExamplePrivacy(epsilon=4.0, delta=1e-5, rounds=200)
    result = fm.train(method, fm.problems.auc(), rounds=200, privacy=privacy)

The same arguments of `decentralize` give a simulation, whose `guarantee` has the
statement. The default learning rates were chosen by hand on the default problem of
agents, with a seed that is not used otherwise.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax

from fedjax_muon.algorithms.registry import Method, Source, by_name
from fedjax_muon.core import Hyper, check_count, check_range, recorded
from fedjax_muon.decentralized.dsgd import dsgd
from fedjax_muon.decentralized.private import (
    PRIVATE,
    Mechanism,
    PrivateAgents,
    PrivateMethod,
)
from fedjax_muon.decentralized.tracking import gradient_tracking
from fedjax_muon.privacy.correlated import Strategy
from fedjax_muon.privacy.guarantees import (
    Guarantee,
    PrivacySpec,
    calibrated,
    check_complete,
    check_epsilons,
    check_noise,
    checked_accountant,
    report,
    the_epsilon,
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


@dataclasses.dataclass(frozen=True)
class ExamplePrivacy:
    """Differential privacy for each example of an agent.

    Batches are Poisson samples if the method's accounting needs them, of groups that
    take turns if its noise has bands, and otherwise cyclic; with a batch size of all
    examples, both are all examples. Every agent is accounted for, and the guarantee
    holds for the agent that is protected least.

    Args:
      rounds: Number of rounds after t = 0 that the guarantee covers. `train`
        and `compare` use the call's rounds by default; `decentralize` needs it.
      epsilon: Epsilon of a whole run; inf means no noise and no privacy. `compare`
        takes several.
      delta: Below one over the number of examples of each agent.
      clip_norm: Largest norm of the gradient of an example.
      change_clip_norm: For private_storm: largest norm of the change of an example's
        gradient between two iterations. By default a tenth of clip_norm.
      bands: Number of bands of the noise of dp_ftrl, and of the groups of an agent's
        examples that take turns.
      noise_scale: In place of epsilon; see `PrivateMethod.estimator`.
      max_batch: Largest size of a Poisson batch; by default, three times its expected
        size.
      strategy: How the noise of DP-FTRL is correlated; made for `rounds` by default.
      insecure_fixed_noise: Draw the noise from the seed, so that you can reproduce it.
        This gives no privacy.
      publish_training_metrics: Record training metrics too. The guarantee does not
        cover them.
    """

    _: dataclasses.KW_ONLY
    rounds: int = 0  # of the call
    epsilon: float | tuple[float, ...] | None = None
    delta: float = 1e-5
    clip_norm: float = 0.2
    change_clip_norm: float | None = None
    bands: int = 4
    noise_scale: float | None = None
    max_batch: int | None = None
    strategy: Strategy | None = None
    insecure_fixed_noise: bool = False
    publish_training_metrics: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.epsilon, list):
            object.__setattr__(self, "epsilon", tuple(self.epsilon))
        check_noise(self.epsilon, self.noise_scale, "noise_scale")
        check_count("rounds", self.rounds, 0)
        check_count("bands", self.bands)
        check_epsilons(self.epsilon)
        if self.noise_scale is not None:
            check_range("noise_scale", self.noise_scale, open_low=True, schedules=False)

    def bound(self, agents: PrivateAgents, batch_size: int, smallest: int) -> "Bound":
        """The promise for a method, whose smallest agent has so many examples."""
        check_complete({"rounds": self.rounds})
        check_count("batch_size", batch_size)
        if self.max_batch is not None:
            check_count("max_batch", self.max_batch, batch_size)
        change, strategy = self.change_clip_norm, self.strategy
        if strategy is None:
            numbers = self.rounds + 1, self.bands, max(1, smallest // batch_size)
            strategy = agents.method.strategy(*numbers)
        mechanism = Mechanism(
            clip_norm=self.clip_norm,
            change_clip_norm=self.clip_norm / 10 if change is None else change,
            beta=agents.beta,
            batch_size=batch_size,
            strategy=strategy,
        )
        return Bound(self, agents.method, mechanism)


class Calibrated(NamedTuple):
    """A guarantee, and the noise that gives it."""

    guarantee: Guarantee
    noise_scale: float  # of `private`


class Bound(NamedTuple):
    """A promise for a method whose batches are known."""

    promise: ExamplePrivacy
    method: PrivateMethod
    mechanism: Mechanism

    @property
    def room(self) -> int:
        """The largest size of a Poisson batch."""
        return self.promise.max_batch or ROOM * self.mechanism.batch_size

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
        promise, specs = self.promise, [*map(self._spec, sorted(set(sizes)))]
        checked_accountant(specs[0])
        scale = promise.noise_scale
        epsilon = the_epsilon(promise.epsilon)
        if epsilon is not None:
            scale = 0.0
            for spec in specs:  # the search takes seconds: protected agents skip it
                if self._epsilon(spec, scale) > epsilon:
                    (release,) = calibrated(spec, epsilon).releases.values()
                    scale = release.noise.smallest
        assert scale is not None  # checked at the beginning
        worst = specs[0]
        if len(specs) > 1:
            worst = max(specs, key=lambda spec: self._epsilon(spec, scale))
        guarantee = Guarantee(
            self._with_noise(worst, scale),
            promise.rounds,
            promise.insecure_fixed_noise,
            promise.publish_training_metrics,
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
        steps = self.promise.rounds + 1  # t = 0 included
        return PrivacySpec({"estimate": release}, sampling, steps, self.promise.delta)

    def _epsilon(self, spec: PrivacySpec, scale: float) -> float:
        return report(self._with_noise(spec, scale)).epsilon if scale else math.inf

    def _with_noise(self, spec: PrivacySpec, scale: float) -> PrivacySpec:
        release = self.method.release(self.mechanism, scale)
        return dataclasses.replace(spec, releases={"estimate": release})


@recorded
def dp_sgda(lr: Hyper = 1.0) -> PrivateAgents:
    """DP-SGDA: D-SGDA with clipped gradients and fresh noise.

    With the expected size b of a batch, and z its examples,

        g = (1/b) sum_z clip(grad(x; z)) + noise
        x <- project(W(x - lr g))

    The noise is calibrated when a simulation is prepared, by its `ExamplePrivacy`.

    Source: Yang et al. 2022, UAI, arXiv:2201.09046; here decentralized. Checked against
    independent code.

    Args:
      lr: Learning rate, 0.1 to 3.

    Example:
      >>> method = fm.decentralized.dp_sgda(lr=0.3)
      >>> promise = fm.decentralized.ExamplePrivacy(epsilon=4.0, rounds=200)
      >>> auc = fm.problems.auc()  # doctest: +SKIP
      >>> fm.train(method, auc, rounds=200, privacy=promise)  # doctest: +SKIP

    See also: `decentralized.dsgd` without privacy.
    """
    return PrivateAgents(partial(dsgd, lr), PRIVATE["dp_sgda"])


@recorded
def dp_ftrl(lr: Hyper = 1.0) -> PrivateAgents:
    """DP-FTRL (banded): D-SGDA with noise that bands correlate.

    The same as `fm.decentralized.dp_sgda()`, but for the noise, where C has bands:

        g = (1/b) sum_z clip(grad(x; z)) + C^-1 noise

    Source: Choquette-Choo et al. 2023, NeurIPS, arXiv:2306.08153. Checked against the
    authors' code.
    """
    return PrivateAgents(partial(dsgd, lr), PRIVATE["dp_ftrl"])


@recorded
def dp_ftrl_buffered(lr: Hyper = 1.0) -> PrivateAgents:
    """DP-FTRL (buffered): D-SGDA with noise from a few buffers.

    The same as `fm.decentralized.dp_ftrl()`, but for C, which needs a few buffers:

        g = (1/b) sum_z clip(grad(x; z)) + C^-1 noise

    Source: McMahan et al. 2024, Buffered linear Toeplitz matrices, arXiv:2408.08868.
    Checked against the authors' code.
    """
    return PrivateAgents(partial(dsgd, lr), PRIVATE["dp_ftrl_buffered"])


@recorded
def dpmixsgd(lr: Hyper = 0.1, *, beta: float = 0.1) -> PrivateAgents:
    """DPMixSGD (clipped): tracked STORM with noise on its output.

    With the gradients u = grad(x; z) and u_ = grad(x_; z) of an example z, where x_ are
    the parameters of the iteration before, and the expected size b of a batch,

        g <- (1 - beta) g + (1/b) sum_z (clip(u) - (1 - beta) clip(u_))

    and `gradient_tracking` follows g + noise.

    The noise is calibrated when a simulation is prepared, by its `ExamplePrivacy`.

    Source: Decentralized minimax with privacy, DPMixSGD, arXiv:2508.07505; both
    gradients clipped, which the paper does not. Checked against the paper's text.

    Args:
      lr: Learning rate, 0.03 to 1.
      beta: Weight of the fresh gradient in STORM, in [0, 1], 0.01 to 0.5.

    Example:
      >>> method = fm.decentralized.dpmixsgd(lr=0.3)
      >>> promise = fm.decentralized.ExamplePrivacy(epsilon=4.0, rounds=200)
      >>> auc = fm.problems.auc()  # doctest: +SKIP
      >>> fm.train(method, auc, rounds=200, privacy=promise)  # doctest: +SKIP

    See also: `decentralized.gradient_tracking` without privacy.
    """
    make = partial(gradient_tracking, lr)
    return PrivateAgents(make, PRIVATE["dpmixsgd"], beta)


@recorded
def dpmixsgd_inside(lr: Hyper = 0.1, *, beta: float = 0.1) -> PrivateAgents:
    """DPMixSGD (clipped, noise inside): tracked STORM with noise in its recursion.

    The same as `fm.decentralized.dpmixsgd()`, but `gradient_tracking` follows

        g <- (1 - beta) g + (1/b) sum_z (clip(u) - (1 - beta) clip(u_)) + noise

    Source: Defined here: Decentralized minimax with privacy, DPMixSGD,
    arXiv:2508.07505; with noise that the recursion keeps.
    """
    make = partial(gradient_tracking, lr)
    return PrivateAgents(make, PRIVATE["dpmixsgd_inside"], beta)


@recorded
def private_storm(lr: Hyper = 0.3, *, beta: float = 0.1) -> PrivateAgents:
    """Private STORM (split clip): tracked STORM that clips changes too.

    The same as `fm.decentralized.dpmixsgd()`, but `gradient_tracking` follows

        g <- (1 - beta) g + (1/b) sum_z (beta clip(u) + (1 - beta) clip(u - u_)) + noise

    Source: Defined here: a composition of this library, after DIFF2, arXiv:2302.03884.
    """
    make = partial(gradient_tracking, lr)
    return PrivateAgents(make, PRIVATE["private_storm"], beta)


YANG = "Yang et al. 2022, UAI, arXiv:2201.09046; here decentralized"
CHOQUETTE = "Choquette-Choo et al. 2023, NeurIPS, arXiv:2306.08153"
MCMAHAN = "McMahan et al. 2024, Buffered linear Toeplitz matrices, arXiv:2408.08868"
DPMIXSGD = "Decentralized minimax with privacy, DPMixSGD, arXiv:2508.07505"
CLIPPED = f"{DPMIXSGD}; both gradients clipped, which the paper does not"
KEPT = f"{DPMIXSGD}; with noise that the recursion keeps"
DIFF2 = "none: a composition of this library, after DIFF2, arXiv:2302.03884"

ALL = by_name(
    Method(dp_sgda, "DP-SGDA", YANG, Source.INDEPENDENT),
    Method(dp_ftrl, "DP-FTRL (banded)", CHOQUETTE, Source.AUTHORS),
    Method(dp_ftrl_buffered, "DP-FTRL (buffered)", MCMAHAN, Source.AUTHORS),
    Method(dpmixsgd, "DPMixSGD (clipped)", CLIPPED, Source.TEXT),
    Method(dpmixsgd_inside, "DPMixSGD (clipped, noise inside)", KEPT, Source.OURS),
    Method(private_storm, "Private STORM (split clip)", DIFF2, Source.OURS),
)
