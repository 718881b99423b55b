"""The works with the library: FedAvg, FedMuon and Local AdamW, in turns."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from benchmarks.turns import Turns
from benchmarks.works import LR, Work, arrays_of, parts_of, probed
from fedjax_muon import data, models, simulation, tasks
from fedjax_muon.algorithms import ALL

# with the learning rates of their tables, but for the one of FedAvg
ALGORITHMS: dict[str, dict[str, float]] = {
    "fedavg": {"lr": LR},
    "fedmuon": {},
    "local_adamw": {},
}


def model_of(work: Work):
    """The work's model."""
    return models.ALL[work.model](*work.arguments)


def dataset_of(work: Work) -> data.Dataset:
    """The work's examples, on the device already; a batch of them for a test."""
    on_device: Any = jnp.asarray
    x, y = map(on_device, arrays_of(work))
    names = tuple(map(str, range(work.classes)))
    return data.Dataset(x, y, x[: work.batch], y[: work.batch], names)


def first_weights(work: Work) -> dict[str, np.ndarray]:
    """Initial parameters for all contenders, under names as `Dense_0/kernel`: what has
    rows and columns is normal, scaled by its inputs. Not as the model's own `init`
    draws, whose compilation for a large model takes longer than its rounds."""
    task = tasks.classification(model_of(work), work.example)
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
    """The same as Flax has them."""
    return jax.tree.map(jnp.asarray, unflatten_dict(weights, sep="/"))


def prepare(
    work: Work,
    dataset,
    parts,
    *,
    algorithm: str = "fedavg",
    weights: dict[str, np.ndarray] | None = None,
    devices: Sequence[jax.Device] = (),
    **hyper,
) -> simulation.Simulation:
    """The work with the library, from given parameters or its own."""
    task = tasks.classification(model_of(work), work.example)
    if weights is not None:
        start = nested(weights)
        task = task._replace(init=lambda key: start)
    return simulation.federate(
        ALL[algorithm].function(**(ALGORITHMS[algorithm] | hyper)),
        task,
        dataset,
        parts,
        cohort_size=work.cohort,
        local_steps=work.steps,
        batch_size=work.batch,
        weighting=simulation.by_examples,
        devices=devices,
    )


def loss_of(work: Work, params, dataset) -> float:
    """On some of the training examples."""
    task = tasks.classification(model_of(work), work.example)
    some = probed(work)
    x, y = dataset.x_train[some], dataset.y_train[some]
    return float(jax.jit(task.evaluate)(params, x, y)["loss"].mean())


def device_bytes() -> int | None:
    """The most memory that was in use on one device; unknown for a CPU."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    peaks = [s["peak_bytes_in_use"] for s in stats if s and "peak_bytes_in_use" in s]
    return max(peaks, default=None)


def play(work: Work, weights, turns: Turns, *, algorithms, devices: int) -> None:
    """One round of each algorithm after the other, as often as is asked for."""
    dataset, parts = dataset_of(work), parts_of(work)
    use = jax.devices()[:devices] if devices > 1 else []
    simulated = [
        prepare(work, dataset, parts, algorithm=name, weights=weights, devices=use)
        for name in algorithms
    ]
    states: list[Any] = [None] * len(simulated)
    turn = 0
    while turns.start():
        i = turn % len(simulated)
        state = states[i] or simulated[i].init(jax.random.key(0))
        states[i] = jax.block_until_ready(simulated[i].train_round(state)[0])
        turns.stop()
        turn += 1
    losses = [loss_of(work, state.params, dataset) for state in states]
    turns.finish(losses, device_bytes())
