"""The style of all figures: sizes, the lines of methods, labels at ends of lines.

Figures have a white background, so that the colors and greys of methods have the same
contrast on white and on dark pages.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from fedjax_muon.reporting.colors import BASELINES, GREYS, MUON, another, line_of

STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "0.4",
    "axes.grid": True,
    "axes.labelcolor": "0.2",
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "figure.facecolor": "white",
    "figure.titlesize": 10,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that all machines have it
    "font.size": 9,
    "grid.color": "0.9",
    "grid.linewidth": 0.7,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "fedjax_muon",  # ids are not random
    "xtick.color": "0.3",
    "xtick.labelsize": 8,
    "ytick.color": "0.3",
    "ytick.labelsize": 8,
}
DASHES: dict[str, Any] = {  # of plotly, as in `colors`
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": (0, (5, 2, 1, 2)),
    "longdash": (0, (9, 2.5)),
    "longdashdot": (0, (9, 2, 1, 2)),
}
KNOWN = {*MUON, *BASELINES}
DATES = {".svg": "Date", ".pdf": "CreationDate"}


class Label(NamedTuple):
    """A text at the end of a line."""

    text: str
    x: float  # of the end of the line
    y: float
    color: str


def styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns how lines are drawn, as keywords of `Axes.plot`.

    Args:
      labels: Names of methods. "FedMuon, lr=0.1" has the color of FedMuon. Labels that
        are values alone, such as "T = 3", are shades from dark to light, in order.

    Returns:
      Color and line style by label. Lines of one method differ in their dashes.

    Example:
      >>> styles(["FedMuon", "FedMuon, lr=0.1"])["FedMuon"]
      {'color': '#d62728', 'ls': '-'}
    """
    labels = list(dict.fromkeys(labels))
    values = [one for one in labels if "=" in one.partition(", ")[0]]
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, len(values)))
    found: dict[str, dict[str, Any]] = {}
    used = set()
    for label in labels:
        if label in values:
            color = matplotlib.colors.to_hex(shades[values.index(label)])
            found[label] = {"color": color, "ls": "-"}
            continue
        method = label if label in KNOWN else label.partition(", ")[0]
        line = line_of(method)
        for number in range(1, len(DASHES)):
            if line in used:
                line = another(line_of(method), number)
        used.add(line)
        found[label] = {"color": line.color, "ls": DASHES[line.dash]}
    return found


def save(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Writes a figure; the same figure always gives the same bytes.

    Args:
      figure: Figure to write.
      path: File to write, whose suffix is its format.
      dpi: Pixels per inch of formats made of pixels.
    """
    date = DATES.get(Path(path).suffix.lower())
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, dpi=dpi, metadata={date: None} if date else None)


def apart(places: Sequence[float], gap: float) -> np.ndarray:
    """Moves places as little as possible until neighbors are a gap apart.

    Args:
      places: Places in increasing order, within [0, 1].
      gap: Least distance of neighbors, at most 1 / (number of places - 1).

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

    The limits of the axis must be final.

    Args:
      axis: Axis of matplotlib.
      labels: Labels of its lines.
      height: Height of the axis in inches, approximately.

    Returns:
      Whether the labels fit. If they do not, or an end is not drawn, nothing is
      written and a legend is needed.
    """
    size = 7.5
    gap = 1.25 * size / (72 * height)
    if not labels or gap * (len(labels) - 1) > 1:
        return False
    ends = axis.transData.transform([(one.x, one.y) for one in labels])
    ends = axis.transAxes.inverted().transform(ends)
    if not np.isfinite(ends).all() or ends.min() < -0.01 or ends.max() > 1.01:
        return False
    order = np.argsort(ends[:, 1], kind="stable")
    for i, place in zip(order, apart(ends[order, 1].clip(0, 1), gap), strict=True):
        color = labels[i].color
        axis.annotate(
            labels[i].text,
            xy=ends[i],
            xytext=(1.05, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize=size,
            color="0.35" if color in GREYS else color,
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": color, "shrinkB": 2},
            annotation_clip=False,
        )
    return True
