"""Comparisons in a run directory: several algorithms, each on several seeds."""

import functools
from collections.abc import Collection, Mapping
from pathlib import Path

from rich.console import Console

from fedjax_muon import data
from fedjax_muon.planning.memory_check import check_memory
from fedjax_muon.reporting import comparison, fairness, metrics_csv, plots, tables
from fedjax_muon.reporting.comparison import History
from fedjax_muon.runs import directory, files, own_code
from fedjax_muon.runs.build import parts_of, simulation_of, tests_of
from fedjax_muon.runs.config import Comparison, label_of
from fedjax_muon.runs.errors import refusing
from fedjax_muon.runs.logs import NO_LOG, Log
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.runs.session import progress_bar, resumable
from fedjax_muon.runs.train import is_complete, train
from fedjax_muon.simulation.simulation import NonFiniteError


def check(job: Comparison) -> data.Dataset:
    """The data set of a comparison whose runs can all be made."""
    for name, values in (("algorithms", job.algorithms), ("seeds", job.seeds)):
        if not values or len(set(values)) != len(values):
            raise ValueError(f"{name} must be one or more, each once, got {values}")
    dataset = dataset_of(job.config)
    for algorithm in job.algorithms:
        check_memory(simulation_of(job.cell(algorithm, job.seeds[0]), dataset))
    for seed in job.seeds[1:]:
        parts_of(job.config, dataset, seed)
    return dataset


def run(
    job: Comparison, dataset: data.Dataset, run_dir: Path, log: Log = NO_LOG
) -> dict[str, str]:
    """Trains what is not finished; returns why algorithms diverged, by their names."""
    console = Console()
    cells = directory.cells(run_dir, job)
    diverged: dict[str, str] = {}
    with resumable(run_dir) as stop, progress_bar(console) as bar, refusing():
        total = len(cells) * job.config.rounds
        overall = bar.add_task("all", total=total)
        tick = functools.partial(bar.advance, overall)
        for algorithm in job.algorithms:
            simulation = simulation_of(job.cell(algorithm, job.seeds[0]), dataset)
            for seed in job.seeds:
                cell = run_dir / own_code.file_name(algorithm) / f"seed{seed}"
                one = cells[cell]
                label = label_of(algorithm)
                bar.update(overall, description=f"{label}, seed {seed}")
                if not (cell / directory.CONFIG).exists():
                    directory.create(cell, one)
                directory.check_same(cell, one)
                if is_complete(one, simulation, cell):
                    tick(job.config.rounds)
                    continue
                parts = parts_of(job.config, dataset, seed)
                tests = tests_of(job.config, dataset, parts, seed)
                varied = simulation.vary(parts=parts, test_parts=tests)
                trackers = log.of_cell(run_dir, cell)
                try:
                    train(one, varied, cell, tick, stop, trackers)
                except NonFiniteError as error:
                    diverged[algorithm] = f"seed {seed}, {error}"
        bar.update(overall, description="done")
    return diverged


def curves_of(
    job: Comparison, run_dir: Path, diverged: Collection[str] = ()
) -> dict[str, list[History]]:
    """Returns the runs of every method that did not diverge, by its label."""
    cells = directory.cells(run_dir, job)
    return {
        label_of(name): [
            metrics_csv.read(cell / directory.METRICS)
            for cell, one in cells.items()
            if one.algorithm == name
        ]
        for name in job.algorithms
        if name not in diverged
    }


def report(
    job: Comparison, run_dir: Path, diverged: Mapping[str, str]
) -> list[tables.Cells]:
    """Writes the summary and its figures; returns tables, none if all diverged."""
    runs = curves_of(job, run_dir, diverged)
    if not runs:
        return []
    target = comparison.target_score(runs)
    summaries = comparison.summarize(runs, target)
    comparison.write(summaries, run_dir / "summary.csv")
    title, config = job.config.title, job.config
    plots.curves(runs, run_dir / "comparison.png", title=title, target=target)
    if config.client_tests:
        fairness.figure(runs, run_dir / "fairness.png", title=title)
    found = [tables.compared(summaries, target, title, len(job.seeds), config.score)]
    if config.client_tests:
        found.append(fairness.table(runs, "Clients"))
    files.write(run_dir / "summary.tex", "\n".join(map(tables.latex, found)))
    return found
