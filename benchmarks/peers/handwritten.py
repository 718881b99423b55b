"""Hand-written JAX: a scan over a client's steps, inside a map over clients."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.library import dataset_of, device_bytes, loss_of, model_of, nested
from benchmarks.turns import Turns
from benchmarks.workloads import LR, Workload, parts_of, sizes_of


def run(workload: Workload, weights, turns: Turns, *, cores: int, rounds: int) -> None:
    """Runs clients sequentially on a CPU and in parallel on an accelerator."""
    del cores, rounds  # XLA uses the cores that the process is bound to
    dataset, model = dataset_of(workload), model_of(workload)
    each: Any = jax.lax.map
    if jax.default_backend() != "cpu":
        each = lambda function, rows: jax.vmap(function)(rows)
    sizes = jnp.asarray(sizes_of(workload), jnp.int32)
    starts = jnp.asarray([part[0] for part in parts_of(workload)], jnp.int32)
    longest = int(sizes.max())
    count = workload.steps * workload.batch
    state: Any = nested(weights), jax.random.key(1)
    x, y = dataset.x_train, dataset.y_train

    def loss(params, x, y):
        logits: Any = model.apply({"params": params}, x)
        logits = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(logits, y[:, None], 1))

    @functools.partial(jax.jit, donate_argnums=0)
    def round(state, x, y):
        params, key = state
        cohort_key, data_key, key = jax.random.split(key, 3)
        cohort = jax.random.permutation(cohort_key, workload.clients)[: workload.cohort]

        def client(args):
            number, key = args
            size = sizes[number]
            mark = jax.random.uniform(key, (longest,))
            order = jnp.argsort(jnp.where(jnp.arange(longest) < size, mark, 2.0))
            rows = (starts[number] + order[jnp.arange(count) % size]) % len(x)

            def step(params, rows):
                g = jax.grad(loss)(params, x[rows], y[rows])
                return jax.tree.map(lambda p, g: p - LR * g, params, g), None

            return jax.lax.scan(
                step, params, rows.reshape(workload.steps, workload.batch)
            )[0]

        locals_ = each(client, (cohort, jax.random.split(data_key, workload.cohort)))
        weights = sizes[cohort].astype(jnp.float32)
        mean = lambda p: jnp.tensordot(weights / weights.sum(), p, 1)
        return jax.tree.map(mean, locals_), key

    while turns.start():
        state = jax.block_until_ready(round(state, x, y))
        turns.stop()
    turns.finish([loss_of(workload, state[0], dataset)], device_bytes())
