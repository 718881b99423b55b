"""FedJAX: its federated averaging, with one jitted step per batch."""

from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.library import dataset_of, device_bytes, loss_of, model_of, nested
from benchmarks.turns import Turns
from benchmarks.workloads import LR, Workload, parts_of
from fedjax_muon import tasks


def run(workload: Workload, weights, turns: Turns, *, cores: int, rounds: int) -> None:
    """Runs rounds with its default backend on JAX's default device."""
    del cores, rounds
    dataset, parts = dataset_of(workload), parts_of(workload)
    x, y = np.asarray(dataset.x_train), np.asarray(dataset.y_train)
    gradient = tasks.classification(model_of(workload), workload.example).grad

    def grad_fn(params, batch, key):
        ones = jnp.ones(workload.batch)
        return gradient(params, tasks.Batch(batch["x"], batch["y"], ones), key)

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        grad_fn,
        fedjax.optimizers.sgd(LR),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=workload.batch, num_epochs=None, num_steps=workload.steps
        ),
    )
    state: Any = algorithm.init(nested(weights))
    rng, key = np.random.default_rng(0), jax.random.PRNGKey(0)
    while turns.start():
        cohort = rng.choice(workload.clients, workload.cohort, replace=False)
        key, *keys = jax.random.split(key, workload.cohort + 1)
        clients = [
            (i, fedjax.ClientDataset({"x": x[parts[i]], "y": y[parts[i]]}), key_of_i)
            for i, key_of_i in zip(cohort, keys, strict=True)
        ]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        turns.stop()
    turns.finish([loss_of(workload, state.params, dataset)], device_bytes())
