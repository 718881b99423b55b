"""A run directory in Python, and its parameters in a file for other programs."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.data import Dataset
from fedjax_muon.data.dataset import digest
from fedjax_muon.models.weights import check_target, save_params
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.reporting.comparison import History
from fedjax_muon.runs import directory as directories, train
from fedjax_muon.runs.build import model_of, simulation_of, task_of
from fedjax_muon.runs.config import Comparison, Config, Run
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.training import Record
from fedjax_muon.tasks.task import Task
from fedjax_muon.versions import PACKAGE_VERSION, check_installed

MOST_NAMED = 3  # runs of a comparison in an error


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """What a run directory has. Properties are read when they are first used.

    `run`, `config`, `records` and `history` need no dataset. The others read that of
    the run; `state`, `params` and `evaluate` need a checkpoint too.
    """

    directory: Path
    run: Run  # algorithm, hyperparameters, seed and config

    @property
    def config(self) -> Config:
        """All options of the run but its algorithm and its seed."""
        return self.run.config

    @functools.cached_property
    def records(self) -> list[Record]:
        """The rows of metrics.csv as dictionaries, as `train` returns them."""
        columns = columns_of(self.directory)
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    @functools.cached_property
    def history(self) -> Any:
        """The rows of metrics.csv as a `pandas.DataFrame`; requires pandas."""
        check_installed("pandas", "history")
        import pandas  # in the extra `pandas`

        return pandas.DataFrame(self.records)

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The dataset."""
        dataset = dataset_of(self.config)
        mark = digest(dataset)
        directories.check_held(self.directory, mark, self.config.dataset)
        return dataset

    @functools.cached_property
    def task(self) -> Task:
        """The task, of the model and the dataset."""
        return task_of(self.config, self.dataset)

    @functools.cached_property
    def simulation(self) -> Simulation:
        """The simulation, with the clients of the run."""
        return simulation_of(self.run, self.dataset)

    @functools.cached_property
    def state(self) -> Any:
        """The state in the newest checkpoint; `simulation.train_round` donates it."""
        return train.last_state(self.run, self.simulation, self.directory)

    @property
    def params(self) -> Any:
        """The parameters in the newest checkpoint."""
        return self.state.params

    def evaluate(self) -> dict[str, float]:
        """Evaluates the newest checkpoint again, on test and training examples."""
        scores = self.simulation.evaluate(self.state)
        return {name: float(score) for name, score in scores.items()}


def columns_of(directory: Path) -> History:
    """The columns of a run's metrics.csv; raises `ValueError` if there is none yet."""
    path = directory / directories.METRICS
    if not path.exists():
        again = directories.resume_command(directory)
        raise ValueError(f"{path} does not exist yet; train first, with: {again}")
    return metrics_csv.read(path)


def load_run(directory: str | Path) -> LoadedRun:
    """Loads a run of `fedjax-muon train`, or one run of a comparison.

    Returns:
      The run, whose `history` is a table of metrics, and whose `params` are from the
      newest checkpoint. Its properties raise `ValueError` for what is missing or
      damaged.

    Example:
      >>> run = load_run("runs/20261121-101500-fedmuon")  # doctest: +SKIP
      >>> run.history.plot("round", "test_accuracy")  # doctest: +SKIP
      >>> logits = model.apply({"params": run.params}, x)  # doctest: +SKIP
    """
    directory = Path(directory)
    job = directories.read(directory)
    if isinstance(job, Comparison):
        cells = [str(cell) for cell in directories.cells(directory, job)]
        more = ", ..." if len(cells) > MOST_NAMED else ""
        raise ValueError(
            f"{directory} is a comparison of {len(cells)} runs; load one of them: "
            f"{', '.join(cells[:MOST_NAMED])}{more}"
        )
    if not isinstance(job, Run):
        kind = type(job).__name__.lower()
        raise ValueError(
            f"{directory} was made by `{kind}`, whose runs have no directories; read "
            "its CSV files"
        )
    return LoadedRun(directory, job)


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
    """The name of a model, and the fields of its module."""
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
