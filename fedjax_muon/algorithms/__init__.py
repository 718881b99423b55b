"""Federated algorithms; `ALL` has each of them with its paper and published grid.

All names in `ALL` are functions of this module, presets such as `fedcm` too.
"""

from typing import Any

from fedjax_muon.algorithms import minimax as minimax
from fedjax_muon.algorithms.diloco import diloco, muloco, sparseloco
from fedjax_muon.algorithms.ef21_muon import ef21_muon
from fedjax_muon.algorithms.fafed import fafed
from fedjax_muon.algorithms.fedadamw import fedadamw
from fedjax_muon.algorithms.fedavg import (
    dp_fedmuon,
    fedadagrad,
    fedadam,
    fedavg,
    fedyogi,
    local_adamw,
    local_muon,
    local_sgdm,
)
from fedjax_muon.algorithms.fedavg_m import fedavg_m
from fedjax_muon.algorithms.fedavg_vr import fedavg_vr
from fedjax_muon.algorithms.feddyn import feddyn
from fedjax_muon.algorithms.fedex_lora import fedex_lora
from fedjax_muon.algorithms.fedexp import fedexp
from fedjax_muon.algorithms.fedlada import fedlada
from fedjax_muon.algorithms.fedmuon import fedmuon
from fedjax_muon.algorithms.fedmuon_align import fedmuon_align, fedmuon_svd
from fedjax_muon.algorithms.fedmuon_correct import fedmuon_correct
from fedjax_muon.algorithms.fednova import fednova
from fedjax_muon.algorithms.fedprox import fedprox
from fedjax_muon.algorithms.local_muon_persistent import local_muon_persistent
from fedjax_muon.algorithms.methods import ALL
from fedjax_muon.algorithms.padamfed_vr import padamfed_vr
from fedjax_muon.algorithms.registry import attribute_of
from fedjax_muon.algorithms.scaffold import scaffold
from fedjax_muon.algorithms.scaffold_m import scaffold_m
from fedjax_muon.algorithms.scaffold_vr import scaffold_vr
from fedjax_muon.algorithms.stem import stem
from fedjax_muon.algorithms.streaming_diloco import streaming_diloco

__all__ = [
    "ALL",
    "diloco",
    "dp_fedmuon",
    "ef21_muon",
    "fafed",
    "fedadagrad",
    "fedadam",
    "fedadamw",
    "fedavg",
    "fedavg_m",
    "fedavg_vr",
    "feddyn",
    "fedex_lora",
    "fedexp",
    "fedlada",
    "fedmuon",
    "fedmuon_align",
    "fedmuon_correct",
    "fedmuon_svd",
    "fednova",
    "fedprox",
    "fedyogi",
    "local_adamw",
    "local_muon",
    "local_muon_persistent",
    "local_sgdm",
    "muloco",
    "padamfed_vr",
    "scaffold",
    "scaffold_m",
    "scaffold_vr",
    "sparseloco",
    "stem",
    "streaming_diloco",
]


def __getattr__(name: str) -> Any:
    return attribute_of(ALL, __name__, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *ALL})
