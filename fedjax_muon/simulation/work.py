"""The number of local steps that each client takes in a round.

    equal(5)                        # every client takes 5 steps
    of_each([1, 5, 10])             # client i takes its own number
    epochs(2)                       # 2 passes over the client's examples
    epochs(2, 5)                    # 2 to 5 of them, drawn for each client and round

`federate` makes them of its arguments `local_steps` and `local_epochs`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import check_count, streams

Epochs = int | tuple[int, ...]


class Work(NamedTuple):
    """The number of local steps of clients, and its bound."""

    # (bound of the clients' sizes, batch size) -> largest number of steps
    bound: Callable[[int, int], int]
    # (client id, its size, batch size, key) -> its steps, int32 [], at least 1; None if
    # all clients take as many as the bound
    steps: Callable[[jax.Array, jax.Array, int, jax.Array], jax.Array] | None = None


def equal(steps: int) -> Work:
    """Gives all clients the same number of local steps."""
    check_count("local_steps", steps)
    return Work(lambda max_client_size, batch_size: steps)


def of_each(steps: Sequence[int]) -> Work:
    """Gives each of the N clients its number of local steps, in the order of ids."""
    for number in steps:
        check_count("local_steps", number)
    numbers = np.asarray(steps, np.int32)
    return Work(
        lambda max_client_size, batch_size: int(numbers.max()),
        lambda client, size, batch_size, key: jnp.asarray(numbers)[client],
    )


def epochs(low: int, high: int | None = None) -> Work:
    """Gives a client with n examples floor(E n / batch_size) local steps, at least 1.

    That is the number of Wang et al. 2020, arXiv:2007.07481, whose experiments also
    draw E for each client and round.

    Args:
      low: E, the number of passes over the client's examples.
      high: If given, E is drawn uniformly from `low` to `high`.
    """
    check_count("local_epochs", low)
    most = low if high is None else high
    check_count("local_epochs", most)
    if most < low:
        raise ValueError(f"local_epochs must be (low, high), got ({low}, {high})")

    def steps(
        client: jax.Array, size: jax.Array, batch_size: int, key: jax.Array
    ) -> jax.Array:
        del client
        draw_key = jax.random.fold_in(key, streams.WORK)
        passes = jax.random.randint(draw_key, (), low, most + 1)
        return jnp.maximum(1, passes * size // batch_size)

    return Work(lambda size, batch_size: max(1, most * size // batch_size), steps)


def work_of(
    local_steps: int | Sequence[int] | None,
    local_epochs: Epochs | None,
    num_clients: int,
) -> Work:
    """Makes the work of the arguments of `federate`."""
    if (local_steps is None) == (local_epochs is None):
        raise TypeError("give either local_steps or local_epochs")
    if local_epochs is not None:
        return epochs(*_pair(local_epochs))
    steps: Any = local_steps
    if np.ndim(steps) == 0:
        return equal(steps)
    if np.shape(steps) != (num_clients,):
        raise ValueError(
            f"local_steps must be a number, or one for each of the {num_clients} "
            f"clients, got {len(steps)}"
        )
    numbers = np.asarray(steps).tolist()
    return equal(numbers[0]) if len(set(numbers)) == 1 else of_each(numbers)


def _pair(local_epochs: Epochs) -> tuple[int, ...]:
    if isinstance(local_epochs, tuple | list):
        if len(local_epochs) in (1, 2):
            return tuple(local_epochs)
        raise ValueError(
            f"local_epochs must be a number or (low, high), got {local_epochs}"
        )
    return (local_epochs,)
