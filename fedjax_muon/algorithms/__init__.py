"""Federated algorithms; `ALL` has each of them with its paper and published grid.

All names in `ALL` are functions of this module, presets such as `fedcm` too.
"""

from typing import Any

import optax

from fedjax_muon import transforms
from fedjax_muon.algorithms import minimax as minimax
from fedjax_muon.algorithms.diloco import diloco, heloco, muloco, sparseloco
from fedjax_muon.algorithms.ef21_muon import ef21_muon
from fedjax_muon.algorithms.fafed import fafed
from fedjax_muon.algorithms.fedadamw import fedadamw
from fedjax_muon.algorithms.fedavg import (
    decayed_muon,
    dp_fedmuon,
    fedadagrad,
    fedadam,
    fedavg,
    fedyogi,
    heavy_ball,
    local_adamw,
    local_muon,
    local_sgdm,
    muonh,
)
from fedjax_muon.algorithms.fedavg_m import fedavg_m
from fedjax_muon.algorithms.fedavg_vr import fedavg_vr
from fedjax_muon.algorithms.feddyn import feddyn
from fedjax_muon.algorithms.fedexp import fedexp
from fedjax_muon.algorithms.fedlada import fedlada
from fedjax_muon.algorithms.fedmuon import fedmuon
from fedjax_muon.algorithms.fedmuon_align import fedmuon_align, fedmuon_svd
from fedjax_muon.algorithms.fedmuon_correct import fedmuon_correct
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
from fedjax_muon.algorithms.registry import (
    FromOptions,
    Method,
    Source,
    attribute_of,
    by_name,
    preset,
)
from fedjax_muon.algorithms.scaffold import scaffold
from fedjax_muon.algorithms.scaffold_m import scaffold_m
from fedjax_muon.algorithms.scaffold_vr import scaffold_vr
from fedjax_muon.algorithms.stem import stem
from fedjax_muon.algorithms.streaming_diloco import streaming_diloco
from fedjax_muon.core import Number, after_first, check_range
from fedjax_muon.linalg import lmo

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


def _decayed_heavy_ball(
    momentum: Number, decay: Number
) -> optax.GradientTransformation:
    """Momentum with coupled weight decay.

    Args:
      momentum: Weight of the past in the momentum, in [0, 1), usually 0.9.
      decay: Weight decay that is added to the gradient, 0 to 0.001.
    """
    check_range("decay", decay, schedules=False)
    return optax.chain(optax.add_decayed_weights(decay), heavy_ball(momentum))


def _looking_ahead(
    momentum: Number, polar: transforms.Polar | None
) -> optax.GradientTransformation:
    """Muon of matrices and the mean gradient of the rest, both looking ahead.

    Args:
      momentum: Weight of the past in the momentum, in [0, 1), usually 0.95.
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.
    """
    ahead = optax.trace(momentum, nesterov=True)  # over 1 - b: b M + (1 - b) g
    rest = optax.chain(ahead, optax.scale(1 - momentum))
    make = lambda polar: transforms.muon(
        momentum, nesterov=True, polar=polar, shape_scale=transforms.jordan, rest=rest
    )
    return transforms.default_rule(None, polar, make)


def _decayed_soap(decay: Number) -> optax.GradientTransformation:
    """SOAP with decoupled weight decay.

    Args:
      decay: Decoupled weight decay, relative to `lr`, 0 to 0.1.
    """
    check_range("decay", decay, schedules=False)
    return optax.chain(transforms.scale_by_soap(), optax.add_decayed_weights(decay))


ALL = by_name(
    Method(fedavg, "FedAvg", MCMAHAN, INDEPENDENT, LIU_SGD_GRID),
    preset(
        "fedavg_momentum",
        "FedAvg(momentum)",
        TAKEZAWA,
        TEXT,
        TAKEZAWA_GRID,
        base=fedavg,
        sentence="Local SGD with momentum that is reset every round.",
        options={"lr": 0.1, "momentum": 0.9},
        changes={"rule": FromOptions(heavy_ball)},
    ),
    preset(
        "fedavg_server_momentum",
        "FedAvg(server momentum)",
        HSU,
        INDEPENDENT,
        base=fedavg,
        sentence="FedAvgM: heavy-ball momentum at the server.",
        options={"lr": 0.1, "server_lr": 1.0, "momentum": 0.9},
        changes={"server_rule": FromOptions(heavy_ball)},
    ),
    preset(
        "fedavg_adam",
        "FedAvg(Adam)",
        TAKEZAWA,
        TEXT,
        TAKEZAWA_GRID,
        base=fedavg,
        sentence="Local Adam that is reset every round.",
        options={"lr": 0.001},
        changes={"rule": optax.scale_by_adam()},
    ),
    Method(local_adamw, "Local AdamW", LIU, DEPARTS, LIU_ADAM_GRID),
    preset(
        "local_soap",
        "Local SOAP",
        FEDPAC,
        AUTHORS,
        base=fedavg,
        sentence="Local SOAP that is reset every round; its first call only looks.",
        options={"lr": 0.003, "decay": 0.01},
        changes={"rule": FromOptions(_decayed_soap)},
    ),
    Method(fedadamw, "FedAdamW", LIU_ADAMW, DEPARTS),
    Method(fedadam, "FedAdam", REDDI, INDEPENDENT, SERVER_GRID),
    Method(fedyogi, "FedYogi", REDDI, INDEPENDENT, SERVER_GRID),
    Method(fedadagrad, "FedAdagrad", REDDI, INDEPENDENT, SERVER_GRID),
    preset(
        "fadas",
        "FADAS",
        FADAS,
        DEPARTS,
        base=fedavg,
        sentence="AMSGrad at the server, without any bias correction.",
        options={"lr": 0.1, "server_lr": 0.001},
        changes={"server_rule": transforms.scale_by_fadas()},
    ),
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
    preset(
        "scaffold_momentum",
        "SCAFFOLD(momentum)",
        TAKEZAWA,
        TEXT,
        TAKEZAWA_GRID,
        base=scaffold,
        sentence="Momentum of the corrected gradient, reset every round.",
        options={"lr": 0.01, "server_lr": 1.0, "momentum": 0.9},
        changes={"rule": FromOptions(heavy_ball)},
    ),
    preset(
        "scaffold_adam",
        "SCAFFOLD(Adam)",
        TAKEZAWA,
        TEXT,
        TAKEZAWA_GRID,
        base=scaffold,
        sentence="Adam on the corrected gradient, reset every round.",
        options={"lr": 0.001, "server_lr": 1.0},
        changes={"rule": optax.scale_by_adam()},
    ),
    Method(local_muon, "Local Muon", LIU, TEXT, LIU_MUON_GRID, color="#12a150"),
    Method(
        local_muon_persistent,
        "Local Muon(persistent)",
        TAKEZAWA,
        TEXT,
        CORRECT_GRID,
        color="#0b7a4b",
    ),
    Method(fedmuon, "FedMuon", ZHANG, TEXT, ZHANG_GRID, color="#d62728"),
    preset(
        "fedmuon_unsynced",
        "FedMuon(unsynced start)",
        ZHANG,
        TEXT,
        base=fedmuon,
        sentence="The first momenta are not averaged, as in Algorithm 1.",
        options={"lr": 0.01, "momentum": 0.9, "rule": None, "polar": None},
        changes={"synced": False},
        color="#ff6b6b",
    ),
    Method(fedmuon_align, "FedMuon(alignment)", LIU, TEXT, ALIGN_GRID, color="#1f6fd6"),
    Method(fedmuon_svd, "FedMuon(SVD)", LIU, TEXT, LIU_MUON_GRID, color="#5b5bd6"),
    preset(
        "fedmuon_align_reset",
        "FedMuon(alignment, own momentum)",
        LIU,
        TEXT,
        base=fedmuon_align,
        sentence="Momenta start anew in every round, as in Table 5.",
        options={
            "lr": 0.03,
            "align": 0.5,
            "decay": 0.01,
            "momentum": 0.98,
            "polar": None,
        },
        changes={"averaged_state": ()},
        color="#4aa3ff",
    ),
    preset(
        "fedpac_muon",
        "FedPAC(Muon)",
        FEDPAC,
        DEPARTS,
        base=fedmuon_align,
        sentence="FedMuon(alignment); the authors' decay has the factor 1 - align.",
        options={
            "lr": 0.03,
            "align": 0.5,
            "decay": 0.01,
            "momentum": 0.95,
            "polar": None,
        },
        color="#2b8ca8",
    ),
    preset(
        "fedpac_soap",
        "FedPAC(SOAP)",
        FEDPAC,
        DEPARTS,
        base=fedmuon_align,
        sentence="SOAP with averaged g g^T and g^T g, which steps in its first call.",
        options={"lr": 0.003, "align": 0.5, "decay": 0.01},
        changes={
            "rule": transforms.scale_by_soap(first_step=True),
            "averaged_state": ("grams",),
        },
    ),
    preset(
        "local_muon_averaged",
        "Local Muon(averaged momentum)",
        LIU,
        TEXT,
        grid=LIU_MUON_GRID,
        base=fedavg,
        sentence="FedMuon(alignment) without alignment, an ablation.",
        options={"lr": 0.03, "momentum": 0.98, "decay": 0.01, "polar": None},
        changes={"rule": FromOptions(decayed_muon), "averaged_state": ("trace",)},
        color="#7bbf2a",
    ),
    Method(dp_fedmuon, "DP-FedMuon", MCMAHAN_DP, Source.OURS, color="#2f7f7f"),
    Method(muonh, "MuonH", WEN, Source.OURS, color="#3d6b1f"),
    preset(
        "ringmaster_lmo",
        "Ringmaster LMO",
        RINGMASTER,
        AUTHORS,
        {"server_lr": (0.04, 0.2, 1.0, 5.0)},
        base=fedavg,
        sentence="Muon at the server, for single gradients of asynchronous clients.",
        options={"lr": 1.0, "server_lr": 0.04, "momentum": 0.95, "polar": None},
        changes={"server_rule": FromOptions(_looking_ahead)},
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
    preset(
        "fedmuon_correct_euclidean",
        "FedMuon(bias correction, Euclidean)",
        TAKEZAWA,
        TEXT,
        base=fedmuon_correct,
        sentence="Steps in the Euclidean norm of every array.",
        options={"lr": 0.01, "momentum": 0.9},
        changes={"rule": transforms.scale_by_lmo(lmo.euclidean)},
        color="#c9a400",
    ),
    preset(
        "fedmuon_correct_max_norm",
        "FedMuon(bias correction, max norm)",
        TAKEZAWA,
        TEXT,
        base=fedmuon_correct,
        sentence="Steps in the maximum norm.",
        options={"lr": 0.001, "momentum": 0.9},
        changes={"rule": transforms.scale_by_lmo(lmo.max_norm)},
        color="#b5541c",
    ),
    Method(diloco, "DiLoCo", DOUILLARD, INDEPENDENT),
    Method(heloco, "HeLoCo", ASIF, INDEPENDENT),
    Method(streaming_diloco, "Streaming DiLoCo", DOUILLARD_STREAMING, INDEPENDENT),
    Method(muloco, "MuLoCo", THERIEN, AUTHORS, THERIEN_GRID, color="#00a3b4"),
    preset(
        "muloco_1",
        "MuLoCo(1 worker)",
        THERIEN,
        AUTHORS,
        base=muloco,
        sentence="The configuration that the authors recommend for one worker.",
        options={
            "lr": 0.02,
            "server_lr": 0.7,
            "momentum": 0.95,
            "server_momentum": 0.6,
            "decay": 0.01,
            "polar": None,
        },
        changes={"b2": 0.95},
        color="#007a87",
    ),
    preset(
        "muloco_2",
        "MuLoCo(2 workers)",
        THERIEN,
        AUTHORS,
        base=muloco,
        sentence="The authors' configuration for two workers, without streaming.",
        options={
            "lr": 0.044,
            "server_lr": 0.9,
            "momentum": 0.9,
            "server_momentum": 0.8,
            "decay": 0.00125,
            "polar": None,
        },
        color="#4cc3cf",
    ),
    preset(
        "muloco_16",
        "MuLoCo(16 workers)",
        THERIEN,
        AUTHORS,
        base=muloco,
        sentence="The authors' configuration for 16 workers.",
        options={
            "lr": 0.015625,
            "server_lr": 1.0,
            "momentum": 0.9,
            "server_momentum": 0.9,
            "polar": None,
        },
        color="#0e5f68",
    ),
    Method(sparseloco, "SparseLoCo", SARFI, DEPARTS, SARFI_GRID),
    Method(ef21_muon, "EF21-Muon", GRUNTKOWSKA, INDEPENDENT, color="#c2385b"),
    preset(
        "fedcm",
        "FedCM",
        XU,
        INDEPENDENT,
        LIU_SGD_GRID,
        base=fedavg_m,
        sentence="The same algorithm as FedAvg-M, from an earlier paper.",
        options={
            "lr": 0.1,
            "server_lr": 1.0,
            "momentum": 0.9,
            "rule": optax.identity(),
        },
    ),
    Method(fedavg_m, "FedAvg-M", CHENG, INDEPENDENT, MOMENTUM_GRID),
    Method(fedavg_vr, "FedAvg-VR", CHENG),
    Method(scaffold_m, "SCAFFOLD-M", CHENG),
    Method(scaffold_vr, "SCAFFOLD-VR", CHENG),
    preset(
        "padamfed",
        "PAdaMFed",
        YAN,
        INDEPENDENT,
        base=scaffold_m,
        sentence="SCAFFOLD-M with local steps of the length `lr`.",
        options={"lr": 0.01, "server_lr": 1.0, "momentum": after_first(0.9)},
        changes={"rule": transforms.normalize()},
    ),
    Method(padamfed_vr, "PAdaMFed-VR", YAN),
    Method(fedlada, "FedLADA", SUN, INDEPENDENT, SUN_GRID),
    Method(fafed, "FAFED", WU, INDEPENDENT),
    Method(stem, "STEM", KHANDURI),
    Method(local_sgdm, "LocalSGDM", YU, INDEPENDENT),
    preset(
        "adam_biclip",
        "Adam-BiClip",
        LEE,
        INDEPENDENT,
        base=fedavg,
        sentence="Coordinates clipped from both sides, FedAdam at the server.",
        options={"lr": 0.1, "server_lr": 0.01, "low": 1e-5, "high": 0.1},
        changes={
            "rule": FromOptions(transforms.biclip),
            "server_rule": transforms.scale_by_fedadam(),
        },
    ),
    preset(
        "bi2clip",
        "Bi2Clip",
        LEE,
        INDEPENDENT,
        base=fedavg,
        sentence="Coordinates clipped from both sides, at clients and server.",
        options={"lr": 0.1, "server_lr": 1.0, "low": 1e-5, "high": 0.1},
        changes={
            "rule": FromOptions(transforms.biclip),
            "server_rule": FromOptions(transforms.biclip),
        },
    ),
    preset(
        "local_sgd_align",
        "Local SGD(averaged momentum, alignment)",
        LIU,
        TEXT,
        LIU_SGD_GRID,
        base=fedmuon_align,
        sentence="Table 5; its experiments have a decay of 0.001.",
        options={"lr": 0.1, "align": 0.5, "momentum": 0.9, "decay": 0.0},
        changes={"rule": FromOptions(_decayed_heavy_ball), "decay": 0.0},
    ),
    preset(
        "local_adamw_align",
        "Local AdamW(averaged momentum, alignment)",
        LIU,
        TEXT,
        LIU_ADAM_GRID,
        # With a second moment that is reset too, an averaged first moment is divided by
        # a single gradient's size, and it diverges.
        base=fedmuon_align,
        sentence="Table 5; both moments are averaged.",
        options={"lr": 0.0005, "align": 0.5, "decay": 0.01},
        changes={"rule": optax.scale_by_adam(), "averaged_state": ("mu", "nu")},
    ),
)

# those that train low-rank adapters, which the task must have
ADAPTERS = {"fedit", "ffa_lora", "rolora", "fedsa_lora", "fedex_lora", "flora"}
ADAPTERS |= {"flexlora", "fedsubmuon", "fedsubmuon_gt"}


def __getattr__(name: str) -> Any:
    return attribute_of(ALL, __name__, name)


def __dir__() -> list[str]:
    return ["ALL", *sorted(ALL)]
