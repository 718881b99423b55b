"""Decentralized training with a privacy guarantee, in a run directory.

config.json    what was asked for
versions.json  of everything that computes
privacy.txt    the statement of every run, and what all runs together cost
ledger.json    under which name the runs are in the ledger of the data set
graph.png      the graph of agents, for the first seed
metrics.csv    the rows of all finished runs: test metrics, which data are public
metrics.json   what they were computed with, and a digest
summary.csv    the test AUC of every method at every epsilon
utility.png    the same, drawn

All of it may be published. What must stay secret, the state of a run that was
interrupted, with the key of its noise, lies in DIRECTORY.secret, which only its owner
can read, until the job is done.
"""

import csv
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from fedjax_muon.privacy.guarantees import Guarantee
from fedjax_muon.reporting import plots, tables
from fedjax_muon.runs import private_ledger
from fedjax_muon.runs.build import start_key
from fedjax_muon.runs.build_private import (
    Setting,
    label_of,
    of_seed,
    privacy_of,
    setting_of,
    simulation_of,
)
from fedjax_muon.runs.config import Private
from fedjax_muon.runs.errors import refusing
from fedjax_muon.runs.files import CheckedRows, write
from fedjax_muon.runs.session import progress_bar, resumable
from fedjax_muon.runs.suspended import Suspended
from fedjax_muon.simulation import training
from fedjax_muon.simulation.memory_check import check_memory
from fedjax_muon.simulation.simulation import Simulation

ASSUMED = (
    "  assumed:    test examples, and the scaling and the share of positives of the\n"
    "              training examples, are public\n"
    "  assumed:    neither hyper-parameters nor noise were chosen by results of other\n"
    "              runs on these data"
)


class Plan(NamedTuple):
    """All that is run, checked before anything is."""

    setting: Setting
    simulations: dict[tuple[str, float], Simulation]  # by method and epsilon

    @property
    def guarantees(self) -> dict[tuple[str, float], Guarantee]:
        """Of every simulation; all of them are private."""
        found = {key: one.guarantee for key, one in self.simulations.items()}
        return {key: one for key, one in found.items() if one is not None}


def prepare(job: Private, run_dir: Path | None = None) -> Plan:
    """Calibrates the noise of every run, of which `run_dir` may have some.

    Raises `ValueError` for what is refused.
    """
    setting = setting_of(job)
    simulations: dict[tuple[str, float], Simulation] = {}
    for name in job.methods:
        first = simulation_of(setting, name)
        check_memory(first)
        for epsilon in job.epsilons:
            privacy = privacy_of(setting, name, epsilon)
            simulations[name, epsilon] = first.vary(privacy=privacy)
    plan = Plan(setting, simulations)
    name = private_ledger.name_in(run_dir) if run_dir else "new"
    private_ledger.check_budget(job, setting.dataset, plan.guarantees, name)
    return plan


def run(plan: Plan, run_dir: Path) -> None:
    """Runs what is not finished, and reports."""
    console, job = Console(), plan.setting.job
    graph = plan.setting.graphs[job.seeds[0]]
    with resumable(run_dir) as stop, progress_bar(console) as bar, refusing():
        rows = _rows_of(job, run_dir)
        said = _state(plan, run_dir)
        plots.graph(graph, run_dir / "graph.png", title=job.graph)
        finished = _finished(rows.path)
        total = len(plan.simulations) * len(job.seeds) * job.rounds
        everything = bar.add_task("all", total=total)
        tick = functools.partial(bar.advance, everything)
        suspended = Suspended(_secret_place(run_dir))
        for (name, epsilon), simulation in plan.simulations.items():
            bar.update(everything, description=label_of(name))
            for seed in job.seeds:
                if (name, epsilon, seed) in finished:
                    tick(job.rounds)
                    continue
                one = of_seed(simulation, plan.setting, seed)
                about = {"method": name, "epsilon": epsilon, "seed": seed}
                part = [rows.settings, about]
                found = _train(one, seed, job.rounds, suspended, part, tick, stop)
                rows.extend([about | row for row in found])
        suspended.clear()
        bar.update(everything, description="done")
    for statement in said:
        console.print(statement, highlight=False, markup=False, soft_wrap=True)
    with refusing():
        table = _report(plan, run_dir)
    console.print(table)
    console.print(f"statements, metrics and figures in {run_dir}")


def _secret_place(run_dir: Path) -> Path:
    """Where the state of an interrupted run is, apart from what is published."""
    return run_dir.with_name(f"{run_dir.name}.secret")


def _train(
    simulation: Simulation,
    seed: int,
    rounds: int,
    suspended: Suspended,
    part: Any,
    tick: Callable[[int], None],
    stop: Callable[[], bool],
) -> list[training.Record]:
    """The rows of a run, which is continued where an interrupt left it."""
    state = simulation.init(start_key(seed))
    notes: dict[str, Any] = {"rows": [], "dropped": 0, "seconds": 0.0}
    found = suspended.restore(part, state)
    if found is not None:
        state, notes = found
        tick(state.round)
    rows = notes["rows"]
    for step in training.steps(
        simulation,
        state,
        rounds=rounds,
        evaluate_every=max(1, rounds // 10),
        drop_nonfinite=True,
        evaluate_first=not rows,
        dropped=notes["dropped"],
        seconds=notes["seconds"],
    ):
        tick(step.rounds)
        if step.record is not None:
            rows.append(step.record)
        if step.state.round < rounds and stop():
            now = {"rows": rows, "dropped": step.dropped, "seconds": step.seconds}
            suspended.save(part, step.state, now)
            raise KeyboardInterrupt
    return rows


def _state(plan: Plan, run_dir: Path) -> list[str]:
    """Writes the statements of all runs; returns those of the first epsilon."""
    said = {
        (name, epsilon): f"{label_of(name)}\n{guarantee.statement()}\n{ASSUMED}\n"
        for (name, epsilon), guarantee in plan.guarantees.items()
    }
    job, dataset = plan.setting.job, plan.setting.dataset
    together = private_ledger.charge(job, dataset, plan.guarantees, run_dir)
    write(run_dir / "privacy.txt", "\n\n".join([*said.values(), together]) + "\n")
    first = job.epsilons[0]
    shown = [statement for (_, epsilon), statement in said.items() if epsilon == first]
    return [*shown, together]


def _rows_of(job: Private, run_dir: Path) -> CheckedRows:
    """The rows of finished runs, of any methods, epsilons and seeds.

    Raises `ValueError` if they are damaged, or were computed with another config.
    """
    config = dataclasses.asdict(job)
    for name in ("methods", "epsilons", "seeds", "data_dir", "ledger", "budget"):
        del config[name]
    return CheckedRows(run_dir / "metrics.csv", config)


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


def _report(plan: Plan, run_dir: Path) -> Table:
    """Writes the summary and its figure; returns the table."""
    job = plan.setting.job
    finished = _finished(run_dir / "metrics.csv")
    title = (
        f"{job.dataset}, {job.agents} agents, {job.graph}, {job.rounds} "
        f"iterations, delta {job.delta:g}"
    )
    seeds = len(job.seeds)
    caption = (
        f"on the test set: mean ± standard deviation, {tables.count(seeds, 'seed')}"
    )
    table = Table(title=title, caption=caption)
    for column in ("method", "epsilon", "AUC, %"):
        table.add_column(column, justify="left" if column == "method" else "right")
    curves: dict[str, dict[float, list[float]]] = {}
    with (run_dir / "summary.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("method", "epsilon", "auc_mean", "auc_std"))
        for name, epsilon in plan.simulations:
            scores = [finished[name, epsilon, seed] for seed in job.seeds]
            spread = np.std(scores, ddof=1) if len(scores) > 1 else np.nan
            writer.writerow((name, epsilon, np.mean(scores), spread))
            shown = tables.percent(float(np.mean(scores)), float(spread))
            lost = np.isnan(scores).any()
            table.add_row(label_of(name), f"{epsilon:g}", "diverged" if lost else shown)
            if not lost:
                curves.setdefault(label_of(name), {})[epsilon] = scores
    if curves:
        plots.utility(curves, run_dir / "utility.png", title=title)
    return table
