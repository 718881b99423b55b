"""The cells of a sweep: one method's runs, in memory and in a directory.

cells.csv has the rows of all finished cells. Rows are added when a group of cells ends,
so a process that is killed begins its group again.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.files import write
from fedjax_muon.problems import Problem
from fedjax_muon.runs import metrics_csv
from fedjax_muon.runs.simulate import start_key
from fedjax_muon.runs.summary import History, Point
from fedjax_muon.simulation.groups import Cell, Outcome, make_programs
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.sweeps import run_cells
from fedjax_muon.terminal import Progress

CELLS = "cells.csv"
Values = tuple[dict[str, float], int]  # hyperparameters and seed of a cell


class FinishedCells:
    """The finished cells of a sweep, which grow while it runs."""

    def __init__(
        self,
        simulation: Simulation,
        problem: Problem,
        seeds: Sequence[int],
        directory: Path | None,
        **settings: Any,
    ):
        """Reads what is finished.

        Args:
          settings: Of `run_cells`.
        """
        self.simulation, self.problem, self.seeds = simulation, problem, seeds
        devices = tuple(settings.get("devices", ()))
        programs = make_programs(simulation.program, devices=devices)
        self.settings: dict[str, Any] = {**settings, "programs": programs}
        self.path = directory and directory / CELLS
        self.finished: dict[tuple[Any, ...], History] = {}
        if self.path is not None and self.path.exists():
            self._know(metrics_csv.read(self.path))
        self.found = {*self.finished}  # in the directory, and not yet counted

    def run(
        self,
        points: Sequence[dict[str, float]],
        progress: Progress,
        stop: Any,
        pace: Callable[[int], None] = lambda cells: None,
    ) -> list[Point]:
        """Trains the cells that are not finished; returns all points.

        Args:
          stop: Tells whether an interrupt has come.
          pace: Called with the number of cells of every group that ends.
        """
        cells = [*itertools.product(points, self.seeds)]
        todo = [cell for cell in cells if _key(*cell) not in self.finished]
        found = self.found & {_key(*cell) for cell in cells}
        progress.skip(len(found) * self.settings["rounds"])
        self.found -= found
        waiting = iter(todo)
        for group in self._groups(todo, progress, stop) if todo else ():
            self._add(_table(itertools.islice(waiting, len(group)), group))
            pace(len(group))
        runs = lambda point: [self.finished[_key(point, seed)] for seed in self.seeds]
        return [_point(point, runs(point)) for point in points]

    def _add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if self.path is not None:
            old = self.path.read_bytes().decode() if self.path.exists() else ""
            write(self.path, old + metrics_csv.text_of(rows, header=not old))
        self._know({name: np.array([row[name] for row in rows]) for name in rows[0]})

    def _know(self, columns: History) -> None:
        self.finished |= {_key(*values): run for values, run in _by_cell(columns)}

    def _groups(
        self, todo: Sequence[Values], progress: Progress, stop: Any
    ) -> Iterator[list[Outcome]]:
        problem, cells = self.problem, []
        for hyper, seed in todo:
            parts, weights = problem.parts(seed), None
            if self.simulation.program.mix is not None:
                weights = problem.mixing(seed, len(parts))
            cells.append(Cell(hyper, start_key(seed), parts, weights))

        def tick(rounds: int) -> None:
            progress.advance(rounds)
            if stop():
                raise KeyboardInterrupt

        return run_cells(self.simulation, cells, **{**self.settings, "tick": tick})


def read_points(*directories: Path) -> list[Point]:
    """The points of a sweep in some directories, with all runs that are finished."""
    points, runs = {}, dict[tuple[Any, ...], list[History]]()
    for path in (each / CELLS for each in directories if (each / CELLS).exists()):
        for (hyper, _), run in _by_cell(metrics_csv.read(path)):
            points[tuple(hyper.values())] = hyper
            runs.setdefault(tuple(hyper.values()), []).append(run)
    return [_point(hyper, runs[values]) for values, hyper in points.items()]


def _point(hyper: dict[str, float], runs: Sequence[History]) -> Point:
    ended = [run for run in runs if run["diverged"][0] < 0]
    lost = [run for run in runs if run["diverged"][0] >= 0]
    return Point(hyper, ended, len(lost), lost)


def _key(hyper: Mapping[str, float], seed: int) -> tuple[Any, ...]:
    return (*sorted(hyper.items()), seed)


def _table(
    cells: Iterable[Values], outcomes: Sequence[Outcome]
) -> list[dict[str, Any]]:
    table = []
    for (hyper, seed), outcome in zip(cells, outcomes, strict=True):
        diverged = -1 if outcome.diverged is None else outcome.diverged
        about = {**hyper, "seed": seed, "diverged": diverged}
        table += [about | row for row in outcome.rows]
    return table


def _by_cell(columns: History) -> Iterator[tuple[Values, History]]:
    """The rows of every finished cell, with its point and its seed."""
    # the numbers that differ between cells come first
    names = [*itertools.takewhile(lambda name: name != "seed", columns)]
    places: dict[tuple[Any, ...], list[int]] = {}
    keys = zip(*(columns[name].tolist() for name in (*names, "seed")), strict=True)
    for row, key in enumerate(keys):
        places.setdefault(key, []).append(row)
    for (*numbers, seed), rows in places.items():
        hyper = dict(zip(names, numbers, strict=True))
        yield (hyper, seed), {name: values[rows] for name, values in columns.items()}
