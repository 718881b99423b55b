"""`ALL`: every minimax method by name. Parameters are a `Pair`, see `fedjax_muon.pair`.

Most are algorithms of minimisation, whose rules treat the two variables apart.
"""

import optax

from fedjax_muon.algorithms import fedavg, fedmuon, scaffold, scaffold_m, stem
from fedjax_muon.methods import Method
from fedjax_muon.minimax.fess_gda import fess_gda
from fedjax_muon.pair import per_variable
from fedjax_muon.transforms import by_rank, normalize, orthogonalize, sign_scalars

ZHANG = "Zhang and Gao, Federated stochastic minimax under heavy-tailed noises"
YANG = "Yang et al. 2022, arXiv:2210.00611"

# The ends are those of Zhang and Gao for their two methods; they tuned the others too,
# over what they do not say.
GRID = {"lr": (0.001, 0.003, 0.01, 0.03, 0.1)}

# Scalars are no matrices; the sign bounds their steps as the polar factor does others'.
_polar = by_rank(orthogonalize(), sign_scalars())

ALL: dict[str, Method] = {
    "fed_nsgda_m": Method(
        "Fed-NSGDA-M",
        ZHANG,
        scaffold_m,
        {"rule": per_variable(normalize()), "lr": 0.01},
        GRID,
    ),
    "fedmuon_da": Method(
        "FedMuon-DA", ZHANG, scaffold_m, {"rule": _polar, "lr": 0.01}, GRID
    ),
    "fedsgda_clip": Method(
        "FedSGDA-Clip",
        ZHANG,
        scaffold_m,
        {"rule": per_variable(optax.clip_by_global_norm(0.1))},
        GRID,
    ),
    "local_sgda": Method(
        "LocalSGDA", "Deng and Mahdavi 2021, AISTATS", fedavg, grid=GRID
    ),
    "local_sgdam": Method(
        "LocalSGDAM",
        "Sharma et al. 2022, arXiv:2203.04850",
        fedmuon,
        {"rule": optax.identity(), "lr": 0.1},
        GRID,
    ),
    "fedsgda_m": Method(
        "FedSGDA-M", "Wu et al. 2023, FedSGDA-M, NeurIPS", stem, grid=GRID
    ),
    "sagda": Method("SAGDA", YANG, scaffold, grid=GRID),
    "fsgda": Method("FSGDA", YANG, fedavg, grid=GRID),
    "fess_gda": Method(
        "FESS-GDA", "Shen et al. 2024, arXiv:2311.00944", fess_gda, grid=GRID
    ),
}
