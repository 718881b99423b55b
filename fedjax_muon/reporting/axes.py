"""Axes of figures: scales, ticks and the line of a target."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter


def logarithmic(axis: Any, values: Any) -> None:
    """Makes the x axis logarithmic, with labels that do not overlap."""
    decades = np.log10(max(values) / min(values))
    steps = (1.0,) if decades > 2 else (1.0, 2.0, 5.0)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=steps))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())


def logarithmic_loss(axis: Any) -> None:
    """Makes the y axis logarithmic, down to the smallest mean and not to a band."""
    means = np.concatenate([np.ravel(line.get_ydata()) for line in axis.get_lines()])
    shown = means[np.isfinite(means) & (means > 0)]
    if len(shown):
        axis.set_yscale("log")
        axis.set_ylim(bottom=shown.min() / (shown.max() / shown.min()) ** 0.04 / 1.05)


def target_line(axis: Any, target: float, means: Sequence[np.ndarray]) -> None:
    """Draws the target, and shows the scores around it and all last scores."""
    highest = max(float(np.max(mean)) for mean in means)
    if highest < target:  # of AUCs below 1/2, which no method reaches
        return
    axis.axhline(target, color="0.4", lw=0.8, ls=":")
    lowest = min(float(mean[-1]) for mean in means)
    room = max(highest - target, 1e-3)
    bottom = min(target - 3 * room, lowest - 0.5 * room)
    axis.set_ylim(bottom, highest + 0.5 * room)
    axis.annotate(
        f"target {target:.3g}",
        (1.0, target),
        xycoords=axis.get_yaxis_transform(),
        xytext=(-2, -3),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=7.5,
        color="0.35",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
    )


def tick_labels(values: Sequence[float], *, logarithmic: bool) -> list[str]:
    """Returns labels of ticks, empty where they would cover their neighbors."""
    places = np.log(values) if logarithmic else np.array(values, float)
    places = (places - places[0]) / ((places[-1] - places[0]) or 1.0)
    labels, last = [f"{values[-1]:g}"], places[-1]
    for i in range(len(values) - 2, -1, -1):
        free = last - places[i] > 0.2 and (i == 0 or places[i] > 0.2)
        labels.append(f"{values[i]:g}" if free else "")
        last = places[i] if free else last
    return labels[::-1]
