"""Datasets of runs."""

from fedjax_muon.data import Dataset
from fedjax_muon.data.loading import OPTIONS, open_dataset
from fedjax_muon.runs.config import Config


def dataset_of(config: Config) -> Dataset:
    """The dataset of a run."""
    options = {name: getattr(config, name) for name in (*OPTIONS, "train_share")}
    return open_dataset(config.dataset, config.data_dir, **options)
