"""The table of decentralized methods: functions, and presets that are rows.

Parameters are one variable or a `Pair` (`core.pair`); gradients descend in both. None
of these methods guarantees privacy, not even those that add noise without clipping, as
in the comparison of the DPMixSGD paper. Private ones are in `decentralized.private`.
"""

import optax

from fedjax_muon.algorithms.registry import FromOptions, Method, Source, by_name, preset
from fedjax_muon.core import Hyper
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized.dsgd import dsgd
from fedjax_muon.decentralized.estimators import ema, fresh, noisy, storm
from fedjax_muon.decentralized.gossip import Estimator
from fedjax_muon.decentralized.suda import ED, EXTRA, GT, suda
from fedjax_muon.decentralized.tracking import gradient_tracking
from fedjax_muon.transforms import Polar, default_rule, unit_directions

LIAN = "Lian et al. 2017, arXiv:1705.09056"
NEDIC = "Nedic et al. 2017, arXiv:1607.03218"
XIAN = (
    "Xian et al. 2021, A Faster Decentralized Algorithm for Nonconvex Minimax "
    "Problems, NeurIPS"
)
YANG = "Yang et al. 2022, UAI, arXiv:2201.09046; here decentralized and without a clip"
ZHU = "Zhu et al. 2023, NeurIPS, arXiv:2310.20369"
DPMIXSGD = "Decentralized minimax with privacy, DPMixSGD, arXiv:2508.07505: Algorithm 1"
OURS = "none: a composition of this library, not published"
ALGHUNAIM = "Alghunaim and Yuan 2022, arXiv:2110.09993"
SUDA = "Zhang et al. 2026, arXiv:2604.23980"
HE = "He et al. 2025, DeMuon, arXiv:2510.01377"

LR_GRID = {"lr": (1.0, 0.1, 0.01, 0.001)}
STORM_GRID = {**LR_GRID, "beta": (0.5, 0.1, 0.01)}

# of x and y, as in the public code of Xian et al.
RATES = {"lr": Pair(0.01, 0.1)}
STORM_RATES = {**RATES, "beta": Pair(0.01, 0.1)}
RULE = {"rule": optax.identity()}
MUON = {"lr": 0.01, "polar": None, "normalize_vectors": True}


def _muon(polar: Polar | None, normalize_vectors: bool) -> optax.GradientTransformation:
    """Polar factors of matrices and unit vectors.

    Args:
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.
      normalize_vectors: Whether vectors are divided by their norms. If not, they move
        along the tracked gradient itself.
    """
    make = lambda polar: unit_directions(polar, normalize_vectors=normalize_vectors)
    return default_rule(None, polar, make)


def _noisy_gradient(sigma: Hyper) -> Estimator:
    """A fresh gradient with noise.

    Args:
      sigma: Standard deviation of the noise in every coordinate, 0 to 1.
    """
    return noisy(fresh(), sigma)


def _ema_from_zero(momentum: Hyper) -> Estimator:
    """An average that starts at 0.

    Args:
      momentum: Weight of the past in the average of gradients, in [0, 1).
    """
    return ema(momentum)


def _ema_from_the_first(momentum: Hyper) -> Estimator:
    """An average that starts at the first gradient.

    Args:
      momentum: Weight of the past in the average of gradients, in [0, 1).
    """
    return ema(momentum, from_zero=False)


def _noisy_storm(beta: Hyper, sigma: Hyper) -> Estimator:
    """STORM with noise.

    Args:
      beta: Weight of the new gradient, in [0, 1].
      sigma: Standard deviation of the noise in every coordinate, 0 to 1.
    """
    return noisy(storm(beta), sigma)


SUDA_MUON = MUON | {"lr": 0.03, "momentum": 0.9}
SUDA_CHANGES = {
    "rule": FromOptions(_muon),
    "estimator": FromOptions(_ema_from_the_first),
}

ALL = by_name(
    Method(dsgd, "D-SGD", LIAN, Source.INDEPENDENT),
    preset(
        "dsgd_muon",
        "D-SGD + Muon",
        OURS,
        Source.OURS,
        base=dsgd,
        sentence="Decentralized SGD with orthogonalized gradients.",
        options=MUON,
        changes={"rule": FromOptions(_muon)},
        color="#d6459b",
    ),
    Method(gradient_tracking, "Gradient tracking", NEDIC, Source.INDEPENDENT),
    preset(
        "gradient_tracking_muon",
        "Gradient tracking + Muon",
        OURS,
        Source.OURS,
        base=gradient_tracking,
        sentence="Tracked gradients, orthogonalized.",
        options=MUON,
        changes={"rule": FromOptions(_muon)},
        color="#a0307a",
    ),
    preset(
        "demuon",
        "DeMuon",
        HE,
        Source.AUTHORS,
        base=gradient_tracking,
        sentence="Tracked averages of gradients, orthogonalized.",
        options=MUON | {"momentum": 0.8},
        changes={"rule": FromOptions(_muon), "estimator": FromOptions(_ema_from_zero)},
        color="#c77dc0",
    ),
    Method(suda, "SUDA", ALGHUNAIM, Source.OURS),
    preset(
        "suda_muon",
        "SUDA-Muon(ED)",
        SUDA,
        base=suda,
        sentence="Exact diffusion with tracked averages, orthogonalized.",
        options=SUDA_MUON,
        changes=SUDA_CHANGES | {"triple": ED},
        color="#7a3e9d",
    ),
    preset(
        "suda_muon_extra",
        "SUDA-Muon(EXTRA)",
        SUDA,
        base=suda,
        sentence="EXTRA with tracked averages, orthogonalized.",
        options=SUDA_MUON,
        changes=SUDA_CHANGES | {"triple": EXTRA},
        color="#b07aa1",
    ),
    preset(
        "suda_muon_gt",
        "SUDA-Muon(GT)",
        SUDA,
        base=suda,
        sentence="Gradient tracking by SUDA, with averages, orthogonalized.",
        options=SUDA_MUON,
        changes=SUDA_CHANGES | {"triple": GT},
        color="#5e2750",
    ),
    preset(
        "dsgda",
        "D-SGDA",
        ZHU,
        grid=LR_GRID,
        base=dsgd,
        sentence="Decentralized stochastic gradient descent ascent.",
        options=RATES | RULE,
    ),
    preset(
        "dp_sgda_unclipped",
        "DP-SGDA (unclipped, no privacy)",
        YANG,
        Source.INDEPENDENT,
        LR_GRID,
        base=dsgd,
        sentence="D-SGDA with noise on every gradient, without privacy.",
        options=RATES | {"sigma": 0.5} | RULE,
        changes={"estimator": FromOptions(_noisy_gradient)},
    ),
    preset(
        "dm_hsgd",
        "DM-HSGD",
        XIAN,
        Source.AUTHORS,
        STORM_GRID,
        base=gradient_tracking,
        sentence="Gradient tracking over STORM.",
        options=STORM_RATES | RULE,
        changes={"estimator": FromOptions(storm)},
    ),
    preset(
        "dpmixsgd_unclipped",
        "DPMixSGD (unclipped, no privacy)",
        DPMIXSGD,
        Source.TEXT,
        {**STORM_GRID, "sigma": (0.5, 1.0)},
        base=gradient_tracking,
        sentence="DM-HSGD with noise on what agents send.",
        options=STORM_RATES | {"sigma": 0.5} | RULE,
        changes={"estimator": FromOptions(_noisy_storm)},
    ),
)
