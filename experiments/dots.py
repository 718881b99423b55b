"""Dot plots: a row for every method, a panel for every measure, 95% intervals."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_muon.runs import intervals
from fedjax_muon.runs.style import (
    NOTE,
    closest,
    color_names,
    drawing,
    outside,
    styles,
)

NAMES = {  # of datasets and models
    "fashion_mnist": "Fashion-MNIST",
    "cifar10_subset": "a part of CIFAR-10",
    "mnist": "MNIST",
    "lenet": "LeNet",
    "sst2": "SST-2",
    "rnn": "recurrent network",
}


class Dot(NamedTuple):
    """A mean over seeds."""

    panel: str
    row: str  # a method
    mean: float  # NaN for a diverged one
    half: float = float("nan")  # width of its interval
    series: str = ""  # such as an epsilon; the last one is filled, others are hollow
    unit: str = ""  # label of the axis


def in_words(text: str) -> str:
    """Replaces the names of datasets and models.

    Example:
      >>> in_words("fashion_mnist, lenet")
      'Fashion-MNIST, LeNet'
    """
    for name, words in NAMES.items():
        text = text.replace(name, words)
    return text


def dot(panel: str, row: str, values: Any, series: str = "", unit: str = "") -> Dot:
    """Returns the mean of the values of seeds with its interval."""
    values = np.asarray(values, float)
    half = float(intervals.half_width(values))
    return Dot(panel, row, float(values.mean()), half, series, unit)


def draw(
    dots: Sequence[Dot],
    path: Path,
    *,
    title: str = "",
    note: str = intervals.WORDS,
    columns: int = 9,
) -> None:
    """Draws dots in panels, with the names of rows in the colors of methods.

    Every panel shows where its means differ. Dots outside are numbers at the edge.
    Every line of panels has the rows in the order of its own dots.
    """
    panels = list(dict.fromkeys((dot.panel, dot.unit) for dot in dots))
    rows = list(dict.fromkeys(dot.row for dot in dots))
    series = list(dict.fromkeys(dot.series for dot in dots if dot.series))
    columns = min(columns, len(panels))
    lines = -(-len(panels) // columns)
    deep = 0.1 + 0.05 * len(series)
    height = 0.75 + (0.85 + (0.12 + deep) * len(rows)) * lines
    width = 1.7 + 7.3 * columns / max(3, columns)
    title = textwrap.fill(title, int(11 * width))
    with drawing(path, (width, height)) as figure:
        axes = figure.subplots(lines, columns, sharey="row", squeeze=False)
        colors = {row: how["color"] for row, how in styles(rows).items()}
        for line, axis in enumerate(axes[:, 0]):
            here = panels[line * columns :][:columns]
            inside = [dot.row for dot in dots if (dot.panel, dot.unit) in here]
            rows = list(dict.fromkeys(inside))
            axis.set_yticks(range(len(rows)), map(in_words, rows))
            axis.set_ylim(len(rows) - 0.5, -0.5)
            color_names(axis, [colors[row] for row in rows])
            for axis, panel in zip(axes[line], here, strict=False):
                shown = [dot for dot in dots if (dot.panel, dot.unit) == panel]
                means = [dot.mean for dot in shown]
                low, high = closest(means, [dot.half for dot in shown])
                if min(means) >= 0:
                    low = max(low, 0.0)
                axis.set_xlim(low, high)
                if low < 0:
                    axis.axvline(0, color=NOTE, lw=0.8)
                for each in shown:
                    _one(axis, each, rows.index(each.row), series, colors[each.row])
                axis.set_title(textwrap.fill(in_words(panel[0]), 34))
                axis.set_xlabel(panel[1])
        for axis in axes.flat:
            axis.tick_params(axis="y", length=0)
            axis.set_visible(axis in axes.flat[: len(panels)])
        figure.suptitle(title, x=0.01, ha="left")
        if len(series) > 1:
            note = f"hollow: {', '.join(series[:-1])}; filled: {series[-1]}; {note}"
        figure.supxlabel(note, fontsize=7.5, color=NOTE)


def _one(axis: Any, dot: Dot, place: int, series: list[str], color: str) -> None:
    """Draws a dot with its interval, or says where it is if it is not in view."""
    at: float = place
    if dot.series:
        at += 0.22 * (series.index(dot.series) - (len(series) - 1) / 2)
    if outside(axis, dot.mean, at, color):
        return
    filled = not dot.series or dot.series == series[-1]
    how = {"color": color, "mfc": color if filled else "none", "ms": 4.5}
    limits = (0.0, 100.0) if "%" in dot.unit else (-np.inf, np.inf)
    reach = intervals.bars([dot.mean], [dot.half], *limits)
    axis.errorbar(dot.mean, at, xerr=reach, fmt="o", lw=1.3, **how)
