"""Sampling of the clients that take part in a round.

Cohorts are drawn as `cohorts(key, num_clients, cohort_size) -> (ids, joins)`. The ids,
int32 [room], are distinct, and `joins`, bool [room], marks those that take part. The
others are padding.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Cohorts = Callable[[jax.Array, int, int], tuple[jax.Array, jax.Array]]


def fixed_cohort(
    key: jax.Array, num_clients: int, cohort_size: int
) -> tuple[jax.Array, jax.Array]:
    """Draws exactly `cohort_size` clients, a uniform subset.

    Args:
      cohort_size: S, the number of clients that take part.

    Returns:
      Client ids, int32 [S], and True for all of them, bool [S].
    """
    all_clients = jnp.arange(num_clients, dtype=jnp.int32)
    ids = jax.random.choice(key, all_clients, (cohort_size,), replace=False)
    return ids, jnp.ones(cohort_size, bool)


def poisson_cohorts(room: int | None = None) -> Cohorts:
    """Makes a function for (truncated) Poisson sampling, as in privacy accounting.

    Every client joins independently with probability cohort_size / num_clients. If more
    than `room` clients join, a uniform subset takes part.

    Args:
      room: Largest number of clients in a round; all of them by default.

    Returns:
      A function that draws cohorts. It raises `ValueError` unless `room` is between
      `cohort_size` and `num_clients`.
    """

    def draw(
        key: jax.Array, num_clients: int, cohort_size: int
    ) -> tuple[jax.Array, jax.Array]:
        places = num_clients if room is None else room
        if not cohort_size <= places <= num_clients:
            raise ValueError(
                f"room must lie between the cohort_size {cohort_size} and the "
                f"{num_clients} clients, got {room}"
            )
        coins, order = jax.random.split(key)
        chance = cohort_size / num_clients
        joins = jax.random.uniform(coins, (num_clients,)) < chance
        # Clients that join have the largest marks; the top ones are a uniform subset.
        mark = jax.random.uniform(order, (num_clients,))
        top, ids = jax.lax.top_k(jnp.where(joins, 1 + mark, mark), places)
        return ids.astype(jnp.int32), top >= 1

    return draw
