"""A sweep of 5 learning rates and 5 seeds, beside its 25 runs one by one: one core, one
thread, in one process and in turns.

    python -m benchmarks.sweep             # about three minutes

The work is `w2` of benchmarks.works with FedAvg. The runs one by one share the
seeds' data but are what a user without sweeps has: a simulation of its own for every
learning rate, whose program is compiled anew. Prints JSON lines.
"""

import json
import os
import time

import jax
import numpy as np

from benchmarks.library import dataset_of, prepare
from benchmarks.machine import machine, one_thread
from benchmarks.works import WORKS
from fedjax_muon.simulation import training
from fedjax_muon.simulation.sweep import Cell, sweep

RATES, SEEDS = (0.01, 0.03, 0.05, 0.1, 0.3), range(5)
ROUNDS = 20
WORK = WORKS["w2"]


def parts(seed: int) -> list[np.ndarray]:
    """Another partition for every seed."""
    order = np.random.default_rng(seed).permutation(WORK.clients * WORK.examples)
    return np.split(order, WORK.clients)


def sequential(dataset) -> tuple[float, float]:
    """CPU seconds of all runs without their first calls, and of these calls."""
    compiled = run = 0.0
    for lr in RATES:
        began = time.process_time()
        prepared = prepare(WORK, dataset, parts(0), lr=lr)
        training.train(prepared, prepared.init(jax.random.key(0)), rounds=1)
        compiled += time.process_time() - began
        for seed in SEEDS:
            here = prepared.vary(parts=parts(seed))
            began = time.process_time()
            state = here.init(jax.random.key(seed))
            training.train(here, state, rounds=ROUNDS, evaluate_every=ROUNDS)
            run += time.process_time() - began
    return run, compiled


def vectorized(dataset, rounds: int) -> float:
    """CPU seconds of the sweep, its compilation included."""
    cells = [
        Cell({"lr": lr}, jax.random.key(seed), parts(seed))
        for lr in RATES
        for seed in SEEDS
    ]
    began = time.process_time()
    prepared = prepare(WORK, dataset, parts(0), lr=RATES[0])
    for _ in sweep(prepared, cells, rounds=rounds, evaluate_every=ROUNDS):
        pass
    return time.process_time() - began


def main() -> None:
    """Measures both, twice."""
    print(json.dumps(machine("benchmarks.sweep") | {"load": os.getloadavg()[0]}))
    dataset = dataset_of(WORK)
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
