"""Private methods of agents as values, before the noise that they need is known.

    method = fm.decentralized.dpmixsgd(lr=0.1)
    privacy = ExamplePrivacy(epsilon=4.0, delta=1e-5, rounds=200)
    result = fm.train(method, fm.problems.auc(), rounds=200, privacy=privacy)

`private.PRIVATE` describes what they release. The default learning rates were chosen by
hand on the default problem of agents, with a seed that is not used otherwise.
"""

import dataclasses
from typing import NamedTuple

from fedjax_muon.algorithms.registry import Method, by_name
from fedjax_muon.core import Hyper, check_count, recorded
from fedjax_muon.core.recipe import Recipe
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.private import PRIVATE, Mechanism, PrivateMethod


class PrivateAgents(NamedTuple):
    """A private method, before it is known how much noise it needs."""

    algorithm: Gossip  # without an estimator
    method: PrivateMethod
    beta: float  # of its mechanism
    recipe: Recipe | None = None

    def __repr__(self) -> str:
        return self.method.label if self.recipe is None else self.recipe.call()


@dataclasses.dataclass(frozen=True)
class ExamplePrivacy:
    """What a private method of agents promises for each example of an agent."""

    _: dataclasses.KW_ONLY
    rounds: int  # that the guarantee covers
    epsilon: float | None = None  # inf: without noise and without privacy
    delta: float = 1e-5  # below one over the examples of every agent
    clip_norm: float = 0.2  # of the gradient of an example
    # of the change of an example's gradient between two iterations, in private_storm;
    # a tenth of clip_norm by default
    change_clip_norm: float | None = None
    bands: int = 4  # of the noise of dp_ftrl, and groups of examples that take turns
    # noise from the seed instead of the operating system, for tests; no privacy
    insecure_fixed_noise: bool = False
    # training metrics are computed and recorded; the guarantee does not hold for them
    publish_training_metrics: bool = False

    def mechanism(
        self, agents: PrivateAgents, batch_size: int, smallest: int
    ) -> Mechanism:
        """The clip and noise of a method, whose smallest agent has so many examples."""
        check_count("batch_size", batch_size)
        check_count("bands", self.bands)
        change, separation = self.change_clip_norm, max(1, smallest // batch_size)
        strategy = agents.method.strategy(self.rounds + 1, self.bands, separation)
        return Mechanism(
            clip_norm=self.clip_norm,
            change_clip_norm=self.clip_norm / 10 if change is None else change,
            beta=agents.beta,
            batch_size=batch_size,
            strategy=strategy,
        )


def _agents(name: str, lr: Hyper, beta: float) -> PrivateAgents:
    method = PRIVATE[name]
    return PrivateAgents(method.base(lr=lr), method, beta)


@recorded
def dp_sgda(lr: Hyper = 1.0) -> PrivateAgents:
    """DP-SGDA: D-SGDA with clipped gradients and fresh noise.

    With the expected size b of a batch, and z its examples,

        g = (1/b) sum_z clip(grad(x; z)) + noise
        x <- project(W(x - lr g))

    The noise is calibrated when an experiment starts, from its `ExamplePrivacy`.

    Source: Yang et al. 2022, UAI, arXiv:2201.09046; here decentralized. Checked against
    independent code.

    Args:
      lr: Learning rate, 0.1 to 3.

    Example:
      >>> method = fm.decentralized.dp_sgda(lr=0.3)
      >>> promise = fm.decentralized.ExamplePrivacy(epsilon=4.0, rounds=200)
      >>> auc = fm.problems.auc()  # doctest: +SKIP
      >>> fm.train(method, auc, rounds=200, privacy=promise)  # doctest: +SKIP

    See also: `decentralized.dsgd` without privacy, and `decentralized.AgentPrivacy`
    for `decentralize`.
    """
    return _agents("dp_sgda", lr, beta=1.0)


@recorded
def dp_ftrl(lr: Hyper = 1.0) -> PrivateAgents:
    """DP-FTRL (banded): D-SGDA with noise that bands correlate.

    The same as `fm.decentralized.dp_sgda()`, but for the noise, where C has bands:

        g = (1/b) sum_z clip(grad(x; z)) + C^-1 noise

    Source: Choquette-Choo et al. 2023, NeurIPS, arXiv:2306.08153. Checked against the
    authors' code.
    """
    return _agents("dp_ftrl", lr, beta=1.0)


@recorded
def dp_ftrl_buffered(lr: Hyper = 1.0) -> PrivateAgents:
    """DP-FTRL (buffered): D-SGDA with noise from a few buffers.

    The same as `fm.decentralized.dp_ftrl()`, but for C, which needs a few buffers:

        g = (1/b) sum_z clip(grad(x; z)) + C^-1 noise

    Source: McMahan et al. 2024, Buffered linear Toeplitz matrices, arXiv:2408.08868.
    Checked against the authors' code.
    """
    return _agents("dp_ftrl_buffered", lr, beta=1.0)


@recorded
def dpmixsgd(lr: Hyper = 0.1, *, beta: float = 0.1) -> PrivateAgents:
    """DPMixSGD (clipped): tracked STORM with noise on its output.

    With the gradients u = grad(x; z) and u_ = grad(x_; z) of an example z, where x_ are
    the parameters of the iteration before, and the expected size b of a batch,

        g <- (1 - beta) g + (1/b) sum_z (clip(u) - (1 - beta) clip(u_))

    and `gradient_tracking` follows g + noise.

    The noise is calibrated when an experiment starts, from its `ExamplePrivacy`.

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

    See also: `decentralized.gradient_tracking` without privacy, and
    `decentralized.AgentPrivacy` for `decentralize`.
    """
    return _agents("dpmixsgd", lr, beta)


@recorded
def dpmixsgd_inside(lr: Hyper = 0.1, *, beta: float = 0.1) -> PrivateAgents:
    """DPMixSGD (clipped, noise inside): tracked STORM with noise in its recursion.

    The same as `fm.decentralized.dpmixsgd()`, but `gradient_tracking` follows

        g <- (1 - beta) g + (1/b) sum_z (clip(u) - (1 - beta) clip(u_)) + noise

    Source: Defined here: Decentralized minimax with privacy, DPMixSGD,
    arXiv:2508.07505; with noise that the recursion keeps.
    """
    return _agents("dpmixsgd_inside", lr, beta)


@recorded
def private_storm(lr: Hyper = 0.3, *, beta: float = 0.1) -> PrivateAgents:
    """Private STORM (split clip): tracked STORM that clips changes too.

    The same as `fm.decentralized.dpmixsgd()`, but `gradient_tracking` follows

        g <- (1 - beta) g + (1/b) sum_z (beta clip(u) + (1 - beta) clip(u - u_)) + noise

    Source: Defined here: a composition of this library, after DIFF2, arXiv:2302.03884.
    """
    return _agents("private_storm", lr, beta)


ROWS = dp_sgda, dp_ftrl, dp_ftrl_buffered, dpmixsgd, dpmixsgd_inside, private_storm
ALL = by_name(*(Method(make, *PRIVATE[make.__name__][:3]) for make in ROWS))
