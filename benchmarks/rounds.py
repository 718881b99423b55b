"""CPU seconds a round of FedAvg, beside the same work written by hand: one core, one
thread, in one process and in turns.

    python -m benchmarks.rounds            # the MLP and the CNN; about ten minutes
    python -m benchmarks.rounds mlp        # one of them

The work: 100 clients of 600 examples of 28x28x1, 10 a round, 30 local SGD steps of
batch 20, mean weighted by examples; an MLP 784-200-200-10 or a CNN with two
convolutions, 1.2 million parameters. Prints one JSON line a row.
"""

import functools
import json
import os
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.machine import machine, one_thread
from fedjax_muon import data, models, simulation, tasks
from fedjax_muon.algorithms.fedavg import fedavg

CLIENTS, EXAMPLES, COHORT, STEPS, BATCH, LR = 100, 600, 10, 30, 20, 0.1
MODELS = {"mlp": models.MLP(10), "cnn": models.EmnistCNN(10)}
REPEATS = {"mlp": 25, "cnn": 5}


def examples(seed: int = 0) -> data.Dataset:
    """Random images whose labels are those of a random linear map."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((CLIENTS * EXAMPLES, 28, 28, 1), np.float32)
    labels = (x.reshape(len(x), -1) @ rng.standard_normal((784, 10))).argmax(1)
    y = labels.astype(np.int32)
    return data.Dataset(x, y, x[:BATCH], y[:BATCH], tuple(map(str, range(10))))


def library_round(model, dataset):
    """`state -> state` with the library, and the first state."""
    simulated = simulation.simulate(
        functools.partial(fedavg, lr=LR),
        tasks.classification(model, (28, 28, 1)),
        dataset,
        np.split(np.arange(CLIENTS * EXAMPLES), CLIENTS),
        cohort_size=COHORT,
        local_steps=STEPS,
        batch_size=BATCH,
        weighting=simulation.by_examples,
    )
    state = simulated.init(jax.random.key(0))
    return lambda state: simulated.train_round(state)[0], state


def handwritten_round(model, dataset):
    """The same with JAX alone: lax.map over clients, a scan over their steps."""
    x, y = jnp.asarray(dataset.x_train), jnp.asarray(dataset.y_train)

    def loss(params, x, y):
        logits = jax.nn.log_softmax(model.apply({"params": params}, x))
        return -jnp.mean(jnp.take_along_axis(logits, y[:, None], 1))

    @functools.partial(jax.jit, donate_argnums=0)
    def round(state, x, y):
        params, key = state
        cohort_key, data_key, key = jax.random.split(key, 3)
        cohort = jax.random.permutation(cohort_key, CLIENTS)[:COHORT]

        def client(args):
            number, key = args
            order = jax.random.permutation(key, EXAMPLES) + EXAMPLES * number

            def step(params, rows):
                g = jax.grad(loss)(params, x[rows], y[rows])
                return jax.tree.map(lambda p, g: p - LR * g, params, g), None

            return jax.lax.scan(step, params, order.reshape(STEPS, BATCH))[0]

        keys = jax.random.split(data_key, COHORT)
        locals_ = jax.lax.map(client, (cohort, keys))
        weights = jnp.full(COHORT, EXAMPLES, jnp.float32)
        mean = lambda p: jnp.tensordot(weights / weights.sum(), p, 1)
        return jax.tree.map(mean, locals_), key

    params = model.init(jax.random.key(0), x[:1])["params"]
    return lambda state: round(state, x, y), (params, jax.random.key(1))


def measure(name: str) -> list[dict]:
    """Times both kinds of round in turns."""
    dataset, model = examples(), MODELS[name]
    makers = {"fedjax_muon": library_round, "handwritten": handwritten_round}
    rounds, states, first = {}, {}, {}
    cpu: dict[str, list[float]] = {kind: [] for kind in makers}
    for kind, make in makers.items():
        rounds[kind], states[kind] = make(model, dataset)
        began = time.perf_counter()
        states[kind] = jax.block_until_ready(rounds[kind](states[kind]))
        first[kind] = time.perf_counter() - began
    for _ in range(REPEATS[name]):
        for kind in makers:
            began = time.process_time()
            states[kind] = jax.block_until_ready(rounds[kind](states[kind]))
            cpu[kind].append(time.process_time() - began)
    least = {kind: min(times) for kind, times in cpu.items()}
    return [
        {
            "work": name,
            "round": kind,
            "cpu_seconds_min": round(min(cpu[kind]), 4),
            "cpu_seconds_median": round(statistics.median(cpu[kind]), 4),
            "times_handwritten": round(least[kind] / least["handwritten"], 3),
            "rounds": len(cpu[kind]),
            "first_round_seconds": round(first[kind], 2),
        }
        for kind in makers
    ]


def main() -> None:
    """Measures the works named on the command line, by default all."""
    names = sys.argv[1:] or list(MODELS)
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        sys.exit(f"no work {unknown[0]!r}; there are {', '.join(MODELS)}")
    print(json.dumps(machine("benchmarks.rounds") | {"load": os.getloadavg()[0]}))
    for name in names:
        for row in measure(name):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    one_thread()
    main()
