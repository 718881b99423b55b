"""Federated algorithms; `ALL` has each of them with its paper and published grid."""

from fedjax_muon.algorithms.diloco import diloco, muloco
from fedjax_muon.algorithms.fafed import fafed
from fedjax_muon.algorithms.fedavg import (
    adam_biclip,
    bi2clip,
    fedadagrad,
    fedadam,
    fedavg,
    fedavg_adam,
    fedavg_momentum,
    fedyogi,
    local_adamw,
    local_muon,
    local_muon_averaged,
    local_sgdm,
)
from fedjax_muon.algorithms.fedavg_m import fedavg_m, fedcm
from fedjax_muon.algorithms.fedavg_vr import fedavg_vr
from fedjax_muon.algorithms.fedlada import fedlada
from fedjax_muon.algorithms.fedmuon import fedmuon, fedmuon_unsynced
from fedjax_muon.algorithms.fedmuon_align import (
    fedmuon_align,
    fedmuon_align_reset,
    fedmuon_svd,
    local_adamw_align,
    local_sgd_align,
)
from fedjax_muon.algorithms.fedmuon_correct import (
    fedmuon_correct,
    fedmuon_correct_euclidean,
    fedmuon_correct_max_norm,
)
from fedjax_muon.algorithms.fednova import fednova
from fedjax_muon.algorithms.fedprox import fedprox
from fedjax_muon.algorithms.local_muon_persistent import local_muon_persistent
from fedjax_muon.algorithms.padamfed_vr import padamfed_vr
from fedjax_muon.algorithms.registry import Method, Source, by_name
from fedjax_muon.algorithms.scaffold import scaffold, scaffold_adam, scaffold_momentum
from fedjax_muon.algorithms.scaffold_m import padamfed, scaffold_m
from fedjax_muon.algorithms.scaffold_vr import scaffold_vr
from fedjax_muon.algorithms.stem import stem

MCMAHAN = "McMahan et al. 2017, arXiv:1602.05629"
REDDI = "Reddi et al. 2021, arXiv:2003.00295"
KARIMIREDDY = "Karimireddy et al. 2020, arXiv:1910.06378"
LIU = "Liu et al. 2025, arXiv:2510.27403"
TAKEZAWA = "Takezawa et al. 2026, ICLR, arXiv:2509.26337"
CHENG = "Cheng et al. 2024, arXiv:2306.16504"
YAN = "Yan et al. 2025, PAdaMFed, ICLR"
LEE = "Lee, Zaheer and Li 2025, arXiv:2502.04164"
ZHANG = "Zhang and Gao 2025, arXiv:2510.03866"

TAKEZAWA_GRID = {"lr": (0.1, 0.01, 0.001)}
LIU_SGD_GRID = {"lr": (0.01, 0.03, 0.05, 0.1, 0.3)}
LIU_ADAM_GRID = {"lr": (1e-4, 3e-4, 5e-4, 8e-4, 1e-3)}
LIU_MUON_GRID = {"lr": (0.03, 0.02, 0.003)}
MOMENTUM_GRID = {"momentum": (0.9, 0.8, 0.5)}
SERVER_GRID = {"server_lr": (0.001, 0.01, 0.1, 1.0)}

ALL = by_name(
    Method(fedavg, "FedAvg", MCMAHAN, LIU_SGD_GRID, source=Source.INDEPENDENT),
    Method(
        fedavg_momentum, "FedAvg(momentum)", TAKEZAWA, TAKEZAWA_GRID, source=Source.TEXT
    ),
    Method(fedavg_adam, "FedAvg(Adam)", TAKEZAWA, TAKEZAWA_GRID, source=Source.TEXT),
    Method(local_adamw, "Local AdamW", LIU, LIU_ADAM_GRID, source=Source.AUTHORS),
    Method(fedadam, "FedAdam", REDDI, SERVER_GRID, source=Source.INDEPENDENT),
    Method(fedyogi, "FedYogi", REDDI, SERVER_GRID, source=Source.INDEPENDENT),
    Method(fedadagrad, "FedAdagrad", REDDI, SERVER_GRID, source=Source.INDEPENDENT),
    Method(
        fedprox,
        "FedProx",
        "Li et al. 2020, arXiv:1812.06127",
        {"mu": (0.001, 0.01, 0.1, 1.0)},
        source=Source.INDEPENDENT,
    ),
    Method(
        fednova,
        "FedNova",
        "Wang et al. 2020, arXiv:2007.07481",
        LIU_SGD_GRID,
        source=Source.AUTHORS,
    ),
    Method(scaffold, "SCAFFOLD", KARIMIREDDY, LIU_SGD_GRID, source=Source.INDEPENDENT),
    Method(
        scaffold_momentum,
        "SCAFFOLD(momentum)",
        TAKEZAWA,
        TAKEZAWA_GRID,
        source=Source.TEXT,
    ),
    Method(
        scaffold_adam, "SCAFFOLD(Adam)", TAKEZAWA, TAKEZAWA_GRID, source=Source.TEXT
    ),
    Method(local_muon, "Local Muon", LIU, LIU_MUON_GRID, source=Source.TEXT),
    Method(
        local_muon_persistent,
        "LocalMuon(persistent)",
        TAKEZAWA,
        {"lr": (0.001, 0.0001)},
        source=Source.TEXT,
    ),
    Method(
        fedmuon,
        "FedMuon",
        ZHANG,
        {"lr": (0.001, 0.002, 0.005, 0.01, 0.05)},
        source=Source.TEXT,
    ),
    Method(fedmuon_unsynced, "FedMuon(unsynced start)", ZHANG, source=Source.TEXT),
    Method(
        fedmuon_align,
        "FedMuon(alignment)",
        LIU,
        {**LIU_MUON_GRID, "align": (0.0, 0.25, 0.5, 0.75, 0.9)},
        source=Source.TEXT,
    ),
    Method(fedmuon_svd, "FedMuon(SVD)", LIU, LIU_MUON_GRID, source=Source.TEXT),
    Method(
        fedmuon_align_reset, "FedMuon(alignment, own momentum)", LIU, source=Source.TEXT
    ),
    Method(
        local_muon_averaged,
        "Local Muon(averaged momentum)",
        LIU,
        LIU_MUON_GRID,
        source=Source.TEXT,
    ),
    Method(
        fedmuon_correct,
        "FedMuon(bias correction)",
        TAKEZAWA,
        {"lr": (0.001, 0.0001)},
        source=Source.TEXT,
    ),
    Method(
        fedmuon_correct_euclidean,
        "FedMuon(bias correction, Euclidean)",
        TAKEZAWA,
        source=Source.TEXT,
    ),
    Method(
        fedmuon_correct_max_norm,
        "FedMuon(bias correction, max norm)",
        TAKEZAWA,
        source=Source.TEXT,
    ),
    Method(
        diloco,
        "DiLoCo",
        "Douillard et al. 2023, arXiv:2311.08105",
        source=Source.INDEPENDENT,
    ),
    Method(
        muloco,
        "MuLoCo",
        "Therien et al. 2025, arXiv:2505.23725",
        {"server_lr": (0.7, 0.8, 0.9, 1.0), "server_momentum": (0.6, 0.8, 0.9)},
        source=Source.AUTHORS,
    ),
    Method(
        fedcm,
        "FedCM",
        "Xu et al. 2021, arXiv:2106.10874",
        LIU_SGD_GRID,
        source=Source.INDEPENDENT,
    ),
    Method(fedavg_m, "FedAvg-M", CHENG, MOMENTUM_GRID, source=Source.INDEPENDENT),
    Method(fedavg_vr, "FedAvg-VR", CHENG),
    Method(scaffold_m, "SCAFFOLD-M", CHENG),
    Method(scaffold_vr, "SCAFFOLD-VR", CHENG),
    Method(padamfed, "PAdaMFed", YAN, source=Source.INDEPENDENT),
    Method(padamfed_vr, "PAdaMFed-VR", YAN),
    Method(
        fedlada,
        "FedLADA",
        "Sun et al. 2023, arXiv:2308.00522",
        {**LIU_ADAM_GRID, "b2": (0.999,)},
        source=Source.INDEPENDENT,
    ),
    Method(
        fafed, "FAFED", "Wu et al. 2023, arXiv:2212.00974", source=Source.INDEPENDENT
    ),
    Method(stem, "STEM", "Khanduri et al. 2021, arXiv:2106.10435"),
    Method(
        local_sgdm,
        "LocalSGDM",
        "Yu et al. 2019, arXiv:1905.03817",
        source=Source.INDEPENDENT,
    ),
    Method(adam_biclip, "Adam-BiClip", LEE, source=Source.INDEPENDENT),
    Method(bi2clip, "Bi2Clip", LEE, source=Source.INDEPENDENT),
    Method(
        local_sgd_align,
        "Local SGD(averaged momentum, alignment)",
        LIU,
        LIU_SGD_GRID,
        source=Source.TEXT,
    ),
    Method(
        local_adamw_align,
        "Local AdamW(averaged momentum, alignment)",
        LIU,
        LIU_ADAM_GRID,
        source=Source.TEXT,
    ),
)

__all__ = [
    "ALL",
    "adam_biclip",
    "bi2clip",
    "diloco",
    "fafed",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavg_adam",
    "fedavg_m",
    "fedavg_momentum",
    "fedavg_vr",
    "fedcm",
    "fedlada",
    "fedmuon",
    "fedmuon_align",
    "fedmuon_align_reset",
    "fedmuon_correct",
    "fedmuon_correct_euclidean",
    "fedmuon_correct_max_norm",
    "fedmuon_svd",
    "fedmuon_unsynced",
    "fednova",
    "fedprox",
    "fedyogi",
    "local_adamw",
    "local_adamw_align",
    "local_muon",
    "local_muon_averaged",
    "local_muon_persistent",
    "local_sgd_align",
    "local_sgdm",
    "muloco",
    "padamfed",
    "padamfed_vr",
    "scaffold",
    "scaffold_adam",
    "scaffold_m",
    "scaffold_momentum",
    "scaffold_vr",
    "stem",
]
