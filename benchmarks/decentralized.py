"""Decentralized robust logistic regression on a9a, compared with a NumPy loop.

    python -m benchmarks.decentralized --data-dir DATA        # about three minutes

20 agents on a random graph, batches of 20, and dual weights of the agents (messages of
143 numbers) or of the 32,561 training examples (messages of 32,684). `loop` is a direct
implementation in float64: it runs the agents and adds their neighbors' messages one by
one, and projects by sorting (Duchi et al. 2008). `loop, at its best` mixes by one
matrix product and projects as the library does. All run in one process, in turns, and
may use both cores. Prints JSON lines.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np

from benchmarks.machine import machine
from fedjax_muon import data
from fedjax_muon.core.pair import Pair
from fedjax_muon.data import partition
from fedjax_muon.decentralized import ALL, topology
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.simulation.batching import always, with_replacement
from fedjax_muon.tasks.robust import agents, examples, robust_logistic

AGENTS, BATCH, BETA = 20, 20, 0.1
LR = Pair(0.1, 0.0001)
STRENGTH, BEND = 0.001, 10.0
METHODS: dict[str, dict[str, float]] = {
    "dm_hsgd": {},
    "dpmixsgd_unclipped": {"sigma": 0.001},
}
COUNTS = {agents: lambda dataset: AGENTS, examples: lambda data: len(data.y_train)}


def by_sorting(y: np.ndarray) -> np.ndarray:
    """Projects onto the simplex by sorting."""
    u = np.sort(y)[::-1]
    excess = (np.cumsum(u) - 1) / np.arange(1, len(u) + 1)
    return np.maximum(y - excess[np.flatnonzero(u > excess)[-1]], 0)


def by_newton(y: np.ndarray) -> np.ndarray:
    """Projects onto the simplex by Newton's method, as `tasks.simplex` does."""
    t, above = y.max() - 1, y
    while True:
        kept = above[above > t]
        t = (kept.sum() - 1) / len(kept)
        if len(kept) == len(above):
            return np.maximum(y - t, 0)
        above = kept


def sequential(weights: np.ndarray, x: list[np.ndarray]) -> list[np.ndarray]:
    """Returns the sum over its neighbors that every agent receives."""
    links = [np.flatnonzero(row) for row in weights]
    return [sum(weights[i, j] * x[j] for j in links[i]) for i in range(len(x))]


def by_product(weights: np.ndarray, x: list[np.ndarray]) -> list[np.ndarray]:
    """Returns the same sums by one matrix product."""
    return list(weights @ np.stack(x))


def gradient(dataset, x, y, ids, groups):
    """Gradients of robust logistic regression: to descend in x and to ascend in y.

    `groups` are the positions in y of the weights of the examples `ids`.
    """
    n, a, b = len(y), dataset.x_train[ids].astype(float), 2 * dataset.y_train[ids] - 1
    margin = b * (a @ x)
    slopes = -n * y[groups] * b / (1 + np.exp(margin)) / len(ids)
    regularizer = 2 * STRENGTH * BEND * x / (1 + BEND * x**2) ** 2
    gy = 1 / n - y
    np.add.at(gy, groups, n * np.logaddexp(0, -margin) / len(ids))
    return a.T @ slopes + regularizer, gy


def loop(dataset, parts, weights, of, sigma, steps, *, mix, project) -> None:
    """Runs DPMixSGD without clipping, or DM-HSGD for sigma = 0, agent by agent."""
    rng, every_agent = np.random.default_rng(0), range(AGENTS)
    n = COUNTS[of](dataset)
    xs = [np.zeros(dataset.x_train.shape[1]) for _ in every_agent]
    ys = [np.full(n, 1 / n) for _ in every_agent]
    before = [(xs[i], ys[i]) for i in every_agent]
    g, h, v, u = ([np.zeros(())] * AGENTS for _ in range(4))
    released = [(np.zeros(()), np.zeros(()))] * AGENTS
    for t in range(steps):
        for i in every_agent:
            ids = rng.choice(parts[i], BATCH)
            groups = ids if of is examples else np.full(BATCH, i)
            gx, gy = gradient(dataset, xs[i], ys[i], ids, groups)
            if t == 0:
                g[i], h[i] = gx, gy
            else:
                gx_, gy_ = gradient(dataset, *before[i], ids, groups)
                g[i] = gx + (1 - BETA) * (g[i] - gx_)
                h[i] = gy + (1 - BETA) * (h[i] - gy_)
            new = g[i], h[i]
            if sigma:
                new = tuple(m + sigma * rng.standard_normal(len(m)) for m in new)
            old = released[i]
            v[i], u[i] = v[i] + new[0] - old[0], u[i] + new[1] - old[1]
            released[i] = new
        v, u = mix(weights, v), mix(weights, u)
        before = [(xs[i], ys[i]) for i in every_agent]
        xs = mix(weights, [xs[i] - LR.x * v[i] for i in every_agent])
        ys = mix(weights, [ys[i] + LR.y * u[i] for i in every_agent])
        ys = [project(y) for y in ys]


def library(name, dataset, parts, weights, of) -> Callable[[int], None]:
    """Returns a function that runs iterations of the same method by the library."""
    task = robust_logistic(dataset.x_train.shape[1], COUNTS[of](dataset), of)
    hyper = METHODS[name] | {"lr": LR, "beta": BETA}
    simulation = decentralize(
        ALL[name].function(**hyper),
        task,
        dataset,
        parts,
        weights=weights,
        batch_size=BATCH,
        sampler=always(with_replacement),
    )
    state = simulation.init(jax.random.key(0))

    def run(steps: int) -> None:
        nonlocal state
        state, _ = simulation.train_rounds(state, steps)
        jax.block_until_ready(state)

    run(1)  # compiles
    return run


def timed(run: Callable[[int], object], steps: int) -> tuple[float, float]:
    """Returns wall and CPU milliseconds per iteration."""
    wall, cpu = time.perf_counter(), time.process_time()
    run(steps)
    per_iteration = lambda seconds: round(1e3 * seconds / steps, 3)
    return (
        per_iteration(time.perf_counter() - wall),
        per_iteration(time.process_time() - cpu),
    )


def main() -> None:
    """Measures both methods three times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--iterations", type=int, default=1000)
    args = parser.parse_args()
    print(json.dumps(machine("benchmarks.decentralized") | {"load": os.getloadavg()}))
    dataset = data.load("a9a", args.data_dir)
    parts = partition.iid(dataset.y_train, AGENTS, key=jax.random.key(0))
    graph = topology.erdos_renyi(AGENTS, 0.5, key=jax.random.key(1)).graph
    weights = topology.metropolis(graph)
    jobs = [(of, name) for of in COUNTS for name in METHODS]
    for of, name in jobs:
        sigma = METHODS[name].get("sigma", 0.0)
        by_loop = partial(loop, dataset, parts, weights, of, sigma)
        ways: dict[str, tuple[Callable[[int], object], int]] = {
            "library": (library(name, dataset, parts, weights, of), args.iterations),
            "loop": (
                partial(by_loop, mix=sequential, project=by_sorting),
                args.iterations // 20,
            ),
            "loop, at its best": (
                partial(by_loop, mix=by_product, project=by_newton),
                args.iterations // 20,
            ),
        }
        for turn in range(3):
            for way, (run, steps) in ways.items():
                wall, cpu = timed(run, steps)
                about = {"weights of": of.__name__, "method": name, "way": way}
                spent = {"iterations": steps, "wall_ms": wall, "cpu_ms": cpu}
                print(json.dumps(about | {"turn": turn} | spent), flush=True)


if __name__ == "__main__":
    main()
