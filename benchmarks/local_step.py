"""A local step of ResNet-18 inside the library's round, and the same step alone.

The step alone is one jitted function that is called once per step. A round adds the
scan over steps, the draw of batches, and the mean.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.library import dataset_of, first_weights, nested, prepare
from benchmarks.newton_schulz import in_turns
from benchmarks.workloads import LR, WORKLOADS, Workload, parts_of
from fedjax_muon import tasks

PER_STEP = tuple(
    f"{k}_seconds{least}" for k in ("wall", "cpu") for least in ("", "_min")
)
NAME = "cifar100_resnet18"


def workload_here() -> Workload:
    """Returns the workload with one client per round, and fewer steps on a CPU."""
    steps = 4 if jax.default_backend() == "cpu" else WORKLOADS[NAME].steps
    return WORKLOADS[NAME]._replace(clients=2, cohort=1, steps=steps)


def rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yields the seconds of a step inside a round, and of a step alone."""
    workload = workload_here()
    dataset, parts, weights = (
        dataset_of(workload),
        parts_of(workload),
        first_weights(workload),
    )
    simulation = prepare(workload, dataset, parts, weights=weights)
    task = simulation.settings.task
    state = simulation.init(jax.random.key(0))
    x, y = dataset.x_train, dataset.y_train
    ids = jnp.asarray(parts[0][: workload.batch])

    @functools.partial(jax.jit, donate_argnums=0)
    def step(params, x, y, ids, key):
        batch = tasks.Batch(x[ids], y[ids], jnp.ones(len(ids)))
        gradient = task.grad(params, batch, key)
        return jax.tree.map(lambda p, g: p - LR * g, params, gradient)

    params, key = nested(weights), jax.random.key(0)

    def run_round():
        nonlocal state
        state, _ = simulation.train_round(state)
        return state.params

    def alone():
        nonlocal params
        for _ in range(workload.steps):
            params = step(params, x, y, ids, key)
        return params

    spent = in_turns({"fedjax_muon": run_round, "one jitted step": alone}, repeats)
    least = spent["one jitted step"]
    for name, row in spent.items():
        per_step = {
            kind: round(row[kind] / workload.steps, 5)
            for kind in row
            if kind in PER_STEP
        }
        ratio = row["wall_seconds"] / least["wall_seconds"]
        yield {
            "contender": name,
            "batch": workload.batch,
            "steps": workload.steps,
            **(row | per_step),
            "times_step_alone": round(ratio, 3),
        }
