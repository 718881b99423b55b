"""How much clients work, with which weight, and what privacy makes of a cohort."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Algorithm, check_count, streams
from fedjax_muon.core.variables import refuse_statistics
from fedjax_muon.privacy.client_privacy import ClientPrivacy
from fedjax_muon.privacy.guarantees import Guarantee, check_left_out
from fedjax_muon.privacy.sampling import Poisson
from fedjax_muon.simulation.batching import Clients
from fedjax_muon.simulation.clocks import Speeds
from fedjax_muon.simulation.cohorts import (
    Cohort,
    Draw,
    PoissonDraw,
    Sampled,
    as_cohort,
    fixed_cohort,
)
from fedjax_muon.tasks.task import Task
from fedjax_muon.wrappers.batch_norm import fitted


class Participation(NamedTuple):
    """An algorithm and its cohorts, and what they guarantee."""

    algorithm: Algorithm
    cohort: Cohort
    guarantee: Guarantee | None = None


def participation(
    algorithm: Algorithm,
    task: Task,
    num_clients: int,
    cohort: int | Cohort | None,
    privacy: ClientPrivacy | None,
    own_norms: bool = False,
) -> Participation:
    """Finds the cohorts of a run, and the algorithm that its model and privacy need."""
    params = jax.eval_shape(task.init, jax.random.key(0))
    algorithm = fitted(algorithm, params, own=own_norms)
    if task.project is not None:
        refuse_statistics(params, "constraints")
    if privacy is None:
        if cohort is None:
            raise TypeError("give cohort, such as cohort=8, or privacy, which has one")
        return Participation(algorithm, as_cohort(cohort))
    check_left_out({"cohort": cohort})
    refuse_statistics(params, "private runs, which bound changes of parameters")
    private, guarantee = privacy.applied(algorithm, params, num_clients)
    sampling = guarantee.spec.sampling
    drawn: Draw = fixed_cohort
    if isinstance(sampling, Poisson):
        drawn = PoissonDraw(sampling.max_batch)
    groups = privacy.cycle(num_clients)
    return Participation(
        private, Sampled(privacy.cohort, drawn, groups=groups), guarantee
    )


def uniform(sizes: jax.Array) -> jax.Array:
    """Gives all clients the same weight in the mean, as in the papers.

    Args:
      sizes: Numbers of the clients' examples, int32 [S].
    """
    return jnp.ones(sizes.shape, jnp.float32)


def by_examples(sizes: jax.Array) -> jax.Array:
    """Weights clients by the numbers of their examples, as in the FedAvg paper."""
    return sizes.astype(jnp.float32)


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
        raise ValueError("give either local_steps or local_epochs")
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


def durations_of(
    work: Work, batch_size: int, clients: Clients, speeds: Speeds, nbytes: float
) -> np.ndarray:
    """Seconds of a job of every client, float64 [N].

    Args:
      nbytes: Number of bytes that one client receives and sends.
    """
    sizes = np.asarray(clients.size)
    steps = np.full(len(sizes), work.bound(clients.max_size, batch_size))
    if (count := work.steps) is not None:
        key, ids = jax.random.key(0), jnp.arange(len(sizes))  # steps are not random
        of_client = lambda id, size: count(id, size, batch_size, key)
        steps = np.asarray(jax.vmap(of_client)(ids, clients.size))
    return steps * speeds.step + nbytes * speeds.byte
