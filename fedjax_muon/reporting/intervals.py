"""95 % confidence intervals of means over seeds: their widths, and bands of figures.

The intervals are Student's: those of independent seeds whose scores are normally
distributed. They are wide for few seeds, for example 2.5 standard deviations for three.
"""

from typing import Any

import numpy as np
from scipy import stats

LEVEL = 0.95
WORDS = "95 % intervals"


def factor(seeds: int) -> float:
    """Returns half the width of an interval, in standard deviations (n - 1) of seeds.

    Returns:
      The factor; NaN for one seed, whose mean has no interval.

    Example:
      >>> round(factor(3), 2)
      2.48
    """
    if seeds < 2:
        return float("nan")
    return float(stats.t.ppf((1 + LEVEL) / 2, seeds - 1) / np.sqrt(seeds))


def half_width(values: Any) -> np.ndarray:
    """Returns half the width of the interval of a mean.

    Args:
      values: Values of the seeds, [seeds, ...].

    Returns:
      Half widths, [...]; NaN for one seed.

    Example:
      >>> half_width([1.0, 2.0, 3.0]).round(2)
      np.float64(2.48)
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return factor(len(values)) * values.std(0, ddof=1)


def band(
    axis: Any,
    x: Any,
    values: Any,
    *,
    lowest: float = -np.inf,
    highest: float = np.inf,
    label: str | None = None,
    **style: Any,
) -> np.ndarray:
    """Draws a mean over seeds against x, and its interval as a band.

    Args:
      axis: Axis of matplotlib.
      x: Places of the values, [n].
      values: Values of the seeds, [seeds, n].
      lowest: Least possible value, such as 0 for an accuracy; bands end there.
      highest: Greatest possible value.
      label: Label of the line.
      **style: Color and style of the line.

    Returns:
      The mean, [n].
    """
    values = np.asarray(values, float)
    mean, half = values.mean(0), half_width(values)
    axis.plot(x, mean, label=label, **style)
    ends = np.clip([mean - half, mean + half], lowest, highest)
    axis.fill_between(x, *ends, color=style["color"], alpha=0.13, lw=0)
    return mean


def bars(means: Any, half_widths: Any, lowest: float, highest: float) -> np.ndarray:
    """Returns error bars that end at the least and the greatest possible value.

    Args:
      means: Means, [n].
      half_widths: Half the widths of their intervals, [n]; NaN is none.
      lowest: Least possible value.
      highest: Greatest possible value.

    Returns:
      Lengths below and above the means, [2, n], as `Axes.errorbar` takes them.

    Example:
      >>> bars([0.9], [0.3], 0, 1).round(1)
      array([[0.3],
             [0.1]])
    """
    means, half = np.asarray(means, float), np.nan_to_num(half_widths)
    return np.stack([np.fmin(half, means - lowest), np.fmin(half, highest - means)])


def note(seeds: int) -> str:
    """Returns the sentence below a figure of curves.

    Returns:
      The sentence; empty for one seed.

    Example:
      >>> note(3)
      'lines: means of 3 seeds; bands: 95 % intervals'
    """
    return f"lines: means of {seeds} seeds; bands: {WORDS}" if seeds > 1 else ""
