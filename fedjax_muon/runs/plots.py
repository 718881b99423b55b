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

from fedjax_muon.data.partition import plot_counts
from fedjax_muon.decentralized.topology import metropolis, spectral_gap
from fedjax_muon.runs import intervals
from fedjax_muon.runs.style import (
    NOTE,
    Label,
    Looks,
    closest,
    color_names,
    drawing,
    in_percent,
    label_ends,
    logarithmic,
    logarithmic_loss,
    looks_of,
    outside,
    styles,
    target_line,
    tick_labels,
)
from fedjax_muon.runs.summary import (
    History,
    Point,
    Score,
    Summary,
    score_column,
    score_in,
    score_named,
)

MARKERS = ("o", "s", "^", "D", "v", "P")


def curves(
    methods: Mapping[str, Sequence[History]],
    path: Path,
    *,
    title: str = "",
    target: float | None = None,
    note: str = "",
    looks: Looks | None = None,
) -> None:
    """Draws test scores against rounds and against megabytes, and the training loss.

    Virtual seconds replace megabytes if all runs have a clock.

    Lines are means over seeds; bars at their ends are 95% intervals, which end at
    possible scores and at the least loss of a seed. A horizontal line is at the target.
    If one of the runs is private, the test loss is in place of the training loss. If
    one is deployed, there are no bytes and no axis of them.

    Args:
      looks: For names of methods, their labels, or pairs of a label and a color.
    """
    drawn = looks_of(methods, looks or {})
    every = [run for runs in methods.values() for run in runs]
    kind, x = score_in(every[0]), "megabytes sent and received"
    if all("virtual_seconds" in run for run in every):
        x = "virtual seconds"
    panels = [("round", kind), (x, kind), ("round", None)]
    if not all("bytes_down" in run for run in every):
        del panels[1]
    # below each other, with room for names at the ends of lines
    one = len(methods) == 1
    shape = (1, len(panels)) if one else (len(panels), 1)
    size = (4 * shape[1], 2.7) if one else (7.5, 2.8 * shape[0])
    with drawing(path, size, title=title) as figure:
        axes = figure.subplots(*shape)
        labeled = True
        for axis, (x, score) in zip(axes, panels, strict=True):
            ends = _lines(axis, methods, drawn, x, score)
            if score is not None and target is not None:
                target_line(axis, target, score.sign, score.text(target))
            labeled &= label_ends(axis, ends, 2.1)
        if not labeled:
            handles, _ = axes[0].get_legend_handles_labels()
            columns = min(4, len(methods))
            figure.legend(handles=handles, loc="outside lower center", ncols=columns)
        below = intervals.note(max(map(len, methods.values()))) + note
        figure.supxlabel(below, fontsize=7.5, color=NOTE)


def _lines(
    axis: Any,
    methods: Mapping[str, Sequence[History]],
    drawn: Mapping[str, Any],
    x: str,
    score: Score | None,
) -> list[Label]:
    """Draws scores, or losses if there is no score; returns labels of the ends."""
    column, words = "train_loss", "training loss"
    if score is not None:
        column, words = f"test_{score.metric}", f"test {score.heading}"
    elif any(column not in run for runs in methods.values() for run in runs):
        column, words = "test_loss", "test loss"  # training examples are private
    labels = []
    for name, runs in methods.items():
        values, how = np.array([run[column] for run in runs]), drawn[name]
        places = _places(runs, x)
        mean, last = intervals.curve(axis, places, values, **how), values[:, -1]
        limits = (min(last), np.inf) if score is None else (score.low, score.high)
        end = how["label"], places[-1], mean[-1], how["color"]
        labels.append(Label(*end, *intervals.ends(last, *limits)))
    axis.set(xlabel=x, ylabel=words)
    if score is None:
        logarithmic_loss(axis)
    else:
        in_percent(axis.yaxis, score.high)
    if x == "round":
        axis.xaxis.get_major_locator().set_params(integer=True)
    elif "megabytes" in x and np.isfinite(axis.xaxis.get_minpos()):
        logarithmic(axis, axis.dataLim.intervalx)
    return labels


def _places(runs: Sequence[History], axis: str) -> np.ndarray:
    """Where values are on the x axis of a panel."""
    if "megabytes" not in axis:
        return np.mean([run[axis.replace(" ", "_")] for run in runs], axis=0)
    sent = runs[0]["bytes_down"] + runs[0]["bytes_up"]
    return np.where(sent > 0, sent, np.nan) / 1e6  # a logarithmic axis has no zero


def ranking(
    summaries: Sequence[Summary],
    path: Path,
    *,
    title: str = "",
    score: str = "accuracy",
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
        kind = score_named(score)
        in_percent(accuracy.xaxis, kind.high)
        for place, row in enumerate(summaries):
            how = {"fmt": "o", "ms": 4.5, "color": lines[row.method]["color"]}
            reach = np.nan_to_num(spreads[place])
            text = kind.text(means[place])
            if not outside(accuracy, means[place], place, how["color"], text):
                accuracy.errorbar(means[place], place, xerr=reach, lw=1.2, **how)
            traffic.errorbar(megabytes[place], place, **how)
        accuracy.set_yticks(places, [row.method for row in summaries])
        color_names(accuracy, [line["color"] for line in lines.values()])
        accuracy.set_ylim(len(summaries) - 0.4, -0.6)
        spread = f"\n{intervals.WORDS}" if np.isfinite(spreads).any() else ""
        accuracy.set_xlabel(f"test {kind.heading}{spread}")
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
        words = f"test {score_in(runs[0]).heading}" if runs else ""
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
    in_percent(axis.yaxis, most)
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
        kind = score_named(score)
        in_percent(drawn.yaxis, kind.high)
        drawn.set_ylabel(f"test {kind.heading}; bars: {intervals.WORDS}")
        drawn.set_title(textwrap.fill(title, 70))
        figure.legend(loc="outside lower center", ncols=2)
