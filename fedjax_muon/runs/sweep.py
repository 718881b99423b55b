"""Sweeps: a method at every point of a grid, the best of which validation chooses.

    result = sweep(fm.fedmuon(), problem, {"lr": (0.01, 0.03, 0.1)}, seeds=(0, 1))
    method = result.best_method

The same call with the same directory goes on where it was interrupted, and runs only
what is missing of a larger grid or for more seeds.

identity.json      what all cells have in common
versions.json      of everything that computes
cells.csv          the rows of all finished cells
parts/3-of-8/      the same of a part, if several jobs divide the cells
cells.json         what they were computed with, and a digest
points.csv         one line for every point of the grid
summary.csv        and .md: the best point; grids.png and curves.png draw them
suspended/         the group of cells that an interrupt left unfinished
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_muon.core import check_count, numbers_of, with_numbers
from fedjax_muon.core.hyperparameters import plain_numbers, several
from fedjax_muon.data.dataset import digest
from fedjax_muon.files import named
from fedjax_muon.problems import Problem
from fedjax_muon.runs import (
    directory as directories,
    metrics_csv,
    plots,
    summary,
    tables,
)
from fedjax_muon.runs.checked_rows import CheckedRows
from fedjax_muon.runs.identity import as_begun, claimed, identity
from fedjax_muon.runs.search import wider
from fedjax_muon.runs.simulate import (
    Method,
    check_seeds,
    made_by,
    name_of,
    score_of,
    shared,
    simulate,
    start_key,
    title_of,
)
from fedjax_muon.runs.summary import History, Point
from fedjax_muon.runs.suspended import Suspended, clear
from fedjax_muon.runs.train import (
    check_one_process,
    followed,
    ignore,
    resumable,
)
from fedjax_muon.simulation.sweeps import Cell, Outcome, run_cells
from fedjax_muon.terminal import Progress

CELLS, PARTS, ALL = "cells.csv", "parts", "1/1"
MOST_RATES = 8  # that are tried for a method
DRAWN = 10  # methods whose curves are drawn, the best
SHARES = (0.1, 0.3, 1.0, 3.0)  # of a rate, to try first
Grid = Mapping[str, Sequence[float]]
Values = tuple[dict[str, float], int]  # hyperparameters and seed of a cell


class Swept(NamedTuple):
    """All points of a grid."""

    method: Method
    points: list[Point]
    title: str
    seeds: int
    score: str  # what points are ranked by, such as "accuracy"

    @property
    def best(self) -> Point | None:
        """The best point by validation; None if all diverged."""
        return summary.best(self.points)

    @property
    def chosen(self) -> dict[str, float]:
        """The values of the best point; the smallest ones if all diverged."""
        point, names = self.best, self.points[0].hyper
        if point is not None:
            return dict(point.hyper)
        return {name: min(each.hyper[name] for each in self.points) for name in names}

    @property
    def best_method(self) -> Method:
        """The method with these values."""
        return with_numbers(self.method, self.chosen)

    @property
    def doubts(self) -> str:
        """What speaks against the best point: its grid ends there, or mostly diverged;
        empty if nothing does."""
        point = self.best
        edge = point is None or summary.edges(self.points, point)
        words = [tables.EDGE_MARK] if edge else []
        diverged = sum(each.diverged > 0 for each in self.points)
        if 2 * diverged > len(self.points):
            words.append(f"{diverged} of {len(self.points)} diverged")
        return f"({', '.join(words)})" if words else ""

    def __str__(self) -> str:
        return str(self.table())

    def table(self) -> tables.Cells:
        """The best point, with its scores after the last round."""
        return table_of({name_of(self.method): self})

    def write(self, directory: str | Path) -> tables.Cells:
        """Writes tables and figures; returns the table."""
        return report_of({name_of(self.method): self}, Path(directory))


def around(method: Method) -> Grid:
    """A grid of four learning rates around a method's own, for `sweep` and `compare`.

    Raises `ValueError` if its rate is not a number.
    """
    lr = numbers_of(method).get("lr")
    if not isinstance(lr, int | float):
        raise ValueError(f"{method!r} has no number as its learning rate, got {lr!r}")
    return {"lr": tuple(float(f"{share * lr:.3g}") for share in SHARES)}


def table_of(sweeps: Mapping[str, Swept]) -> tables.Cells:
    """The best points of several sweeps on one problem, by the labels of methods."""
    first, grids = next(iter(sweeps.values())), _grids(sweeps)
    chosen, ranked, target = _ranked(grids)
    edges = _edges(grids, chosen)
    rows = [(row, chosen[row.method], edges[row.method]) for row in ranked]
    diverged = [method for method in grids if method not in chosen]
    lost = {}
    for name, points in grids.items():
        number = sum(point.diverged > 0 for point in points)
        if number:
            lost[name] = f"{number} of {len(points)} diverged"
    about = first.title, first.seeds, first.score
    return tables.swept(rows, diverged, target, *about, lost)


def report_of(sweeps: Mapping[str, Swept], directory: Path) -> tables.Cells:
    """Writes tables and figures of several sweeps; returns that of `table_of`."""
    first, grids = next(iter(sweeps.values())), _grids(sweeps)
    title, score = first.title, first.score
    chosen, ranked, target = _ranked(grids)
    kind = summary.score_named(score).metric
    _write_points(grids, chosen, directory / "points.csv", kind)
    plots.grids(grids, directory / "grids.png", title=title)
    if chosen:
        path, name = directory / "ranking.png", f"test {score}"
        plots.ranking(ranked, path, title=title, score=name, seeds=first.seeds)
        drawn = {row.method: chosen[row.method].runs for row in ranked[:DRAWN]}
        plots.curves(drawn, directory / "curves.png", title=title, target=target)
    table = table_of(sweeps)
    (directory / "summary.md").write_text(tables.markdown(table))
    edges = _edges(grids, chosen).items()
    about = {
        "hyper": {name: tables.hyper_text(point) for name, point in chosen.items()},
        "edge": {name: " ".join(at_edge) for name, at_edge in edges},
    }
    status = {name: "diverged" for name in grids if name not in chosen}
    path = directory / "summary.csv"
    summary.write(ranked, path, diverged=status, columns=about)
    return table


def _grids(sweeps: Mapping[str, Swept]) -> dict[str, list[Point]]:
    return {label: each.points for label, each in sweeps.items()}


def _ranked(
    grids: Mapping[str, Sequence[Point]],
) -> tuple[dict[str, Point], list[summary.Summary], float]:
    """The best points by method, their summaries from the best on, and the target."""
    best = {method: summary.best(points) for method, points in grids.items()}
    chosen = {method: point for method, point in best.items() if point is not None}
    if not chosen:
        return {}, [], np.nan
    runs = {method: point.runs for method, point in chosen.items()}
    target = summary.target_score(runs)
    summaries = summary.summarize(runs, target)
    sign = summary.score_in(next(iter(runs.values()))[0]).sign
    return chosen, sorted(summaries, key=lambda row: -sign * row.score_mean), target


def _edges(
    grids: Mapping[str, Sequence[Point]], chosen: Mapping[str, Point]
) -> dict[str, list[str]]:
    return {name: summary.edges(grids[name], p) for name, p in chosen.items()}


def _write_points(grids, best: Mapping[str, Point], path, kind: str) -> None:
    columns = (f"validation_{kind}", f"test_{kind}", "train_loss")
    rows = []
    for method, points in grids.items():
        chosen = best.get(method)
        for point in points:
            row: dict[str, Any] = {
                "method": method,
                "hyper": tables.hyper_text(point),
                "status": "diverged" if point.diverged else "finished",
                "diverged_seeds": point.diverged,
                "best": int(chosen is not None and point.hyper == chosen.hyper),
            }
            for column in columns:
                mean, std = ("", "") if point.diverged else point.last(column)
                row |= {f"{column}_mean": mean, f"{column}_std": std}
            rows.append(row)
    path.write_text(metrics_csv.text_of(rows, header=True), newline="")


@plain_numbers
def sweep(
    method: Method,
    problem: Problem,
    grid: Grid,
    *,
    rounds: int = 100,
    seeds: Sequence[int] = (0,),
    evaluate_every: int = 5,
    drop_nonfinite: bool = False,
    validation: float = 0.1,
    extend: bool = True,
    cells_at_once: int | None = None,
    part: str = ALL,
    devices: Sequence[jax.Device] = (),
    directory: str | Path | None = None,
    progress: bool | Progress = True,
    begun: Callable[[], None] = ignore,
    **how: Any,
) -> Swept:
    """Trains a method at every point of a grid, on every seed.

    Cells run in groups, in one compiled program, and have the numbers of single runs.

    Args:
      method: An algorithm with a server or without; its other numbers stay.
      problem: A share of its training examples is held out.
      grid: Values of hyperparameters, by name; all combinations are tried.
      rounds: Number of rounds.
      seeds: Each has its own clients and parameters.
      evaluate_every: Rounds between evaluations.
      drop_nonfinite: Whether messages with NaN or infinity are left out of the mean,
        instead of calling the cell diverged.
      validation: Share of the training examples that is held out to choose by.
      extend: Whether the values of `lr` go on by a factor of about 3, up to eight,
        while the best is the smallest or largest.
      cells_at_once: Number of cells in a group; by default, as many as fit in half of
        the memory.
      part: Which part of the cells to train, as "3/8" in the third of eight jobs with
        one directory. When all are finished, the same call without it merges them.
      devices: Devices that divide the cells of every group.
      directory: Where finished cells, tables and figures are kept; by default nowhere,
        and by the command in a new directory in `runs/`.
      progress: Whether the rounds are shown on standard error; or what counts them.
      begun: Called before the first round.
      how: Arguments of `federate` or `decentralize`, in place of the problem's sizes.

    Example:
      >>> result = sweep(fm.fedavg(), problem, {"lr": (0.1, 0.3)}, rounds=20)
      >>> best = result.best.hyper  # {'lr': 0.3}
    """
    check_one_process()
    seeds = several(seeds)
    grid = {name: several(values) for name, values in grid.items()}
    check_sweep(method, grid, seeds, how)
    for name, value in {"rounds": rounds, "evaluate_every": evaluate_every}.items():
        check_count(name, value)
    if cells_at_once is not None:
        check_count("cells_at_once", cells_at_once)
    tuned = dataclasses.replace(problem.with_validation(validation), tested=None)
    tuned = shared(tuned, how)
    for seed in seeds:
        tuned.parts(seed)
    number, parts = _part(part, directory)
    search = _Search(
        part=(number, parts),
        simulation=simulate(method, tuned, seeds[0], **how),
        problem=tuned,
        settings={
            "rounds": rounds,
            "evaluate_every": evaluate_every,
            "drop_nonfinite": drop_nonfinite,
            "validation": tuned.validation,
            "cells_at_once": cells_at_once,
            "devices": devices,
        },
        place=None if directory is None else Path(directory).expanduser(),
    )
    if search.place is not None:
        others: dict[str, Any] = {"rounds": rounds, "evaluate_every": evaluate_every}
        others |= {"drop_nonfinite": drop_nonfinite, "validation": validation}
        words = identity(method, problem, 0, how, grid=sorted(grid), **others)
        words["data"] = digest(problem.dataset)
        for name in ("seed", *_varied(words, grid)):
            del words[name]
        search.begin(as_begun(search.place, words))
    begun()
    if parts > 1:  # what is extended depends on the results of all parts
        extend = False
    heading = f"{title_of(method, problem, how)}, {rounds} rounds"
    score = score_of(problem)
    total = _size(grid) * len(seeds) * rounds
    label = name_of(method)
    with (
        resumable(search.own) as stop,
        followed(progress, total, label) as course,
    ):
        while True:
            points = search.run(grid, seeds, course, stop)
            done = Swept(method, points, heading, len(seeds), score)
            if not extend or "lr" not in grid or len(grid["lr"]) >= MOST_RATES:
                break
            more = wider(grid["lr"], done.best)
            if more == grid["lr"]:
                break
            old, grid = grid, {**grid, "lr": more}
            course.total += (_size(grid) - _size(old)) * len(seeds) * rounds
    if search.own is not None:
        clear(search.own / "suspended")
    if search.place is not None and parts == 1:
        done.write(search.place)
    return done


def _part(text: str, directory: Any) -> tuple[int, int]:
    """The number of a part, from 1, and that of all."""
    number, _, parts = str(text).partition("/")
    if not (number.isdigit() and parts.isdigit() and 1 <= int(number) <= int(parts)):
        raise ValueError(
            f"part must be such as 3/8, for the third of eight, got {text!r}"
        )
    if text != ALL and directory is None:
        raise ValueError("part needs a common directory; add directory")
    return int(number), int(parts)


def check_sweep(
    method: Method, grid: Grid, seeds: Sequence[int], how: Mapping[str, Any]
) -> None:
    """Raises `ValueError` for what cannot be swept."""
    if how.get("privacy") is not None:
        raise ValueError(
            "a sweep chooses among the results of all its cells, but the privacy "
            "guarantee covers only one; use compare, which takes several privacies"
        )
    check_seeds(seeds)
    made_by(method)  # may raise
    known, label = numbers_of(method), name_of(method)
    if not grid:
        raise ValueError("the grid must name a hyperparameter, such as lr, got none")
    for option, values in grid.items():
        if option not in known:
            raise ValueError(
                f"the grid names {option!r}, which is not a number that {label} takes; "
                f"it takes {', '.join(known) or 'none'}"
            )
        several = isinstance(values, Sequence) and not isinstance(values, str)
        numbers = several and all(isinstance(x, int | float) for x in values)
        if not numbers or not values or len(set(values)) != len(values):
            raise ValueError(
                f"the grid of {option} must have one or more numbers, each once, got "
                f"{values!r:.60}"
            )
    with named(f"the grid of {label}"):
        for point in _points(grid):
            with_numbers(method, point)


def _varied(words: Mapping[str, str], grid: Grid) -> Iterator[str]:
    """The words of numbers that a grid varies: of a method, or of what it wraps."""
    for option in grid:
        places = [x for x in words if x.startswith("method.")]
        places = [x for x in places if x.rpartition(".")[2] == option]
        depth = min(x.count(".") for x in places)
        yield from (x for x in places if x.count(".") == depth)


def _points(grid: Grid) -> list[dict[str, float]]:
    points = itertools.product(*grid.values())
    return [dict(zip(grid, map(float, point), strict=True)) for point in points]


def _size(grid: Grid) -> int:
    return len(_points(grid))


class _Search:
    """The finished cells of a sweep, in memory and in its directory."""

    def __init__(
        self, simulation, problem: Problem, settings, place: Path | None, part
    ):
        self.simulation, self.problem = simulation, problem
        self.settings, self.place = settings, place
        self.number, self.parts = part
        # where this part has its cells
        self.own = place
        if place is not None and self.parts > 1:
            self.own = place / PARTS / f"{self.number}-of-{self.parts}"
        self.rows: CheckedRows | None = None
        self.others: list[Path] = []  # rows of parts that other jobs have finished
        self.finished: dict[tuple, History] = {}

    def begin(self, words: Mapping[str, str]) -> None:
        """Makes the directory that of the sweep, or reads what is finished there."""
        assert self.place is not None
        assert self.own is not None
        claimed(self.place, words)
        self.own.mkdir(parents=True, exist_ok=True)
        directories.note_versions(self.place)
        self.rows = CheckedRows(self.own / CELLS, words)
        for path in sorted(self.place.glob(f"{PARTS}/*/{CELLS}")):
            self.others.append(CheckedRows(path, words).path)

    def run(
        self, grid: Grid, seeds: Sequence[int], progress: Progress, stop: Any
    ) -> list[Point]:
        """Trains the cells that are not finished; returns all points of the grid."""
        names = [*grid]
        paths = [*self.others, *([] if self.rows is None else [self.rows.path])]
        for path in filter(Path.exists, paths):
            self.finished |= dict(_by_cell(metrics_csv.read(path), names))
        cells = [*itertools.product(_points(grid), seeds)][
            self.number - 1 :: self.parts
        ]
        todo = [cell for cell in cells if _key(*cell) not in self.finished]
        progress.done = (len(cells) - len(todo)) * self.settings["rounds"]
        waiting = iter(todo)
        for group in self._groups(todo, progress, stop) if todo else ():
            table = _table(itertools.islice(waiting, len(group)), group)
            if self.rows is not None:
                self.rows.extend(table)
            columns = {
                name: np.array([row[name] for row in table]) for name in table[0]
            }
            self.finished |= dict(_by_cell(columns, names))
        known = [
            (hyper, [self.finished.get(_key(hyper, seed)) for seed in seeds])
            for hyper in _points(grid)
        ]
        return [_point(hyper, [run for run in runs if run]) for hyper, runs in known]

    def _groups(
        self, todo: Sequence[Values], progress: Progress, stop: Any
    ) -> Iterator[list[Outcome]]:
        pause = None
        if self.own is not None and self.rows is not None:
            pause = Suspended(self.own / "suspended", stop, self.rows.settings)
        problem, cells = self.problem, []
        for hyper, seed in todo:
            parts, weights = problem.parts(seed), None
            if self.simulation.program.mix is not None:
                weights = problem.mixing(seed, len(parts))
            cells.append(Cell(hyper, start_key(seed), parts, weights))
        how = {**self.settings, "tick": progress.advance, "pause": pause}
        return run_cells(self.simulation, cells, **how)


def read_points(directory: Path) -> list[Point]:
    """The points of a sweep's directory, with all runs that are finished."""
    runs: dict[tuple, list[History]] = {}
    for path in [*directory.glob(f"{PARTS}/*/{CELLS}"), directory / CELLS]:
        columns = metrics_csv.read(path) if path.exists() else {}
        names = [*itertools.takewhile(lambda name: name != "seed", columns)]
        for (*hyper, _), run in _by_cell(columns, names) if columns else ():
            point = tuple(zip(names, hyper, strict=True))
            runs.setdefault(point, []).append(run)
    return [_point(dict(point), each) for point, each in runs.items()]


def _point(hyper: dict[str, float], runs: Sequence[History]) -> Point:
    ended = [run for run in runs if run["diverged"][0] < 0]
    return Point(hyper, ended, len(runs) - len(ended))


def _key(hyper: Mapping[str, float], seed: int) -> tuple:
    return (*hyper.values(), seed)


def _table(
    cells: Iterable[Values], outcomes: Sequence[Outcome]
) -> list[dict[str, Any]]:
    table = []
    for (hyper, seed), outcome in zip(cells, outcomes, strict=True):
        diverged = -1 if outcome.diverged is None else outcome.diverged
        about = {**hyper, "seed": seed, "diverged": diverged}
        table += [about | row for row in outcome.rows]
    return table


def _by_cell(columns: History, names: Sequence[str]) -> Iterator[tuple[tuple, History]]:
    """The rows of every finished cell, by the values of its point and its seed."""
    places: dict[tuple, list[int]] = {}
    keys = zip(*(columns[name].tolist() for name in (*names, "seed")), strict=True)
    for row, key in enumerate(keys):
        places.setdefault(key, []).append(row)
    for key, rows in places.items():
        yield key, {name: values[rows] for name, values in columns.items()}
