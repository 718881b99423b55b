"""Decentralized presets: `dsgd` or `gradient_tracking` over an estimator.

Parameters are of one variable or a `Pair` (`core.pair`); gradients descend in both.
None of them guarantees privacy: `decentralized.private` has methods that do.
"""

import optax

from fedjax_muon.core import Hyper, recorded
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized.dsgd import dsgd
from fedjax_muon.decentralized.estimators import fresh, noisy, storm
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.tracking import gradient_tracking
from fedjax_muon.transforms import Polar, default_rule, unit_directions

# as in the public code of Xian et al.
RATES = Pair(0.01, 0.1)
WEIGHTS = Pair(0.01, 0.1)


def _muon(polar: Polar | None, normalize_vectors: bool) -> optax.GradientTransformation:
    make = lambda polar: unit_directions(polar, normalize_vectors=normalize_vectors)
    return default_rule(None, polar, make)


@recorded
def dsgd_muon(
    lr: Hyper = 0.01,
    *,
    polar: Polar | None = None,
    normalize_vectors: bool = True,
) -> Gossip:
    """D-SGD + Muon: decentralized SGD with orthogonalized gradients.

    A composition of this library, not published.

    Args:
      polar: Polar factor of matrices; Newton-Schulz by default.
      normalize_vectors: Whether vectors are divided by their norms. If not, they move
        along the direction itself.

    Returns:
      An algorithm whose agents send their parameters in every iteration.
    """
    return dsgd(lr=lr, rule=_muon(polar, normalize_vectors))


@recorded
def gradient_tracking_muon(
    lr: Hyper = 0.01,
    *,
    polar: Polar | None = None,
    normalize_vectors: bool = True,
) -> Gossip:
    """Gradient tracking + Muon: tracked gradients, orthogonalized.

    A composition of this library, not published. He et al. 2025, DeMuon,
    arXiv:2510.01377, track a momentum instead.

    Args:
      polar: Polar factor of matrices; Newton-Schulz by default.
      normalize_vectors: Whether vectors are divided by their norms. If not, they move
        along the direction itself.

    Returns:
      An algorithm whose agents send their tracked gradients and their parameters in
      every iteration.
    """
    return gradient_tracking(lr=lr, rule=_muon(polar, normalize_vectors))


@recorded
def dsgda(
    lr: Hyper = RATES,
    *,
    rule: optax.GradientTransformation = optax.identity(),
) -> Gossip:
    """D-SGDA: decentralized stochastic gradient descent ascent.

    Zhu et al. 2023.

    Args:
      lr: Learning rate, or a `Pair` of those of x and y; by default, as in the public
        code of Xian et al.

    Returns:
      An algorithm whose agents send their parameters in every iteration.
    """
    return dsgd(lr=lr, rule=rule)


@recorded
def dp_sgda_unclipped(
    lr: Hyper = RATES,
    *,
    sigma: Hyper = 0.5,
    rule: optax.GradientTransformation = optax.identity(),
) -> Gossip:
    """DP-SGDA without clipping: D-SGDA with noise on every gradient.

    Noise without clipping, as in the comparison of the DPMixSGD paper, gives no privacy
    guarantee. The private method is `decentralized.private.PRIVATE["dp_sgda"]`.

    Yang et al. 2022, UAI, who clip; here decentralized.

    Args:
      lr: Learning rate, or a `Pair` of those of x and y; by default, as in the public
        code of Xian et al.
      sigma: Standard deviation of the noise in every coordinate.

    Returns:
      An algorithm whose agents send their parameters in every iteration.
    """
    return dsgd(lr=lr, rule=rule, estimator=noisy(fresh(), sigma))


@recorded
def dm_hsgd(
    lr: Hyper = RATES,
    *,
    beta: Hyper = WEIGHTS,
    rule: optax.GradientTransformation = optax.identity(),
) -> Gossip:
    """DM-HSGD: gradient tracking over STORM.

    Xian et al. 2021, NeurIPS.

    Args:
      lr: Learning rate, or a `Pair` of those of x and y; by default, as in the public
        code of Xian et al.
      beta: Weight of the new gradient in STORM, in [0, 1]; by default, as in the public
        code of Xian et al.

    Returns:
      An algorithm whose agents send their tracked gradients and their parameters in
      every iteration.
    """
    return gradient_tracking(lr=lr, rule=rule, estimator=storm(beta))


@recorded
def dpmixsgd_unclipped(
    lr: Hyper = RATES,
    *,
    beta: Hyper = WEIGHTS,
    sigma: Hyper = 0.5,
    rule: optax.GradientTransformation = optax.identity(),
) -> Gossip:
    """DPMixSGD without clipping: DM-HSGD with noise on what agents send.

    Noise without clipping, as in Algorithm 1 of the paper, gives no privacy guarantee.
    The private method is `decentralized.private.PRIVATE["dpmixsgd"]`.

    Args:
      lr: Learning rate, or a `Pair` of those of x and y; by default, as in the public
        code of Xian et al.
      beta: Weight of the new gradient in STORM, in [0, 1]; by default, as in the public
        code of Xian et al.
      sigma: Standard deviation of the noise in every coordinate.

    Returns:
      An algorithm whose agents send their tracked gradients and their parameters in
      every iteration.
    """
    return gradient_tracking(lr=lr, rule=rule, estimator=noisy(storm(beta), sigma))
