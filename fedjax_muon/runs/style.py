"""The style of all figures: the lines of methods, sizes, axes, labels at ends of lines.

Methods built around Muon have saturated colors. Others are grey, and differ by shade
and dashes. Your own methods get a color of their own, and are in front. An SVG
has no background and letters that can be read on white and on black; other formats are
dark on white.
"""

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from matplotlib.transforms import offset_copy
from numpy.typing import ArrayLike

from fedjax_muon import algorithms, decentralized


class Line(NamedTuple):
    """How a curve is drawn."""

    color: str  # hexadecimal
    dash: str


GREYS = ("#868686", "#5f5f5f", "#a9a9a9", "#747474")
STUDIES = {  # colors of what is in studies alone, by label
    "DP-Muon": "#a8651f",
    "DP-Muon, bias corrected": "#f0a830",
    "Muon at the server": "#9450d8",
    "AdamW, data-parallel": GREYS[0],
    "Muon, data-parallel": GREYS[1],
    "DP-SGD": GREYS[0],
    "DP-FTRL": GREYS[1],
    "DP-FedAvg": GREYS[2],
}
OWN = "#c8009e"  # of methods that are not in the library
Looks = Mapping[str, str | tuple[str, str]]  # by label: another one, or with a color
DASHES: dict[str, Any] = {  # as matplotlib draws them
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": (0, (5, 2, 1, 2)),
    "longdash": (0, (9, 2.5)),
    "longdashdot": (0, (9, 2, 1, 2)),
}
STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "0.5",
    "axes.grid": True,
    "axes.labelcolor": "0.2",
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "figure.facecolor": "white",
    "figure.titlesize": 10,
    "font.family": "sans-serif",
    "font.sans-serif": [
        "DejaVu Sans",
        "Arial",
        "sans-serif",
    ],  # matplotlib has the first
    "font.size": 9,
    "grid.alpha": 0.25,
    "grid.color": "0.5",
    "grid.linewidth": 0.7,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "savefig.dpi": 200,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "fedjax_muon",  # ids are not random
    "text.color": "0.2",
    "xtick.color": "0.3",
    "xtick.labelsize": 8,
    "ytick.color": "0.3",
    "ytick.labelsize": 8,
}
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NOTE = "#7a7a7a"  # of small letters, on any background
INKS = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
NO_BACKGROUND: Any = STYLE | dict.fromkeys(INKS, NOTE)
NO_BACKGROUND |= {"savefig.transparent": True}
DATES = {".svg": "Date", ".pdf": "CreationDate"}


# from a line to its label, whose left end it reaches
LEADER: Any = {"arrowstyle": "-", "lw": 0.4, "relpos": (0, 0.5), "shrinkA": 1}


class Label(NamedTuple):
    """A text at the end of a line, and an interval."""

    text: str
    x: float  # of the end of the line
    y: float
    color: str
    low: float = np.nan  # of the interval
    high: float = np.nan


@functools.cache
def known() -> dict[str, Line]:
    """How the curves of all methods are drawn, by label."""
    tables = [algorithms.ALL, algorithms.minimax.ALL, decentralized.ALL]
    tables.append(decentralized.PRIVATE_METHODS)
    colors = {row.label: row.color for table in tables for row in table.values()}
    greys = [label for label, color in colors.items() if not color]
    found = {label: _grey(number) for number, label in enumerate(greys)}
    colored = {label: color for label, color in colors.items() if color}
    return found | {k: Line(color, "solid") for k, color in (colored | STUDIES).items()}


def _grey(number: int) -> Line:
    """The first 24 differ, by shade or dash."""
    dashes = list(DASHES)
    shade = number + number // len(dashes)
    return Line(GREYS[shade % len(GREYS)], dashes[number % len(dashes)])


def line_of(label: str) -> Line:
    """How the curves of a method are drawn: the same in every figure.

    Example:
      >>> line_of("FedMuon")
      Line(color='#d62728', dash='solid')
    """
    return known().get(label) or Line(OWN, "solid")


def another(line: Line, number: int) -> Line:
    """A line of the same color with other dashes, for further curves of one method.

    Example:
      >>> another(line_of("FedMuon"), 1)
      Line(color='#d62728', dash='dash')
    """
    dashes = list(DASHES)
    return line._replace(dash=dashes[(dashes.index(line.dash) + number) % len(dashes)])


def styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """How lines are drawn, as keywords of `Axes.plot` by label.

    "FedMuon, lr=0.1" has the color of FedMuon; lines of one color differ in their
    dashes. Labels that are values alone, such as "T = 3", are shades from dark to
    light, in order.

    Example:
      >>> styles(["FedMuon", "FedMuon, lr=0.1"])["FedMuon"]
      {'color': '#d62728', 'ls': '-'}
    """
    labels = list(dict.fromkeys(labels))
    values = [label for label in labels if "=" in label.partition(", ")[0]]
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, len(values)))
    looks: dict[str, dict[str, Any]] = {}
    used = set()
    for label in labels:
        if label in values:
            color = matplotlib.colors.to_hex(shades[values.index(label)])
            looks[label] = {"color": color, "ls": "-"}
            continue
        method = label if label in known() else re.split(", | \\(all", label)[0]
        line = line_of(method)
        for number in range(1, len(DASHES)):
            if line in used:
                line = another(line_of(method), number)
        used.add(line)
        looks[label] = {"color": line.color, "ls": DASHES[line.dash]}
        if line.color == OWN:
            looks[label]["zorder"] = 3  # before the others
    return looks


def looks_of(labels: Iterable[str], looks: Looks) -> dict[str, dict[str, Any]]:
    """The colors, dashes and labels of lines, as `looks` sets them.

    Example:
      >>> looks_of(["FedAvg"], {"FedAvg": ("Baseline", "black")})
      {'FedAvg': {'color': '#000000', 'ls': '-', 'label': 'Baseline'}}
    """
    drawn = {label: how | {"label": label} for label, how in styles(labels).items()}
    for label, look in looks.items():
        if label not in drawn:
            shown = ", ".join(drawn)
            raise ValueError(f"looks names {label!r}, which is not one of {shown}")
        text, *color = [look] if isinstance(look, str) else look
        if len(color) > 1 or not all(map(matplotlib.colors.is_color_like, color)):
            raise ValueError(
                f"looks[{label!r}] must be a label, or a label and a color such as "
                f"('Ours', 'black'), got {look!r}"
            )
        drawn[label]["label"] = text
        if color:
            drawn[label]["color"] = matplotlib.colors.to_hex(color[0])
    texts = [how["label"] for how in drawn.values()]
    if len({*texts}) < len(texts):
        raise ValueError(f"labels must differ, got {', '.join(texts)}")
    return drawn


@contextlib.contextmanager
def drawing(
    path: Path, size: tuple[float, float], *, title: str | None = None
) -> Iterator[Figure]:
    """A figure in this style, `size` in inches, which is written at the end."""
    bare = Path(path).suffix.lower() == ".svg"
    with matplotlib.rc_context(NO_BACKGROUND if bare else STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        if title:
            figure.suptitle(title)
        _without_formulas(figure)
        save(figure, path)


def _without_formulas(figure: Figure) -> None:
    """Makes texts stand for themselves: in a class such as $5-$10, dollars do not begin
    a formula."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure; the same figure always gives the same bytes."""
    date = DATES.get(Path(path).suffix.lower())
    figure.savefig(path, metadata={date: None} if date else None)


def closest(means: ArrayLike, halves: ArrayLike) -> tuple[float, float]:
    """Limits of an axis that shows where means differ, and their intervals.

    Outliers are left out if they take two thirds of the axis, and the ends of wide
    intervals.

    Example:
      >>> np.round(closest([0.1, 0.94, 0.95, 0.96, 0.99], [0.0] * 5), 3).tolist()
      [0.935, 0.995]
    """
    x, half = np.asarray(means, float), np.nan_to_num(np.asarray(halves, float))
    known = np.isfinite(x)
    if not known.any():
        return 0.0, 1.0
    low, high = np.percentile(x[known], (25, 75))
    reach = 1.5 * (high - low)
    inner = known & (x >= low - reach) & (x <= high + reach)
    inner = inner if 3 * np.ptp(x[inner]) < np.ptp(x[known]) else known
    x, half = x[inner], half[inner]
    span = np.ptp(x) or half.max() or 0.1 * abs(x[0]) or 1.0
    low = max((x - half).min(), x.min() - span) - 0.1 * span
    high = min((x + half).max(), x.max() + span) + 0.1 * span
    return float(low), float(high)


def color_names(axis: Any, colors: Iterable[str]) -> None:
    """Gives the labels of the y axis the colors of their methods."""
    for label, color in zip(axis.get_yticklabels(), colors, strict=True):
        label.set_color(NOTE if color in GREYS else color)


def outside(axis: Any, value: float, y: float, color: str, text: str = "") -> bool:
    """Writes a value, or its text, at the edge of an axis that does not show it."""
    low, high = axis.get_xlim()
    if low <= value <= high:
        return False
    words = (text or f"{value:.3g}") if np.isfinite(value) else "diverged"
    left = not value > high
    place, words = (low, f"◂ {words}") if left else (high, f"{words} ▸")
    side = "left" if left else "right"
    axis.text(place, y, words, fontsize=7, color=color, ha=side, va="center")
    return True


def in_percent(axis: Any, most: float) -> None:
    """Labels an axis as tables show its numbers: shares, of at most 1, in percent."""
    if most == 1:
        axis.set_major_formatter(lambda value, _: f"{100 * value:.4g}")


def logarithmic(axis: Any, values: Any) -> None:
    """Makes the x axis logarithmic, with labels that do not overlap.

    Values within a factor of three stay on a linear axis, where ticks are even.
    """
    if max(values) > 3 * min(values):
        axis.set_xscale("log")
        _log_ticks(axis.xaxis, values)


def _log_ticks(axis: Any, values: Any) -> None:
    """Labels a logarithmic axis: all with plain numbers, or all with powers of ten."""
    low, high = np.log10(min(values)), np.log10(max(values))
    steps: tuple[float, ...] = (1, 2, 5) if high - low > 1 else (1, 2, 3, 4, 6, 8)
    steps = (1,) if high - low > 2 else steps
    every = 1 + int(high - low) // 8
    powers = np.arange(np.floor(low) - 1, high + 2)
    powers = powers[powers % every == 0]
    ticks = [step * 10.0**power for power in powers for step in steps]
    texts = [f"{tick:g}" for tick in ticks]
    if len(steps) == 1 and not -4 < low < high < 5:
        texts = [f"10{f'{power:.0f}'.translate(RAISED)}" for power in powers]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter(texts))
    axis.set_minor_locator(NullLocator())


def logarithmic_loss(axis: Any) -> None:
    """Makes the y axis logarithmic, down to the smallest mean and not to a band."""
    means = np.concatenate([np.ravel(line.get_ydata()) for line in axis.get_lines()])
    shown = means[np.isfinite(means) & (means > 0)]
    if len(shown):
        axis.set_yscale("log")
        axis.set_ylim(bottom=shown.min() / (shown.max() / shown.min()) ** 0.04 / 1.05)
        _log_ticks(axis.yaxis, shown)


def target_line(axis: Any, target: float, sign: int, text: str) -> None:
    """Draws the target, and shows the scores around it and all last scores.

    Args:
      sign: -1 if lower scores are better.
    """
    means, target = [sign * each.get_ydata() for each in axis.lines], sign * target
    highest = max(float(np.max(mean)) for mean in means)
    if highest < target:  # of AUCs below 1/2, which no method reaches
        return
    axis.axhline(sign * target, color="0.4", lw=0.8, ls=":")
    lowest = min(float(mean[-1]) for mean in means)
    room = max(highest - target, 1e-3)
    bottom = min(target - 1.5 * room, lowest - 0.5 * room)
    axis.set_ylim(*sorted((sign * bottom, sign * (highest + 0.5 * room))))
    axis.annotate(
        f"target {text}",
        (0.0, sign * target),
        xycoords=axis.get_yaxis_transform(),
        xytext=(3, 2),
        textcoords="offset points",
        fontsize=7.5,
        color=NOTE,
    )


def tick_labels(values: Sequence[float], *, logarithmic: bool) -> list[str]:
    """The labels of ticks, empty where they would cover their neighbors."""
    places = np.log(values) if logarithmic else np.array(values, float)
    places = (places - places[0]) / ((places[-1] - places[0]) or 1.0)
    labels, last = [f"{values[-1]:g}"], places[-1]
    for i in range(len(values) - 2, -1, -1):
        free = last - places[i] > 0.14 and (i == 0 or places[i] > 0.14)
        labels.append(f"{values[i]:g}" if free else "")
        last = places[i] if free else last
    return labels[::-1]


def apart(places: Sequence[float], gap: float) -> np.ndarray:
    """Moves places as little as possible until neighbors are a gap apart.

    Returns:
      The least-squares solution, moved as far as is needed to be within [0, 1].
    """
    offsets = gap * np.arange(len(places))
    blocks: list[list[float]] = []  # isotonic regression: neighbors in a wrong order
    for value in np.asarray(places, float) - offsets:  # become their common mean
        blocks.append([value, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (first, m), (second, n) = blocks[-2:]
            blocks[-2:] = [[(m * first + n * second) / (m + n), m + n]]
    level = np.concatenate([np.full(int(n), value) for value, n in blocks])
    return np.clip(level, 0.0, 1.0 - gap * (len(places) - 1)) + offsets


def label_ends(axis: Any, labels: Sequence[Label], height: float) -> bool:
    """Writes labels to the right of an axis, at the height of their ends.

    The intervals are bars between the axis and the labels, no longer than the axis. The
    limits of the axis must be final. `height` is in inches, approximately.

    Returns:
      Whether the labels fit. If they do not, or an end is not drawn, nothing is
      written and a legend is needed.
    """
    axis.set(xlim=axis.get_xlim(), ylim=axis.get_ylim())  # bars do not change them
    size, apart_by = 7.5, 4.0  # points of letters, and between bars
    gap = 1.25 * size / (72 * height)
    if not labels or gap * (len(labels) - 1) > 1:
        return False
    ends = axis.transData.transform([(label.x, label.y) for label in labels])
    ends = axis.transAxes.inverted().transform(ends)
    if not np.isfinite(ends).all() or ends.min() < -0.01 or ends.max() > 1.01:
        return False
    has_bars = any(np.isfinite(label.low) for label in labels)
    order = np.argsort(-ends[:, 1], kind="stable")
    places = 1 - apart((1 - ends[order, 1]).clip(0, 1), gap)
    for rank, (i, place) in enumerate(zip(order, places, strict=True)):
        label, end = labels[i], ends[i]
        right = [apart_by * (rank + 1), apart_by * (len(labels) + 4)]
        bar, text = right if has_bars else (0.0, 12.0)
        beside = lambda of, by: offset_copy(of, axis.figure, x=by, units="points")
        if has_bars:
            how = {"color": label.color, "clip_on": False}
            at = beside(axis.get_yaxis_transform(), bar)
            reach = np.clip([label.low, label.high], *sorted(axis.get_ylim()))
            axis.plot([1, 1], reach, lw=1.2, transform=at, **how)
            axis.plot(1, label.y, "o", ms=2.6, transform=at, **how)
            start = (end[0], 1), (end[1], end[1])
            axis.plot(*start, lw=0.4, transform=axis.transAxes, **how)
        axis.annotate(
            label.text,
            xy=(1.0 if has_bars else end[0], end[1]),
            xycoords=beside(axis.transAxes, bar),
            xytext=(1.0, place),
            textcoords=beside(axis.transAxes, text),
            va="center",
            fontsize=size,
            color=NOTE if label.color in GREYS else label.color,
            arrowprops={**LEADER, "color": label.color},
            annotation_clip=False,
        )
    return True
