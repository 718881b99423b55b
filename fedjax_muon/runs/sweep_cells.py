"""Cells of `fedjax-muon sweep` on the workers of an executor.

A worker is given the config of the sweep, the name of a method and some points and
seeds. It reads the data set and prepares the simulation by itself.
"""

import dataclasses
import functools
import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

import numpy as np

from fedjax_muon import data
from fedjax_muon.data import Dataset
from fedjax_muon.runs import launch
from fedjax_muon.runs.build import parts_of, simulation_of, start_key
from fedjax_muon.runs.config import Sweep
from fedjax_muon.runs.config_json import from_json, to_json
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.simulation.batching import max_client_size_of
from fedjax_muon.simulation.evaluation import Examples
from fedjax_muon.simulation.sweep_groups import Cell, Groups, group_size
from fedjax_muon.simulation.sweep_record import Outcome
from fedjax_muon.simulation.sweep_tasks import Task, run_tasks
from fedjax_muon.simulation.sweep_workers import prepared

Point = tuple[dict[str, float], int]  # hyper-parameters and seed of a cell


class _Prepared(NamedTuple):
    groups: Groups
    parts: Callable[[int], Sequence[np.ndarray]]  # of a seed


def train_on(
    executor: Executor,
    job: Sweep,
    todo: Mapping[str, Sequence[Point]],
    held_out: tuple[Dataset, Examples],
    stop: Callable[[], bool],
) -> Iterator[tuple[str, Sequence[Point], list[Outcome]]]:
    """Trains cells on an executor.

    Args:
      executor: Runs groups of cells.
      todo: The cells of each algorithm that are not finished.
      held_out: The training data and the validation examples of this machine.
      stop: Whether to stop.

    Yields:
      Algorithm, cells and outcomes of each group, in the order of completion.
    """
    parts = {seed: parts_of(job.config, held_out[0], seed) for seed in job.seeds}
    largest = max(map(max_client_size_of, parts.values()))
    text, mark = to_json(_portable(job)), digest_of(*held_out)
    groups, tasks = [], []
    for name, cells in todo.items():
        if not cells:
            continue
        size = group_size(len(cells), job.cells_at_once or 1)
        for first in range(0, len(cells), size):
            group = list(cells[first : first + size])
            groups.append((name, group))
            given = (text, name, group, size, largest, mark)
            tasks.append(Task(given, _name(name, group)))
    for number, outcomes in run_tasks(executor, run_cells, tasks, stop):
        yield *groups[number], outcomes


def _portable(job: Sweep) -> Sweep:
    """The same job with absolute paths, since workers may have another directory."""
    config, paths = job.config, {}
    for name in ("data_dir", "checkpoint"):
        path = getattr(config, name)
        if path is not None:
            paths[name] = path.expanduser().resolve()
    return dataclasses.replace(job, config=dataclasses.replace(config, **paths))


def digest_of(train: Dataset, validation: Examples) -> str:
    """Identifies the examples, which workers read by themselves."""
    found = hashlib.sha256()
    for array in (*train[:4], *validation):
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _name(algorithm: str, cells: Sequence[Point]) -> str:
    points = [
        " ".join([*(f"{k}={v:g}" for k, v in hyper.items()), f"seed {seed}"])
        for hyper, seed in cells
    ]
    return f"{algorithm} {', '.join(points)}"


def run_cells(
    text: str, name: str, cells: Sequence[Point], size: int, largest: int, mark: str
) -> list[Outcome]:
    """Trains a group of cells in a worker.

    Args:
      text: The sweep, as in config.json.
      name: The algorithm.
      cells: Hyper-parameters and seed of each cell.
      size: Size of all groups.
      largest: Upper bound of the sizes of all clients.
      mark: `digest_of` the examples.

    Returns:
      Outcomes of the cells.
    """
    ready = prepared(
        repr((text, name, largest, mark)), lambda: _prepare(text, name, largest, mark)
    )
    own = [Cell(hyper, start_key(seed), ready.parts(seed)) for hyper, seed in cells]
    return ready.groups.run(own, size)


def _prepare(text: str, name: str, largest: int, mark: str) -> _Prepared:
    launch.remember_programs()
    # Workers that compile the same program may read the file that another one writes.
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache")
    job = from_json(text)
    if not isinstance(job, Sweep):
        raise ValueError(f"workers run sweeps, got {type(job).__name__}")
    train, validation = data.hold_out(dataset_of(job.config), job.validation)
    if digest_of(train, validation) != mark:
        raise ValueError(
            f"its examples of {job.config.dataset} differ from those of the machine "
            "that started the sweep; copy the files, or name them by data_dir"
        )
    groups = Groups(
        simulation_of(job.cell(name, {}, job.seeds[0]), train),
        rounds=job.config.rounds,
        evaluate_every=job.config.evaluate_every,
        max_client_size=largest,
        validation=validation,
        drop_nonfinite=job.config.drop_nonfinite,
    )
    parts = functools.cache(functools.partial(parts_of, job.config, train))
    return _Prepared(groups, parts)
