"""Learning rates of the main job, `fedjax-muon compare`: a grid on seeds it never uses.

    python -m experiments.digits_learning_rates          # about 10 minutes on 2 cores

Prints one JSON line for every method and rate: the test accuracy, averaged over the
evaluated rounds (which rewards being fast) and after the last one. `null` stands for a
run that diverged. What it printed is in digits_learning_rates.jsonl.
"""

import json

import numpy as np

from fedjax_muon import data
from fedjax_muon.cli.arguments import MAIN_JOB
from fedjax_muon.cli.building import parts_of, simulation_of, start_key
from fedjax_muon.cli.config import Config, Run
from fedjax_muon.simulation import NonFiniteError
from fedjax_muon.training import run

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
SEEDS = (100, 101)


def curves(algorithm: str, lr: float, dataset: data.Dataset) -> np.ndarray | None:
    """Test accuracy [seeds, evaluations], None if a run diverged."""
    config = Config()
    simulation = simulation_of(Run(algorithm, {"lr": lr}, SEEDS[0], config), dataset)
    found = []
    for seed in SEEDS:
        here = simulation.repartition(parts_of(config, dataset, seed))
        try:
            _, rows = run(
                here,
                here.init(start_key(seed)),
                rounds=config.rounds,
                evaluate_every=config.evaluate_every,
            )
        except NonFiniteError:
            return None
        found.append([row["test_accuracy"] for row in rows])
    return np.array(found)


def main() -> None:
    """Prints the grid."""
    dataset = data.load("digits")
    for algorithm in MAIN_JOB:
        for lr in RATES:
            accuracy = curves(algorithm, lr, dataset)
            score = lambda values: None if values is None else round(values.mean(), 4)
            row = {
                "algorithm": algorithm,
                "lr": lr,
                "mean_accuracy": score(accuracy),
                "last_accuracy": score(None if accuracy is None else accuracy[:, -1]),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
