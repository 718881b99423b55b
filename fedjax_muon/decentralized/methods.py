"""The table of decentralized methods.

Parameters are one variable or a `Pair` (`core.pair`); gradients descend in both. None
of these methods guarantees privacy, not even those that add noise without clipping, as
in the comparison of the DPMixSGD paper. Private ones are in `decentralized.private`.
"""

from fedjax_muon.algorithms.registry import Method, Source, by_name
from fedjax_muon.decentralized.dsgd import dp_sgda_unclipped, dsgd, dsgd_muon, dsgda
from fedjax_muon.decentralized.suda import (
    suda,
    suda_muon,
    suda_muon_extra,
    suda_muon_gt,
)
from fedjax_muon.decentralized.tracking import (
    demuon,
    dm_hsgd,
    dpmixsgd_unclipped,
    gradient_tracking,
    gradient_tracking_muon,
)

AUTHORS, INDEPENDENT = Source.AUTHORS, Source.INDEPENDENT
TEXT, DEFINED = Source.TEXT, Source.OURS

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
DPMIXSGD_GRID = {**STORM_GRID, "sigma": (0.5, 1.0)}

UNCLIPPED = "(unclipped, no privacy)"

ALL = by_name(
    Method(dsgd, "D-SGD", LIAN, INDEPENDENT),
    Method(dsgd_muon, "D-SGD + Muon", OURS, DEFINED, color="#d6459b"),
    Method(gradient_tracking, "Gradient tracking", NEDIC, INDEPENDENT),
    Method(
        gradient_tracking_muon,
        "Gradient tracking + Muon",
        OURS,
        DEFINED,
        color="#a0307a",
    ),
    Method(demuon, "DeMuon", HE, AUTHORS, color="#c77dc0"),
    Method(suda, "SUDA", ALGHUNAIM, DEFINED),
    Method(suda_muon, "SUDA-Muon(ED)", SUDA, color="#7a3e9d"),
    Method(suda_muon_extra, "SUDA-Muon(EXTRA)", SUDA, color="#b07aa1"),
    Method(suda_muon_gt, "SUDA-Muon(GT)", SUDA, color="#5e2750"),
    Method(dsgda, "D-SGDA", ZHU, grid=LR_GRID),
    Method(dp_sgda_unclipped, f"DP-SGDA {UNCLIPPED}", YANG, INDEPENDENT, LR_GRID),
    Method(dm_hsgd, "DM-HSGD", XIAN, AUTHORS, STORM_GRID),
    Method(dpmixsgd_unclipped, f"DPMixSGD {UNCLIPPED}", DPMIXSGD, TEXT, DPMIXSGD_GRID),
)
