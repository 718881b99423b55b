"""CPU seconds a round of FedAvg, beside the same work written by hand: one core, one
thread, in one process and in turns.

    python -m benchmarks.rounds            # all works; about ten minutes
    python -m benchmarks.rounds mlp        # one of them

The works: 100 clients of 600 examples of 28x28x1, 10 a round, 30 local SGD steps of
batch 20, with an MLP 784-200-200-10 or a CNN with two convolutions, 1.2 million
parameters; and 8 clients of 512 texts of 48 tokens out of 8192, all in every round, 8
local steps of batch 64, with a recurrent network of 64 tanh units. Means are weighted
by examples. Prints one JSON line a row.
"""

import functools
import json
import os
import statistics
import sys
import time
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.machine import machine, one_thread
from fedjax_muon import data, models, simulation, tasks
from fedjax_muon.algorithms.fedavg import fedavg

LR = 0.1


class Work(NamedTuple):
    """A model, and what it is trained on."""

    model: nn.Module
    clients: int
    examples: int  # of a client
    cohort: int
    steps: int
    batch: int
    repeats: int
    tokens: int = 0  # of an example, 0 for images


VOCABULARY = 8192
IMAGES = {"clients": 100, "examples": 600, "cohort": 10, "steps": 30, "batch": 20}
TEXTS = {"clients": 8, "examples": 512, "cohort": 8, "steps": 8, "batch": 64}
WORKS = {
    "mlp": Work(models.MLP(10), **IMAGES, repeats=25),
    "cnn": Work(models.EmnistCNN(10), **IMAGES, repeats=5),
    "rnn": Work(models.RNN(2, VOCABULARY, 32, 64, 1), **TEXTS, repeats=25, tokens=48),
}


def dataset_of(work: Work) -> data.Dataset:
    """Images whose labels are those of a random linear map, or tokens with random
    labels."""
    rng, number = np.random.default_rng(0), work.clients * work.examples
    x: np.ndarray
    if work.tokens:
        classes = 2
        x = rng.integers(1, VOCABULARY, (number, work.tokens), np.int32)
        y = rng.integers(0, classes, number).astype(np.int32)
    else:
        classes = 10
        x = rng.standard_normal((number, 28, 28, 1), np.float32)
        labels = (x.reshape(number, -1) @ rng.standard_normal((784, 10))).argmax(1)
        y = labels.astype(np.int32)
    names = tuple(map(str, range(classes)))
    return data.Dataset(x, y, x[: work.batch], y[: work.batch], names)


def prepare(work: Work, dataset, parts, lr: float = LR) -> simulation.Simulation:
    """The work with the library."""
    return simulation.simulate(
        functools.partial(fedavg, lr=lr),
        tasks.classification(work.model, dataset.x_train.shape[1:]),
        dataset,
        parts,
        cohort_size=work.cohort,
        local_steps=work.steps,
        batch_size=work.batch,
        weighting=simulation.by_examples,
    )


def library_round(work: Work, dataset):
    """`state -> state` with the library, and the first state."""
    parts = np.split(np.arange(work.clients * work.examples), work.clients)
    simulated = prepare(work, dataset, parts)
    state = simulated.init(jax.random.key(0))
    return lambda state: simulated.train_round(state)[0], state


def handwritten_round(work: Work, dataset):
    """The same with JAX alone: lax.map over clients, a scan over their steps."""
    x, y = jnp.asarray(dataset.x_train), jnp.asarray(dataset.y_train)

    def loss(params, x, y):
        logits: Any = work.model.apply({"params": params}, x)
        logits = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(logits, y[:, None], 1))

    @functools.partial(jax.jit, donate_argnums=0)
    def round(state, x, y):
        params, key = state
        cohort_key, data_key, key = jax.random.split(key, 3)
        cohort = jax.random.permutation(cohort_key, work.clients)[: work.cohort]

        def client(args):
            number, key = args
            order = jax.random.permutation(key, work.examples) + work.examples * number

            def step(params, rows):
                g = jax.grad(loss)(params, x[rows], y[rows])
                return jax.tree.map(lambda p, g: p - LR * g, params, g), None

            rows = order.reshape(work.steps, work.batch)
            return jax.lax.scan(step, params, rows)[0]

        keys = jax.random.split(data_key, work.cohort)
        locals_ = jax.lax.map(client, (cohort, keys))
        weights = jnp.full(work.cohort, work.examples, jnp.float32)
        mean = lambda p: jnp.tensordot(weights / weights.sum(), p, 1)
        return jax.tree.map(mean, locals_), key

    params = work.model.init(jax.random.key(0), x[:1])["params"]
    return lambda state: round(state, x, y), (params, jax.random.key(1))


def measure(name: str) -> list[dict]:
    """Times both kinds of round in turns."""
    work = WORKS[name]
    dataset = dataset_of(work)
    makers = {"fedjax_muon": library_round, "handwritten": handwritten_round}
    rounds, states, first = {}, {}, {}
    cpu: dict[str, list[float]] = {kind: [] for kind in makers}
    for kind, make in makers.items():
        rounds[kind], states[kind] = make(work, dataset)
        began = time.perf_counter()
        states[kind] = jax.block_until_ready(rounds[kind](states[kind]))
        first[kind] = time.perf_counter() - began
    for _ in range(work.repeats):
        for kind in makers:
            began = time.process_time()
            states[kind] = jax.block_until_ready(rounds[kind](states[kind]))
            cpu[kind].append(time.process_time() - began)
    least = {kind: min(times) for kind, times in cpu.items()}
    tokens = work.cohort * work.steps * work.batch * work.tokens
    return [
        {
            "work": name,
            "round": kind,
            "cpu_seconds_min": round(min(cpu[kind]), 4),
            "cpu_seconds_median": round(statistics.median(cpu[kind]), 4),
            "times_handwritten": round(least[kind] / least["handwritten"], 3),
            **({"tokens_per_second": round(tokens / least[kind])} if tokens else {}),
            "rounds": len(cpu[kind]),
            "first_round_seconds": round(first[kind], 2),
        }
        for kind in makers
    ]


def main() -> None:
    """Measures the works named on the command line, by default all."""
    names = sys.argv[1:] or list(WORKS)
    unknown = [name for name in names if name not in WORKS]
    if unknown:
        sys.exit(f"no work {unknown[0]!r}; there are {', '.join(WORKS)}")
    print(json.dumps(machine("benchmarks.rounds") | {"load": os.getloadavg()[0]}))
    for name in names:
        for row in measure(name):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    one_thread()
    main()
