"""Who takes part in a round.

Cohorts are drawn as `cohorts(key, num_clients, cohort_size) -> (ids, joins)`: distinct
ids, int32 [room], and bool [room], which of them take part. The others are places that
the program holds but nobody fills.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Cohorts = Callable[[jax.Array, int, int], tuple[jax.Array, jax.Array]]


def fixed_cohort(key, num_clients: int, cohort_size: int):
    """Exactly `cohort_size` clients, a uniform subset."""
    everyone = jnp.arange(num_clients, dtype=jnp.int32)
    ids = jax.random.choice(key, everyone, (cohort_size,), replace=False)
    return ids, jnp.ones(cohort_size, bool)


def poisson_cohorts(room: int | None = None) -> Cohorts:
    """Every client joins independently, with chance cohort_size / num_clients.

    At most `room` take part, a uniform part of those who joined; there is room for all
    by default. What privacy accounting calls (truncated) Poisson sampling. Raises
    `ValueError` for less room than cohort_size or more than num_clients, when used.
    """

    def draw(key, num_clients, cohort_size):
        places = num_clients if room is None else room
        if not cohort_size <= places <= num_clients:
            raise ValueError(
                f"room must lie between the cohort_size {cohort_size} and the "
                f"{num_clients} clients, got {room}"
            )
        coins, order = jax.random.split(key)
        chance = cohort_size / num_clients
        joins = jax.random.uniform(coins, (num_clients,)) < chance
        # marks of those who join are above all others: the largest are a uniform part
        mark = jax.random.uniform(order, (num_clients,))
        top, ids = jax.lax.top_k(jnp.where(joins, 1 + mark, mark), places)
        return ids.astype(jnp.int32), top >= 1

    return draw
