"""Decentralized methods; `ALL` has each with its paper and its published grid.

None of them guarantees privacy. `PRIVATE` has methods that do, as part of an
`AgentPrivacy`, which is an argument of `decentralize`.
"""

from fedjax_muon.algorithms.registry import Method, Source, by_name
from fedjax_muon.decentralized import estimators, topology
from fedjax_muon.decentralized.agent_privacy import AgentPrivacy
from fedjax_muon.decentralized.dsgd import dsgd
from fedjax_muon.decentralized.gossip import Estimator, Gossip, Iteration
from fedjax_muon.decentralized.mixing import dense, shifted, sparse
from fedjax_muon.decentralized.presets import (
    dm_hsgd,
    dp_sgda_unclipped,
    dpmixsgd_unclipped,
    dsgd_muon,
    dsgda,
    gradient_tracking_muon,
)
from fedjax_muon.decentralized.private import PRIVATE, Mechanism
from fedjax_muon.decentralized.tracking import gradient_tracking

XIAN = "Xian et al. 2021, NeurIPS"
LIAN = "Lian et al. 2017, arXiv:1705.09056"
OURS = "none: a composition of this library, not published"

LR_GRID = {"lr": (1.0, 0.1, 0.01, 0.001)}
STORM_GRID = {**LR_GRID, "beta": (0.5, 0.1, 0.01)}

ALL = by_name(
    Method(dsgd, "D-SGD", LIAN, source=Source.INDEPENDENT),
    Method(dsgd_muon, "D-SGD + Muon", OURS, source=Source.OURS),
    Method(
        gradient_tracking,
        "Gradient tracking",
        "Nedic et al. 2017, arXiv:1607.03218",
        source=Source.INDEPENDENT,
    ),
    Method(
        gradient_tracking_muon,
        "Gradient tracking + Muon",
        f"{OURS}; He et al. 2025, DeMuon, arXiv:2510.01377, track a momentum instead",
        source=Source.OURS,
    ),
    Method(dsgda, "D-SGDA", "Zhu et al. 2023, decentralized SGDA", LR_GRID),
    Method(
        dp_sgda_unclipped,
        "DP-SGDA (unclipped, no privacy)",
        "Yang et al. 2022, DP-SGDA, UAI; here decentralized and without a clip",
        LR_GRID,
        source=Source.INDEPENDENT,
    ),
    Method(dm_hsgd, "DM-HSGD", XIAN, STORM_GRID, source=Source.AUTHORS),
    Method(
        dpmixsgd_unclipped,
        "DPMixSGD (unclipped, no privacy)",
        "Decentralized minimax with privacy, DPMixSGD, arXiv:2508.07505: Algorithm 1",
        {**STORM_GRID, "sigma": (0.5, 1.0)},
        source=Source.TEXT,
    ),
)

__all__ = [
    "ALL",
    "PRIVATE",
    "AgentPrivacy",
    "Estimator",
    "Gossip",
    "Iteration",
    "Mechanism",
    "dense",
    "dm_hsgd",
    "dp_sgda_unclipped",
    "dpmixsgd_unclipped",
    "dsgd",
    "dsgd_muon",
    "dsgda",
    "estimators",
    "gradient_tracking",
    "gradient_tracking_muon",
    "shifted",
    "sparse",
    "topology",
]
