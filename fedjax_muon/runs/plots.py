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
from matplotlib.ticker import PercentFormatter

from fedjax_muon.data.partition import plot_counts
from fedjax_muon.decentralized.topology import metropolis, spectral_gap
from fedjax_muon.runs import intervals
from fedjax_muon.runs.style import (
    NOTE,
    Label,
    closest,
    color_names,
    drawing,
    label_ends,
    logarithmic,
    logarithmic_loss,
    outside,
    styles,
    target_line,
    tick_labels,
)
from fedjax_muon.runs.summary import (
    History,
    Point,
    Summary,
    score_column,
    score_in,
)

MARKERS = ("o", "s", "^", "D", "v", "P")


def curves(
    methods: Mapping[str, Sequence[History]],
    path: Path,
    *,
    title: str = "",
    target: float | None = None,
    note: str = "",
) -> None:
    """Draws test scores against rounds and against megabytes, and the training loss.

    Virtual seconds replace megabytes if all runs have a clock.

    Lines are means over seeds; bands are their 95% intervals. A horizontal line is at
    the target. If one of the runs is private, the test loss is in place of the training
    loss. If one is deployed, there are no bytes and no axis of them.
    """
    with drawing(path, (11, 3.8)) as figure:
        drawn = styles(methods)
        best = []
        # private runs have no metrics of training examples
        every = [run for runs in methods.values() for run in runs]
        has_bytes = all("bytes_down" in run for run in every)
        timed = all("virtual_seconds" in run for run in every)
        accuracy, *between, loss = figure.subplots(1, 2 + has_bytes)
        has_losses = all("train_loss" in run for run in every)
        examples = "train_loss" if has_losses else "test_loss"
        for name, runs in methods.items():
            rounds = runs[0]["round"]
            kind = score_in(runs[0])
            scores = np.array([run[f"test_{kind.metric}"] for run in runs])
            losses = np.array([run[examples] for run in runs])
            how = drawn[name] | {"lowest": kind.low, "highest": kind.high}
            best.append(intervals.band(accuracy, rounds, scores, label=name, **how))
            for traffic in between if timed else ():
                seconds = np.mean([run["virtual_seconds"] for run in runs], axis=0)
                intervals.band(traffic, seconds, scores, **how)
            for traffic in between if not timed else ():
                megabytes = (runs[0]["bytes_down"] + runs[0]["bytes_up"]) / 1e6
                sent = megabytes > 0  # a logarithmic axis has no zero
                intervals.band(traffic, megabytes[sent], scores[:, sent], **how)
            # a logarithmic axis would show a band to 0 as a stripe
            lowest = losses.mean(0) / 10
            intervals.band(loss, rounds, losses, lowest=lowest, **drawn[name])
        for axis in (accuracy, *between):
            axis.set_ylabel(f"test {kind.heading}")
            if kind.high == 1:
                axis.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
            if target is not None:
                target_line(axis, target, best, kind.sign, kind.text(target))
        logarithmic_loss(loss)
        loss.set_ylabel("training loss" if has_losses else "test loss")
        accuracy.set_xlabel("round")
        loss.set_xlabel("round")
        for traffic in between:
            traffic.set_xlabel(
                "virtual seconds" if timed else "megabytes sent and received"
            )
            if not timed and np.isfinite(traffic.xaxis.get_minpos()):
                logarithmic(traffic, traffic.dataLim.intervalx)
        figure.suptitle(title)
        seeds = max(map(len, methods.values()))
        below = intervals.note(seeds) + note
        figure.supxlabel(below, fontsize=7.5, color=NOTE)
        ends = []
        for name, line in zip(methods, loss.get_lines(), strict=True):
            x, y = line.get_xydata()[-1]
            ends.append(Label(name, x, y, drawn[name]["color"]))
        if not label_ends(loss, ends, 2.9):
            figure.legend(loc="outside lower center", ncols=min(4, len(methods)))


def ranking(
    summaries: Sequence[Summary],
    path: Path,
    *,
    title: str = "",
    score: str = "test accuracy",
    seeds: int = 1,
) -> None:
    """Draws the last test score and the megabytes to the target of every method.

    Error bars are 95% intervals of the mean over seeds. Methods that did not reach the
    target have no mark on the right.
    """
    size = (9, 1.4 + 0.2 * len(summaries))
    with drawing(path, size, title=title) as figure:
        accuracy, traffic = figure.subplots(1, 2, sharey=True)
        places = np.arange(len(summaries))
        means = [row.score_mean for row in summaries]
        spreads = intervals.factor(seeds) * np.array([r.score_std for r in summaries])
        megabytes = [row.megabytes_to_target for row in summaries]
        lines = styles(row.method for row in summaries)
        accuracy.set_xlim(*closest(means, spreads))
        for place, row in enumerate(summaries):
            how = {"fmt": "o", "ms": 4.5, "color": lines[row.method]["color"]}
            reach = np.nan_to_num(spreads[place])
            if not outside(accuracy, means[place], place, how["color"]):
                accuracy.errorbar(means[place], place, xerr=reach, lw=1.2, **how)
            traffic.errorbar(megabytes[place], place, **how)
        accuracy.set_yticks(places, [row.method for row in summaries])
        color_names(accuracy, [line["color"] for line in lines.values()])
        accuracy.set_ylim(len(summaries) - 0.4, -0.6)
        spread = f"\n{intervals.WORDS}" if np.isfinite(spreads).any() else ""
        accuracy.set_xlabel(score + spread)
        traffic.set_xlabel("megabytes to the target")
        if np.nanmax([0.0, *megabytes]) > 0:
            logarithmic(traffic, [value for value in megabytes if value > 0])


def grids(
    methods: Mapping[str, Sequence[Point]], path: Path, *, title: str = ""
) -> None:
    """Draws the last test score against the first hyperparameter of each grid.

    There is a panel for every method with a grid, and a line for every combination of
    its other hyperparameters. Error bars are 95% intervals of the mean over seeds.
    Diverged points are crosses at the bottom. Nothing is drawn if no method has more
    than one point.
    """
    shown = {name: points for name, points in methods.items() if len(points) > 1}
    if not shown:
        return
    columns = min(6, len(shown))
    rows = -(-len(shown) // columns)
    size = (max(6.5, 2.2 * columns + 0.6), 2 * rows + 0.6)
    with drawing(path, size, title=title) as figure:
        panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flat
        for axis, (name, points) in zip(panels, shown.items(), strict=False):
            _grid(axis, name, points)
            axis.set_title(textwrap.fill(name, 26), fontsize=7)
        for axis in figure.axes[len(shown) :]:
            axis.set_visible(False)
        runs = [run for points in methods.values() for p in points for run in p.runs]
        words = f"test {score_in(runs[0]).words}" if runs else ""
        figure.supylabel(words, fontsize=9)


def _grid(axis: Any, method: str, points: Sequence[Point]) -> None:
    swept = next(iter(points[0].hyper))
    lines: dict[tuple, list[Point]] = {}
    for point in points:
        others = tuple((k, v) for k, v in point.hyper.items() if k != swept)
        lines.setdefault(others, []).append(point)
    color = styles([method])[method]["color"]
    kinds = [score_in(point.runs[0]) for point in points if point.runs]
    least = min((kind.low for kind in kinds), default=0.0)
    most = max((kind.high for kind in kinds), default=1.0)
    for number, (others, line) in enumerate(lines.items()):
        white = 0.7 * number / len(lines)
        shade = (1 - white) * np.array(matplotlib.colors.to_rgb(color)) + white
        line = sorted(line, key=lambda point: point.hyper[swept])
        x = [point.hyper[swept] for point in line]
        ends = [p.last(score_column(p.runs[0])) if p.runs else MISSING for p in line]
        mean, spread = np.array(ends).T
        spread = spread * [intervals.factor(len(p.runs)) for p in line]
        name = ", ".join(f"{k}={v:g}" for k, v in others)
        how = {"fmt": "o-", "ms": 3, "lw": 1.2, "color": shade}
        reach = intervals.bars(mean, spread, least, most)
        axis.errorbar(x, mean, reach, label=name or None, **how)
        diverged = [v for v, point in zip(x, line, strict=True) if point.diverged]
        bottom = axis.get_xaxis_transform()  # whatever the scores are
        axis.plot(diverged, [0.03] * len(diverged), "kx", ms=4, transform=bottom)
    values = sorted({point.hyper[swept] for point in points})
    if min(values) > 0:
        axis.set_xscale("log")
    axis.set_xticks(values, tick_labels(values, logarithmic=min(values) > 0))
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
    """
    width = min(14.0, 3 + 0.3 * len(counts))
    with drawing(path, (width, 5.5)) as figure:
        sizes, discs = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": (1, 3)}
        )
        sizes.bar(np.arange(len(counts)), counts.sum(1), color="0.6")
        sizes.set_ylabel("examples")
        plot_counts(counts, classes, discs)


def graph(graph: nx.Graph, path: Path, *, title: str = "") -> None:
    """Draws a graph of agents, with the spectral gap of its Metropolis weights.

    A graph always gives the same picture.
    """
    gap = round(spectral_gap(metropolis(graph)), 12)
    with drawing(path, (4.5, 4.8), title=title) as figure:
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


def along(
    methods: Mapping[str, Mapping[Any, Sequence[float]]],
    path: Path,
    *,
    axis: str,
    title: str = "",
    score: str = "AUC",
) -> None:
    """Draws a test score along an axis of an experiment, such as epsilon.

    Lines are means over seeds; error bars are their 95% intervals. Values that are no
    numbers are in equal distances. A method at infinity alone, which is one without
    privacy, is a horizontal line.

    Args:
      methods: For every method by name, the scores of its seeds by the value.
      axis: What the values are of.
    """
    values = list(dict.fromkeys(v for by_value in methods.values() for v in by_value))
    is_number = lambda v: isinstance(v, int | float) and not isinstance(v, bool)
    numeric = all(map(is_number, values))
    places = {v: v if numeric else i for i, v in enumerate(values)}
    with drawing(path, (6, 4)) as figure:
        drawn = figure.subplots()
        shown: list[float] = []
        lines = styles(methods)
        marked = 0
        for name, by_value in methods.items():
            kept = sorted(
                (v for v in by_value if not numeric or np.isfinite(v)),
                key=places.__getitem__,
            )
            how = lines[name]
            if not kept:
                level = float(np.mean([np.mean(v) for v in by_value.values()]))
                drawn.axhline(level, lw=1, label=f"{name}, not private", **how)
                continue
            scores = np.array([by_value[value] for value in kept])
            mean = scores.mean(1)
            reach = intervals.bars(mean, intervals.half_width(scores.T), 0.0, 1.0)
            how = how | {"marker": MARKERS[marked % len(MARKERS)], "ms": 5}
            x = [places[value] for value in kept]
            drawn.errorbar(x, mean, reach, capsize=3, label=name, **how)
            shown += x
            marked += 1
        if not numeric:
            drawn.set_xticks(
                range(len(values)), [textwrap.fill(f"{v}", 16) for v in values]
            )
        elif len(set(shown)) > 1 and min(shown) > 0:
            logarithmic(drawn, shown)
        drawn.set_xlabel(axis)
        drawn.set_ylabel(f"test {score}; bars: {intervals.WORDS}")
        drawn.set_title(textwrap.fill(title, 70))
        figure.legend(loc="outside lower center", ncols=2)
