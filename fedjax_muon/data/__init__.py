"""Data sets: `load` one by its name, `prepare` it beforehand, `check` your own.

`NAMES` has what is known of each, `status` says whether its files are there.
"""

from fedjax_muon.data import imbalance, partition
from fedjax_muon.data.dataset import Dataset, check, hold_out, standardise
from fedjax_muon.data.names import NAMES, load, prepare
from fedjax_muon.data.status import Status, status

__all__ = [
    "NAMES",
    "Dataset",
    "Status",
    "check",
    "hold_out",
    "imbalance",
    "load",
    "partition",
    "prepare",
    "standardise",
    "status",
]
