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
    """Writes the parameters of the newest checkpoint by `save_params`."""
    check_target(path, overwrite=overwrite)
    run = load_run(directory)
    save_params(path, run.params, metadata=metadata_of(run), overwrite=overwrite)
    return run


def metadata_of(run: LoadedRun) -> dict[str, Any]:
    """What a program needs to use the parameters: values that JSON can represent."""
    dataset = run.dataset
    scales = dataset.standardization
    standardization = None if scales is None else scales._asdict()
    values = {
        "version": PACKAGE_VERSION,
        "algorithm": run.run.algorithm,
        "round": run.state.round,
        "dataset": run.config.dataset,
        "model": _model(run.config, dataset),
        "input_shape": dataset.x_train.shape[1:],
        "input_dtype": str(dataset.x_train.dtype),
        "classes": dataset.classes,
        "standardization": standardization,  # of each channel
    }
    return json.loads(json.dumps(values, default=_json_of))


def _model(config: Config, dataset: Dataset) -> dict[str, Any]:
    """The name of a model, and the fields of its module or where it started."""
    if config.checkpoint is not None:
        rank = {"lora_rank": config.lora_rank} if config.model == "roberta" else {}
        return {"name": config.model, "checkpoint": str(config.checkpoint), **rank}
    module = model_of(config, dataset)
    fields = [f.name for f in dataclasses.fields(module) if f.name not in OF_FLAX]
    return {"name": config.model, **{name: getattr(module, name) for name in fields}}


def _json_of(value: Any) -> Any:
    """The numbers of an array, or the name of a type of numbers or of a function."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    try:
        return np.dtype(value).name
    except TypeError:
        return getattr(value, "__qualname__", str(value))
