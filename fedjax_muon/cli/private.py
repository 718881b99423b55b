"""`fedjax-muon private`: decentralized training with a privacy guarantee.

config.json    what was asked for
versions.json  of everything that computes
privacy.txt    the statement of every private run
graph.png      who talks to whom, for the first seed
metrics.csv    the rows of all finished runs
summary.csv    the test AUC of every method at every epsilon
utility.png    the same, drawn
"""

import csv
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from fedjax_muon.cli import arguments, tables
from fedjax_muon.cli.refusals import refusing
from fedjax_muon.cli.session import new_directory, progress_bar, resumable
from fedjax_muon.privacy.report import PrivacySpec, report
from fedjax_muon.reporting import metrics_csv, plots
from fedjax_muon.runs import directory
from fedjax_muon.runs.build import start_key
from fedjax_muon.runs.build_private import (
    REFERENCES,
    Setting,
    calibrated,
    label_of,
    setting_of,
    simulation_of,
    varied,
)
from fedjax_muon.runs.config import Private
from fedjax_muon.simulation import training
from fedjax_muon.simulation.simulation import Simulation

ASSUMED = (
    "  assumed:    scaling and share of positives of the whole data are public\n"
    "  assumed:    the seed stays secret: whoever knows it can take the noise away"
)


class Plan(NamedTuple):
    """All that is run, checked before anything is."""

    setting: Setting
    simulations: dict[str, Simulation]  # by method
    specs: dict[tuple[str, float], PrivacySpec | None]  # by method and epsilon


def command(args: arguments.Private) -> None:
    """`fedjax-muon private`."""
    with refusing():
        plan = prepare(args.what)
        place = new_directory(args.output, "private")
        directory.create(place, args.what)
    play(plan, place)


def prepare(what: Private) -> Plan:
    """Calibrates the noise of every run. Raises `ValueError` for what is refused."""
    setting = setting_of(what)
    # first what is refused at once: to calibrate takes seconds
    simulations = {name: simulation_of(setting, name) for name in what.methods}
    specs: dict[tuple[str, float], PrivacySpec | None] = {}
    for name in what.methods:
        if name in REFERENCES:
            specs[name, math.inf] = None
            continue
        for epsilon in what.epsilons:
            specs[name, epsilon] = calibrated(setting, name, epsilon)
    return Plan(setting, simulations, specs)


def play(plan: Plan, place: Path) -> None:
    """Runs what is not finished, and reports."""
    console, what = Console(), plan.setting.what
    said = _state(plan, place)
    plots.graph(
        plan.setting.graphs[what.seeds[0]], place / "graph.png", title=what.graph
    )
    metrics = place / "metrics.csv"
    with resumable(place) as pause, progress_bar(console) as bar, refusing():
        finished = _finished(metrics)
        total = len(plan.specs) * len(what.seeds) * what.rounds
        everything = bar.add_task("all", total=total)

        def tick(rounds: int) -> None:
            bar.advance(everything, rounds)
            pause()

        for (name, epsilon), spec in plan.specs.items():
            bar.update(everything, description=label_of(name))
            for seed in what.seeds:
                if (name, epsilon, seed) in finished:
                    tick(what.rounds)
                    continue
                simulation = varied(plan.simulations[name], plan.setting, seed, spec)
                trained = training.evaluations(
                    simulation,
                    simulation.init(start_key(seed)),
                    rounds=what.rounds,
                    evaluate_every=max(1, what.rounds // 10),
                    drop_nonfinite=True,
                    tick=tick,
                )
                about = {"method": name, "epsilon": epsilon, "seed": seed}
                metrics_csv.extend(metrics, [about | row for _, row in trained])
        bar.update(everything, description="done")
    for statement in said:
        console.print(statement, highlight=False, markup=False)
    _report(plan, place, console)


def _state(plan: Plan, place: Path) -> list[str]:
    """Writes the statements of all private runs; those of the first epsilon."""
    said = {
        (name, epsilon): f"{label_of(name)}\n{report(spec).statement()}\n{ASSUMED}"
        for (name, epsilon), spec in plan.specs.items()
        if spec is not None
    }
    (place / "privacy.txt").write_text("\n\n".join(said.values()) + "\n")
    first = plan.setting.what.epsilons[0]
    return [statement for (_, epsilon), statement in said.items() if epsilon == first]


def _finished(metrics: Path) -> dict[tuple[str, float, int], float]:
    """The last test AUC of every run in the file, which has whole runs only."""
    if not metrics.exists():
        return {}
    with metrics.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        (row["method"], float(row["epsilon"]), int(row["seed"])): float(row["test_auc"])
        for row in rows
    }


def _report(plan: Plan, place: Path, console: Console) -> None:
    what = plan.setting.what
    finished = _finished(place / "metrics.csv")
    title = (
        f"{what.dataset}, {what.agents} agents, {what.graph}, {what.rounds} "
        f"iterations, delta {what.delta:g}"
    )
    seeds = len(what.seeds)
    caption = (
        f"on the test set: mean ± standard deviation, {tables.count(seeds, 'seed')}"
    )
    table = Table(title=title, caption=caption)
    for column in ("method", "epsilon", "AUC, %"):
        table.add_column(column, justify="left" if column == "method" else "right")
    curves: dict[str, dict[float, list[float]]] = {}
    with (place / "summary.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("method", "epsilon", "auc_mean", "auc_std"))
        for name, epsilon in plan.specs:
            scores = [finished[name, epsilon, seed] for seed in what.seeds]
            spread = np.std(scores, ddof=1) if len(scores) > 1 else np.nan
            writer.writerow((name, epsilon, np.mean(scores), spread))
            shown = tables.percent(float(np.mean(scores)), float(spread))
            lost = np.isnan(scores).any()
            table.add_row(label_of(name), f"{epsilon:g}", "diverged" if lost else shown)
            if not lost:
                curves.setdefault(label_of(name), {})[epsilon] = scores
    if curves:
        plots.utility(curves, place / "utility.png", title=title)
    console.print(table)
    console.print(f"statements, metrics and figures in {place}")
