"""`fedjax-muon sweep`: grids of hyper-parameters, finished group by group.

config.json        what was asked for
versions.json      of everything that computes
cells/NAME.csv     the rows of all finished cells of an algorithm's grid
points.csv         one line for every point of every grid
summary.csv, .md   every algorithm at the point that is best on validation
*.png              figures, drawn from cells/ alone
"""

import csv
import itertools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fedjax_muon import data
from fedjax_muon.algorithms.registry import find
from fedjax_muon.cli import arguments, tables
from fedjax_muon.cli.refusals import refusing
from fedjax_muon.cli.session import new_directory, progress_bar, resumable
from fedjax_muon.core import numbers_of
from fedjax_muon.reporting import comparison, metrics_csv, plots
from fedjax_muon.reporting.comparison import History, Point
from fedjax_muon.runs import directory
from fedjax_muon.runs.build import algorithm_of, parts_of, simulation_of, start_key
from fedjax_muon.runs.config import METHODS, Sweep, methods_for
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.simulation.sweep import Cell, Outcome, sweep

DRAWN = 10  # methods whose curves are drawn, the best


def command(args: arguments.Sweep) -> None:
    """`fedjax-muon sweep`."""
    with refusing():
        names = args.algorithms
        if names == ("all",):
            names = tuple(methods_for(args.config))
        grids = {name: _grid(name, args.grid) for name in names}
        what = Sweep(
            names, grids, args.seeds, args.validation, args.cells_at_once, args.config
        )
        place = new_directory(args.output, "sweep")
        check(what)
        directory.create(place, what)
    play(what, place)


def _grid(name: str, given: tuple[str, ...]) -> Mapping[str, tuple[float, ...]]:
    """Of one algorithm. Raises `ValueError` for what is no grid."""
    method = find(name, METHODS)
    if given == ("paper",):
        return dict(method.grid)
    if not given:
        raise ValueError(
            "a grid is the word paper, or NAME=NUMBER,NUMBER,...; got none"
        )
    grid: dict[str, tuple[float, ...]] = {}
    for words in given:
        option, _, numbers = words.partition("=")
        if option in grid:
            raise ValueError(f"the grid names {option!r} twice")
        try:
            grid[option] = tuple(map(float, numbers.split(",")))
        except ValueError as error:
            raise ValueError(
                f"a grid is the word paper, or NAME=NUMBER,NUMBER,...; got {words!r}"
            ) from error
    return grid


def check(what: Sweep) -> None:
    """Raises `ValueError` for what can't be swept, before anything is compiled."""
    for kind, given in (("algorithms", what.algorithms), ("seeds", what.seeds)):
        if not given or len(set(given)) != len(given):
            raise ValueError(f"{kind} must be one or more, each once, got {given}")
    if what.cells_at_once is not None and what.cells_at_once < 1:
        raise ValueError(f"cells_at_once must be at least 1, got {what.cells_at_once}")
    if what.config.devices > 1:
        raise ValueError(
            f"a sweep runs on one device, got devices {what.config.devices}"
        )
    train, _ = _data(what)
    for name in what.algorithms:
        try:
            simulation_of(what.cell(name, {}, what.seeds[0]), train)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    for name in what.algorithms:
        known = numbers_of(find(name, METHODS).function())
        for option, values in what.grids[name].items():
            if option not in known:
                raise ValueError(
                    f"the grid names {option!r}, which is no number that {name} takes; "
                    f"it takes {', '.join(known)}"
                )
            if len(set(values)) != len(values):
                raise ValueError(f"the grid of {option} has a value twice: {values}")
        for point in what.points(name):
            try:
                algorithm_of(what.cell(name, point, 0))
            except ValueError as error:
                raise ValueError(f"the grid of {name}: {error}") from error
    for seed in what.seeds:
        parts_of(what.config, train, seed)


def _data(what: Sweep):
    dataset = dataset_of(what.config)
    return data.hold_out(dataset, what.validation)


def play(what: Sweep, place: Path) -> None:
    """Plays what is not finished, and reports."""
    train(what, place)
    _report(what, place, Console())


def train(what: Sweep, place: Path, again: str = "") -> None:
    """Plays what is not finished; `again` is the command to go on with, if it is not
    `fedjax-muon resume`."""
    console = Console()
    with refusing():
        train, validation = _data(what)
        parts = {seed: parts_of(what.config, train, seed) for seed in what.seeds}
    (place / "cells").mkdir(exist_ok=True)
    total = sum(len(what.points(name)) for name in what.algorithms)
    with resumable(place, again) as pause, progress_bar(console) as bar, refusing():
        rounds = total * len(what.seeds) * what.config.rounds
        everything = bar.add_task("all", total=rounds)

        def tick(rounds: int) -> None:
            bar.advance(everything, rounds)
            pause()

        for name in what.algorithms:
            bar.update(everything, description=METHODS[name].label)
            path = place / "cells" / f"{name}.csv"
            _drop_unfinished(what, name, path)
            todo = list(_unfinished(what, name, path))
            cells = len(what.points(name)) * len(what.seeds)
            tick((cells - len(todo)) * what.config.rounds)
            if not todo:
                continue
            groups = sweep(
                simulation_of(what.cell(name, {}, what.seeds[0]), train),
                [Cell(hyper, start_key(seed), parts[seed]) for hyper, seed in todo],
                rounds=what.config.rounds,
                evaluate_every=what.config.evaluate_every,
                validation=validation,
                cells_at_once=what.cells_at_once,
                drop_nonfinite=what.config.drop_nonfinite,
                tick=tick,
            )
            waiting = iter(todo)
            for group in groups:
                played = zip(itertools.islice(waiting, len(group)), group, strict=True)
                metrics_csv.extend(
                    path, [row for cell in played for row in _rows(*cell)]
                )
        bar.update(everything, description="done")


def _unfinished(what: Sweep, name: str, path: Path) -> Iterator[tuple[dict, int]]:
    finished = _finished(what, name, path)
    for point in what.points(name):
        for seed in what.seeds:
            if (*point.values(), seed) not in finished:
                yield point, seed


def _rows(cell: tuple[dict, int], outcome: Outcome) -> list[dict[str, Any]]:
    hyper, seed = cell
    diverged = -1 if outcome.diverged is None else outcome.diverged
    about = {**hyper, "seed": seed, "diverged": diverged}
    return [about | row for row in outcome.rows]


def _places(what: Sweep, name: str, path: Path) -> dict[tuple, list[int]]:
    """The lines of every finished cell, by the values of its point and its seed.

    Raises `ValueError` for a file that is not one of ours.
    """
    columns = metrics_csv.read(path)
    names = (*what.grids[name], "seed")
    for column in (*names, "diverged"):
        if column not in columns:
            raise ValueError(f"{path} has no column {column!r}; delete it")
    places: dict[tuple, list[int]] = {}
    for row, key in enumerate(zip(*(columns[c] for c in names), strict=True)):
        places.setdefault(key, []).append(row)
    ended = (columns["round"] == what.config.rounds) | (columns["diverged"] >= 0)
    return {key: rows for key, rows in places.items() if ended[rows[-1]]}


def _finished(what: Sweep, name: str, path: Path) -> dict[tuple, History]:
    """The rows of every finished cell."""
    if not path.exists():
        return {}
    columns = metrics_csv.read(path)
    return {
        key: {column: values[rows] for column, values in columns.items()}
        for key, rows in _places(what, name, path).items()
    }


def _drop_unfinished(what: Sweep, name: str, path: Path) -> None:
    """Leaves out the rows of cells that something cut short."""
    if path.exists():
        finished = _places(what, name, path).values()
        metrics_csv.keep(path, sorted(row for rows in finished for row in rows))


def points(what: Sweep, name: str, place: Path) -> list[Point]:
    """Every point of an algorithm's grid, with its runs. Raises `ValueError` if some
    are not finished."""
    finished = _finished(what, name, place / "cells" / f"{name}.csv")
    if len(finished) < len(what.points(name)) * len(what.seeds):
        raise ValueError(
            f"{place} is not finished; continue with: fedjax-muon resume {place}"
        )
    found = []
    for hyper in what.points(name):
        runs = [finished[*hyper.values(), seed] for seed in what.seeds]
        ended = [run for run in runs if run["diverged"][0] < 0]
        found.append(Point(hyper, ended, len(runs) - len(ended)))
    return found


def label(what: Sweep, name: str) -> str:
    """The method's, marked if all clients play where others don't."""
    everyone = what.config_of(name) != what.config
    return METHODS[name].label + (" (all clients)" if everyone else "")


def best(what: Sweep, place: Path) -> dict[str, Point | None]:
    """The best point of every algorithm, by the method's label."""
    grids = _grids(what, place)
    return {method: comparison.best(points) for method, points in grids.items()}


def _grids(what: Sweep, place: Path) -> dict[str, list[Point]]:
    return {label(what, name): points(what, name, place) for name in what.algorithms}


def _report(what: Sweep, place: Path, console: Console) -> None:
    grids = _grids(what, place)
    found = {method: comparison.best(points) for method, points in grids.items()}
    _write_points(grids, found, place / "points.csv", what.config.score.lower())
    heading = f"{tables.title(what.config)}, {what.config.rounds} rounds"
    plots.grids(grids, place / "grids.png", title=heading)
    chosen = {method: point for method, point in found.items() if point is not None}
    target, ranked = np.nan, []
    if chosen:
        runs = {method: point.runs for method, point in chosen.items()}
        target = comparison.target_score(runs)
        summaries = comparison.summarize(runs, target)
        ranked = sorted(summaries, key=lambda row: -row.score_mean)
        name = f"test {what.config.score}"
        plots.ranking(ranked, place / "ranking.png", title=heading, score=name)
        drawn = {row.method: runs[row.method] for row in ranked[:DRAWN]}
        plots.curves(drawn, place / "curves.png", title=heading, target=target)
    pairs = [(row, chosen[row.method]) for row in ranked]
    diverged = [method for method, point in found.items() if point is None]
    seeds, score = len(what.seeds), what.config.score
    table = tables.swept(pairs, diverged, target, heading, seeds, score)
    (place / "summary.md").write_text(tables.markdown(table))
    with (place / "summary.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        first, *others = comparison.Summary._fields
        writer.writerow((first, "status", "hyper", *others))
        for (method, *numbers), point in pairs:
            hyper = tables.hyper_text(point)
            writer.writerow((method, "finished", hyper, *numbers))
        nothing = [""] * (1 + len(others))
        writer.writerows((method, "diverged", *nothing) for method in diverged)
    console.print(tables.for_terminal(table))
    console.print(f"all cells, summary and figures in {place}")
    if not chosen:
        sys.exit(1)


def _write_points(grids, found: Mapping[str, Point | None], path, kind: str) -> None:
    columns = (f"validation_{kind}", f"test_{kind}", "train_loss")
    header = ["method", "hyper", "status", "diverged_seeds", "best"]
    header += [f"{column}_{which}" for column in columns for which in ("mean", "std")]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for method, points in grids.items():
            chosen = found[method]
            for point in points:
                is_best = chosen is not None and point.hyper == chosen.hyper
                status = "diverged" if point.diverged else "finished"
                row: list[Any] = [method, tables.hyper_text(point), status]
                row += [point.diverged, int(is_best)]
                numbers = [v for column in columns for v in point.last(column)]
                blank = [""] * len(numbers)
                writer.writerow([*row, *(blank if point.diverged else numbers)])
