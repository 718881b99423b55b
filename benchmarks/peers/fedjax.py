"""With FedJAX: its federated averaging, a jitted step a batch."""

from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.library import dataset_of, device_bytes, loss_of, model_of, nested
from benchmarks.turns import Turns
from benchmarks.works import LR, Work, parts_of
from fedjax_muon import tasks


def play(work: Work, weights, turns: Turns, *, cores: int, rounds: int) -> None:
    """Its default backend for JAX's default device."""
    del cores, rounds
    dataset, parts = dataset_of(work), parts_of(work)
    x, y = np.asarray(dataset.x_train), np.asarray(dataset.y_train)
    gradient = tasks.classification(model_of(work), work.example).grad

    def grad_fn(params, batch, key):
        ones = jnp.ones(work.batch)
        return gradient(params, tasks.Batch(batch["x"], batch["y"], ones), key)

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        grad_fn,
        fedjax.optimizers.sgd(LR),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=work.batch, num_epochs=None, num_steps=work.steps
        ),
    )
    state: Any = algorithm.init(nested(weights))
    rng, key = np.random.default_rng(0), jax.random.PRNGKey(0)
    while turns.start():
        cohort = rng.choice(work.clients, work.cohort, replace=False)
        key, *keys = jax.random.split(key, work.cohort + 1)
        clients = [
            (i, fedjax.ClientDataset({"x": x[parts[i]], "y": y[parts[i]]}), keys[place])
            for place, i in enumerate(cohort)
        ]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        turns.stop()
    turns.finish([loss_of(work, state.params, dataset)], device_bytes())
