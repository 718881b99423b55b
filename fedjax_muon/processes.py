"""What processes that run one program together (`jax.distributed`) agree on."""

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


def whole(x: jax.Array) -> np.ndarray:
    """All of an array, also if parts of it lie with other processes, which must then
    call this at the same time."""
    if x.is_fully_addressable:
        return np.asarray(x)
    return np.asarray(multihost_utils.process_allgather(x, tiled=True))
