"""Compares deployed methods with simulated ones: python -m tests.deploy.all_methods

Prints the largest difference of the server's states after three rounds.
"""

import sys
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from small_federation import deployed, simulated

from fedjax_muon.algorithms import ALL

if __name__ == "__main__":
    for name, method in ALL.items():
        ended, missing = deployed(method.function())
        pairs = zip(
            jax.tree.leaves(simulated(method.function()).training.server),
            jax.tree.leaves(ended.state.training.server),
            strict=True,
        )
        apart = [np.abs(np.asarray(a, float) - b).max() for a, b in pairs]
        print(f"{name:30}{max(apart):10.3g}{len(missing):6} missing", flush=True)
