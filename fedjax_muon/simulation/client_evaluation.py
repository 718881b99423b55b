"""The accuracies of every client on its own test examples."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Objective, Params, Variables, tree
from fedjax_muon.simulation.batching import (
    Clients,
    Sampler,
    draw_rows,
    objective_of,
)
from fedjax_muon.simulation.evaluation import (
    ClientTests,
    spread,
)
from fedjax_muon.simulation.program import Data, Run
from fedjax_muon.wrappers.personalization import params_of_clients


def accuracies(
    settings: Any,
    data: Data,
    run: Run,
    state: Any,
    steps: int = 0,
    lr: float = 0.1,
    key: jax.Array | None = None,
) -> np.ndarray:
    """Evaluates every client on its own test examples.

    See `scores.client_accuracies`.
    """
    kept = params_of_clients(state.params, state.training.client_states)
    params: tuple[Any, Any] = (state.params, kept)
    if settings.devices:  # evaluated on one of them
        data, run, params = jax.device_get((data, run, params))
    assert run.client_tests is not None
    rows = rows_of(run.client_tests, len(run.partition.size))
    keys = jax.random.split(jax.random.key(0) if key is None else key, len(rows))
    fixed = settings.sampler, settings.batch_size, steps
    found = _accuracies(*fixed, (data, run.partition), params, rows, keys, lr)
    return np.asarray(found)


def metrics(settings: Any, data: Data, run: Run, state: Any) -> dict[str, jax.Array]:
    """Describes the accuracies of clients with their own parameters, for evaluations.

    Returns:
      "personal_accuracy_mean" and the entries of `spread` with this prefix; nothing if
      clients keep no parameters or have no test examples.
    """
    if run.client_tests is None:
        return {}
    if params_of_clients(state.params, state.training.client_states) is None:
        return {}
    accuracy = jnp.asarray(accuracies(settings, data, run, state))
    each = spread(accuracy, ~jnp.isnan(accuracy)) | {"mean": jnp.nanmean(accuracy)}
    return {f"personal_accuracy_{name}": value for name, value in each.items()}


def rows_of(client_tests: ClientTests, num_clients: int) -> np.ndarray:
    """The ids of every client's test examples, int32 [N, most], -1 for padding."""
    ids, owner = np.asarray(client_tests.ids), np.asarray(client_tests.owner)
    counts = np.bincount(owner, minlength=num_clients)
    rows = np.full((num_clients, counts.max()), -1, np.int32)
    for client in range(num_clients):
        rows[client, : counts[client]] = ids[owner == client]
    return rows


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _accuracies(
    sampler: Sampler,
    batch_size: int,
    steps: int,
    examples: tuple[Data, Any],  # data and partition
    params: tuple[Params, Params | None],  # of the server, and of clients [N, ...]
    rows: jax.Array,  # from `rows_of`
    keys: jax.Array,  # [N]
    lr: jax.Array | float,
) -> jax.Array:
    (data, partition), (of_server, of_clients) = examples, params
    clients = Clients(data.x, data.y, partition)
    objective = objective_of(data.task, clients)
    draw = draw_rows(clients, sampler, max(steps, 1), batch_size)
    x, y = data.test

    def one(client: jax.Array) -> jax.Array:
        own = of_server
        if of_clients is not None:
            own = jax.tree.map(lambda p: p[client], of_clients)
        if steps:
            own = _tuned(objective, own, draw, client, keys[client], lr)
        at = rows[client]
        right = data.task.evaluate(own, x[at], y[at])["correct"]
        right = jnp.where(at >= 0, right, 0.0)
        count = jnp.sum(at >= 0)
        return jnp.where(count > 0, right.sum() / jnp.maximum(count, 1), jnp.nan)

    return jax.lax.map(one, jnp.arange(len(rows), dtype=jnp.int32))


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
        g = objective.grad(x, *row)
        moved = tree.sub_scaled(x, lr, g)
        if isinstance(x, Variables):
            moved = moved._replace(batch_stats=g.batch_stats)
        return objective.project(moved), None

    return jax.lax.scan(step, params, (batches, keys))[0]
