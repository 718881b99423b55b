"""Weights of messages by their staleness, for asynchronous rounds.

The staleness of a message counts the server steps between the broadcast that its client
started from and its arrival. A function maps it, int32 [S], to factors of the messages.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_muon.core import check_range

Staleness = Callable[[jax.Array], jax.Array]


def constant() -> Staleness:
    """Late messages count as much as new ones."""
    return lambda late: jnp.ones(late.shape)


def polynomial(exponent: float = 0.5) -> Staleness:
    """(1 + staleness)^-exponent (FedAsync, arXiv:1903.03934; 0.5 in FedBuff)."""
    check_range("exponent", exponent, schedules=False)
    return lambda late: (1.0 + late) ** -exponent


def hinge(slope: float = 10.0, delay: float = 4.0) -> Staleness:
    """1 up to a delay, then 1 / (slope (staleness - delay) + 1) (FedAsync)."""
    check_range("slope", slope, schedules=False)
    check_range("delay", delay, schedules=False)
    return lambda late: 1.0 / (slope * jnp.maximum(late - delay, 0.0) + 1.0)


def inverse(delay: float = 1.0) -> Staleness:
    """1 up to a delay, then 1 / staleness: the damping of FADAS (arXiv:2407.18365).

    It is a factor of the rate, as in the authors' code; a summary of the paper has
    min(rate, 1 / staleness) instead, which damps nothing at a rate of 0.001.
    """
    check_range("delay", delay, 1.0, schedules=False)
    return lambda late: jnp.where(late <= delay, 1.0, 1.0 / jnp.maximum(late, 1))
