"""A local step of ResNet-18 inside the library's round, beside the same step alone: one
jitted function, called once a step.

What a round adds is the scan over steps, the batches drawn, and the mean.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.library import dataset_of, first_weights, nested, prepare
from benchmarks.newton_schulz import in_turns
from benchmarks.works import LR, WORKS, Work, parts_of
from fedjax_muon import tasks

PER_STEP = tuple(
    f"{k}_seconds{least}" for k in ("wall", "cpu") for least in ("", "_min")
)
NAME = "cifar100_resnet18"


def work_here() -> Work:
    """One client; on a CPU with fewer steps."""
    steps = 4 if jax.default_backend() == "cpu" else WORKS[NAME].steps
    return WORKS[NAME]._replace(clients=2, cohort=1, steps=steps)


def rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Seconds of a local step, of a round's steps and of as many by themselves."""
    work = work_here()
    dataset, parts, weights = dataset_of(work), parts_of(work), first_weights(work)
    simulated = prepare(work, dataset, parts, weights=weights)
    task = simulated.setup.task
    state = simulated.init(jax.random.key(0))
    x, y = dataset.x_train, dataset.y_train
    ids = jnp.asarray(parts[0][: work.batch])

    @functools.partial(jax.jit, donate_argnums=0)
    def step(params, x, y, ids, key):
        batch = tasks.Batch(x[ids], y[ids], jnp.ones(len(ids)))
        gradient = task.grad(params, batch, key)
        return jax.tree.map(lambda p, g: p - LR * g, params, gradient)

    params, key = nested(weights), jax.random.key(0)

    def play():
        nonlocal state
        state, _ = simulated.train_round(state)
        return state.params

    def alone():
        nonlocal params
        for _ in range(work.steps):
            params = step(params, x, y, ids, key)
        return params

    spent = in_turns({"fedjax_muon": play, "one jitted step": alone}, repeats)
    least = spent["one jitted step"]
    for name, row in spent.items():
        per_step = {
            kind: round(row[kind] / work.steps, 5) for kind in row if kind in PER_STEP
        }
        ratio = row["wall_seconds"] / least["wall_seconds"]
        yield {
            "contender": name,
            "batch": work.batch,
            "steps": work.steps,
            **(row | per_step),
            "times_step_alone": round(ratio, 3),
        }
