"""Comparisons: several methods on one problem, each on several seeds.

    methods = {"FedAvg": fm.fedavg(lr=0.3), "FedMuon": fm.fedmuon(lr=0.03)}
    result = compare(methods, problem, seeds=(0, 1, 2), directory="runs/b")
    print(result.table())

The same call with the same directory goes on where it was interrupted.

METHOD/seed0/    the directory of each run; METHOD/epsilon1/seed0 of private ones
privacy.txt      the statements of private runs, and what all cost together
tuning/METHOD/   the sweep that chose the numbers of a method
versions.json    of everything that computes
summary.csv      and .tex: the scores after the last round
*.png            curves, and for some problems fairness, utility and the graph
"""

import itertools
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import numpy as np

from fedjax_muon.core import Algorithm
from fedjax_muon.core.hyperparameters import plain_numbers, several
from fedjax_muon.core.recipe import recipe_of
from fedjax_muon.data.dataset import digest
from fedjax_muon.files import named, write
from fedjax_muon.problems import Problem
from fedjax_muon.runs import fairness, plots, summary, tables, trackers
from fedjax_muon.runs.identity import words_of
from fedjax_muon.runs.simulate import (
    Method,
    check_seeds,
    needs_all,
    of_seed,
    score_of,
    shared,
    simulate,
    title_of,
)
from fedjax_muon.runs.summary import History
from fedjax_muon.runs.sweep import Grid, Swept, check_sweep, sweep
from fedjax_muon.runs.train import (
    Job,
    begin,
    check_directory,
    check_one_process,
    followed,
    ignore,
    job_of,
    resumable,
    run,
    say,
)
from fedjax_muon.simulation.meter import NonFiniteError
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.training import Record
from fedjax_muon.terminal import Progress

TUNING = "tuning"
LONG = 1.0  # minutes of a search that are said after its first method


class Comparison(NamedTuple):
    """The results of methods, by the names that they have in tables."""

    title: str
    runs: dict[str, list[History]]  # columns, by seed; without methods that diverged
    diverged: dict[str, str]  # where, such as "round 5"
    rates: dict[str, str]  # learning rates, in words
    sweeps: dict[str, Swept]  # that chose numbers
    epsilons: dict[str, tuple[str, float]]  # of private rows: method and epsilon
    score: str  # what methods are ranked by, such as "accuracy"
    seeds: int
    graph: nx.Graph | None = None  # of agents of the first seed

    def __str__(self) -> str:
        return str(self.table())

    def table(self) -> tables.Cells:
        """The scores after the last round, over seeds."""
        target = self._target
        summaries = summary.summarize(self.runs, target)
        numbers = target, self.title, self.seeds, self.score
        rates, diverged = self.rates, self.diverged
        return tables.compared(summaries, *numbers, rates=rates, diverged=diverged)

    def all_tables(self) -> list[tables.Cells]:
        """The table, and the accuracies of clients that have test examples."""
        own = self._of_clients()
        return [self.table(), *([fairness.table(own, "Clients")] if own else [])]

    def _of_clients(self) -> dict[str, list[History]]:
        name = fairness.PREFIX + "min"
        return {k: runs for k, runs in self.runs.items() if name in runs[0]}

    @property
    def _target(self) -> float:
        return summary.target_score(self.runs) if self.runs else np.nan

    def plot(self, path: str | Path) -> None:
        """Draws the curves of all methods."""
        lost = "".join(f"; {k} diverged ({at})" for k, at in self.diverged.items())
        target, title = self._target, self.title
        plots.curves(self.runs, Path(path), title=title, target=target, note=lost)

    def write(self, directory: str | Path) -> list[tables.Cells]:
        """Writes the summary and its figures; returns its tables."""
        place, shown = Path(directory), self.all_tables()
        summaries = summary.summarize(self.runs, self._target)
        status = {name: f"diverged ({at})" for name, at in self.diverged.items()}
        columns = {"lr": self.rates}
        path = place / "summary.csv"
        summary.write(summaries, path, diverged=status, columns=columns)
        if self.graph is not None:
            plots.graph(self.graph, place / "graph.png", title="graph of the agents")
        if self.runs:
            self.plot(place / "comparison.png")
            if own := self._of_clients():
                fairness.figure(own, place / "fairness.png", title=self.title)
        if len({epsilon for _, epsilon in self.epsilons.values()}) > 1 and self.runs:
            path, how = place / "utility.png", {"score": self.score}
            plots.utility(self._by_epsilon(), path, title=self.title, **how)
        write(place / "summary.tex", "\n".join(map(tables.latex, shown)))
        return shown

    def _by_epsilon(self) -> dict[str, dict[float, list[float]]]:
        by_method: dict[str, dict[float, list[float]]] = {}
        for name, runs in self.runs.items():
            method, epsilon = self.epsilons[name]
            scores = [float(run[summary.score_column(run)][-1]) for run in runs]
            by_method.setdefault(method, {})[epsilon] = scores
        return by_method


@plain_numbers
def compare(
    methods: Mapping[str, Method],
    problem: Problem,
    *,
    rounds: int = 100,
    seeds: Sequence[int] = (0, 1, 2),
    evaluate_every: int = 5,
    drop_nonfinite: bool = False,
    grids: Mapping[str, Grid] | None = None,
    directory: str | Path | None = None,
    ledger: str | Path | None = None,
    budget: float | None = None,
    log: Sequence[str] = (),
    progress: bool | Progress = True,
    check: Callable[[Simulation], None] = ignore,
    begun: Callable[[], None] = ignore,
    **how: Any,
) -> Comparison:
    """Trains several methods on several seeds.

    Args:
      methods: Algorithms, by the names that they have in tables.
      problem: What they are compared on.
      rounds: Number of rounds. More rounds extend the runs in a directory.
      seeds: Each has its own clients and first parameters.
      evaluate_every: Rounds between evaluations. Each evaluation is a record.
      drop_nonfinite: Whether messages with NaN or infinity are left out of the mean,
        instead of ending a run as diverged.
      grids: Values of numbers of methods, by their names, such as
        `{"FedAvg": {"lr": (0.1, 0.3)}}` or `{"FedAvg": around(fm.fedavg())}`. `sweep`
        chooses the best by validation first, on two more seeds, and goes on while the
        best rate is at the edge of its grid.
      directory: Where runs, tables and figures are kept; by default nowhere,
        and by the command in a new directory in `runs/`.
      ledger: File that records what private runs on the data cost together. By default,
        one file for all datasets in your user data directory.
      budget: Largest total epsilon of all runs in the ledger.
      log: Trackers that get the records: tensorboard, wandb or trackio.
      progress: Whether the rounds are shown on standard error; or what counts them.
      check: Called with the simulation of every method before anything is written.
      begun: Called before the first round.
      how: Arguments of `federate` or `decentralize`, in place of the problem's sizes.
        `privacy` may be a list: every method is then trained with each of them, and all
        runs are charged together before the first one starts.

    Returns:
      The results, with `table()` and `plot(path)`.

    Example:
      >>> methods = {"FedAvg": fm.fedavg(lr=0.3)}
      >>> result = compare(methods, problem, rounds=20)
    """
    place = None if directory is None else Path(directory).expanduser()
    seeds = several(seeds)
    grids = {k: {n: several(v) for n, v in g.items()} for k, g in (grids or {}).items()}
    check_directory(place, ledger, budget, log)
    check_one_process()
    _check(methods, seeds, grids, private=how.get("privacy") is not None)
    problem, rows = shared(problem, how), _rows(methods, how)
    options: dict[str, Any] = {"rounds": rounds, "evaluate_every": evaluate_every}
    options["drop_nonfinite"] = drop_nonfinite
    if place is not None and words_of(place):
        raise ValueError(f"{place} has a single run or a sweep; choose another one")
    # whatever cannot be made is refused before anything is trained
    for seed in seeds:
        problem.parts(seed)
    firsts: dict[str, Simulation] = {}
    for label, (method, given) in rows.items():
        with named(label):
            firsts[label] = simulate(method, problem, seeds[0], **given)
    for first in firsts.values():  # last, since it may compile
        check(first)
    if grids:
        begun()
    sweeps: dict[str, Swept] = {}
    runs = [2 * math.prod(map(len, grid.values())) for grid in grids.values()]
    left, began = sum(runs[1:]) + len(rows) * len(seeds), time.monotonic()
    for name, grid in grids.items():
        folder = place and place / TUNING / folder_of(name)
        again = {**how, **options, "progress": progress}
        sweeps[name] = _tuned(methods[name], problem, grid, seeds, folder, **again)
        rows[name] = sweeps[name].best_method, rows[name][1]
        firsts[name] = firsts[name].at(sweeps[name].chosen)
        minutes = (time.monotonic() - began) / runs[0] * left / 60
        if len(sweeps) == 1 and minutes > LONG:
            say(f"{left} more runs will take about {minutes:.0f} minutes", progress)
    jobs = _jobs(rows, firsts, problem, seeds, place, options)
    if place is not None:
        book = None if ledger is None else Path(ledger).expanduser().resolve()
        for statement in begin(jobs, problem.dataset, place, book, budget):
            say(statement, progress)
    if not grids:
        begun()
    records, diverged = _run(jobs, place, log, progress)
    ended = {k: v for k, v in records.items() if k not in diverged}
    result = Comparison(
        _title(rows, problem),
        {label: [_columns(run) for run in runs] for label, runs in ended.items()},
        diverged,
        {label: _told(label, *row, problem, sweeps) for label, row in rows.items()},
        sweeps,
        _epsilons(rows),
        score_of(problem),
        len(seeds),
        graph_of(problem, firsts.values(), seeds[0]),
    )
    if place is not None:
        result.write(place)
    return result


def _tuned(
    method: Method,
    problem: Problem,
    grid: Grid,
    seeds: Sequence[int],
    directory: Path | None,
    *,
    rounds: int,
    **how: Any,
) -> Swept:
    """The sweep that chooses a method's numbers, on two seeds that are not compared.

    With more rounds than it had, a comparison keeps what it has chosen.
    """
    known = {} if directory is None else words_of(directory)
    how = {k: v for k, v in how.items() if k not in ("devices", "split_examples")}
    how |= {"rounds": int(known.get("rounds", rounds)), "directory": directory}
    return sweep(method, problem, grid, seeds=(max(seeds) + 1, max(seeds) + 2), **how)


def _jobs(
    rows: Mapping[str, tuple[Method, dict[str, Any]]],
    firsts: Mapping[str, Simulation],
    problem: Problem,
    seeds: Sequence[int],
    place: Path | None,
    options: Mapping[str, Any],
) -> list[Job]:
    """The runs of all rows and seeds, whose simulations are variations of the first."""
    data, jobs = "" if place is None else digest(problem.dataset), []
    for (label, (method, how)), seed in itertools.product(rows.items(), seeds):
        one = firsts[label]
        if seed != seeds[0]:
            one = of_seed(one, method, problem, seed, how)
        cell = place and place / folder_of(label) / f"seed{seed}"
        made = label, method, problem, seed, how, one, data, cell
        jobs.append(job_of(*made, **options))
    return jobs


def _check(
    methods: Mapping[str, Method],
    seeds: Sequence[int],
    grids: Mapping[str, Grid],
    *,
    private: bool,
) -> None:
    if not isinstance(methods, Mapping) or not methods:
        raise ValueError(
            'methods must be a dictionary by name, such as {"FedAvg": fm.fedavg()}, '
            f"got {methods!r:.60}"
        )
    check_seeds(seeds)
    if private and grids:
        raise ValueError(
            "grids choose among the results of many runs, which privacy does not "
            "cover; leave out one of them"
        )
    for name in grids:
        if name not in methods:
            raise ValueError(
                f"grids name {name!r}, which is not compared; the methods are "
                f"{', '.join(methods)}"
            )
        check_sweep(methods[name], grids[name], seeds, {})
    folders = {folder_of(name): name for name in methods}
    if len(folders) < len(methods) or {"", TUNING} & folders.keys():
        raise ValueError(
            "names of methods must differ in letters and numbers, since they are "
            f"directories, got {', '.join(methods)}"
        )


def _rows(
    methods: Mapping[str, Method], how: Mapping[str, Any]
) -> dict[str, tuple[Method, dict[str, Any]]]:
    """The method and settings of every row of the table: several, if private."""
    several = how.get("privacy")
    if not isinstance(several, list | tuple):
        return {name: (method, dict(how)) for name, method in methods.items()}
    kinds = {isinstance(method, Algorithm): name for name, method in methods.items()}
    if len(kinds) > 1:
        raise ValueError(
            f"{kinds[False]} protects single examples and {kinds[True]} whole clients, "
            "so their epsilons cannot be compared; compare them separately"
        )
    rows = {
        f"{name}, epsilon {privacy.epsilon:g}": (method, {**how, "privacy": privacy})
        for name, method in methods.items()
        for privacy in several
    }
    if len(rows) < len(methods) * len(several) or not several:
        raise ValueError(
            f"epsilons must differ, got {[privacy.epsilon for privacy in several]}"
        )
    return rows


def _title(rows: Mapping[str, tuple[Method, dict[str, Any]]], problem: Problem) -> str:
    method, how = next(iter(rows.values()))
    return title_of(method, problem, how)


def _epsilons(rows: Mapping[str, tuple[Any, Any]]) -> dict[str, tuple[str, float]]:
    found = {}
    for label, (_, how) in rows.items():
        if how.get("privacy") is not None and how["privacy"].epsilon is not None:
            name = label.rpartition(", epsilon ")[0] or label
            found[label] = name, how["privacy"].epsilon
    return found


def folder_of(label: str) -> str:
    """The place of a row in the directory, such as `FedAvg/epsilon8`."""
    name, private, epsilon = label.partition(", epsilon ")
    plain = re.sub(r"[^\w.=+-]+", "-", name).strip("-.")
    return f"{plain}/epsilon{epsilon}" if private else plain


def _run(
    jobs: Sequence[Job],
    place: Path | None,
    log: Sequence[str],
    progress: bool | Progress,
) -> tuple[dict[str, list[list[Record]]], dict[str, str]]:
    """The records of all runs by method, and where methods diverged."""
    records: dict[str, list[list[Record]]] = {}
    diverged: dict[str, str] = {}
    total = sum(job.rounds for job in jobs)
    with resumable(place) as stop, followed(progress, total, "all") as course:
        names = log or trackers.NONE
        told = trackers.NO_LOG if place is None else trackers.again(place, names)
        for job in jobs:
            course.title = f"{job.name}, seed {job.seed}"
            followers = []
            if place is not None and job.directory is not None:
                followers = told.of_cell(place, job.directory)
            try:
                _, rows = run(job, course, stop, followers)
            except NonFiniteError as error:
                say(f"{job.name}, seed {job.seed}: {error}", progress)
                diverged.setdefault(job.name, f"round {error.round}")
                continue
            records.setdefault(job.name, []).append(rows)
            column = summary.score_column(_columns(rows))
            lost = [row["round"] for row in rows if np.isnan(row[column])]
            if lost:  # of a private run, which does not stop
                diverged.setdefault(job.name, f"round {lost[0]}")
            elif words := summary.risen_loss(_columns(rows)):
                say(f"{job.name}, seed {job.seed}: {words}", progress)
    return records, diverged


def _columns(rows: Sequence[Record]) -> History:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _told(
    label: str,
    method: Method,
    how: Mapping[str, Any],
    problem: Problem,
    sweeps: Mapping[str, Swept],
) -> str:
    """A learning rate, what speaks against it, and whether all clients take part."""
    words = [rate_of(method)]
    if label in sweeps and sweeps[label].doubts:
        words.append(sweeps[label].doubts)
    if needs_all(method, problem, how):
        words.append("(all clients)")
    return " ".join(words)


def rate_of(method: Any) -> str:
    """The learning rate of a method in words, such as `0.1` or `0.1 cosine`."""
    recipe = None if method is None else recipe_of(method)
    if recipe is None:
        return "-"
    lr, inner = recipe.arguments.get("lr"), recipe.arguments.get("algorithm")
    if lr is None:
        return rate_of(inner)
    if isinstance(lr, int | float):
        rate = f"{lr:g}"
        if inner is not None:  # this is a schedule of its rate, such as cosine_decay
            rate += f" {recipe.function.__name__.partition('_')[0]}"
        return rate
    made, _, kind = getattr(lr, "__qualname__", "").partition("_")
    # a schedule of optax, such as cosine_decay_schedule.<locals>.schedule
    return f"{float(lr(0)):.3g} {made}" if "_schedule." in kind else "schedule"


def graph_of(
    problem: Problem, simulations: Iterable[Simulation], seed: int
) -> nx.Graph | None:
    """Who exchanges messages with whom, if there are agents."""
    sizes = [len(each.clients.size) for each in simulations if each.program.mix]
    if not sizes:
        return None
    weights = np.atleast_3d(problem.mixing(seed, sizes[0]).T)
    linked = np.asarray(weights.any(-1), int)
    return nx.from_numpy_array(linked * (1 - np.eye(len(linked), dtype=int)))
