"""Sweeps: methods at every point of a grid, the best of which validation chooses.

    result = sweep([fm.fedmuon], problem, {"lr": (0.01, 0.03, 0.1)}, seeds=(0, 1))
    method = result["FedMuon"].best_method

The same call with the same directory goes on where it was interrupted, and runs only
what is missing of a larger grid or for more seeds.

METHOD/identity.json   what all cells have in common
METHOD/versions.json   of everything that computes
METHOD/cells.csv       the rows of all finished cells
points.csv             one line for every point of a grid
summary.csv            and .md: the best points; grids.png and curves.png draw them
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np

from fedjax_muon.core import check_count, numbers_of, with_numbers
from fedjax_muon.core.hyperparameters import plain_numbers, several
from fedjax_muon.data.dataset import digest
from fedjax_muon.files import named
from fedjax_muon.problems import Problem
from fedjax_muon.runs import (
    directory as directories,
    methods as methods_,
    metrics_csv,
    plots,
    summary,
    tables,
)
from fedjax_muon.runs.cells import FinishedCells
from fedjax_muon.runs.identity import as_begun, claimed, identity, words_of
from fedjax_muon.runs.methods import Methods
from fedjax_muon.runs.search import DIVERGED, wider
from fedjax_muon.runs.simulate import (
    Method,
    Settings,
    check_seeds,
    made_by,
    name_of,
    score_of,
    shared,
    simulate,
    title_of,
)
from fedjax_muon.runs.summary import Point
from fedjax_muon.runs.train import (
    check_one_process,
    followed,
    resumable,
    say,
)
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.terminal import Progress

MOST = 8  # rates that are tried for a method
DRAWN = 10  # methods whose curves are drawn, the best
Grid = Mapping[str, Sequence[float]]


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


class Sweeps(dict[str, Swept]):
    """The sweeps of methods, by the names that they have in tables."""

    def __str__(self) -> str:
        return str(self.table())

    def table(self) -> tables.Cells:
        """The best point of every method, with its scores after the last round."""
        return table_of(self)

    @property
    def diverged(self) -> bool:
        """Whether all points of all methods did."""
        return all(each.best is None for each in self.values())


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


def _write_points(
    grids: Mapping[str, Sequence[Point]],
    best: Mapping[str, Point],
    path: Path,
    kind: str,
) -> None:
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
    methods: Methods,
    problem: Problem | None = None,
    grid: methods_.Grid | Literal["paper"] | None = None,
    *,
    rounds: int = 100,
    seeds: Sequence[int] = (0,),
    evaluate_every: int = 5,
    drop_nonfinite: bool = False,
    validation: float = 0.1,
    extend: bool = True,
    cells_at_once: int | None = None,
    directory: str | Path | None = None,
    progress: bool | Progress = True,
    **how: Unpack[Settings],
) -> Sweeps:
    """Trains methods at every point of a grid, on every seed.

    Cells run in groups, in one compiled program, and have the numbers of single runs.

    Args:
      methods: Algorithms, or functions that make them, whose other numbers stay. A
        dictionary names them in tables.
      problem: A share of its training examples is held out; by default, the problem
        that suits the methods.
      grid: Values of numbers, all combinations of which are tried, such as
        `{"lr": (0.1, 0.3)}` of all methods that have it, and `{"fedavg.lr": (0.1,)}`
        of one; or "paper", the published ones. Values of other arguments of the call,
        such as `{"local_steps": (1, 5)}`, and of the problem, such as
        `{"problem.alpha": (0.1, 1.0)}`, have rows of their own.
      rounds: Number of rounds.
      seeds: Each has its own clients and parameters.
      evaluate_every: Rounds between evaluations.
      drop_nonfinite: Whether messages with NaN or infinity are left out of the mean,
        instead of calling the cell diverged.
      validation: Share of the training examples that is held out to choose by.
      extend: Whether the values of `lr` go on by factors of 3, up to eight, while the
        best is the smallest or largest.
      cells_at_once: Number of cells in a group; by default, as many as fit in half of
        the memory.
      directory: Where finished cells, tables and figures are kept; by default nowhere,
        and by the command in a new directory in `runs/`.
      progress: Whether the rounds are shown on standard error; or what counts them.
      how: Arguments of `federate` or `decentralize`, in place of the problem's sizes;
        `devices` divide the cells of every group.

    Returns:
      The sweeps by the names of methods, with `table()`.

    Example:
      >>> result = sweep([fm.fedavg], problem, {"lr": (0.1, 0.3)}, rounds=20)
      >>> best = result["FedAvg"].best.hyper  # {'lr': 0.3}
    """
    check_one_process()
    made = methods_.labeled(methods)
    if not made:
        raise ValueError("name the methods of the sweep, such as [fm.fedavg], got none")
    if grid == "paper":
        made, others = methods_.published(made)
        if others:
            say(f"left out, without a published grid: {', '.join(others)}", progress)
    problem, seeds = methods_.usual(made, problem), several(seeds)
    axes = methods_.axes_of(grid, made, [*Settings.__annotations__])
    options: dict[str, Any] = {"rounds": rounds, "evaluate_every": evaluate_every}
    for name, value in options.items():
        check_count(name, value)
    if cells_at_once is not None:
        check_count("cells_at_once", cells_at_once)
    options |= {"drop_nonfinite": drop_nonfinite, "validation": validation}
    options["cells_at_once"] = cells_at_once
    options["devices"] = how.pop("devices", ())
    place = None if directory is None else Path(directory).expanduser()
    if place is not None and words_of(place):
        raise ValueError(f"{place} has a single run; choose another one")
    searches: dict[str, Search] = {}
    for setting in methods_.settings_along(axes.shown, problem, how):
        one = prepared_for(setting.problem, setting.how, seeds, validation)
        done = {k: methods_.finished(each, rounds) for k, each in made.items()}
        methods_.check_suited(done, setting.problem)
        for label, method in done.items():
            values = methods_.grid_of(label, made[label], axes, grid)
            name = ", ".join(filter(None, (label, setting.words)))
            folder = place and place / methods_.folder_of(name)
            searches[name] = searched(method, one, values, seeds, folder, **options)
    for each in searches.values():
        each.begin()
    total = sum(each.size for each in searches.values()) * rounds
    found = Sweeps()
    with resumable(place) as stop, followed(progress, total, "sweep") as course:
        for name, each in searches.items():
            course.title = name
            found[name] = each.run(course, stop, extend=extend)
    if place is not None:
        report_of(found, place)
    return found


class Prepared(NamedTuple):
    """A problem of which a share is held out, on the device, and how it is trained."""

    whole: Problem
    tuned: Problem
    how: dict[str, Any]


def prepared_for(
    problem: Problem, how: Mapping[str, Any], seeds: Sequence[int], validation: float
) -> Prepared:
    """Holds out a share of the examples; raises `ValueError` for seeds without it."""
    check_seeds(seeds)
    held = dataclasses.replace(problem.with_validation(validation), tested=None)
    tuned = shared(held, how)
    for seed in seeds:
        tuned.parts(seed)
    return Prepared(problem, tuned, dict(how))


@dataclasses.dataclass
class Search:
    """A sweep of one method that is checked, and trains when it runs.

    The values of `lr` grow while it runs.
    """

    method: Method
    simulation: Simulation
    prepared: Prepared
    grid: dict[str, tuple[float, ...]]
    seeds: Sequence[int]
    directory: Path | None
    settings: dict[str, Any]  # of `run_cells`
    words: dict[str, str]  # of its identity, if it has a directory
    finer: bool = False  # whether rates within the grid are searched too

    @property
    def size(self) -> int:
        """Number of cells of the grid as it is now."""
        return len(_points(self.grid)) * len(self.seeds)

    @property
    def most(self) -> int:
        """The largest number of cells, if the rates go on."""
        rates = len(self.grid.get("lr", ()))
        return self.size // rates * max(rates, MOST) if rates else self.size

    def begin(self) -> None:
        """Makes its directory, or checks that it is this sweep's."""
        if self.directory is not None:
            claimed(self.directory, as_begun(self.directory, self.words))
            directories.note_versions(self.directory)

    def run(
        self,
        course: Progress,
        stop: Any,
        *,
        extend: bool = True,
        pace: Callable[[int], None] = lambda cells: None,
    ) -> Swept:
        """Trains all cells, and those that the grid is extended by.

        Args:
          extend: Whether rates go on by factors of 3 while the best is at an edge.
          pace: Called with the number of cells of every group that ends.
        """
        start, tuned = self.grid.get("lr", (1.0,))[0], self.prepared.tuned
        made = self.simulation, tuned, self.seeds, self.directory
        cells = FinishedCells(*made, **self.settings)
        while True:
            points = cells.run(_points(self.grid), course, stop, pace)
            rates, more = self.grid.get("lr", ()), list[float]()
            if extend and rates and min(rates) > 0:
                scores = {rate: _score_at(rate, points) for rate in rates}
                more = wider(start, scores, MOST, finer=self.finer)
            if not more:
                break
            old, wide = self.size, tuple(sorted((*rates, *more)))
            self.grid = {**self.grid, "lr": wide}
            course.total += (self.size - old) * self.settings["rounds"]
        whole, _, how = self.prepared
        title = f"{title_of(self.method, whole, how)}, {self.settings['rounds']} rounds"
        return Swept(self.method, points, title, len(self.seeds), score_of(whole))


def _score_at(rate: float, points: Sequence[Point]) -> float:
    """The best validation score at a rate, the higher the better."""
    best = summary.best([each for each in points if each.hyper["lr"] == rate])
    if best is None:
        return DIVERGED
    score = summary.score_in(best.runs[0])
    column = summary.score_column(best.runs[0], "validation")
    return score.sign * best.last(column)[0]


def searched(
    method: Method,
    prepared: Prepared,
    grid: Mapping[str, tuple[float, ...]],
    seeds: Sequence[int],
    directory: Path | None,
    *,
    validation: float,
    finer: bool = False,
    **settings: Any,
) -> Search:
    """Prepares and traces the sweep of one method; raises for what can't run.

    Args:
      settings: Of `run_cells`.
    """
    whole, tuned, how = prepared
    check_sweep(method, grid, seeds, how)
    words: dict[str, str] = {}
    if directory is not None:
        names = ("rounds", "evaluate_every", "drop_nonfinite")
        told = {name: settings[name] for name in names} | {"validation": validation}
        words = identity(method, whole, 0, how, grid=sorted(grid), **told)
        words["data"] = digest(whole.dataset)
        for name in ("seed", *_varied(words, grid)):
            del words[name]
    settings |= {"validation": tuned.validation}
    simulation = simulate(method, tuned, seeds[0], **how)
    made = method, simulation, prepared, dict(grid), seeds, directory
    return Search(*made, settings, words, finer)


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
