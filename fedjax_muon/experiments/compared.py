"""What a comparison came to: its table and its figures."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import numpy as np

from fedjax_muon.core.recipe import recipe_of
from fedjax_muon.experiments.sweeping import Swept
from fedjax_muon.files import write
from fedjax_muon.problems import Problem
from fedjax_muon.reporting import comparison, fairness, plots, tables
from fedjax_muon.reporting.comparison import History
from fedjax_muon.simulation.simulation import Simulation


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
        summaries = comparison.summarize(self.runs, target)
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
        return comparison.target_score(self.runs) if self.runs else np.nan

    def plot(self, path: str | Path) -> None:
        """Draws the curves of all methods."""
        lost = "".join(f"; {k} diverged ({at})" for k, at in self.diverged.items())
        target, title = self._target, self.title
        plots.curves(self.runs, Path(path), title=title, target=target, note=lost)

    def write(self, directory: str | Path) -> list[tables.Cells]:
        """Writes the summary and its figures; returns its tables."""
        place, shown = Path(directory), self.all_tables()
        summaries = comparison.summarize(self.runs, self._target)
        status = {name: f"diverged ({at})" for name, at in self.diverged.items()}
        columns = {"lr": self.rates}
        path = place / "summary.csv"
        comparison.write(summaries, path, diverged=status, columns=columns)
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
            scores = [float(run[comparison.score_column(run)][-1]) for run in runs]
            by_method.setdefault(method, {})[epsilon] = scores
        return by_method


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
