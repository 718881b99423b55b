"""The library's contender: FedAvg, FedMuon (whole or in blocks), Local AdamW."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from benchmarks.turns import Turns
from benchmarks.workloads import LR, Workload, arrays_of, parts_of, probed
from fedjax_muon import algorithms, data, models, simulation, tasks
from fedjax_muon.core import Algorithm
from fedjax_muon.transforms import by_rank, orthogonalize_blocks

# at their default learning rates, except for FedAvg
ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": partial(algorithms.fedavg, lr=LR),
    "fedmuon": algorithms.fedmuon,
    "fedmuon_blocks": partial(
        algorithms.fedmuon, rule=by_rank(orthogonalize_blocks(period=5, blocks=4))
    ),
    "local_adamw": algorithms.local_adamw,
}


def model_of(workload: Workload):
    """Returns the workload's model."""
    return models.ALL[workload.model](*workload.arguments)


def dataset_of(workload: Workload) -> data.Dataset:
    """Returns the workload's examples on the device; one batch is the test set."""
    on_device: Any = jnp.asarray
    x, y = map(on_device, arrays_of(workload))
    names = tuple(map(str, range(workload.classes)))
    return data.Dataset(x, y, x[: workload.batch], y[: workload.batch], names)


def first_weights(workload: Workload) -> dict[str, np.ndarray]:
    """Returns initial parameters for all contenders, by names such as `Dense_0/kernel`.

    Matrices are normal, scaled by their inputs. The model's own `init` is not used: for
    a large model its compilation takes longer than the rounds.
    """
    task = tasks.classification(model_of(workload), workload.example)
    shapes = flatten_dict(jax.eval_shape(task.init, jax.random.key(0)), sep="/")
    rng = np.random.default_rng(2)

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) < 2:
            one = name.endswith("scale")
            return np.full(shape, 1 if one else 0, np.float32)
        fan_in = math.prod(shape[:-1])
        return rng.standard_normal(shape, np.float32) / np.float32(math.sqrt(fan_in))

    return {name: draw(name, leaf.shape) for name, leaf in shapes.items()}


def nested(weights: dict[str, np.ndarray]) -> Any:
    """Returns the weights as a Flax tree."""
    return jax.tree.map(jnp.asarray, unflatten_dict(weights, sep="/"))


def prepare(
    workload: Workload,
    dataset,
    parts,
    *,
    algorithm: str = "fedavg",
    weights: dict[str, np.ndarray] | None = None,
    devices: Sequence[jax.Device] = (),
    **hyper,
) -> simulation.Simulation:
    """Returns the library's simulation, from given or from its own parameters."""
    task = tasks.classification(model_of(workload), workload.example)
    if weights is not None:
        start = nested(weights)
        task = task._replace(init=lambda key: start)
    return simulation.federate(
        ALGORITHMS[algorithm](**hyper),
        task,
        dataset,
        parts,
        cohort=workload.cohort,
        local_steps=workload.steps,
        batch_size=workload.batch,
        weighting=simulation.by_examples,
        devices=devices,
    )


def loss_of(workload: Workload, params, dataset) -> float:
    """Returns the loss on some of the training examples."""
    task = tasks.classification(model_of(workload), workload.example)
    some = probed(workload)
    x, y = dataset.x_train[some], dataset.y_train[some]
    return float(jax.jit(task.evaluate)(params, x, y)["loss"].mean())


def device_bytes() -> int | None:
    """Returns the peak memory of one device; None on a CPU."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    peaks = [s["peak_bytes_in_use"] for s in stats if s and "peak_bytes_in_use" in s]
    return max(peaks, default=None)


def run(workload: Workload, weights, turns: Turns, *, algorithms, devices: int) -> None:
    """Runs one round of each algorithm in turn, as long as rounds are requested."""
    dataset, parts = dataset_of(workload), parts_of(workload)
    use = jax.devices()[:devices] if devices > 1 else []
    simulations = [
        prepare(workload, dataset, parts, algorithm=name, weights=weights, devices=use)
        for name in algorithms
    ]
    states: list[Any] = [None] * len(simulations)
    turn = 0
    while turns.start():
        i = turn % len(simulations)
        state = states[i] or simulations[i].init(jax.random.key(0))
        states[i] = jax.block_until_ready(simulations[i].train_round(state)[0])
        turns.stop()
        turn += 1
    losses = [loss_of(workload, state.params, dataset) for state in states]
    turns.finish(losses, device_bytes())
