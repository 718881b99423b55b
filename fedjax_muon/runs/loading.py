"""Directories of runs in Python, and parameters in a file for other programs."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.files import read_text, reading
from fedjax_muon.models.weights import check_target, save_params
from fedjax_muon.problems import Problem
from fedjax_muon.runs import metrics_csv
from fedjax_muon.runs.cells import CELLS
from fedjax_muon.runs.directory import CHECKPOINTS, METRICS
from fedjax_muon.runs.identity import IDENTITY, words_of
from fedjax_muon.runs.simulate import Method, name_of
from fedjax_muon.simulation import checkpoint
from fedjax_muon.simulation.training import Record
from fedjax_muon.versions import PACKAGE_VERSION, check_installed

ABOUT = "about.json"  # what a program needs to use the parameters
OF_FLAX = ("parent", "name")  # fields of all modules


def metadata_of(problem: Problem, method: Method) -> dict[str, Any]:
    """What a program needs to use the parameters: values that JSON can represent."""
    dataset, module = problem.dataset, problem.model
    scales = dataset.standardization
    fields = [] if module is None else dataclasses.fields(module)
    named = {f.name: getattr(module, f.name) for f in fields if f.name not in OF_FLAX}
    values: dict[str, Any] = {
        "version": PACKAGE_VERSION,
        "algorithm": name_of(method),
        "dataset": dataset.name,
        "model": {"name": type(module).__name__, **named},
        "input_shape": dataset.x_train.shape[1:],
        "input_dtype": str(dataset.x_train.dtype),
        "classes": dataset.classes,
        "standardization": None if scales is None else scales._asdict(),
    }
    if dataset.tokenizer is not None:  # whose classes are documents
        window = dataset.x_train.shape[1] - 1
        values |= {"tokenizer": _about_tokens(problem), "window": window}
        values |= {"input_shape": [window]}
        del values["classes"]
    return json.loads(json.dumps(values, default=_json_of))


def _about_tokens(problem: Problem) -> dict[str, Any]:
    """The name of a tokenizer, with its letters or its file."""
    tokenizer, place = problem.dataset.tokenizer, problem.call.get("tokenizer")
    about: dict[str, Any] = {"name": getattr(tokenizer, "name", str(tokenizer))}
    if tokenizer is not None and about["name"] == "characters":
        about["letters"] = [tokenizer.decode([i]) for i in range(tokenizer.vocabulary)]
    elif isinstance(place, str | Path) and Path(place).expanduser().is_file():
        content = Path(place).expanduser().read_bytes()
        about |= {"path": str(place), "sha256": hashlib.sha256(content).hexdigest()}
    return about


def _json_of(value: Any) -> Any:
    """The numbers of an array, or the name of a type of numbers or of a function."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    try:
        return np.dtype(value).name
    except (TypeError, ValueError):  # of a class that is no type of numbers
        return getattr(value, "__qualname__", str(value))


def _frame(rows: list[Record]) -> Any:
    check_installed("pandas", "frame")
    import pandas  # in the extra `pandas`

    return pandas.DataFrame(rows)


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """What the directory of a run has. Properties are read when they are first used.

    It needs neither the data nor your own code.
    """

    directory: Path

    @functools.cached_property
    def words(self) -> dict[str, str]:
        """What the run computes, in words."""
        return words_of(self.directory)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        path = self.directory / IDENTITY
        with reading(path, "the words of a run", "start again in another directory"):
            return int(self.words["seed"])

    @functools.cached_property
    def records(self) -> list[Record]:
        """The rows of metrics.csv as dictionaries, as `train` returns them."""
        path = self.directory / METRICS
        if not path.exists():
            raise ValueError(f"{path} does not exist yet; train first")
        return metrics_csv.rows_of(path)

    @property
    def rows(self) -> list[Record]:
        """The records, as `LoadedRuns` has them."""
        return self.records

    def frame(self) -> Any:
        """The rows as a `pandas.DataFrame`; requires pandas."""
        return _frame(self.records)

    @functools.cached_property
    def state(self) -> Any:
        """The state in the newest checkpoint, in dictionaries of arrays."""
        place = self.directory / CHECKPOINTS
        if not any(place.glob("[0-9]*")):
            raise ValueError(f"{self.directory} has no checkpoint yet; train first")
        with checkpoint.open_checkpoints(place) as checkpoints:
            return checkpoint.without_template(checkpoints)

    @property
    def params(self) -> Any:
        """The parameters in the newest checkpoint, in dictionaries of arrays."""
        training = self.state["training"]
        return training["server" if "server" in training else "agents"]["params"]

    @functools.cached_property
    def metadata(self) -> dict[str, Any]:
        """What a program needs to use the parameters."""
        place = self.directory / ABOUT
        with reading(place, "what a run has trained", "train it again"):
            return {**json.loads(read_text(place)), "round": self.records[-1]["round"]}


@dataclasses.dataclass(frozen=True)
class LoadedRuns:
    """What the directory of a comparison or a sweep has."""

    directory: Path
    runs: Mapping[str, LoadedRun]  # of a comparison, by their folders

    @functools.cached_property
    def rows(self) -> list[Record]:
        """All evaluations, each with the folder of its method, and its seed."""
        found = list[Record]()
        for folder, run in self.runs.items():
            about = {"run": folder, "seed": run.seed}
            found += [{**about, **row} for row in run.records]
        for path in sorted(self.directory.rglob(CELLS)):
            folder = str(path.parent.relative_to(self.directory))
            if "tuning" not in path.relative_to(self.directory).parts:
                found += [{"run": folder, **row} for row in metrics_csv.rows_of(path)]
        return found

    def frame(self) -> Any:
        """The rows as a `pandas.DataFrame`; requires pandas."""
        return _frame(self.rows)


def load_run(directory: str | Path) -> LoadedRun | LoadedRuns:
    """Loads what `train`, `compare` or `sweep` left in a directory.

    Returns:
      A run, with `records` and `params`; of several runs, `runs` by their folders. Both
      have `rows`, and `frame()` makes a table of them.

    Example:
      >>> run = load_run("runs/20261121-101500-train")  # doctest: +SKIP
      >>> run.frame().plot("round", "test_accuracy")  # doctest: +SKIP
      >>> logits = model.apply({"params": run.params}, x)  # doctest: +SKIP
    """
    place = Path(directory).expanduser()
    if "seed" in words_of(place):
        return LoadedRun(place)
    several = sorted(place.glob(f"**/seed*/{METRICS}")) if place.is_dir() else []
    folders = {str(each.parent.relative_to(place)): each.parent for each in several}
    if not folders and not (place.is_dir() and any(place.rglob(CELLS))):
        raise ValueError(f"{directory} is not the directory of a run")
    runs = {name: LoadedRun(each) for name, each in folders.items()}
    return LoadedRuns(place, runs)


def export(run: Path, file: Path, *, overwrite: bool = False) -> str:
    """Writes the parameters of a run to a file for other programs.

    Args:
      run: Directory of the run.
      file: Its name ends in .safetensors.
      overwrite: Whether an existing file is replaced.
    """
    file = Path(file)
    check_target(file, overwrite=overwrite)
    loaded = load_run(run)
    if isinstance(loaded, LoadedRuns):
        known = ", ".join(loaded.runs) or "no run with parameters"
        raise ValueError(f"{run} has several runs; name one of them: {known}")
    params, metadata = loaded.params, loaded.metadata
    save_params(file, params, metadata=metadata, overwrite=overwrite)
    return f"the parameters of round {metadata['round']} are in {file}"
