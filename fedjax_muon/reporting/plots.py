"""Figures: curves of runs, rankings, grids, labels of clients, and graphs of agents.

Every function draws numbers and writes one file, whose format follows from the suffix
of its path.
"""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import networkx as nx
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from fedjax_muon.decentralized.topology import metropolis, spectral_gap
from fedjax_muon.reporting.comparison import History, Point, Summary, score_column

STYLE: Any = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "legend.frameon": False,
}
NAMES = {
    "test_accuracy": "test accuracy",
    "test_auc": "test AUC",
    "test_mcc": "test MCC",
}
LINES = ("-", "--", "-.", ":")


def _band(
    axis: Any,
    x: np.ndarray,
    runs: Sequence[History],
    column: str,
    *,
    label: str | None = None,
    **style: Any,
) -> None:
    """Draws the mean of a column, and a band from the lowest to the highest run."""
    values = np.array([run[column] for run in runs], float)
    axis.plot(x, values.mean(0), label=label, **style)
    lowest, highest = values.min(0), values.max(0)
    axis.fill_between(x, lowest, highest, color=style["color"], alpha=0.13, lw=0)


def _logarithmic(axis: Any, values: Any) -> None:
    """Makes the x axis logarithmic, with labels that do not overlap."""
    decades = np.log10(max(values) / min(values))
    steps = (1.0,) if decades > 2 else (1.0, 2.0, 5.0)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=steps))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())


def curves(
    methods: Mapping[str, Sequence[History]],
    path: Path,
    *,
    title: str = "",
    target: float | None = None,
) -> None:
    """Draws test scores against rounds and against megabytes, and the training loss.

    Lines are means over seeds; bands reach from the lowest to the highest.

    Args:
      methods: Runs of every method by name, one for each seed.
      path: File to write.
      title: Title of the figure.
      target: Score that is marked by a horizontal line.

    Example:
      >>> run = metrics_csv.read(Path("runs/fedavg/metrics.csv"))
      >>> curves({"FedAvg": [run]}, Path("curves.png"))
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.8), layout="constrained")
        accuracy, traffic, loss = figure.subplots(1, 3)
        colors = matplotlib.color_sequences["tab10"]
        for i, (name, runs) in enumerate(methods.items()):
            style: dict[str, Any]
            style = {"color": colors[i % 10], "ls": LINES[i // 10 % 4], "lw": 1.6}
            rounds = runs[0]["round"]
            megabytes = (runs[0]["bytes_down"] + runs[0]["bytes_up"]) / 1e6
            column = score_column(runs[0])
            _band(accuracy, rounds, runs, column, label=name, **style)
            sent = [{k: v[megabytes > 0] for k, v in run.items()} for run in runs]
            after = megabytes[megabytes > 0]  # a logarithmic axis has no zero
            _band(traffic, after, sent, column, **style)
            _band(loss, rounds, runs, "train_loss", **style)
        for axis in (accuracy, traffic):
            axis.set_ylabel(NAMES[column])
            if target is not None:
                axis.axhline(target, color="0.5", lw=0.8, ls=":")
        if np.isfinite(loss.yaxis.get_minpos()):  # infinite without positive values
            loss.set_yscale("log")
        loss.set_ylabel("training loss")
        accuracy.set_xlabel("round")
        loss.set_xlabel("round")
        traffic.set_xlabel("megabytes sent and received")
        if np.isfinite(traffic.xaxis.get_minpos()):
            _logarithmic(traffic, traffic.dataLim.intervalx)
        figure.suptitle(title)
        figure.legend(loc="outside lower center", ncols=min(4, len(methods)))
        figure.savefig(path, dpi=150)


def ranking(
    summaries: Sequence[Summary],
    path: Path,
    *,
    title: str = "",
    score: str = "test accuracy",
) -> None:
    """Draws the last test score and the megabytes to the target of every method.

    Error bars are one standard deviation over seeds. Methods that did not reach the
    target have no mark on the right.

    Args:
      summaries: One line each, from top to bottom.
      path: File to write.
      title: Title of the figure.
      score: Label of the score.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 1.4 + 0.2 * len(summaries)), layout="constrained")
        accuracy, traffic = figure.subplots(1, 2, sharey=True)
        places = np.arange(len(summaries))
        means = [row.score_mean for row in summaries]
        spreads = np.nan_to_num([row.score_std for row in summaries])
        accuracy.errorbar(means, places, xerr=spreads, fmt="o", ms=4, lw=1)
        accuracy.set_yticks(places, [row.method for row in summaries])
        accuracy.invert_yaxis()
        accuracy.set_xlabel(score)
        megabytes = [row.megabytes_to_target for row in summaries]
        traffic.plot(megabytes, places, "o", ms=4, color="C1")
        traffic.set_xlabel("megabytes to the target")
        if np.nanmax([0.0, *megabytes]) > 0:
            _logarithmic(traffic, [value for value in megabytes if value > 0])
        figure.suptitle(title)
        figure.savefig(path, dpi=150)


def grids(
    methods: Mapping[str, Sequence[Point]], path: Path, *, title: str = ""
) -> None:
    """Draws the last test score against the first hyper-parameter of each grid.

    There is a panel for every method with a grid, and a line for every combination of
    its other hyper-parameters. Error bars are one standard deviation over seeds.
    Diverged points are crosses at the bottom.

    Args:
      methods: Points of every method's grid by name. Nothing is drawn if no method has
        more than one point.
      path: File to write.
      title: Title of the figure.
    """
    shown = {name: points for name, points in methods.items() if len(points) > 1}
    if not shown:
        return
    columns = min(6, len(shown))
    rows = -(-len(shown) // columns)
    with matplotlib.rc_context(STYLE):
        size = (max(6.5, 2.2 * columns + 0.6), 2 * rows + 0.6)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flat
        for axis, (name, points) in zip(panels, shown.items(), strict=False):
            _grid(axis, points)
            axis.set_title(textwrap.fill(name, 26), fontsize=7)
        for axis in figure.axes[len(shown) :]:
            axis.set_visible(False)
        runs = [run for points in methods.values() for p in points for run in p.runs]
        figure.supylabel(NAMES[score_column(runs[0])] if runs else "", fontsize=9)
        figure.suptitle(title)
        figure.savefig(path, dpi=150)


def _grid(axis: Any, points: Sequence[Point]) -> None:
    swept = next(iter(points[0].hyper))
    lines: dict[tuple, list[Point]] = {}
    for point in points:
        others = tuple((k, v) for k, v in point.hyper.items() if k != swept)
        lines.setdefault(others, []).append(point)
    for others, line in lines.items():
        line = sorted(line, key=lambda point: point.hyper[swept])
        x = [point.hyper[swept] for point in line]
        ends = [p.last(score_column(p.runs[0])) if p.runs else MISSING for p in line]
        mean, spread = np.array(ends).T
        name = ", ".join(f"{k}={v:g}" for k, v in others)
        spread = np.nan_to_num(spread)
        axis.errorbar(x, mean, spread, fmt="o-", ms=3, lw=1, label=name or None)
        diverged = [v for v, point in zip(x, line, strict=True) if point.diverged]
        axis.plot(diverged, [0] * len(diverged), "kx", ms=4)
    values = sorted({point.hyper[swept] for point in points})
    if min(values) > 0:
        axis.set_xscale("log")
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.minorticks_off()
    axis.set_xlabel(swept, fontsize=7)
    axis.tick_params(labelsize=6)
    if len(lines) > 1:
        axis.legend(fontsize=5)


MISSING = (np.nan, np.nan)


def label_counts(counts: np.ndarray, classes: Sequence[str], path: Path) -> None:
    """Draws the number of examples of every class that each client has.

    The areas of the discs are proportional to the counts, as is usual in the federated
    literature. Bars are the clients' sizes.

    Args:
      counts: Number of examples, [clients, classes].
      classes: Names of the classes.
      path: File to write.
    """
    clients, labels = np.nonzero(counts)
    amount = counts[clients, labels]
    with matplotlib.rc_context(STYLE):
        width = min(14.0, 3 + 0.3 * len(counts))
        figure = Figure(figsize=(width, 5.5), layout="constrained")
        sizes, discs = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": (1, 3)}
        )
        sizes.bar(np.arange(len(counts)), counts.sum(1), color="0.6")
        sizes.set_ylabel("examples")
        area = 260 * amount / counts.max()
        discs.scatter(clients, labels, s=area, c=labels, cmap="tab10", lw=0)
        discs.set_xlabel("client")
        discs.set_ylabel("class")
        if len(classes) <= 30:
            discs.set_yticks(np.arange(len(classes)), classes)
        figure.savefig(path, dpi=150)


def tail(
    norms: np.ndarray, count: int, index: float, path: Path, *, title: str = ""
) -> None:
    """Draws the share of norms above a value against the value, on logarithmic axes.

    Args:
      norms: Norms of the gradient noise, [n].
      count: Number of the largest norms that form the tail.
      index: Tail index; a line of slope -index is drawn beside the tail.
      path: File to write.
      title: Title of the figure.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5, 3.8), layout="constrained")
        axis = figure.subplots()
        largest = np.sort(norms)[::-1]
        share = np.arange(1, len(norms) + 1) / len(norms)
        axis.plot(largest, share, lw=1.6, label="measured")
        first = largest[min(count, len(largest) - 1)]
        line = share[count - 1] * (largest[:count] / first) ** -index
        label = f"the {count} largest: tail index {index:.2f}"
        axis.plot(largest[:count], line, ls="--", color="C1", label=label)
        _logarithmic(axis, largest)
        axis.set_yscale("log")
        axis.set_xlabel("norm of the gradient noise of a batch")
        axis.set_ylabel("share of batches above")
        axis.legend()
        axis.set_title(textwrap.fill(title, 48))
        figure.savefig(path, dpi=110)


def graph(graph: nx.Graph, path: Path, *, title: str = "") -> None:
    """Draws a graph of agents, with the spectral gap of its Metropolis weights.

    A graph always gives the same picture.

    Args:
      graph: Undirected graph, whose nodes are numbered as in `topology`.
      path: File to write.
      title: Title of the figure.
    """
    gap = round(spectral_gap(metropolis(graph)), 12)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.5, 4.8), layout="constrained")
        axis = figure.subplots()
        # Starting from a circle, rings keep their order and the result is not random.
        start = nx.circular_layout(graph)
        places = nx.spring_layout(graph, pos=start)
        size = 260 / max(1.0, len(graph) / 30)
        nx.draw_networkx_edges(graph, places, ax=axis, edge_color="0.6", width=0.9)
        nx.draw_networkx_nodes(graph, places, ax=axis, node_size=size, node_color="C0")
        if len(graph) <= 50:
            numbers = {node: str(i) for i, node in enumerate(graph)}
            nx.draw_networkx_labels(
                graph, places, numbers, ax=axis, font_size=7, font_color="white"
            )
        axis.set_axis_off()
        agents = "1 agent" if len(graph) == 1 else f"{len(graph)} agents"
        gaps = f"spectral gap of the Metropolis weights {gap:.3g}"
        figure.supxlabel(f"{agents}, {gaps}", fontsize=8)
        figure.suptitle(title)
        figure.savefig(path, dpi=110)


def utility(
    methods: Mapping[str, Mapping[float, Sequence[float]]],
    path: Path,
    *,
    title: str = "",
) -> None:
    """Draws the test AUC against epsilon.

    Lines are means; error bars reach from the lowest seed to the highest. Methods
    without privacy are horizontal lines.

    Args:
      methods: For every method by name, the scores of its seeds by epsilon; an epsilon
        of infinity is for methods without privacy.
      path: File to write.
      title: Title of the figure.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6, 4), layout="constrained")
        axis = figure.subplots()
        shown: list[float] = []
        for i, (name, by_epsilon) in enumerate(methods.items()):
            epsilons = sorted(e for e in by_epsilon if np.isfinite(e))
            color = f"C{i % 10}"
            if not epsilons:
                mean = float(np.mean([np.mean(v) for v in by_epsilon.values()]))
                axis.axhline(mean, color=color, ls="--", label=f"{name}, not private")
                continue
            scores = np.array([by_epsilon[e] for e in epsilons])
            mean = scores.mean(1)
            reach = np.abs(np.stack([scores.min(1), scores.max(1)]) - mean)
            axis.errorbar(
                epsilons, mean, reach, color=color, marker="o", capsize=3, label=name
            )
            shown += epsilons
        if len(set(shown)) > 1:
            _logarithmic(axis, shown)
        axis.set_xlabel("epsilon")
        axis.set_ylabel("test AUC")
        axis.set_title(textwrap.fill(title, 70))
        axis.legend()
        figure.savefig(path, dpi=110)
