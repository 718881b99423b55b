"""Minimax methods; `ALL` has each of them with its paper and published grid.

Parameters are a `Pair` (`core.pair`).
"""

from fedjax_muon.algorithms.registry import Method, Source, by_name
from fedjax_muon.minimax.fess_gda import fess_gda
from fedjax_muon.minimax.presets import (
    fed_nsgda_m,
    fedmuon_da,
    fedsgda_clip,
    fedsgda_m,
    fsgda,
    local_sgda,
    local_sgdam,
    sagda,
)

ZHANG = "Zhang and Gao 2025, arXiv:2511.04456"
YANG = "Yang et al. 2022, arXiv:2210.00611"

# Zhang and Gao state the smallest and the largest value for their two methods. They do
# not state the grids with which they tuned the others.
GRID = {"lr": (0.001, 0.003, 0.01, 0.03, 0.1)}

ALL = by_name(
    Method(fed_nsgda_m, "Fed-NSGDA-M", ZHANG, GRID, source=Source.TEXT),
    Method(fedmuon_da, "FedMuon-DA", ZHANG, GRID, source=Source.TEXT),
    Method(fedsgda_clip, "FedSGDA-Clip", ZHANG, GRID, source=Source.TEXT),
    Method(
        local_sgda,
        "LocalSGDA",
        "Deng and Mahdavi 2021, AISTATS",
        GRID,
        source=Source.INDEPENDENT,
    ),
    Method(local_sgdam, "LocalSGDAM", "Sharma et al. 2022, arXiv:2203.04850", GRID),
    Method(fedsgda_m, "FedSGDA-M", "Wu et al. 2023, FedSGDA-M, NeurIPS", GRID),
    Method(sagda, "SAGDA", YANG, GRID),
    Method(fsgda, "FSGDA", YANG, GRID, source=Source.INDEPENDENT),
    Method(
        fess_gda,
        "FESS-GDA",
        "Shen et al. 2024, arXiv:2311.00944",
        GRID,
        source=Source.INDEPENDENT,
    ),
)

__all__ = [
    "ALL",
    "fed_nsgda_m",
    "fedmuon_da",
    "fedsgda_clip",
    "fedsgda_m",
    "fess_gda",
    "fsgda",
    "local_sgda",
    "local_sgdam",
    "sagda",
]
