"""`PRIVATE`: decentralized methods with a guarantee, by name.

A row builds the method, which takes gradients of single examples, and says what an
agent releases, in the words of `fedjax_muon.privacy`. Both are made from one
`Mechanism`, so
that what is accounted for is what is run. `calibrate` finds the noise of an epsilon.

    mechanism = Mechanism(limit=1.0, change=0.1, beta=0.1, batch_size=20)
    spec = calibrate("private_storm", mechanism, 8.0, sampling, steps=1001, delta=1e-5)
    noise = noise_of(spec)
    PRIVATE["private_storm"].build(mechanism, noise, lr=0.1)
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import optax

from fedjax_muon.core import Hyper, recorded
from fedjax_muon.decentralized.dsgd import dsgd
from fedjax_muon.decentralized.estimators import add_public_gradient, noisy
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.private_storm import (
    each,
    private_gradient,
    private_storm,
    split,
)
from fedjax_muon.decentralized.tracking import gradient_tracking
from fedjax_muon.privacy.report import Inside, Output, PrivacySpec, Release, calibrated
from fedjax_muon.privacy.sampling import Sampling
from fedjax_muon.privacy.sensitivity import Each, Split


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """How the influence of an example is bounded; the same for all agents."""

    limit: float  # norm of an example's gradient, all variables together
    change: float  # norm of its change between two iterations, for `split`
    beta: float  # weight of the fresh gradient in STORM
    batch_size: int  # expected


class PrivateMethod(NamedTuple):
    """A method, what it releases, and whether sampling may hide who took part."""

    label: str
    paper: str
    estimate: Callable[[Mechanism, Hyper], Any]  # the last is the noise
    over: Callable[..., Gossip]  # (lr, rule=, estimator=) -> algorithm
    release: Callable[[Mechanism, float], Release]
    amplified: bool  # accounted for under Poisson sampling, else cyclic

    def build(
        self,
        mechanism: Mechanism,
        noise: Hyper,
        lr: Hyper = 0.01,
        rule: optax.GradientTransformation = optax.identity(),
    ) -> Gossip:
        """The algorithm; `noise` and `lr` are hyper-parameters.

        It takes `objective.example_grad`, clips it and adds noise;
        `objective.public_grad` is added as it is.
        """
        return _built(self, mechanism, noise, lr, rule)


@recorded
def _built(
    method: PrivateMethod,
    mechanism: Mechanism,
    noise: Hyper,
    lr: Hyper,
    rule: optax.GradientTransformation,
) -> Gossip:
    estimator = add_public_gradient(method.estimate(mechanism, noise))
    return method.over(lr=lr, rule=rule, estimator=estimator)


def _fresh(m: Mechanism, noise: Hyper):
    return private_gradient(m.limit, batch_size=m.batch_size, inside=noise)


def _paper(m: Mechanism, noise: Hyper):
    estimator = private_storm(each(m.limit), beta=m.beta, batch_size=m.batch_size)
    return noisy(estimator, noise)


def _inside(m: Mechanism, noise: Hyper):
    return private_storm(
        each(m.limit),
        beta=m.beta,
        batch_size=m.batch_size,
        inside=noise,
    )


def _split(m: Mechanism, noise: Hyper):
    return private_storm(
        split(m.limit, m.change),
        beta=m.beta,
        batch_size=m.batch_size,
        inside=noise,
    )


SEED = "Decentralized minimax with privacy, DPMixSGD"
PRIVATE: dict[str, PrivateMethod] = {
    "dp_sgda": PrivateMethod(
        "DP-SGDA",
        "Yang et al. 2022, DP-SGDA, UAI; here decentralized",
        _fresh,
        dsgd,
        lambda m, z: Release(Each(m.limit), Inside(z)),
        amplified=True,
    ),
    "dpmixsgd": PrivateMethod(
        "DPMixSGD (clipped)",
        f"{SEED}; both gradients clipped, which the paper does not",
        _paper,
        gradient_tracking,
        lambda m, sigma: Release(Each(m.limit), Output(sigma), m.beta),
        amplified=False,
    ),
    "dpmixsgd_inside": PrivateMethod(
        "DPMixSGD (clipped, noise inside)",
        f"{SEED}; with noise that the recursion keeps",
        _inside,
        gradient_tracking,
        lambda m, z: Release(Each(m.limit), Inside(z), m.beta),
        amplified=True,
    ),
    "private_storm": PrivateMethod(
        "Private STORM (split clip)",
        "none: a composition of this library, after DIFF2, arXiv:2302.03884",
        _split,
        gradient_tracking,
        lambda m, z: Release(Split(m.limit, m.change), Inside(z), m.beta),
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
    """What a method's agents release with the least noise for `epsilon`.

    Args:
      name: in `PRIVATE`.
      mechanism: the same that the method is built from.
      epsilon: what all iterations together may cost an example.
      sampling: of the agent that has fewest examples.
      steps: iterations, t = 0 included.
      delta: below 1 / examples.

    Raises `ValueError` for a sampling whose batches are not the mechanism's, or that
    does not go with the method's noise.
    """
    if sampling.batch != mechanism.batch_size:
        raise ValueError(
            f"the mechanism divides by {mechanism.batch_size}, the sampling has "
            f"batches of {sampling.batch}"
        )
    release = PRIVATE[name].release(mechanism, 1.0)
    spec = PrivacySpec({"estimate": release}, sampling, steps=steps, delta=delta)
    return calibrated(spec, epsilon)


def noise_of(spec: PrivacySpec) -> float:
    """What `PrivateMethod.build` takes: a multiplier, or a standard deviation."""
    (release,) = spec.releases.values()
    return release.noise.least
