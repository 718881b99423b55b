"""Who takes part in a round, and with which weight; privacy decides the cohorts.

Cohorts are drawn as `cohorts(key, num_clients, cohort_size) -> (ids, joins)`. The ids,
int32 [room], are distinct, and `joins`, bool [room], marks those that take part. The
others are padding.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.core import Algorithm
from fedjax_muon.privacy.client_privacy import ClientPrivacy
from fedjax_muon.privacy.guarantees import Guarantee, check_left_out
from fedjax_muon.privacy.sampling import Poisson
from fedjax_muon.tasks.task import Task

Cohorts = Callable[[jax.Array, int, int], tuple[jax.Array, jax.Array]]


def fixed_cohort(
    key: jax.Array, num_clients: int, cohort_size: int
) -> tuple[jax.Array, jax.Array]:
    """Draws exactly `cohort_size` clients, a uniform subset."""
    all_clients = jnp.arange(num_clients, dtype=jnp.int32)
    ids = jax.random.choice(key, all_clients, (cohort_size,), replace=False)
    return ids, jnp.ones(cohort_size, bool)


def poisson_cohorts(room: int | None = None) -> Cohorts:
    """Makes a function for (truncated) Poisson sampling, as in privacy accounting.

    Every client joins independently with probability cohort_size / num_clients. If more
    than `room` clients join, a uniform subset takes part.

    The function raises `ValueError` unless `room` is between `cohort_size` and
    `num_clients`.
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


class Participation(NamedTuple):
    """An algorithm and its cohorts, and what they guarantee."""

    algorithm: Algorithm
    cohort_size: int
    cohorts: Cohorts
    guarantee: Guarantee | None = None


def participation(
    algorithm: Algorithm,
    task: Task,
    num_clients: int,
    cohort_size: int | None,
    cohorts: Cohorts | None,
    privacy: ClientPrivacy | None,
) -> Participation:
    """Finds the cohorts of a run, and makes its algorithm private if asked to."""
    if privacy is None:
        if cohort_size is None:
            raise TypeError("give cohort_size, or privacy, which decides it")
        return Participation(algorithm, cohort_size, cohorts or fixed_cohort)
    check_left_out({"cohort_size": cohort_size, "cohorts": cohorts})
    params = jax.eval_shape(task.init, jax.random.key(0))
    private, guarantee = privacy.applied(algorithm, params, num_clients)
    sampling = guarantee.spec.sampling
    drawn: Cohorts = fixed_cohort
    if isinstance(sampling, Poisson):
        drawn = poisson_cohorts(sampling.max_batch)
    return Participation(private, privacy.cohort_size, drawn, guarantee)


def uniform(sizes: jax.Array) -> jax.Array:
    """Gives all clients the same weight in the mean, as in the papers.

    Args:
      sizes: Numbers of the clients' examples, int32 [S].
    """
    return jnp.ones(sizes.shape, jnp.float32)


def by_examples(sizes: jax.Array) -> jax.Array:
    """Weights clients by the numbers of their examples, as in the FedAvg paper."""
    return sizes.astype(jnp.float32)
