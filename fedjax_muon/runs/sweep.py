"""Sweeps: methods at every point of a grid. Validation chooses the best point.

    result = sweep([fm.fedmuon], problem, {"lr": (0.01, 0.03, 0.1)}, seeds=(0, 1))
    method = result["FedMuon"].best_method

The same call with the same directory continues where it was interrupted, and runs only
what is missing if the grid grew or there are more seeds.

METHOD/identity.json   what all cells have in common
METHOD/versions.json   of everything that computes
METHOD/swept.json      what `load_run` needs beside the cells
METHOD/cells.csv       the rows of all finished cells
points.csv             one line for every point of a grid
summary.csv            and .md: the best points; grids.png and curves.png draw them
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

from fedjax_muon.core import check_count, numbers_of, with_numbers
from fedjax_muon.core.hyperparameters import plain_numbers, several
from fedjax_muon.data.dataset import digest
from fedjax_muon.files import named
from fedjax_muon.problems import Problem
from fedjax_muon.runs import (
    directory as directories,
    methods as methods_,
    summary,
)
from fedjax_muon.runs.cells import FinishedCells
from fedjax_muon.runs.identity import as_begun, claimed, identity, words_of
from fedjax_muon.runs.methods import Methods
from fedjax_muon.runs.results import Sweeps, Swept, report_of
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
Grid = Mapping[str, Sequence[float]]


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

    Cells run in groups, in one compiled program; the numbers are those of single runs.

    Args:
      methods: Algorithms, or functions that make them. Numbers that are not in the grid
        stay as they are. The keys of a dictionary are names in tables.
      problem: A share of its training examples is held out; by default, the problem
        that suits the methods.
      grid: Values to try in all combinations, such as `{"lr": (0.1, 0.3)}` for all
        methods with an `lr`, and `{"fedavg.lr": (0.1,)}` for one; or "paper", the
        published values. Values of other arguments, such as
        `{"local_steps": (1, 5)}`, and of the problem, such as
        `{"problem.alpha": (0.1, 1.0)}`, are compared in rows.
      rounds: Number of rounds.
      seeds: Each has its own clients and parameters.
      evaluate_every: Rounds between evaluations.
      drop_nonfinite: Whether messages with NaN or infinity are left out of the mean,
        instead of calling the cell diverged.
      validation: Share of the training examples that is held out to choose by.
      extend: Whether to add values of `lr` by factors of 3, up to eight values, while
        the best is the smallest or largest.
      cells_at_once: Number of cells in a group; by default, as many as fit in half of
        the memory.
      directory: Where finished cells, tables and figures are kept. By default, Python
        keeps none, and the command makes a new directory in `runs/`.
      progress: Whether to show the rounds on standard error; or what counts them.
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
            given = name, method, one, values, seeds, folder
            searches[name] = searched(*given, **options)
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

    label: str  # of the method, in tables
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
        """The largest number of cells, with the rates that `extend` may add."""
        rates = len(self.grid.get("lr", ()))
        return self.size // rates * max(rates, MOST) if rates else self.size

    def begin(self) -> None:
        """Makes its directory, or checks that it is this sweep's."""
        if self.directory is not None:
            claimed(self.directory, as_begun(self.directory, self.words))
            directories.note_versions(self.directory)
            self._result([]).note(self.directory)

    def _result(self, points: list[Point]) -> Swept:
        whole, _, how = self.prepared
        title = f"{title_of(self.method, whole, how)}, {self.settings['rounds']} rounds"
        about = title, len(self.seeds), score_of(whole)
        return Swept(self.label, self.method, points, *about)

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
          extend: Whether to add rates by factors of 3 while the best is at an edge.
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
        return self._result(points)


def _score_at(rate: float, points: Sequence[Point]) -> float:
    """The best validation score at a rate, the higher the better."""
    best = summary.best([each for each in points if each.hyper["lr"] == rate])
    if best is None:
        return DIVERGED
    score = summary.score_in(best.runs[0])
    column = summary.score_column(best.runs[0], "validation")
    return score.sign * best.last(column)[0]


def searched(
    label: str,
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
    made = label, method, simulation, prepared, dict(grid), seeds, directory
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
