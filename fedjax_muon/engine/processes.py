"""What processes that run one program together (`jax.distributed`) agree on."""

from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils


def is_first() -> bool:
    """Whether this process is the one that writes files."""
    return jax.process_index() == 0


def agreed(value: float) -> float:
    """The first process's value. All must call it at the same time."""
    if jax.process_count() == 1:
        return value
    return float(multihost_utils.broadcast_one_to_all(np.float64(value)))


def first_does(act: Callable[[], object]) -> None:
    """What the first process alone does. If it raises `ValueError` or `OSError`, all
    raise; they must call this at the same time."""
    error: Exception | None = None
    if is_first():
        try:
            act()
        except (ValueError, OSError) as raised:
            error = raised
    if agreed(error is not None):
        raise error or ValueError("refused by the first process, which says why")


def whole(x: jax.Array) -> np.ndarray:
    """All of an array, also if parts of it lie with other processes, which must then
    call this at the same time."""
    if x.is_fully_addressable:
        return np.asarray(x)
    return np.asarray(multihost_utils.process_allgather(x, tiled=True))
