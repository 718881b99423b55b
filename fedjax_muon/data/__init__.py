"""Data sets, and their partitions among clients.

`load` reads a data set by its name, `prepare` downloads one of tensorflow-datasets, and
`check` validates your own arrays. `NAMES` describes all data sets, and `status` reports
whether the files of one are present.
"""

from fedjax_muon.data import imbalance, partition
from fedjax_muon.data.dataset import Dataset, check, hold_out, standardize
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
    "standardize",
    "status",
]
