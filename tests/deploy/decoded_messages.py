"""Compares deployed messages that the server decodes with simulated ones.

Prints the largest difference of the server's states after three rounds of private
clients, whose messages the server clips.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from small_federation import (
    BATCH,
    CLASSES,
    CLIENTS,
    DATA,
    KEY,
    PARTS,
    STEPS,
    TASK,
    nodes_of,
    served,
)

from fedjax_muon import engine
from fedjax_muon.algorithms import fedavg
from fedjax_muon.compression import compressors
from fedjax_muon.compression.compress import compress
from fedjax_muon.deploy import federation, in_process
from fedjax_muon.privacy import AdaptiveClip, ClientPrivacy, banded
from fedjax_muon.simulation.federated import federate

ROUNDS = 3
PRIVACY = {
    "clip_norm": 0.5,
    "cohort_size": 2,
    "rounds": ROUNDS,
    "delta": 1e-2,
    "noise_multiplier": 0.7,
    "insecure_fixed_noise": True,  # noise from the key, so that it can be compared
}
CASES = {
    "quantized": (compress(fedavg(lr=0.3), compressors.quantize(4)), {}),
    "adaptive": (
        fedavg(lr=0.3),
        {"clip_norm": AdaptiveClip(count_noise=2.0), "strategy": banded(ROUNDS, 2)},
    ),
}


def private(algorithm, privacy):
    """The noise is that of the trusted server."""
    sizes = {"local_steps": STEPS, "batch_size": BATCH, "privacy": privacy}
    given = (algorithm, TASK, DATA, PARTS)
    simulation = federate(*given, plan=engine.plans.mapped, **sizes)
    state, _ = simulation.train_rounds(simulation.init(KEY), ROUNDS)
    numbers = {"num_clients": CLIENTS, "max_client_size": 32, "classes": CLASSES}
    shared = federation(algorithm, TASK, **numbers, **sizes)
    assert shared.guarantee == simulation.guarantee
    return state, *served(shared, in_process(nodes_of(shared)), ROUNDS)


def difference(state, ended):
    pairs = zip(
        jax.tree.leaves(state.training.server),
        jax.tree.leaves(ended.state.training.server),
        strict=True,
    )
    return max(float(jnp.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


if __name__ == "__main__":
    for name, (algorithm, changes) in CASES.items():
        found = private(algorithm, ClientPrivacy(**(PRIVACY | changes)))
        print(name, difference(*found[:2]), len(found[2]))
