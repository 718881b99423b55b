"""Data sets: `load` one by its name, `prepare` it beforehand, `check` your own."""

from fedjax_muon.data.dataset import Dataset, check, standardise
from fedjax_muon.data.names import NAMES, load, prepare

__all__ = ["NAMES", "Dataset", "check", "load", "prepare", "standardise"]
