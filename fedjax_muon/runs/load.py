"""A run directory in Python: its configuration, its metrics, its parameters."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

from fedjax_muon.data import Dataset
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import directory as directories, train
from fedjax_muon.runs.build import simulation_of, task_of
from fedjax_muon.runs.config import Comparison, Config, Run
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.training import Record
from fedjax_muon.tasks.task import Task
from fedjax_muon.versions import check_installed

MOST_NAMED = 3  # runs of a comparison in an error


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """What a run directory has. Properties are read when they are first used.

    `run`, `config`, `records` and `history` need no dataset. The others read that of
    the run; `state`, `params` and `evaluate` need a checkpoint too.
    """

    directory: Path
    run: Run  # algorithm, hyper-parameters, seed and config

    @property
    def config(self) -> Config:
        """All options of the run but its algorithm and its seed."""
        return self.run.config

    @functools.cached_property
    def records(self) -> list[Record]:
        """The rows of metrics.csv as dictionaries, as `train` returns them."""
        path = self.directory / directories.METRICS
        if not path.exists():
            again = directories.resume_command(self.directory)
            raise ValueError(f"{path} does not exist yet; train first, with: {again}")
        columns = metrics_csv.read(path)
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
        return dataset_of(self.config)

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


def load_run(directory: str | Path) -> LoadedRun:
    """Loads the directory of a run of `fedjax-muon train`, or of one in a comparison.

    Args:
      directory: The run directory; of a comparison's run, such as
        "runs/compare/fedavg/seed0".

    Returns:
      The run, whose `history` is a table of metrics, and whose `params` are those of
      the newest checkpoint. Its properties raise `ValueError` for what is missing or
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
            f"{directory} is of `{kind}`, whose runs have no directories; read its "
            "CSV files"
        )
    return LoadedRun(directory, job)
