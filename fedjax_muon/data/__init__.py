"""Data sets: `load` one by its name, `prepare` it beforehand, `check` your own."""

from fedjax_muon.data.dataset import Dataset, check, hold_out, standardise
from fedjax_muon.data.names import NAMES, load, prepare

__all__ = [
    "NAMES",
    "Dataset",
    "check",
    "hold_out",
    "load",
    "prepare",
    "standardise",
]
