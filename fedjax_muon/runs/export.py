"""Parameters of a run in a file for other programs, with what they need to use them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.data import Dataset
from fedjax_muon.models.weights import check_target, save_params
from fedjax_muon.runs.build import model_of
from fedjax_muon.runs.config import Config
from fedjax_muon.runs.load import LoadedRun, load_run
from fedjax_muon.versions import PACKAGE_VERSION

OF_FLAX = ("parent", "name")  # fields of all modules


def export(directory: Path, path: Path, *, overwrite: bool = False) -> LoadedRun:
    """Writes the parameters in the newest checkpoint of a run.

    Args:
      directory: Directory of the run.
      path: Where to write; the suffix decides the format, as in `save_params`.
      overwrite: Whether existing parameters are replaced.

    Raises:
      OSError: If a file can't be read or written.
    """
    check_target(path, overwrite=overwrite)
    run = load_run(directory)
    save_params(path, run.params, metadata=metadata_of(run), overwrite=overwrite)
    return run


def metadata_of(run: LoadedRun) -> dict[str, Any]:
    """What a program needs to use the parameters: values that JSON can represent."""
    dataset = run.dataset
    found = {
        "version": PACKAGE_VERSION,
        "algorithm": run.run.algorithm,
        "round": run.state.round,
        "dataset": run.config.dataset,
        "model": _model(run.config, dataset),
        "input_shape": dataset.x_train.shape[1:],
        "input_dtype": str(dataset.x_train.dtype),
        "classes": dataset.classes,
        "standardization": _standardization(dataset),
    }
    return json.loads(json.dumps(found, default=_word))


def _standardization(dataset: Dataset) -> dict[str, list[float]] | None:
    """The mean and the standard deviation of each channel of the training inputs."""
    found = dataset.standardization
    if found is None:
        return None
    return {name: value.tolist() for name, value in found._asdict().items()}


def _model(config: Config, dataset: Dataset) -> dict[str, Any]:
    """The name of a model, and the fields of its module or where it started."""
    if config.checkpoint is not None:
        rank = {"lora_rank": config.lora_rank} if config.model == "roberta" else {}
        return {"name": config.model, "checkpoint": str(config.checkpoint), **rank}
    module = model_of(config, dataset)
    fields = [f.name for f in dataclasses.fields(module) if f.name not in OF_FLAX]
    return {"name": config.model, **{name: getattr(module, name) for name in fields}}


def _word(value: Any) -> str:
    """The name of a type of numbers, or of a function."""
    try:
        return np.dtype(value).name
    except TypeError:
        return getattr(value, "__qualname__", str(value))
