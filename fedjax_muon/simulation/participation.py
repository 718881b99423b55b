"""Who takes part in a round, and with which weight; privacy decides the cohorts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.core import Algorithm
from fedjax_muon.privacy.client_privacy import ClientPrivacy
from fedjax_muon.privacy.guarantees import Guarantee, check_left_out
from fedjax_muon.simulation.cohorts import Cohorts, fixed_cohort, poisson_cohorts
from fedjax_muon.tasks.task import Task


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
    """Finds the cohorts of a run, and makes its algorithm private if asked to.

    Args:
      algorithm: The algorithm, not private yet.
      cohort_size: S, the number of clients in a round; None with privacy.
      cohorts: Sampling of clients, `fixed_cohort` by default; None with privacy.
      privacy: Decides both, if given.

    Returns:
      The algorithm, its cohorts and the guarantee.

    Raises:
      ImportError: If privacy is asked for, and dp-accounting is not installed.
    """
    if privacy is None:
        if cohort_size is None:
            raise TypeError("give cohort_size, or privacy, which decides it")
        return Participation(algorithm, cohort_size, cohorts or fixed_cohort)
    check_left_out({"cohort_size": cohort_size, "cohorts": cohorts})
    params = jax.eval_shape(task.init, jax.random.key(0))
    private, guarantee = privacy.applied(algorithm, params, num_clients)
    full = privacy.cohort_size == num_clients
    sampling = fixed_cohort if full else poisson_cohorts(privacy.max_cohort)
    return Participation(private, privacy.cohort_size, sampling, guarantee)


def uniform(sizes: jax.Array) -> jax.Array:
    """Gives all clients the same weight, as in the papers.

    Args:
      sizes: Numbers of the clients' examples, int32 [S].

    Returns:
      Weights in the mean, float32 [S].
    """
    return jnp.ones(sizes.shape, jnp.float32)


def by_examples(sizes: jax.Array) -> jax.Array:
    """Weights clients by the numbers of their examples, as in the FedAvg paper.

    Args:
      sizes: Numbers of the clients' examples, int32 [S].

    Returns:
      Weights in the mean, float32 [S].
    """
    return sizes.astype(jnp.float32)
