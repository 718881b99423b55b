"""Scores of single clients and cohorts, which only some experiments need.

accuracy = fm.simulation.client_accuracies(simulation, state)  # of clients as they are
loss = fm.simulation.cohort_loss(simulation, state)  # of those that train next
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Params, check_count
from fedjax_muon.engine.programs import promoting
from fedjax_muon.simulation.arguments import check_key
from fedjax_muon.simulation.arrivals import Buffered
from fedjax_muon.simulation.client_evaluation import accuracies
from fedjax_muon.simulation.evaluation import (
    ClientTests,
    Examples,
    client_means,
    scores,
)
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.tasks.task import Task
from fedjax_muon.wrappers.personalization import params_of_clients

OF_EXAMPLES = {"correct": "test_accuracy", "loss": "test_loss"}


@promoting
def cohort_loss(simulation: Simulation, state: Any) -> jax.Array:
    """Computes the training loss of the clients that the next round samples.

    It is the weighted mean, over these clients, of the loss on the first batch that
    each will train on, at the parameters that it starts from. That takes one forward
    pass per client, and is compiled only if you call it: `train_round` itself needs
    gradients alone. `evaluate` returns the loss over the training examples of all
    clients instead.

    Args:
      simulation: From `federate`.
      state: A state of the simulation, which is not donated.

    Returns:
      A float array [], NaN if all these clients drop out.

    Example:
      >>> losses = []
      >>> for _ in range(3):
      ...     losses.append(fm.simulation.cohort_loss(simulation, state))
      ...     state, metrics = simulation.train_round(state)
    """
    simulation.check_state(state)
    if simulation.compiled.loss is None:
        raise ValueError(
            "a decentralized simulation has no cohorts; evaluate(state) returns "
            "train_loss"
        )
    if simulation.guarantee is not None:
        raise ValueError("a private simulation does not publish training losses")
    if isinstance(simulation.meter.cohort, Buffered):
        raise ValueError(
            "clients of asynchronous rounds start from different parameters; "
            "evaluate(state) returns train_loss"
        )
    run = simulation.meter.timed(state.key, state.round, 1)
    arrays, cohort = simulation.reads(run, state.key, state.round)()
    loss = lambda state: (state, simulation.compiled.loss(*arrays, state))
    return simulation.run_rows(loss, state, cohort)[1]


@promoting
def client_accuracies(
    simulation: Simulation,
    state: Any,
    *,
    steps: int = 0,
    lr: float = 0.1,
    key: jax.Array | None = None,
) -> np.ndarray:
    """Evaluates every client of a federation on its own test examples.

    A client's parameters are the server's, with its own leaves by `keep_own` or its own
    model by `ditto`.

    Args:
      simulation: From `federate`, with `test_parts`.
      state: A state of the simulation, which is not donated.
      steps: Number of steps of gradient descent that each client first takes on its
        training examples, with the simulation's sampler and batch size.
      lr: Learning rate of these steps.
      key: Typed key of these steps; needed if there are any.

    Returns:
      Accuracies [N], NaN for clients without test examples.

    Example:
      >>> tested = simulation.at(test_parts=[np.arange(9)] * len(clients))
      >>> before = fm.simulation.client_accuracies(tested, state)
      >>> key = jax.random.key(0)
      >>> after = fm.simulation.client_accuracies(tested, state, steps=5, key=key)
    """
    check_count("steps", steps, 0)
    if steps and key is None:
        raise TypeError("local steps need a key, such as key=jax.random.key(0)")
    if key is not None:
        check_key(key)
    _check_client_tests(simulation)
    if steps and simulation.source is not None:
        raise ValueError(
            "steps train on the examples of all clients, which stay on disk; leave out "
            "steps, or read the examples into memory with data.from_npz"
        )
    arrays = simulation.data, simulation.run, state
    return accuracies(simulation.settings, *arrays, steps, lr, key)


def client_scores(simulation: Simulation, state: Any) -> dict[str, np.ndarray]:
    """Scores every client on its test examples, with the parameters of the server.

    Args:
      simulation: From `federate`, with `test_parts`.
      state: A state of the simulation, which is not donated.

    Returns:
      Columns [N] by name: "train_examples", "test_examples", "test_accuracy" and
      "test_loss", which are NaN for clients without test examples; "personal_accuracy"
      too, if clients keep parameters.
    """
    _check_client_tests(simulation)
    settings, data, run = simulation.settings, simulation.data, simulation.run
    sizes = run.partition.size
    arguments: tuple[Any, ...] = (data.task, state.params, data.test, run.client_tests)
    if settings.devices:  # evaluated on one of them
        sizes, arguments = jax.device_get((sizes, arguments))
    means, counts = _client_means(*arguments, len(sizes))
    columns = {"train_examples": sizes, "test_examples": counts.astype(int), **means}
    if params_of_clients(state.params, state.training.client_states) is not None:
        columns["personal_accuracy"] = accuracies(settings, data, run, state)
    return {name: np.asarray(column) for name, column in columns.items()}


def _check_client_tests(simulation: Simulation) -> None:
    if simulation.run.client_tests is None:
        raise ValueError(
            "clients have no test examples of their own; give federate test_parts"
        )
    if simulation.guarantee is not None:
        raise ValueError(
            "a private simulation does not publish the accuracies of single clients"
        )


@functools.partial(jax.jit, static_argnums=4)
def _client_means(
    task: Task,
    params: Params,
    test: Examples,
    client_tests: ClientTests,
    num_clients: int,
) -> tuple[dict[str, jax.Array], jax.Array]:
    means, counts = {}, jnp.zeros(num_clients)
    for name, values in scores(task, params, *test).items():
        if name in OF_EXAMPLES:
            each = values[client_tests.ids]
            mean, counts = client_means(each, client_tests.owner, num_clients)
            means[OF_EXAMPLES[name]] = jnp.where(counts > 0, mean, jnp.nan)
    return means, counts
