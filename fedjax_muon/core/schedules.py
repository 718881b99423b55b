"""Schedules of learning rates, for any algorithm."""

from typing import TypeVar

import optax

from fedjax_muon.core.hyperparameters import Number, check_count
from fedjax_muon.core.recipe import recorded, with_numbers

T = TypeVar("T")


@recorded
def cosine_decay(algorithm: T, *, lr: Number, rounds: int) -> T:
    """The same algorithm, with a rate that falls from `lr` to 0 along a cosine.

    Example:
      >>> cosine_decay(fedavg(), lr=0.1, rounds=100)  # doctest: +SKIP
    """
    check_count("rounds", rounds)
    schedule = optax.cosine_decay_schedule(lr, rounds)
    return with_numbers(algorithm, {"lr": schedule})
