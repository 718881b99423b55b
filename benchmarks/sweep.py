"""A sweep of 5 learning rates and 5 seeds, compared with its 25 runs one by one.

    python -m benchmarks.sweep             # about three minutes

Both run on one core with one thread, in one process and in turns. The workload is `w2`
of benchmarks.workloads with FedAvg. Without sweeps every learning rate has a simulation
of its own, whose program is compiled again; seeds share it. Prints JSON lines.
"""

import json
import os
import time

import jax
import numpy as np

from benchmarks.library import dataset_of, prepare
from benchmarks.machine import machine, one_thread
from benchmarks.workloads import WORKLOADS
from fedjax_muon.simulation import training
from fedjax_muon.simulation.sweeps import Cell, run_cells

RATES, SEEDS = (0.01, 0.03, 0.05, 0.1, 0.3), range(5)
ROUNDS = 20
WORKLOAD = WORKLOADS["w2"]


def parts(seed: int) -> list[np.ndarray]:
    """Returns the partition of a seed."""
    order = np.random.default_rng(seed).permutation(
        WORKLOAD.clients * WORKLOAD.examples
    )
    return np.split(order, WORKLOAD.clients)


def sequential(dataset) -> tuple[float, float]:
    """Returns the CPU seconds of all runs without their first calls, and of these."""
    compiled = run = 0.0
    for lr in RATES:
        began = time.process_time()
        prepared = prepare(WORKLOAD, dataset, parts(0), lr=lr)
        training.run(prepared, prepared.init(jax.random.key(0)), rounds=1)
        compiled += time.process_time() - began
        for seed in SEEDS:
            here = prepared.at(parts=parts(seed))
            began = time.process_time()
            state = here.init(jax.random.key(seed))
            training.run(here, state, rounds=ROUNDS, evaluate_every=ROUNDS)
            run += time.process_time() - began
    return run, compiled


def vectorized(dataset, rounds: int) -> float:
    """Returns the CPU seconds of the sweep, including compilation."""
    cells = [
        Cell({"lr": lr}, jax.random.key(seed), parts(seed))
        for lr in RATES
        for seed in SEEDS
    ]
    began = time.process_time()
    prepared = prepare(WORKLOAD, dataset, parts(0), lr=RATES[0])
    for _ in run_cells(prepared, cells, rounds=rounds, evaluate_every=ROUNDS):
        pass
    return time.process_time() - began


def main() -> None:
    """Measures both twice."""
    print(json.dumps(machine("benchmarks.sweep") | {"load": os.getloadavg()[0]}))
    dataset = dataset_of(WORKLOAD)
    for _ in range(2):
        run, compiled = sequential(dataset)
        total = vectorized(dataset, ROUNDS)
        row = {
            "cells": len(RATES) * len(SEEDS),
            "rounds": ROUNDS,
            "runs_cpu_seconds": round(run, 2),
            "compilation_of_one_run_cpu_seconds": round(compiled / len(RATES), 2),
            "sweep_cpu_seconds": round(total, 2),
            "sweep_over_runs_and_one_compilation": round(
                total / (run + compiled / len(RATES)), 3
            ),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    one_thread()
    main()
