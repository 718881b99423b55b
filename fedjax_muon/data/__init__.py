"""Data sets, and their partitions among clients.

`load` reads a data set by its name, and `prepare` downloads one of tensorflow-datasets.
`from_arrays`, `from_npz`, `from_csv`, `from_folder` and `from_hf` make one of your own
data.
`NAMES` describes all data sets, and `status` reports whether the files of one are
present.
"""

from fedjax_muon.data import client_tests, imbalance, partition
from fedjax_muon.data.dataset import Dataset, check, hold_out, standardize
from fedjax_muon.data.folders import from_folder
from fedjax_muon.data.hugging_face import from_hf
from fedjax_muon.data.names import NAMES, load, prepare
from fedjax_muon.data.own import from_arrays, from_csv, from_npz
from fedjax_muon.data.standardization import Standardization, check_standardization
from fedjax_muon.data.status import Status, status

__all__ = [
    "NAMES",
    "Dataset",
    "Standardization",
    "Status",
    "check",
    "check_standardization",
    "client_tests",
    "from_arrays",
    "from_csv",
    "from_folder",
    "from_hf",
    "from_npz",
    "hold_out",
    "imbalance",
    "load",
    "partition",
    "prepare",
    "standardize",
    "status",
]
