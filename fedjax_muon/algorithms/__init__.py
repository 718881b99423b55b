"""Federated algorithms; `ALL` has each of them with its paper and published grid.

All names in `ALL` are functions of this module.
"""

from fedjax_muon.algorithms import minimax as minimax
from fedjax_muon.algorithms.diloco import (
    diloco,
    heloco,
    muloco,
    muloco_1,
    muloco_2,
    muloco_16,
    sparseloco,
)
from fedjax_muon.algorithms.ef21_muon import ef21_muon
from fedjax_muon.algorithms.fafed import fafed
from fedjax_muon.algorithms.fedadamw import fedadamw
from fedjax_muon.algorithms.fedavg import (
    adam_biclip,
    bi2clip,
    dp_fedmuon,
    fadas,
    fedadagrad,
    fedadam,
    fedavg,
    fedavg_adam,
    fedavg_momentum,
    fedavg_server_momentum,
    fedyogi,
    local_adamw,
    local_muon,
    local_muon_averaged,
    local_sgdm,
    local_soap,
    muonh,
    ringmaster_lmo,
)
from fedjax_muon.algorithms.fedavg_m import fedavg_m, fedcm
from fedjax_muon.algorithms.fedavg_vr import fedavg_vr
from fedjax_muon.algorithms.fedcomuon import fedcomuon, fedcomuon_vr
from fedjax_muon.algorithms.feddyn import feddyn
from fedjax_muon.algorithms.fedexp import fedexp
from fedjax_muon.algorithms.fedlada import fedlada
from fedjax_muon.algorithms.fedmuon import fedmuon, fedmuon_unsynced
from fedjax_muon.algorithms.fedmuon_align import (
    fedmuon_align,
    fedmuon_align_reset,
    fedmuon_svd,
    fedpac_muon,
    fedpac_soap,
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
from fedjax_muon.algorithms.fedsubmuon import fedsubmuon, fedsubmuon_gt
from fedjax_muon.algorithms.local_muon_persistent import local_muon_persistent
from fedjax_muon.algorithms.lora import (
    fedex_lora,
    fedit,
    fedsa_lora,
    ffa_lora,
    flexlora,
    flora,
    rolora,
)
from fedjax_muon.algorithms.padamfed_vr import padamfed_vr
from fedjax_muon.algorithms.registry import Method, Source, by_name
from fedjax_muon.algorithms.scaffold import scaffold, scaffold_adam, scaffold_momentum
from fedjax_muon.algorithms.scaffold_m import padamfed, scaffold_m
from fedjax_muon.algorithms.scaffold_vr import scaffold_vr
from fedjax_muon.algorithms.sign_vote import (
    muonsign,
    muonusign,
    sign_vote,
    signmuon,
)
from fedjax_muon.algorithms.stem import stem
from fedjax_muon.algorithms.streaming_diloco import streaming_diloco

TEXT, AUTHORS, DEPARTS = Source.TEXT, Source.AUTHORS, Source.DEPARTS
INDEPENDENT = Source.INDEPENDENT

MCMAHAN = "McMahan et al. 2017, arXiv:1602.05629"
FADAS = "Wang et al. 2024, arXiv:2407.18365"
WEN = "Wen et al. 2026, arXiv:2606.16899"
RINGMASTER = "Sadiev et al. 2026, arXiv:2605.18174"
HSU = "Hsu et al. 2019, arXiv:1909.06335"
MCMAHAN_DP = "McMahan et al. 2018, arXiv:1710.06963"
REDDI = "Reddi et al. 2021, arXiv:2003.00295"
LI = "Li et al. 2020, arXiv:1812.06127"
JHUNJHUNWALA = "Jhunjhunwala et al. 2023, arXiv:2301.09604"
ACAR = "Acar et al. 2021, arXiv:2111.04263"
SINGHAL = "Singhal et al. 2024, arXiv:2410.09432"
WANG = "Wang et al. 2020, arXiv:2007.07481"
KARIMIREDDY = "Karimireddy et al. 2020, arXiv:1910.06378"
LIU = "Liu et al. 2025, arXiv:2510.27403"
LIU_ADAMW = "Liu et al. 2025, arXiv:2510.27486"
FEDPAC = "Liu et al. 2026, FedPAC, arXiv:2602.19271"
TAKEZAWA = "Takezawa et al. 2026, ICLR, arXiv:2509.26337"
ZHANG = "Zhang and Gao 2025, arXiv:2510.03866"
YAN_HUANG = "Yan and Huang 2026, arXiv:2608.12710"
CHEN = "Chen et al. 2026, arXiv:2609.06073"
DOUILLARD = "Douillard et al. 2023, arXiv:2311.08105"
DOUILLARD_STREAMING = "Douillard et al. 2025, arXiv:2501.18512"
ASIF = "Asif et al. 2026, arXiv:2606.00271"
THERIEN = "Therien et al. 2025, arXiv:2505.23725"
XU = "Xu et al. 2021, arXiv:2106.10874"
CHENG = "Cheng et al. 2024, arXiv:2306.16504"
YAN = "Yan et al. 2025, Problem-Parameter-Free Federated Learning, ICLR"
SUN = "Sun et al. 2023, arXiv:2308.00522"
WU = "Wu et al. 2023, arXiv:2212.00974"
KHANDURI = "Khanduri et al. 2021, arXiv:2106.10435"
YU = "Yu et al. 2019, arXiv:1905.03817"
BERNSTEIN = "Bernstein et al. 2019, arXiv:1810.05291"
SMIRNOVA = "Smirnova and Kravatskiy 2026, arXiv:2607.29674"
GRUNTKOWSKA = "Gruntkowska et al. 2025, arXiv:2510.00643"
SARFI = "Sarfi et al. 2025, arXiv:2508.15706"
LEE = "Lee, Zaheer and Li 2025, arXiv:2502.04164"

TAKEZAWA_GRID = {"lr": (0.1, 0.01, 0.001)}
CORRECT_GRID = {"lr": (0.001, 0.0001)}
LIU_SGD_GRID = {"lr": (0.01, 0.03, 0.05, 0.1, 0.3)}
LIU_ADAM_GRID = {"lr": (1e-4, 3e-4, 5e-4, 8e-4, 1e-3)}
LIU_MUON_GRID = {"lr": (0.03, 0.02, 0.003)}
ALIGN_GRID = {**LIU_MUON_GRID, "align": (0.0, 0.25, 0.5, 0.75, 0.9)}
ZHANG_GRID = {"lr": (0.001, 0.002, 0.005, 0.01, 0.05)}
THERIEN_GRID = {"server_lr": (0.7, 0.8, 0.9, 1.0), "server_momentum": (0.6, 0.8, 0.9)}
MOMENTUM_GRID = {"momentum": (0.9, 0.8, 0.5)}
SERVER_GRID = {"server_lr": (0.001, 0.01, 0.1, 1.0)}
SUN_GRID = {**LIU_ADAM_GRID, "b2": (0.999,)}
SARFI_GRID = {"server_lr": (0.7, 0.9, 1.0)}
MU_GRID = {"mu": (0.001, 0.01, 0.1, 1.0)}


ALL = by_name(
    Method(fedavg, "FedAvg", MCMAHAN, INDEPENDENT, LIU_SGD_GRID),
    Method(fedavg_momentum, "FedAvg(momentum)", TAKEZAWA, TEXT, TAKEZAWA_GRID),
    Method(fedavg_server_momentum, "FedAvg(server momentum)", HSU, INDEPENDENT),
    Method(fedavg_adam, "FedAvg(Adam)", TAKEZAWA, TEXT, TAKEZAWA_GRID),
    Method(local_adamw, "Local AdamW", LIU, DEPARTS, LIU_ADAM_GRID),
    Method(local_soap, "Local SOAP", FEDPAC, AUTHORS),
    Method(fedadamw, "FedAdamW", LIU_ADAMW, DEPARTS),
    Method(fedadam, "FedAdam", REDDI, INDEPENDENT, SERVER_GRID),
    Method(fedyogi, "FedYogi", REDDI, INDEPENDENT, SERVER_GRID),
    Method(fedadagrad, "FedAdagrad", REDDI, INDEPENDENT, SERVER_GRID),
    Method(fadas, "FADAS", FADAS, DEPARTS),
    Method(fedprox, "FedProx", LI, INDEPENDENT, MU_GRID),
    Method(fednova, "FedNova", WANG, DEPARTS, LIU_SGD_GRID),
    Method(fedexp, "FedExP", JHUNJHUNWALA, DEPARTS),
    Method(feddyn, "FedDyn", ACAR, DEPARTS),
    Method(fedit, "FedIT", "Zhang et al. 2023, arXiv:2305.05644", AUTHORS),
    Method(ffa_lora, "FFA-LoRA", "Sun et al. 2024, arXiv:2403.12313", INDEPENDENT),
    Method(rolora, "RoLoRA", "Chen et al. 2025, arXiv:2502.01755"),
    Method(fedsa_lora, "FedSA-LoRA", "Guo et al. 2024, arXiv:2410.01463", AUTHORS),
    Method(fedex_lora, "FedEx-LoRA", SINGHAL, AUTHORS),
    Method(flora, "FLoRA", "Wang et al. 2024, arXiv:2409.05976", AUTHORS),
    Method(flexlora, "FlexLoRA", "Bai et al. 2024, arXiv:2402.11505", DEPARTS),
    Method(fedsubmuon, "FedSubMuon", CHEN, DEPARTS),
    Method(fedsubmuon_gt, "FedSubMuon-GT", CHEN, DEPARTS),
    Method(scaffold, "SCAFFOLD", KARIMIREDDY, INDEPENDENT, LIU_SGD_GRID),
    Method(scaffold_momentum, "SCAFFOLD(momentum)", TAKEZAWA, TEXT, TAKEZAWA_GRID),
    Method(scaffold_adam, "SCAFFOLD(Adam)", TAKEZAWA, TEXT, TAKEZAWA_GRID),
    Method(local_muon, "Local Muon", LIU, TEXT, LIU_MUON_GRID, color="#2ba6de"),
    Method(
        local_muon_persistent,
        "Local Muon(persistent)",
        TAKEZAWA,
        TEXT,
        CORRECT_GRID,
        color="#0f6a94",
    ),
    Method(fedmuon, "FedMuon", ZHANG, TEXT, ZHANG_GRID, color="#d62728"),
    Method(fedmuon_unsynced, "FedMuon(unsynced start)", ZHANG, TEXT, color="#ff6b6b"),
    Method(fedmuon_align, "FedMuon(alignment)", LIU, TEXT, ALIGN_GRID, color="#1f6fd6"),
    Method(fedmuon_svd, "FedMuon(SVD)", LIU, TEXT, LIU_MUON_GRID, color="#5b5bd6"),
    Method(
        fedmuon_align_reset,
        "FedMuon(alignment, own momentum)",
        LIU,
        TEXT,
        color="#4aa3ff",
    ),
    Method(fedpac_muon, "FedPAC(Muon)", FEDPAC, DEPARTS, color="#2b8ca8"),
    Method(fedpac_soap, "FedPAC(SOAP)", FEDPAC, DEPARTS),
    Method(
        local_muon_averaged,
        "Local Muon(averaged momentum)",
        LIU,
        TEXT,
        LIU_MUON_GRID,
        color="#7bbf2a",
    ),
    Method(dp_fedmuon, "DP-FedMuon", MCMAHAN_DP, Source.OURS, color="#2f7f7f"),
    Method(muonh, "MuonH", WEN, Source.OURS, color="#3d6b1f"),
    Method(
        ringmaster_lmo,
        "Ringmaster LMO",
        RINGMASTER,
        AUTHORS,
        {"server_lr": (0.04, 0.2, 1.0, 5.0)},
        color="#7d2a6e",
    ),
    Method(
        fedmuon_correct,
        "FedMuon(bias correction)",
        TAKEZAWA,
        TEXT,
        CORRECT_GRID,
        color="#e8820c",
    ),
    Method(
        fedmuon_correct_euclidean,
        "FedMuon(bias correction, Euclidean)",
        TAKEZAWA,
        TEXT,
        color="#c9a400",
    ),
    Method(
        fedmuon_correct_max_norm,
        "FedMuon(bias correction, max norm)",
        TAKEZAWA,
        TEXT,
        color="#b5541c",
    ),
    Method(fedcomuon, "FedCoMuon", YAN_HUANG, color="#7c1f3f"),
    Method(fedcomuon_vr, "FedCoMuon-VR", YAN_HUANG, color="#e377a2"),
    Method(diloco, "DiLoCo", DOUILLARD, INDEPENDENT),
    Method(heloco, "HeLoCo", ASIF, INDEPENDENT),
    Method(streaming_diloco, "Streaming DiLoCo", DOUILLARD_STREAMING, INDEPENDENT),
    Method(muloco, "MuLoCo", THERIEN, AUTHORS, THERIEN_GRID, color="#00a3b4"),
    Method(muloco_1, "MuLoCo(1 worker)", THERIEN, AUTHORS, color="#007a87"),
    Method(muloco_2, "MuLoCo(2 workers)", THERIEN, AUTHORS, color="#4cc3cf"),
    Method(muloco_16, "MuLoCo(16 workers)", THERIEN, AUTHORS, color="#0e5f68"),
    Method(sparseloco, "SparseLoCo", SARFI, DEPARTS, SARFI_GRID),
    Method(ef21_muon, "EF21-Muon", GRUNTKOWSKA, INDEPENDENT, color="#c2385b"),
    Method(sign_vote, "SignSGD(majority vote)", BERNSTEIN, INDEPENDENT),
    Method(signmuon, "SignMuon", SMIRNOVA, DEPARTS, color="#8f4fa8"),
    Method(muonusign, "MuonUSign", SMIRNOVA, DEPARTS, color="#b07cc6"),
    Method(muonsign, "MuonSign", SMIRNOVA, DEPARTS, color="#6a3d7c"),
    Method(fedcm, "FedCM", XU, INDEPENDENT, LIU_SGD_GRID),
    Method(fedavg_m, "FedAvg-M", CHENG, INDEPENDENT, MOMENTUM_GRID),
    Method(fedavg_vr, "FedAvg-VR", CHENG),
    Method(scaffold_m, "SCAFFOLD-M", CHENG),
    Method(scaffold_vr, "SCAFFOLD-VR", CHENG),
    Method(padamfed, "PAdaMFed", YAN, INDEPENDENT),
    Method(padamfed_vr, "PAdaMFed-VR", YAN),
    Method(fedlada, "FedLADA", SUN, INDEPENDENT, SUN_GRID),
    Method(fafed, "FAFED", WU, INDEPENDENT),
    Method(stem, "STEM", KHANDURI),
    Method(local_sgdm, "LocalSGDM", YU, INDEPENDENT),
    Method(adam_biclip, "Adam-BiClip", LEE, INDEPENDENT),
    Method(bi2clip, "Bi2Clip", LEE, INDEPENDENT),
    Method(
        local_sgd_align,
        "Local SGD(averaged momentum, alignment)",
        LIU,
        TEXT,
        LIU_SGD_GRID,
    ),
    Method(
        local_adamw_align,
        "Local AdamW(averaged momentum, alignment)",
        LIU,
        TEXT,
        LIU_ADAM_GRID,
    ),
)

# those that train low-rank adapters, which the task must have
ADAPTERS = {"fedit", "ffa_lora", "rolora", "fedsa_lora", "fedex_lora", "flora"}
ADAPTERS |= {"flexlora", "fedsubmuon", "fedsubmuon_gt"}


def __dir__() -> list[str]:
    return ["ALL", *sorted(ALL)]
