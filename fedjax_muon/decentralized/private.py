"""Decentralized methods with a privacy guarantee; `PRIVATE` has them by name.

A row builds a method, which needs the gradients of single examples, and says what an
agent releases, in terms of `fedjax_muon.privacy`. Both follow from one `Mechanism`, so
that the accounting is that of the method that runs. `AgentPrivacy` makes them an
argument of `decentralize`, with the sampling that is accounted for. The parts are for
studies that sample themselves; they carry no guarantee:

    mechanism = Mechanism(
        clip_norm=1.0, change_clip_norm=0.1, beta=0.1, batch_size=20
    )
    spec = calibrate("private_storm", mechanism, 8.0, sampling, steps=1001, delta=1e-5)
    noise_scale = noise_scale_of(spec)
    PRIVATE["private_storm"].build(mechanism, noise_scale, lr=0.1)
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import optax

from fedjax_muon.algorithms.registry import Source
from fedjax_muon.core import Hyper, recorded
from fedjax_muon.decentralized.dsgd import dsgd
from fedjax_muon.decentralized.estimators import add_public_gradient, noisy
from fedjax_muon.decentralized.gossip import Estimator, Gossip
from fedjax_muon.decentralized.private_ftrl import correlated_gradient
from fedjax_muon.decentralized.private_storm import (
    each,
    private_gradient,
    private_storm,
    split,
)
from fedjax_muon.decentralized.tracking import gradient_tracking
from fedjax_muon.privacy.correlated import Strategy
from fedjax_muon.privacy.guarantees import PrivacySpec, calibrated
from fedjax_muon.privacy.releases import Correlated, Inside, Output, Release
from fedjax_muon.privacy.sampling import Sampling
from fedjax_muon.privacy.sensitivity import Each, Split


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """How the influence of an example is bounded; the same for all agents."""

    clip_norm: float  # of an example's gradient, all variables together
    change_clip_norm: float  # of its change between two iterations, for `split`
    beta: float  # weight of the new gradient in STORM
    batch_size: int  # expected number of examples in a batch
    strategy: Strategy | None = None  # of correlated noise, for DP-FTRL


class PrivateMethod(NamedTuple):
    """A private method, and what it releases."""

    label: str
    paper: str
    source: Source
    estimator: Callable[[Mechanism, Hyper], Estimator]
    # (mechanism, noise scale) -> private estimator
    base: Callable[..., Gossip]  # (lr, rule=, estimator=) -> algorithm
    release: Callable[[Mechanism, float], Release]
    # (mechanism, noise scale) -> what an agent releases
    amplified: bool
    # whether it is accounted for under Poisson sampling, of groups that take turns if
    # the noise is correlated, or under cyclic sampling

    def build(
        self,
        mechanism: Mechanism,
        noise_scale: Hyper,
        lr: Hyper = 0.01,
        rule: optax.GradientTransformation = optax.identity(),
    ) -> Gossip:
        """Builds the algorithm.

        It clips the gradients of `objective.example_grad` and adds noise.
        `objective.public_grad` is added without either.

        Args:
          mechanism: How the influence of an example is bounded.
          noise_scale: Noise multiplier; for noise on the output, standard deviation.
            See `noise_scale_of`.

        Returns:
          An algorithm with the hyper-parameters `noise_scale` and `lr`.
        """
        return _built(self, mechanism, noise_scale, lr, rule)


@recorded
def _built(
    method: PrivateMethod,
    mechanism: Mechanism,
    noise_scale: Hyper,
    lr: Hyper,
    rule: optax.GradientTransformation,
) -> Gossip:
    estimator = add_public_gradient(method.estimator(mechanism, noise_scale))
    return method.base(lr=lr, rule=rule, estimator=estimator)


def _fresh(m: Mechanism, noise_scale: Hyper) -> Estimator:
    return private_gradient(
        m.clip_norm, batch_size=m.batch_size, noise_multiplier=noise_scale
    )


def _correlated(m: Mechanism, noise_scale: Hyper) -> Estimator:
    return correlated_gradient(
        m.clip_norm,
        batch_size=m.batch_size,
        strategy=_strategy(m),
        noise_multiplier=noise_scale,
    )


def _strategy(m: Mechanism) -> Strategy:
    if m.strategy is None:
        raise ValueError(
            "DP-FTRL needs the strategy of its mechanism, such as "
            "privacy.banded(steps, bands), got None"
        )
    return m.strategy


def _paper(m: Mechanism, noise_scale: Hyper) -> Estimator:
    clip = each(m.clip_norm)
    estimator = private_storm(clip, beta=m.beta, batch_size=m.batch_size)
    return noisy(estimator, noise_scale)


def _inside(m: Mechanism, noise_scale: Hyper) -> Estimator:
    return private_storm(
        each(m.clip_norm),
        beta=m.beta,
        batch_size=m.batch_size,
        noise_multiplier=noise_scale,
    )


def _split(m: Mechanism, noise_scale: Hyper) -> Estimator:
    return private_storm(
        split(m.clip_norm, m.change_clip_norm),
        beta=m.beta,
        batch_size=m.batch_size,
        noise_multiplier=noise_scale,
    )


DPMIXSGD = "Decentralized minimax with privacy, DPMixSGD, arXiv:2508.07505"
PRIVATE: dict[str, PrivateMethod] = {
    "dp_sgda": PrivateMethod(
        "DP-SGDA",
        "Yang et al. 2022, DP-SGDA, UAI; here decentralized",
        Source.INDEPENDENT,
        _fresh,
        dsgd,
        lambda m, z: Release(Each(m.clip_norm), Inside(z)),
        amplified=True,
    ),
    "dp_ftrl": PrivateMethod(
        "DP-FTRL (banded)",
        "Choquette-Choo et al. 2023, Banded matrix factorization, NeurIPS",
        Source.AUTHORS,
        _correlated,
        dsgd,
        lambda m, z: Release(Each(m.clip_norm), Correlated(z, _strategy(m))),
        amplified=True,
    ),
    "dp_ftrl_buffered": PrivateMethod(
        "DP-FTRL (buffered)",
        "McMahan et al. 2024, Buffered linear Toeplitz matrices, arXiv:2408.08868",
        Source.AUTHORS,
        _correlated,
        dsgd,
        lambda m, z: Release(Each(m.clip_norm), Correlated(z, _strategy(m))),
        amplified=False,
    ),
    "dpmixsgd": PrivateMethod(
        "DPMixSGD (clipped)",
        f"{DPMIXSGD}; both gradients clipped, which the paper does not",
        Source.TEXT,
        _paper,
        gradient_tracking,
        lambda m, sigma: Release(Each(m.clip_norm), Output(sigma), m.beta),
        amplified=False,
    ),
    "dpmixsgd_inside": PrivateMethod(
        "DPMixSGD (clipped, noise inside)",
        f"{DPMIXSGD}; with noise that the recursion keeps",
        Source.OURS,
        _inside,
        gradient_tracking,
        lambda m, z: Release(Each(m.clip_norm), Inside(z), m.beta),
        amplified=True,
    ),
    "private_storm": PrivateMethod(
        "Private STORM (split clip)",
        "none: a composition of this library, after DIFF2, arXiv:2302.03884",
        Source.OURS,
        _split,
        gradient_tracking,
        lambda m, z: Release(Split(m.clip_norm, m.change_clip_norm), Inside(z), m.beta),
        amplified=True,
    ),
}


def calibrate(
    name: str,
    mechanism: Mechanism,
    epsilon: float,
    sampling: Sampling,
    *,
    steps: int,
    delta: float,
) -> PrivacySpec:
    """Finds the smallest noise of a private method for an epsilon.

    Args:
      name: Name of the method in `PRIVATE`.
      mechanism: The mechanism that the method is built from.
      epsilon: Privacy loss of an example over all iterations, positive.
      sampling: Sampling of the agent with the fewest examples.
      steps: Number of iterations, t = 0 included.
      delta: Below 1 / examples.

    Returns:
      What an agent releases, with that noise; see `noise_scale_of`.

    Raises:
      ImportError: If dp-accounting is not installed.

    Example:
      >>> mechanism = Mechanism(1.0, 0.1, beta=0.1, batch_size=20)
      >>> sampling = Cyclic(examples=6512, batch=20)
      >>> spec = calibrate(
      ...     "dpmixsgd", mechanism, 8.0, sampling, steps=1001, delta=1e-5
      ... )
    """
    if sampling.batch != mechanism.batch_size:
        raise ValueError(
            f"the mechanism divides by {mechanism.batch_size}, the sampling has "
            f"batches of {sampling.batch}"
        )
    release = PRIVATE[name].release(mechanism, 1.0)
    spec = PrivacySpec({"estimate": release}, sampling, steps=steps, delta=delta)
    return calibrated(spec, epsilon)


def noise_scale_of(spec: PrivacySpec) -> float:
    """Returns the noise scale of `PrivateMethod.build`.

    Args:
      spec: What an agent releases, as returned by `calibrate`.

    Returns:
      The noise multiplier; for noise on the output, its standard deviation.
    """
    (release,) = spec.releases.values()
    return release.noise.smallest
