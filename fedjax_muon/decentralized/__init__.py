"""`ALL`: every decentralized method by name, each a composition of `dsgd` or `tracking`
with an estimator. All take parameters of one variable or a `Pair`, see
`fedjax_muon.pair`, and gradients that descend in both. None promises privacy:
`fedjax_muon.private_storm` has what a guarantee needs."""

import optax

from fedjax_muon.core import Hyper
from fedjax_muon.decentralized.dsgd import dsgd
from fedjax_muon.decentralized.tracking import tracking
from fedjax_muon.estimators import fresh, noisy, storm
from fedjax_muon.methods import Method
from fedjax_muon.pair import Pair
from fedjax_muon.transforms import by_rank, orthogonalize, sign_scalars

_identity = optax.identity()
# Scalars are no matrices; the sign bounds their steps as the polar factor does others'.
_polar = by_rank(orthogonalize(), sign_scalars())


def _descent(
    grad_fn, *, lr: Hyper = 0.1, rule: optax.GradientTransformation = _identity
):
    return dsgd(fresh(grad_fn), lr=lr, rule=rule)


def _noisy_descent(
    grad_fn,
    *,
    lr: Hyper = 0.1,
    sigma: Hyper = 0.5,
    rule: optax.GradientTransformation = _identity,
):
    return dsgd(noisy(fresh(grad_fn), sigma), lr=lr, rule=rule)


def _tracked(
    grad_fn, *, lr: Hyper = 0.01, rule: optax.GradientTransformation = _identity
):
    return tracking(fresh(grad_fn), lr=lr, rule=rule)


def _tracked_storm(
    grad_fn,
    *,
    lr: Hyper = 0.01,
    beta: Hyper = 0.01,
    rule: optax.GradientTransformation = _identity,
):
    return tracking(storm(grad_fn, beta), lr=lr, rule=rule)


def _tracked_noisy_storm(
    grad_fn,
    *,
    lr: Hyper = 0.01,
    beta: Hyper = 0.01,
    sigma: Hyper = 0.5,
    rule: optax.GradientTransformation = _identity,
):
    return tracking(noisy(storm(grad_fn, beta), sigma), lr=lr, rule=rule)


XIAN = "Xian et al. 2021, arXiv:2104.10116"
LIAN = "Lian et al. 2017, arXiv:1705.09056"
OURS = "none: a composition of this library, not published"

RATES = Pair(0.01, 0.1)  # of Xian et al.'s public code, as are these weights
WEIGHTS = Pair(0.01, 0.1)
LR_GRID = {"lr": (1.0, 0.1, 0.01, 0.001)}
STORM_GRID = {**LR_GRID, "beta": (0.5, 0.1, 0.01)}

ALL: dict[str, Method] = {
    "dsgd": Method("D-SGD", LIAN, _descent),
    "dsgd_muon": Method("D-SGD + Muon", OURS, _descent, {"rule": _polar, "lr": 0.01}),
    "gradient_tracking": Method(
        "Gradient tracking", "Nedic et al. 2017, arXiv:1607.03218", _tracked
    ),
    "gradient_tracking_muon": Method(
        "Gradient tracking + Muon",
        f"{OURS}; He et al. 2025, DeMuon, arXiv:2510.01377, track a momentum instead",
        _tracked,
        {"rule": _polar},
    ),
    "dsgda": Method(
        "D-SGDA",
        "Zhu et al. 2023, decentralized SGDA",
        _descent,
        {"lr": RATES},
        LR_GRID,
    ),
    "dp_sgda": Method(
        "DP-SGDA",
        "Yang et al. 2022, DP-SGDA, UAI; here decentralized and without a clip",
        _noisy_descent,
        {"lr": RATES},
        LR_GRID,
    ),
    "dm_hsgd": Method(
        "DM-HSGD",
        XIAN,
        _tracked_storm,
        {"lr": RATES, "beta": WEIGHTS},
        STORM_GRID,
    ),
    "dpmixsgd": Method(
        "DPMixSGD",
        "Decentralized minimax with privacy, DPMixSGD: Algorithm 1",
        _tracked_noisy_storm,
        {"lr": RATES, "beta": WEIGHTS},
        {**STORM_GRID, "sigma": (0.5, 1.0)},
    ),
}
