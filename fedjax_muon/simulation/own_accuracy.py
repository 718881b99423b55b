"""The scores of every client on its own test examples.

accuracy = own_accuracies(simulation, state)  # of what clients have now
accuracy = own_accuracies(simulation, state, steps=5, key=key)  # after 5 steps
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Objective, Params, check_count, tree
from fedjax_muon.personalization import params_of_clients
from fedjax_muon.simulation.arguments import check_key
from fedjax_muon.simulation.batching import Clients, draw_rows, objective_of
from fedjax_muon.simulation.evaluation import (
    Examples,
    OwnTests,
    client_means,
    scores,
    spread,
)
from fedjax_muon.simulation.rounds import Setup, with_inputs
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.tasks.task import Task

OF_EXAMPLES = {"correct": "test_accuracy", "loss": "test_loss"}


def own_accuracies(
    simulation: Simulation,
    state: Any,
    *,
    steps: int = 0,
    lr: float = 0.1,
    key: jax.Array | None = None,
) -> np.ndarray:
    """Evaluates every client on its own test examples.

    A client's parameters are the server's, with its own leaves by `keep_own` or its own
    model by `ditto`.

    Args:
      steps: Number of steps of gradient descent that each client first takes on its
        training examples, with the simulation's sampler and batch size.
      key: Typed key of these steps; needed if there are any.

    Returns:
      Accuracies [N], NaN for clients without test examples.

    Example:
      >>> tested = simulation.vary(test_parts=[np.arange(9)] * len(clients))
      >>> before = own_accuracies(tested, state)
      >>> after = own_accuracies(tested, state, steps=5, key=jax.random.key(0))
    """
    check_count("steps", steps, 0)
    if steps and key is None:
        raise TypeError("local steps need a key, such as key=jax.random.key(0)")
    if key is not None:
        check_key(key)
    if simulation.own_tests is None:
        raise ValueError(
            "clients have no test examples of their own; give federate test_parts"
        )
    if simulation.guarantee is not None:
        raise ValueError(
            "a private simulation does not publish the accuracies of single clients"
        )
    setup, state_of_clients = simulation.setup, state.training.client_states
    arrays: tuple[Any, ...] = (state.params, state_of_clients, simulation.clients)
    arrays += (simulation.test, simulation.own_tests)
    if setup.devices:  # evaluated on one of them
        arrays = jax.device_get(arrays)
    params, client_states, clients, test, own_tests = arrays
    rows = rows_of(own_tests, setup.num_clients)
    keys = jax.random.split(jax.random.key(0) if key is None else key, len(rows))
    arguments = _Arguments(
        params, params_of_clients(params, client_states), clients, test, rows, keys, lr
    )
    return np.asarray(simulation.programs.own(simulation.inputs, arguments, steps))


def metrics(simulation: Simulation, state: Any) -> dict[str, jax.Array]:
    """Describes the accuracies of clients with their own parameters, for evaluations.

    Returns:
      "own_accuracy_mean" and the entries of `spread` with this prefix; nothing if
      clients keep no parameters or have no test examples, or if the simulation is
      private.
    """
    kept = params_of_clients(state.params, state.training.client_states)
    has_tests = simulation.own_tests is not None and simulation.guarantee is None
    if kept is None or not has_tests:
        return {}
    accuracy = jnp.asarray(own_accuracies(simulation, state))
    each = spread(accuracy, ~jnp.isnan(accuracy)) | {"mean": jnp.nanmean(accuracy)}
    return {f"own_accuracy_{name}": value for name, value in each.items()}


def client_scores(simulation: Simulation, state: Any) -> dict[str, np.ndarray]:
    """Scores every client with the parameters of the server.

    Returns:
      Columns [N] by name: "train_examples", "test_examples", "test_accuracy" and
      "test_loss", which are NaN for clients without test examples; "own_accuracy" too,
      if clients keep parameters.
    """
    sizes = simulation.clients.size
    arguments: tuple[Any, ...] = (simulation.inputs.task, state.params)
    arguments += (simulation.test, simulation.own_tests)
    if simulation.setup.devices:  # evaluated on one of them
        sizes, arguments = jax.device_get((sizes, arguments))
    means, counts = _client_means(*arguments, len(sizes))
    columns = {"train_examples": sizes, "test_examples": counts.astype(int), **means}
    if params_of_clients(state.params, state.training.client_states) is not None:
        columns["own_accuracy"] = own_accuracies(simulation, state)
    return {name: np.asarray(column) for name, column in columns.items()}


@functools.partial(jax.jit, static_argnums=4)
def _client_means(
    task: Task, params: Params, test: Examples, own_tests: OwnTests, num_clients: int
) -> tuple[dict[str, jax.Array], jax.Array]:
    means, counts = {}, jnp.zeros(num_clients)
    for name, values in scores(task, params, *test).items():
        if name in OF_EXAMPLES:
            each = values[own_tests.ids]
            mean, counts = client_means(each, own_tests.owner, num_clients)
            means[OF_EXAMPLES[name]] = jnp.where(counts > 0, mean, jnp.nan)
    return means, counts


def program(setup: Setup) -> jax.stages.Wrapped:
    """The program of `own_accuracies`, which is compiled when it is first used."""
    return jax.jit(with_inputs(_accuracies, setup), static_argnums=2)


def rows_of(own_tests: OwnTests, num_clients: int) -> np.ndarray:
    """The ids of every client's test examples, int32 [N, most], -1 for padding."""
    ids, owner = np.asarray(own_tests.ids), np.asarray(own_tests.owner)
    counts = np.bincount(owner, minlength=num_clients)
    rows = np.full((num_clients, counts.max()), -1, np.int32)
    for client in range(num_clients):
        rows[client, : counts[client]] = ids[owner == client]
    return rows


class _Arguments(NamedTuple):
    """Arguments of the program, besides `Inputs`."""

    params: Params  # of the server
    params_of_clients: Params | None  # leaves [N, ...]
    clients: Clients
    test: tuple[jax.Array, jax.Array]
    rows: jax.Array | np.ndarray  # from `rows_of`
    keys: jax.Array  # [N]
    lr: jax.Array | float


def _accuracies(setup: Setup, arguments: _Arguments, steps: int) -> jax.Array:
    objective = objective_of(setup.task, arguments.clients)
    draw = draw_rows(arguments.clients, setup.sampler, max(steps, 1), setup.batch_size)
    x, y = arguments.test

    def one(client: jax.Array) -> jax.Array:
        params = arguments.params
        if arguments.params_of_clients is not None:
            params = jax.tree.map(lambda p: p[client], arguments.params_of_clients)
        if steps:
            key = arguments.keys[client]
            params = _tuned(objective, params, draw, client, key, arguments.lr)
        at = arguments.rows[client]
        right = setup.task.evaluate(params, x[at], y[at])["correct"]
        right = jnp.where(at >= 0, right, 0.0)
        count = jnp.sum(at >= 0)
        return jnp.where(count > 0, right.sum() / jnp.maximum(count, 1), jnp.nan)

    return jax.lax.map(one, jnp.arange(len(arguments.rows), dtype=jnp.int32))


def _tuned(
    objective: Objective,
    params: Params,
    draw: Any,
    client: jax.Array,
    key: jax.Array,
    lr: jax.Array | float,
) -> Params:
    """The parameters after steps of gradient descent on a client's batches."""
    draw_key, step_key = jax.random.split(key)
    batches = draw(client, draw_key)
    keys = jax.random.split(step_key, len(batches.ids))

    def step(x: Params, row: tuple[Any, jax.Array]) -> tuple[Params, None]:
        moved = tree.sub_scaled(x, lr, objective.grad(x, *row))
        return objective.project(moved), None

    return jax.lax.scan(step, params, (batches, keys))[0]
