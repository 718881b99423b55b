"""With JAX alone: a scan over a client's steps, inside a map over clients."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.library import dataset_of, device_bytes, loss_of, model_of, nested
from benchmarks.turns import Turns
from benchmarks.works import LR, Work, parts_of, sizes_of


def play(work: Work, weights, turns: Turns, *, cores: int, rounds: int) -> None:
    """Clients are mapped one by one on a CPU, and at once on an accelerator."""
    del cores, rounds  # XLA takes what it is given
    dataset, model = dataset_of(work), model_of(work)
    each: Any = jax.lax.map
    if jax.default_backend() != "cpu":
        each = lambda function, rows: jax.vmap(function)(rows)
    sizes = jnp.asarray(sizes_of(work), jnp.int32)
    starts = jnp.asarray([part[0] for part in parts_of(work)], jnp.int32)
    longest = int(sizes.max())
    count = work.steps * work.batch
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
        cohort = jax.random.permutation(cohort_key, work.clients)[: work.cohort]

        def client(args):
            number, key = args
            size = sizes[number]
            mark = jax.random.uniform(key, (longest,))
            order = jnp.argsort(jnp.where(jnp.arange(longest) < size, mark, 2.0))
            rows = (starts[number] + order[jnp.arange(count) % size]) % len(x)

            def step(params, rows):
                g = jax.grad(loss)(params, x[rows], y[rows])
                return jax.tree.map(lambda p, g: p - LR * g, params, g), None

            return jax.lax.scan(step, params, rows.reshape(work.steps, work.batch))[0]

        locals_ = each(client, (cohort, jax.random.split(data_key, work.cohort)))
        weights = sizes[cohort].astype(jnp.float32)
        mean = lambda p: jnp.tensordot(weights / weights.sum(), p, 1)
        return jax.tree.map(mean, locals_), key

    while turns.start():
        state = jax.block_until_ready(round(state, x, y))
        turns.stop()
    turns.finish([loss_of(work, state[0], dataset)], device_bytes())
