"""95% confidence intervals of means over seeds: their widths, and bands of figures.

The intervals are Student's: those of independent seeds whose scores are normally
distributed. They are wide for few seeds, for example 2.5 standard deviations for three.
"""

from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from scipy import special

LEVEL = 0.95
FEW = 5  # with fewer seeds, bands are wide, and lighter so as not to hide the lines
PAIR = 2  # seeds, whose bands would hide everything
WORDS = "95% intervals"


def factor(seeds: int) -> float:
    """Half the width of an interval, in standard deviations (n - 1); NaN for one seed.

    Example:
      >>> round(factor(3), 2)
      2.48
    """
    if seeds < 2:
        return float("nan")
    return float(special.stdtrit(seeds - 1, (1 + LEVEL) / 2) / np.sqrt(seeds))


def half_width(values: Any) -> np.ndarray:
    """Half the widths of intervals, [...], of values [seeds, ...]; NaN for one seed.

    Example:
      >>> half_width([1.0, 2.0, 3.0]).round(2)
      np.float64(2.48)
    """
    values = np.asarray(values, float)
    seeds = len(values)
    return factor(seeds) * values.std(0, ddof=int(seeds > 1))


def band(
    axis: Any,
    x: Any,
    values: Any,
    *,
    lowest: float | np.ndarray = -np.inf,
    highest: float = np.inf,
    label: str | None = None,
    **style: Any,
) -> np.ndarray:
    """Draws a mean over seeds against x, and its interval as a band.

    Two seeds are drawn as thin lines instead.
    """
    values = np.asarray(values, float)
    mean, half = values.mean(0), half_width(values)
    axis.plot(x, mean, label=label, **style)
    if len(values) == PAIR:
        seeds = [np.column_stack([x, one]) for one in values]
        axis.add_collection(LineCollection(seeds, colors=style["color"], lw=0.6))
        return mean
    ends = np.clip([mean - half, mean + half], lowest, highest)
    alpha = 0.13 if len(values) >= FEW else 0.05
    axis.fill_between(x, *ends, color=style["color"], alpha=alpha, lw=0)
    return mean


def bars(means: Any, half_widths: Any, lowest: float, highest: float) -> np.ndarray:
    """Error bars that end at the least and the greatest possible value.

    Returns:
      Lengths below and above the means, [2, n], as `Axes.errorbar` takes them; 0 for
      half widths of NaN.

    Example:
      >>> bars([0.9], [0.3], 0, 1).round(1)
      array([[0.3],
             [0.1]])
    """
    means, half = np.asarray(means, float), np.nan_to_num(half_widths)
    return np.stack([np.fmin(half, means - lowest), np.fmin(half, highest - means)])


def note(seeds: int) -> str:
    """The sentence below a figure of curves; empty for one seed.

    Example:
      >>> note(3)
      'lines: means of 3 seeds; bands: 95% intervals'
    """
    if seeds == PAIR:
        return "thick lines: means of two seeds; thin lines: the seeds"
    return f"lines: means of {seeds} seeds; bands: {WORDS}" if seeds > 1 else ""
