"""Early stopping, as a callback of `train`."""

import math
from collections.abc import Callable
from typing import Any, Literal

from fedjax_muon.simulation.arguments import check_count


def early_stopping(
    column: str,
    *,
    patience: int,
    mode: Literal["min", "max"],
    min_change: float = 0.0,
) -> Callable[[Any, dict[str, Any]], bool]:
    """Makes a callback that ends training when a metric no longer improves.

    Use a metric of training or validation examples: a test score that decides when to
    stop is no longer an estimate for new examples.

    Args:
      column: Name of the metric, such as "train_loss".
      patience: Number of evaluations in a row without improvement after which training
        ends.
      mode: Whether smaller ("min") or larger ("max") values are better.
      min_change: Smallest change of the best value that is an improvement.

    Returns:
      A callback for one call of `train`. It raises `ValueError` if there is no such
      metric.
    """
    check_count("patience", patience)
    if mode not in ("min", "max"):
        raise ValueError(f'mode must be "min" or "max", got {mode!r}')
    if not min_change >= 0:
        raise ValueError(f"min_change must be at least 0, got {min_change}")
    sign = 1.0 if mode == "max" else -1.0
    best, waited = -math.inf, 0

    def callback(state: Any, record: dict[str, Any]) -> bool:
        nonlocal best, waited
        del state
        if column not in record:
            raise ValueError(
                f"there is no metric {column!r}; there are {', '.join(record)}"
            )
        value = sign * record[column]
        if value > best + min_change:
            best, waited = value, 0
        else:  # also if the value is NaN
            waited += 1
        return waited >= patience

    return callback
