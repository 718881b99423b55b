"""Datasets, and their partitions among clients.

`load` reads a dataset by its name, and `prepare` downloads one from
tensorflow-datasets. `from_arrays`, `from_npz`, `from_csv`, `from_folder`, `from_hf` and
`from_torch` make one from your own data. `mapped` reads one that is larger than memory.
For language models, `from_text` reads texts as windows of tokens, and `from_jsonl`
reads prompts with answers. `NAMES` describes all datasets.
"""

from fedjax_muon.data import client_tests, imbalance, partition, tokenizers
from fedjax_muon.data.catalog import NAMES
from fedjax_muon.data.columns import join_columns, load_columns, save_columns
from fedjax_muon.data.dataset import (
    Dataset,
    Standardization,
    check,
    check_standardization,
    hold_out,
    standardize,
)
from fedjax_muon.data.hugging_face import from_hf
from fedjax_muon.data.image_folders import from_folder
from fedjax_muon.data.instructions import from_jsonl
from fedjax_muon.data.loading import load, prepare
from fedjax_muon.data.mapped import mapped
from fedjax_muon.data.pytorch import from_torch
from fedjax_muon.data.sites import split_csv
from fedjax_muon.data.token_windows import from_text
from fedjax_muon.data.user_files import from_arrays, from_csv, from_npz, sum_columns

__all__ = [
    "NAMES",
    "Dataset",
    "Standardization",
    "check",
    "check_standardization",
    "client_tests",
    "from_arrays",
    "from_csv",
    "from_folder",
    "from_hf",
    "from_jsonl",
    "from_npz",
    "from_text",
    "from_torch",
    "hold_out",
    "imbalance",
    "join_columns",
    "load",
    "load_columns",
    "mapped",
    "partition",
    "prepare",
    "save_columns",
    "split_csv",
    "standardize",
    "sum_columns",
    "tokenizers",
]
