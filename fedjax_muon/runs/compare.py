"""Comparisons in a run directory: several algorithms, each on several seeds.

config.json      what was asked for
versions.json    of everything that computes
NAME/seed0/      the run directory of each cell; NAME/epsilon1/seed0 of private ones
privacy.txt      the statements of private runs, and what all cost together
tuning/          the sweep of learning rates, where they are not given
summary.csv      and .tex: the scores after the last round
*.png            curves, and for some jobs fairness, utility and the graph
"""

import dataclasses
import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_muon import data, files
from fedjax_muon.data.dataset import RareClassError, digest
from fedjax_muon.experiments.logs import NO_LOG, Log
from fedjax_muon.reporting import comparison, fairness, metrics_csv, plots, tables
from fedjax_muon.reporting.comparison import History
from fedjax_muon.runs import directory, privacy, sweep as sweeps
from fedjax_muon.runs.build import (
    graph_of,
    is_of_agents,
    of_seed,
    parts_of,
    simulation_of,
    summary_of,
)
from fedjax_muon.runs.config import (
    Comparison,
    Run,
    Sweep,
    hyper_parameters,
    label_of,
    method_of,
)
from fedjax_muon.runs.directory import resumable, to_json
from fedjax_muon.runs.errors import refusing
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.runs.train import is_complete, train
from fedjax_muon.simulation.arguments import on_device
from fedjax_muon.simulation.memory import check_memory
from fedjax_muon.simulation.simulation import NonFiniteError, Simulation
from fedjax_muon.terminal import Progress, plain_console, shown

TUNING = "tuning"


class Checked(NamedTuple):
    """What a comparison needs, whose runs can all be made."""

    dataset: data.Dataset
    summary: str  # of the dataset and the clients of the first seed
    private: list[privacy.Private]  # all runs, if they are private


def check(job: Comparison, run_dir: Path | None = None) -> Checked:
    """Checks a comparison, and whether its privacy budget allows it."""
    dataset = dataset_of(job.config)
    if job.config.devices == 1:
        dataset = on_device(dataset)
    kinds = {row[0].algorithm: is_of_agents(row[0]) for row in job.rows}
    if job.config.private and len(set(kinds.values())) > 1:
        agents, clients = (
            next(name for name, kind in kinds.items() if kind is wanted)
            for wanted in (True, False)
        )
        raise ValueError(
            f"{agents} protects single examples and {clients} whole clients, so their "
            "epsilons cannot be compared; compare them separately"
        )
    firsts = [simulation_of(row[0], dataset) for row in job.rows]
    private: list[privacy.Private] = []
    for first, row in zip(firsts, job.rows, strict=True):
        private += _guaranteed(first, row, dataset)
    for seed in job.seeds[1:]:
        parts_of(job.config, dataset, seed)
    runs = private if run_dir is None else _cells_of(private, run_dir)
    privacy.check_budget(runs, dataset)
    if job.grids:
        try:
            sweeps.check(_tuning_of(job))
        except RareClassError as error:
            raise ValueError(
                f"{error}; or compare without tuning rates: --quick takes those of the "
                "default problem, --lr sets them"
            ) from error
    for first in firsts:  # last, since it compiles
        check_memory(first)
    return Checked(dataset, summary_of(job.rows[0][0], firsts[0], dataset), private)


def _cells_of(
    private: Iterable[privacy.Private], run_dir: Path
) -> dict[Path, privacy.Private]:
    return {directory.cell_of(run_dir, each.run): each for each in private}


def _guaranteed(
    first: Simulation, row: list[Run], dataset: data.Dataset
) -> list[privacy.Private]:
    """The runs of a row with their guarantees, which may depend on the seed; none if
    they are not private."""
    private = []
    for run in row if first.guarantee is not None else ():
        guarantee = of_seed(first, run, dataset).guarantee
        assert guarantee is not None  # a variation of a private simulation is private
        private.append(privacy.Private(run, guarantee))
    return private


def tuned(job: Comparison, run_dir: Path) -> Comparison:
    """The comparison with the best learning rates of its grids, which it tries first.

    They are chosen by validation on two more seeds, in the directory `tuning`. Grids
    whose best rate is at the edge are widened. Where all rates of a grid diverge, the
    smallest is taken.
    """
    if not job.grids:
        return job
    place = run_dir / TUNING
    with refusing():
        if not (place / directory.CONFIG).exists():
            directory.create(place, _tuning_of(job))
    while True:
        tuning = _tuning_in(job, run_dir)
        sweeps.train(tuning, place, again=directory.resume_command(run_dir))
        with refusing():
            wider = sweeps.widened(tuning, place)
            if wider == tuning:
                sweeps.report(tuning, place)
                return chosen(job, run_dir)
            files.write(place / directory.CONFIG, to_json(wider))


def _tuning_in(job: Comparison, run_dir: Path) -> Sweep:
    """The sweep of learning rates in a comparison's directory, widened or not."""
    tuning = directory.read(run_dir / TUNING)
    assert isinstance(tuning, Sweep)
    return dataclasses.replace(_tuning_of(job), grids=tuning.grids)


def _tuning_of(job: Comparison) -> Sweep:
    config = sweeps.with_owners_counted(job.tuning.config)
    return dataclasses.replace(job.tuning, config=config)


def chosen(job: Comparison, run_dir: Path) -> Comparison:
    """The comparison with the rates that `tuned` has chosen."""
    if not job.grids:
        return job
    lr, tuning = {}, _tuning_in(job, run_dir)
    for name in job.grids:
        point = sweeps.best_of(tuning, name, run_dir / TUNING)
        lr[name] = min(tuning.grids[name]["lr"]) if point is None else point.hyper["lr"]
    return dataclasses.replace(job, lr={**job.lr, **lr}, grids={})


class Tried(NamedTuple):
    """What the grid of a method's learning rates came to."""

    values: tuple[float, ...]
    best: float
    diverged: int  # number of rates

    @property
    def beyond(self) -> tuple[float, ...]:
        """Two more rates beyond the edge that the best one lies at; none if inside."""
        if self.best not in (min(self.values), max(self.values)):
            return ()
        steps = (0.3, 0.1) if self.best == min(self.values) else (3.0, 10.0)
        return tuple(float(f"{step * self.best:.3g}") for step in steps)

    def __str__(self) -> str:
        words = [tables.EDGE_MARK] if self.beyond else []
        if 2 * self.diverged > len(self.values):
            words.append(f"{self.diverged} of {len(self.values)} diverged")
        return f"({', '.join(words)})" if words else ""


def _tried(job: Comparison, run_dir: Path) -> dict[str, Tried]:
    """The grids of learning rates that a comparison has chosen from, by method."""
    if not job.grids:
        return {}
    found, best, tuning = {}, chosen(job, run_dir).lr, _tuning_in(job, run_dir)
    for name, grid in tuning.grids.items():
        points = sweeps.points(tuning, name, run_dir / TUNING)
        lost = sum(point.diverged > 0 for point in points)
        found[name] = Tried(tuple(grid["lr"]), best[name], lost)
    return found


def advice(job: Comparison, run_dir: Path) -> str:
    """Says which rates should be looked for further, and how; empty if none."""
    tried = _tried(job, run_dir)
    doubtful = {name: each for name, each in tried.items() if str(each)}
    if not doubtful:
        return ""
    words = [f"{label_of(name)} {each}" for name, each in doubtful.items()]
    place = shlex.quote(str(run_dir / TUNING))
    grids = [
        f"{name}.lr={','.join(f'{x:g}' for x in sorted({*each.values, *each.beyond}))}"
        for name, each in tried.items()
    ]
    return (
        f"learning rates that were not settled: {', '.join(words)}; look further with: "
        f"fedjax-muon resume {place} --grid {' '.join(grids)}; then compare again with "
        "the best ones as --lr"
    )


def _rates(job: Comparison, tried: Mapping[str, Tried]) -> dict[str, str]:
    """The learning rate and schedule of every row in words, by its label."""
    rates = {}
    for first, *_ in job.rows:
        known = {**hyper_parameters(method_of(first.algorithm)), **first.hyper}
        schedule = first.config.lr_schedule or "constant"
        words = [f"{known['lr']:g}" if "lr" in known else "-"]
        words += [schedule] if schedule != "constant" else []
        words += [str(tried[first.algorithm])] if first.algorithm in tried else []
        rates[first.label] = " ".join(words).rstrip()
    return rates


def run(
    job: Comparison, checked: Checked, run_dir: Path, log: Log = NO_LOG
) -> dict[str, str]:
    """Trains what is not finished; returns where methods diverged, such as "round 5",
    by their labels."""
    console, dataset = plain_console(), checked.dataset
    diverged: dict[str, str] = {}
    statements: list[str] = []
    total = len(job.rows) * len(job.seeds) * job.config.rounds
    progress = Progress(total, "all")
    with resumable(run_dir) as stop, shown(console, progress), refusing():
        for cell, one in directory.cells(run_dir, job).items():
            if not (cell / directory.CONFIG).exists():
                directory.create(cell, one)
            _take_rounds(cell, one)
            directory.check_same(cell, one)
        if checked.private:
            cells = _cells_of(checked.private, run_dir)
            statements = privacy.state(cells, dataset, run_dir)
        mark = digest(dataset)
        for cell, one in directory.cells(run_dir, job).items():
            place = privacy.place_of_secrets(one, cell)
            directory.hold_to(place, mark, job.config.dataset)
        for row in job.rows:
            simulation = simulation_of(row[0], dataset)
            for one in row:
                cell = directory.cell_of(run_dir, one)
                progress.title = f"{one.label}, seed {one.seed}"
                if is_complete(one, simulation, cell):
                    progress.skip(job.config.rounds)
                    continue
                varied = of_seed(simulation, one, dataset)
                trackers = log.of_cell(run_dir, cell)
                try:
                    train(one, varied, cell, progress, stop, trackers)
                except NonFiniteError as error:
                    console.print(f"{one.label}, seed {one.seed}: {error}", style="red")
                    diverged.setdefault(one.label, f"round {error.round}")
        progress.title = "done"
    for cell, one in directory.cells(run_dir, job).items():
        if one.label in diverged:
            continue
        rows = metrics_csv.read(cell / directory.METRICS)
        lost = np.flatnonzero(np.isnan(rows[comparison.score_column(rows)]))
        if len(lost):  # of a private run, which does not stop
            diverged[one.label] = f"round {rows['round'][lost[0]]}"
        elif words := comparison.risen_loss(rows):
            console.print(f"{one.label}, seed {one.seed}: {words}", style="yellow")
    for statement in statements:
        console.print(statement, highlight=False, soft_wrap=True)
    return diverged


def _take_rounds(cell: Path, run: Run) -> None:
    """Gives a run the number of rounds of its comparison, which may have changed."""
    old = directory.read(cell)
    if isinstance(old, Run) and not old.config.fixes_rounds:
        config = dataclasses.replace(old.config, rounds=run.config.rounds)
        if old != run and dataclasses.replace(old, config=config) == run:
            files.write(cell / directory.CONFIG, to_json(run))


def curves_of(
    job: Comparison, run_dir: Path, diverged: Collection[str] = ()
) -> dict[str, list[History]]:
    """Returns the runs of every method that did not diverge, by its label."""
    curves: dict[str, list[History]] = {}
    for cell, one in directory.cells(run_dir, job).items():
        if one.label not in diverged:
            rows = metrics_csv.read(cell / directory.METRICS)
            curves.setdefault(one.label, []).append(rows)
    return curves


def report(
    job: Comparison, run_dir: Path, diverged: Mapping[str, str]
) -> list[tables.Cells]:
    """Writes the summary and its figures; returns its tables."""
    title, config, tried = job.config.title, job.config, _tried(job, run_dir)
    job = chosen(job, run_dir)
    if any(is_of_agents(row[0]) for row in job.rows):
        graph, name = graph_of(config, job.seeds[0]), config.graph or "erdos_renyi"
        plots.graph(graph, run_dir / "graph.png", title=name)
    runs = curves_of(job, run_dir, diverged)
    target = comparison.target_score(runs) if runs else np.nan
    summaries = comparison.summarize(runs, target)
    rates, path = _rates(job, tried), run_dir / "summary.csv"
    status = {name: f"diverged ({where})" for name, where in diverged.items()}
    comparison.write(summaries, path, diverged=status, columns={"lr": rates})
    if runs:
        words = "".join(f"; {name} diverged ({at})" for name, at in diverged.items())
        path = run_dir / "comparison.png"
        plots.curves(runs, path, title=title, target=target, note=words)
    if config.client_tests and runs:
        fairness.figure(runs, run_dir / "fairness.png", title=title)
    if len(config.epsilon) > 1 and runs:
        scores = _by_epsilon(job, runs)
        path, score = run_dir / "utility.png", config.score
        plots.utility(scores, path, title=title, score=score)
    numbers = target, title, len(job.seeds), config.score
    table = tables.compared(summaries, *numbers, rates=rates, diverged=diverged)
    shown = [table]
    if config.client_tests and runs:
        shown.append(fairness.table(runs, "Clients"))
    files.write(run_dir / "summary.tex", "\n".join(map(tables.latex, shown)))
    return shown


def _by_epsilon(
    job: Comparison, runs: Mapping[str, list[History]]
) -> dict[str, dict[float, list[float]]]:
    by_method: dict[str, dict[float, list[float]]] = {}
    for first, *_ in job.rows:
        if first.label in runs:
            column = comparison.score_column(runs[first.label][0])
            scores = [float(run[column][-1]) for run in runs[first.label]]
            by_epsilon = by_method.setdefault(label_of(first.algorithm), {})
            by_epsilon[first.config.epsilon[0]] = scores
    return by_method
