"""Learning rates of the default comparisons: a grid on seeds that they never use.

    python -m experiments.studies.learning_rates classification     # minutes on 2 cores
    python -m experiments.studies.learning_rates auc

The comparisons are `fedjax-muon compare` and `fedjax-muon compare --problem auc`.
Prints one JSON line for every method and rate: the test accuracy or AUC, averaged over
the evaluated rounds (which rewards fast methods) and after the last one. `null` marks a
diverged run. The output is stored in results/learning_rates_*.jsonl.
"""

import json
from typing import Annotated, Literal

import numpy as np
import tyro

from fedjax_muon import data, minimax
from fedjax_muon.cli.arguments import MAIN_JOB
from fedjax_muon.runs.build import parts_of, simulation_of, start_key
from fedjax_muon.runs.config import DEFAULTS, Config, Run
from fedjax_muon.simulation.sweep import Cell, sweep

RATES = {
    "classification": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    "auc": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
}
METHODS = {"classification": MAIN_JOB, "auc": tuple(minimax.ALL)}
SEEDS = (100, 101)


def rows_of(algorithm: str, config: Config, rates, dataset):
    """Yields one row for every rate."""
    run = Run(algorithm, {"lr": rates[0]}, SEEDS[0], config)
    parts = {seed: parts_of(config, dataset, seed) for seed in SEEDS}
    cells = [
        Cell({"lr": lr}, start_key(seed), parts[seed]) for lr in rates for seed in SEEDS
    ]
    groups = sweep(
        simulation_of(run, dataset),
        cells,
        rounds=config.rounds,
        evaluate_every=config.evaluate_every,
    )
    outcomes = [outcome for group in groups for outcome in group]
    kind = config.score.lower()
    for i, lr in enumerate(rates):
        runs = outcomes[i * len(SEEDS) : (i + 1) * len(SEEDS)]
        row: dict = {"algorithm": algorithm, "lr": lr, f"mean_{kind}": None}
        row[f"last_{kind}"] = None
        if all(outcome.diverged is None for outcome in runs):
            scores = np.array([[r[f"test_{kind}"] for r in o.rows] for o in runs])
            row[f"mean_{kind}"] = round(float(scores.mean()), 4)
            row[f"last_{kind}"] = round(float(scores[:, -1].mean()), 4)
        yield row


def main(
    problem: Annotated[Literal["classification", "auc"], tyro.conf.Positional],
) -> None:
    """Prints the grid of a problem's default comparison."""
    config = DEFAULTS[problem]
    dataset = data.load(config.dataset)
    for algorithm in METHODS[problem]:
        for row in rows_of(algorithm, config, RATES[problem], dataset):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
