"""95% confidence intervals of means over seeds: their widths, and curves of figures.

The intervals are Student's: those of independent seeds whose scores are normally
distributed. They are wide for few seeds, for example 2.5 standard deviations for three.
"""

from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from scipy import special

LEVEL = 0.95
PAIR = 2  # seeds, whose intervals would hide everything
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


def curve(axis: Any, x: Any, values: Any, **style: Any) -> np.ndarray:
    """Draws a mean over seeds against x, and two seeds as thin lines beside it.

    Args:
      values: Values for all seeds, [seeds, x].
    """
    values = np.asarray(values, float)
    mean = values.mean(0)
    axis.plot(x, mean, **style)
    if len(values) == PAIR:
        seeds = [np.column_stack([x, one]) for one in values]
        axis.add_collection(LineCollection(seeds, colors=style["color"], lw=0.6))
    return mean


def ends(values: Any, lowest: float, highest: float) -> np.ndarray:
    """The ends of the interval of a mean over seeds; NaN for two seeds or one.

    Example:
      >>> ends([0.8, 0.9, 1.0], 0, 1).round(2)
      array([0.65, 1.  ])
    """
    half = float(half_width(values)) if len(values) > PAIR else np.nan
    return np.clip(np.mean(values) + np.array([-half, half]), lowest, highest)


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
      'lines: means of 3 seeds; bars at their ends: 95% intervals'
    """
    if seeds == PAIR:
        return "thick lines: means of two seeds; thin lines: the seeds"
    lines = f"lines: means of {seeds} seeds; bars at their ends: {WORDS}"
    return lines if seeds > 1 else ""
