"""Coordination of processes that run one program together (`jax.distributed`)."""

from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils


def is_first() -> bool:
    """Whether this is the first process, which writes the files of a run."""
    return jax.process_index() == 0


def broadcast_from_first(value: float) -> float:
    """Sends a number from the first process to all of them.

    All processes must call this function at the same time.
    """
    if jax.process_count() == 1:
        return value
    return float(multihost_utils.broadcast_one_to_all(np.float64(value)))


def words_from_first(words: np.ndarray) -> np.ndarray:
    """Sends 32-bit words from the first process to all of them.

    All processes must call this function at the same time.
    """
    if jax.process_count() == 1:
        return words
    return np.asarray(multihost_utils.broadcast_one_to_all(words))


def run_on_first(act: Callable[[], object]) -> None:
    """Calls a function in the first process only.

    All processes must call this function at the same time.

    Raises:
      OSError: In the first process, if `act` raises it; the others raise `ValueError`.
    """
    error: Exception | None = None
    if is_first():
        try:
            act()
        except (ValueError, OSError) as raised:
            error = raised
    if broadcast_from_first(error is not None):
        raise error or ValueError("the first process failed; its message says why")


def full_array(x: jax.Array | np.ndarray) -> np.ndarray:
    """Copies an array to the host, including the parts on other processes.

    All processes must call this function at the same time if there are such parts.
    """
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return np.asarray(x)
    return np.asarray(multihost_utils.process_allgather(x, tiled=True))
