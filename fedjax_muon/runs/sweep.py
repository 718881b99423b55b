"""Sweeps in a run directory: grids of hyperparameters, finished group by group.

config.json        what was asked for
versions.json      of everything that computes
cells/NAME.csv     the rows of all finished cells of an algorithm's grid
cells/NAME.json    what they were computed with, and a digest
points.csv         one line for every point of every grid
summary.csv, .md   every algorithm at the point that is best on validation
*.png              figures, drawn from cells/ alone
suspended/         the group of cells that an interrupt left unfinished
parts/3-of-8/      cells/ and suspended/ of a part that one process trains
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon import data
from fedjax_muon.core import numbers_of
from fedjax_muon.data.dataset import digest
from fedjax_muon.decentralized import topology
from fedjax_muon.experiments import sweep_reports
from fedjax_muon.experiments.checked_rows import CheckedRows
from fedjax_muon.experiments.suspended import Suspended as Suspended, clear
from fedjax_muon.experiments.sweep_reports import wider
from fedjax_muon.files import named
from fedjax_muon.reporting import comparison, metrics_csv, tables
from fedjax_muon.reporting.comparison import History, Point
from fedjax_muon.runs import directory, launch, own_code
from fedjax_muon.runs.build import (
    algorithm_of,
    graph_of,
    is_of_agents,
    parts_of,
    simulation_of,
    start_key,
    summary_of,
)
from fedjax_muon.runs.config import Config, Sweep, label_of, method_of
from fedjax_muon.runs.directory import resumable
from fedjax_muon.runs.errors import refusing
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.simulation.arguments import on_device
from fedjax_muon.simulation.evaluation import Examples
from fedjax_muon.simulation.memory import check_memory
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.sweeps import Cell, Outcome, run_cells
from fedjax_muon.terminal import Progress, plain_console, shown

Values = tuple[dict[str, Any], int]  # hyperparameters and seed of a cell
Part = tuple[int, int]  # of a sweep's cells: 3 of 8
EVERYTHING = (1, 1)
MOST_RATES = 8  # that are tried for a method


def check(job: Sweep) -> str:
    """Raises `ValueError` for what can't be swept; only then are programs compiled.

    Returns:
      The dataset and its clients, in a line.
    """
    if job.config.split_examples:
        raise ValueError(
            "a sweep copies the examples to each device; leave out split_examples"
        )
    if job.config.client_tests:
        raise ValueError(
            "a sweep chooses by all validation examples together; leave out "
            "client_tests, and use it in compare with the best rates"
        )
    launch.devices_of(job.config.devices)
    train, validation = _held_out(job, dataset_of(job.config))
    commons = {}
    for name in job.algorithms:
        with named(name):
            commons[name] = _common(job, name, train)
    for name in job.algorithms:
        known = numbers_of(own_code.algorithm(method_of(name), {}))
        if job.grids[name] and not known:
            raise ValueError(
                f"{name} has no hyperparameters that a sweep can vary; decorate it "
                "with fedjax_muon.recorded, and annotate its numbers Hyper"
            )
        for option, values in job.grids[name].items():
            if option not in known:
                raise ValueError(
                    f"the grid names {option!r}, which is not a number that {name} "
                    f"takes; it takes {', '.join(known)}"
                )
            if len(set(values)) != len(values):
                raise ValueError(f"the grid of {option} has a value twice: {values}")
        with named(f"the grid of {name}"):
            for point in job.points(name):
                algorithm_of(job.cell(name, point, 0))
    for seed in job.seeds:
        parts_of(job.config, train, seed)
    for name, common in commons.items():  # last, since it compiles
        with named(name):
            check_memory(common)
    first = job.algorithms[0]
    words = summary_of(job.cell(first, {}, job.seeds[0]), commons[first], train)
    return f"{words}; {len(validation[1])} more examples to validate"


def with_owners_counted(config: Config) -> Config:
    """The config with the number of clients that the partition by_owner makes.

    Methods that need all clients in every round are given as many.
    """
    if config.partition != "by_owner":
        return config
    number = len(parts_of(config, dataset_of(config), 0))
    return dataclasses.replace(config, num_clients=number)


def part_of(text: str) -> Part:
    """Reads a text like "3/8"; raises `ValueError` for anything else."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 0 < int(number) <= int(count)):
        raise ValueError(f"--part is one of 1/8 to 8/8, if there are 8; got {text!r}")
    return int(number), int(count)


def begin_part(run_dir: Path, job: Sweep) -> None:
    """Makes the directory of a sweep, unless another part has made it."""
    with contextlib.suppress(directory.UsedError):
        directory.create(run_dir, job, "sweep")
    if directory.to_json(directory.read(run_dir)) != directory.to_json(job):
        raise ValueError(
            f"{run_dir} was not made by a part of this sweep; run all parts with the "
            "same options, or choose another --output"
        )


def train(job: Sweep, run_dir: Path, again: str = "", part: Part = EVERYTHING) -> None:
    """Trains the cells that are not finished, or those of a part of them."""
    console = plain_console()
    place = run_dir
    if part != EVERYTHING:
        place = run_dir / "parts" / "{}-of-{}".format(*part)
        again = "{} --part {}/{}".format(directory.resume_command(run_dir), *part)
    with refusing():
        dataset = dataset_of(job.config)
        directory.hold_to(run_dir, digest(dataset), job.config.dataset)
        held_out = _held_out(job, dataset)
    (place / "cells").mkdir(parents=True, exist_ok=True)
    with (
        resumable(place, again or directory.resume_command(run_dir)) as stop,
        refusing(),
        contextlib.ExitStack() as opened,
    ):
        if part == EVERYTHING:
            for folder in run_dir.glob("parts/*"):  # none of them is being trained
                opened.enter_context(directory.held(folder))
        share = _share(job, part)
        total = sum(map(len, share.values()))
        progress = Progress(total * job.config.rounds, "all")
        opened.enter_context(shown(console, progress))
        todo = {}
        for name, cells in share.items():
            finished = _finished(job, name, run_dir)
            key = lambda point, seed: (*point.values(), seed)
            todo[name] = [cell for cell in cells if key(*cell) not in finished]
        left = sum(map(len, todo.values()))
        progress.skip((total - left) * job.config.rounds)
        for name in (name for name in todo if todo[name]):
            progress.title = label_of(name)
            rows = rows_of(job, name, place)
            pause = Suspended(place / "suspended", stop, rows.settings)
            waiting = iter(todo[name])
            for group in _groups(
                job, name, todo[name], held_out, progress.advance, pause
            ):
                _record(rows, itertools.islice(waiting, len(group)), group)
        clear(place / "suspended")
        progress.title = "done"


def _share(job: Sweep, part: Part) -> dict[str, list[Values]]:
    """The cells of a part by algorithm: neighbors, since they share programs."""
    number, count = part
    cells = [
        (name, (point, seed))
        for name in job.algorithms
        for point in job.points(name)
        for seed in job.seeds
    ]
    first, end = (len(cells) * n // count for n in (number - 1, number))
    share: dict[str, list[Values]] = {}
    for name, values in cells[first:end]:
        share.setdefault(name, []).append(values)
    return share


def _groups(job: Sweep, name: str, todo, held_out, tick, pause):
    train, validation = held_out
    return run_cells(
        _common(job, name, train),
        _cells(job, name, todo, _parts(job, train)),
        rounds=job.config.rounds,
        evaluate_every=job.config.evaluate_every,
        validation=validation,
        cells_at_once=job.cells_at_once,
        drop_nonfinite=job.config.drop_nonfinite,
        tick=tick,
        pause=pause,
        devices=launch.devices_of(job.config.devices),
    )


def _held_out(job: Sweep, dataset: data.Dataset) -> tuple[data.Dataset, Examples]:
    train, validation = data.hold_out(dataset, job.validation)
    return on_device(train), validation


def _common(job: Sweep, name: str, train: data.Dataset) -> Simulation:
    """What an algorithm's cells have in common, on one device: devices divide cells."""
    run = job.cell(name, {}, job.seeds[0])
    config = dataclasses.replace(run.config, devices=1)
    return simulation_of(dataclasses.replace(run, config=config), train)


def _parts(job: Sweep, train: data.Dataset) -> dict[int, Sequence[np.ndarray]]:
    return {seed: parts_of(job.config, train, seed) for seed in job.seeds}


def _cells(
    job: Sweep, name: str, todo: Iterable[Values], parts: Mapping[int, Any]
) -> list[Cell]:
    graphs: dict[int, Any] = {}  # mixing weights by seed, of agents
    if is_of_agents(job.cell(name, {}, 0)):
        weights = lambda seed: topology.metropolis(graph_of(job.config, seed))
        graphs = {seed: weights(seed) for seed in job.seeds}
    return [
        Cell(hyper, start_key(seed), parts[seed], graphs.get(seed))
        for hyper, seed in todo
    ]


def _record(
    rows: CheckedRows, cells: Iterable[Values], outcomes: list[Outcome]
) -> None:
    table = []
    for (hyper, seed), outcome in zip(cells, outcomes, strict=True):
        diverged = -1 if outcome.diverged is None else outcome.diverged
        about = {**hyper, "seed": seed, "diverged": diverged}
        table += [about | row for row in outcome.rows]
    rows.extend(table)


def rows_of(job: Sweep, name: str, run_dir: Path) -> CheckedRows:
    """The rows of an algorithm's finished cells.

    They serve any grid of the same options and any seeds. Raises `ValueError` if they
    are damaged, or were computed with another config.
    """
    config = dataclasses.asdict(job.config_of(name))
    del config["data_dir"]  # datasets may lie elsewhere
    about: dict[str, Any] = {"algorithm": name, "validation": job.validation}
    about["options of the grid"] = [*job.grids[name]]
    path = run_dir / "cells" / f"{own_code.file_name(name)}.csv"
    return CheckedRows(path, config | about)


def _finished(job: Sweep, name: str, run_dir: Path) -> dict[tuple, History]:
    """The rows of every finished cell, by the values of its point and its seed."""
    finished: dict[tuple, History] = {}
    for place in (*run_dir.glob("parts/*"), run_dir):
        finished |= _finished_in(job, name, rows_of(job, name, place).path)
    return finished


def _finished_in(job: Sweep, name: str, path: Path) -> dict[tuple, History]:
    if not path.exists():
        return {}
    columns = metrics_csv.read(path)
    places: dict[tuple, list[int]] = {}
    keys = zip(*(columns[c] for c in (*job.grids[name], "seed")), strict=True)
    for row, key in enumerate(keys):
        places.setdefault(key, []).append(row)
    return {
        key: {column: values[rows] for column, values in columns.items()}
        for key, rows in places.items()
    }


def points(job: Sweep, name: str, run_dir: Path) -> list[Point]:
    """Every point of an algorithm's grid, with its runs. Raises `ValueError` if some
    are not finished."""
    finished = _finished(job, name, run_dir)
    wanted = {(*p.values(), seed) for p in job.points(name) for seed in job.seeds}
    if not wanted <= finished.keys():
        raise ValueError(
            f"{run_dir} is not finished; continue with: "
            f"{directory.resume_command(run_dir)}"
        )
    points = []
    for hyper in job.points(name):
        runs = [finished[*hyper.values(), seed] for seed in job.seeds]
        ended = [run for run in runs if run["diverged"][0] < 0]
        points.append(Point(hyper, ended, len(runs) - len(ended)))
    return points


def label(job: Sweep, name: str) -> str:
    """The method's label, marked if all its clients participate in every round."""
    full = job.config_of(name) != job.config
    return label_of(name) + (" (all clients)" if full else "")


def best(job: Sweep, run_dir: Path) -> dict[str, Point | None]:
    """The best point of every algorithm, by the method's label."""
    grids = _grids(job, run_dir)
    return {method: comparison.best(points) for method, points in grids.items()}


def best_of(job: Sweep, name: str, run_dir: Path) -> Point | None:
    """The best point of one algorithm; None if all diverged. Raises `ValueError` if
    some cells are not finished."""
    return comparison.best(points(job, name, run_dir))


def widened(job: Sweep, run_dir: Path) -> Sweep:
    """A sweep with one more learning rate for each method whose best one is at an edge.

    Rates are about 3 apart, at most `MOST_RATES` for a method, and smaller ones are
    tried where all diverged. The sweep itself if its rates are settled. Raises
    `ValueError` if some cells are not finished.
    """
    grids = {}
    for name, grid in job.grids.items():
        lr = grid["lr"]
        if len(lr) < MOST_RATES:
            lr = wider(lr, best_of(job, name, run_dir))
        grids[name] = {**grid, "lr": lr}
    return dataclasses.replace(job, grids=grids)


def _grids(job: Sweep, run_dir: Path) -> dict[str, list[Point]]:
    return {label(job, name): points(job, name, run_dir) for name in job.algorithms}


def report(job: Sweep, run_dir: Path) -> tables.Cells:
    """Writes tables and figures of a finished sweep; returns the table of the best."""
    heading = f"{job.config.title}, {job.config.rounds} rounds"
    grids, score = _grids(job, run_dir), job.config.score
    return sweep_reports.report(grids, run_dir, heading, len(job.seeds), score)
