"""`ALL`: every algorithm by name, with its paper, its published grid and its cost.

A method that is another one with other arguments is a row here, not a file.
"""

import optax

from fedjax_muon import lmo
from fedjax_muon.algorithms.diloco import diloco
from fedjax_muon.algorithms.fafed import fafed
from fedjax_muon.algorithms.fedavg import fedavg
from fedjax_muon.algorithms.fedavg_m import fedavg_m
from fedjax_muon.algorithms.fedavg_vr import fedavg_vr
from fedjax_muon.algorithms.fedlada import fedlada
from fedjax_muon.algorithms.fedmuon import fedmuon
from fedjax_muon.algorithms.fedmuon_align import fedmuon_align
from fedjax_muon.algorithms.fedmuon_correct import fedmuon_correct
from fedjax_muon.algorithms.fedprox import fedprox
from fedjax_muon.algorithms.local_muon_persistent import local_muon_persistent
from fedjax_muon.algorithms.padamfed_vr import padamfed_vr
from fedjax_muon.algorithms.scaffold import scaffold
from fedjax_muon.algorithms.scaffold_m import scaffold_m
from fedjax_muon.algorithms.scaffold_vr import scaffold_vr
from fedjax_muon.algorithms.stem import stem
from fedjax_muon.compression import compress
from fedjax_muon.compressors import memory_share, truncated_svd
from fedjax_muon.methods import Method
from fedjax_muon.transforms import (
    biclip,
    muon,
    normalize,
    scale_by_fedadagrad,
    scale_by_fedadam,
    scale_by_fedyogi,
    scale_by_lmo,
    spectral,
)

MCMAHAN = "McMahan et al. 2017, arXiv:1602.05629"
REDDI = "Reddi et al. 2021, arXiv:2003.00295"
KARIMIREDDY = "Karimireddy et al. 2020, arXiv:1910.06378"
LIU = "Liu et al. 2025, arXiv:2510.27403"
TAKEZAWA = "Takezawa et al. 2025, arXiv:2509.26337"
CHENG = "Cheng et al. 2024, arXiv:2306.16504"
YAN = "Yan et al. 2025, PAdaMFed, ICLR"
LEE = "Lee, Zaheer and Li 2025, arXiv:2502.04164"
ZHANG = "Zhang and Gao, On provable benefits of Muon in federated learning"

TAKEZAWA_GRID = {"lr": (0.1, 0.01, 0.001)}
LIU_SGD_GRID = {"lr": (0.01, 0.03, 0.05, 0.1, 0.3)}
LIU_ADAM_GRID = {"lr": (1e-4, 3e-4, 5e-4, 8e-4, 1e-3)}
LIU_MUON_GRID = {"lr": (0.03, 0.02, 0.003)}
FRESH_GRID = {"fresh": (0.1, 0.2, 0.5)}
SERVER_GRID = {"server_lr": (0.001, 0.01, 0.1, 1.0)}

_adamw = optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(0.01))
_decayed_muon = optax.chain(muon(0.98), optax.add_decayed_weights(0.01))
_muloco = muon(0.9, shape_scale=spectral, rest=optax.scale_by_adam(0.9, 0.99))

ALL: dict[str, Method] = {
    "fedavg": Method("FedAvg", MCMAHAN, fedavg, grid=LIU_SGD_GRID),
    "fedavg_momentum": Method(
        "FedAvg(momentum)",
        TAKEZAWA,
        fedavg,
        {"rule": optax.trace(0.9)},
        TAKEZAWA_GRID,
    ),
    "fedavg_adam": Method(
        "FedAvg(Adam)",
        TAKEZAWA,
        fedavg,
        {"rule": optax.scale_by_adam(), "lr": 0.001},
        TAKEZAWA_GRID,
    ),
    "local_adamw": Method(
        "Local AdamW", LIU, fedavg, {"rule": _adamw, "lr": 0.0005}, LIU_ADAM_GRID
    ),
    "fedadam": Method(
        "FedAdam",
        REDDI,
        fedavg,
        {"server_rule": scale_by_fedadam(), "server_lr": 0.01},
        SERVER_GRID,
    ),
    "fedyogi": Method(
        "FedYogi",
        REDDI,
        fedavg,
        {"server_rule": scale_by_fedyogi(), "server_lr": 0.01},
        SERVER_GRID,
    ),
    "fedadagrad": Method(
        "FedAdagrad",
        REDDI,
        fedavg,
        {"server_rule": scale_by_fedadagrad(), "server_lr": 0.1},
        SERVER_GRID,
    ),
    "fedprox": Method(
        "FedProx",
        "Li et al. 2020, arXiv:1812.06127",
        fedprox,
        grid={"mu": (0.001, 0.01, 0.1, 1.0)},
    ),
    "scaffold": Method("SCAFFOLD", KARIMIREDDY, scaffold, grid=TAKEZAWA_GRID),
    "scaffold_momentum": Method(
        "SCAFFOLD(momentum)",
        TAKEZAWA,
        scaffold,
        {"rule": optax.trace(0.9)},
        TAKEZAWA_GRID,
    ),
    "scaffold_adam": Method(
        "SCAFFOLD(Adam)",
        TAKEZAWA,
        scaffold,
        {"rule": optax.scale_by_adam(), "lr": 0.001},
        TAKEZAWA_GRID,
    ),
    "local_muon": Method(
        "Local Muon", LIU, fedavg, {"rule": _decayed_muon, "lr": 0.03}, LIU_MUON_GRID
    ),
    "local_muon_persistent": Method(
        "LocalMuon(persistent)",
        TAKEZAWA,
        local_muon_persistent,
        grid={"lr": (0.001, 0.0001)},
    ),
    "fedmuon": Method(
        "FedMuon",
        ZHANG,
        fedmuon,
        grid={"lr": (0.001, 0.002, 0.005, 0.01, 0.05)},
    ),
    "fedmuon_unsynced": Method(
        "FedMuon(unsynced start)", ZHANG, fedmuon, {"synced": False}
    ),
    "fedmuon_align": Method(
        "FedMuon(alignment)",
        LIU,
        fedmuon_align,
        grid={**LIU_MUON_GRID, "align": (0.0, 0.25, 0.5, 0.75, 0.9)},
    ),
    "fedmuon_svd": Method(
        "FedMuon(SVD)",
        LIU,
        compress(fedmuon_align, truncated_svd(memory_share(0.05)), parts=("momentum",)),
        grid=LIU_MUON_GRID,
    ),
    "fedmuon_align_reset": Method(
        "FedMuon(alignment, own momentum)", LIU, fedmuon_align, {"carry": ()}
    ),
    "local_muon_averaged": Method(
        "Local Muon(averaged momentum)",
        LIU,
        fedavg,
        {"rule": _decayed_muon, "lr": 0.03, "carry": ("trace",)},
        LIU_MUON_GRID,
    ),
    "fedmuon_correct": Method(
        "FedMuon(bias correction)",
        TAKEZAWA,
        fedmuon_correct,
        grid={"lr": (0.001, 0.0001)},
    ),
    "fedmuon_correct_euclidean": Method(
        "FedMuon(bias correction, Euclidean)",
        TAKEZAWA,
        fedmuon_correct,
        {"rule": scale_by_lmo(lmo.euclidean), "lr": 0.01},
    ),
    "fedmuon_correct_max_norm": Method(
        "FedMuon(bias correction, max norm)",
        TAKEZAWA,
        fedmuon_correct,
        {"rule": scale_by_lmo(lmo.max_norm)},
    ),
    "diloco": Method("DiLoCo", "Douillard et al. 2023, arXiv:2311.08105", diloco),
    "muloco": Method(
        "MuLoCo",
        "Therien et al. 2025, arXiv:2505.23725",
        diloco,
        {"rule": _muloco, "lr": 0.02},
        {"server_lr": (0.5, 0.7, 0.9, 1.0)},
    ),
    "fedcm": Method("FedCM", "Xu et al. 2021, arXiv:2106.10874", fedavg_m),
    "fedavg_m": Method("FedAvg-M", CHENG, fedavg_m, grid=FRESH_GRID),
    "fedavg_vr": Method("FedAvg-VR", CHENG, fedavg_vr),
    "scaffold_m": Method("SCAFFOLD-M", CHENG, scaffold_m),
    "scaffold_vr": Method("SCAFFOLD-VR", CHENG, scaffold_vr),
    "padamfed": Method("PAdaMFed", YAN, scaffold_m, {"rule": normalize(), "lr": 0.01}),
    "padamfed_vr": Method("PAdaMFed-VR", YAN, padamfed_vr),
    "fedlada": Method("FedLADA", "Sun et al. 2023, arXiv:2308.00522", fedlada),
    "fafed": Method("FAFED", "Wu et al. 2023, arXiv:2212.00974", fafed),
    "stem": Method("STEM", "Khanduri et al. 2021, arXiv:2106.10435", stem),
    "local_sgdm": Method(
        "LocalSGDM",
        "Yu et al. 2019, arXiv:1905.03817",
        fedavg,
        {"rule": optax.trace(0.9), "carry": ("trace",), "lr": 0.01},
    ),
    "adam_biclip": Method(
        "Adam-BiClip",
        LEE,
        fedavg,
        {
            "rule": biclip(1e-5, 0.1),
            "server_rule": scale_by_fedadam(),
            "server_lr": 0.01,
        },
    ),
    "bi2clip": Method(
        "Bi2Clip",
        LEE,
        fedavg,
        {"rule": biclip(1e-5, 0.1), "server_rule": biclip(1e-5, 0.1)},
    ),
    "local_sgd_align": Method(
        "Local SGD(averaged momentum, alignment)",
        LIU,
        fedmuon_align,
        {"rule": optax.trace(0.9), "lr": 0.1, "decay": 0.0},
        LIU_SGD_GRID,
    ),
    "local_adamw_align": Method(
        "Local AdamW(averaged momentum, alignment)",
        LIU,
        fedmuon_align,
        {"rule": optax.scale_by_adam(), "carry": ("mu",), "lr": 0.0005},
        LIU_ADAM_GRID,
    ),
}
