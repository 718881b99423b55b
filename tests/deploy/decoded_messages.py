"""Compares deployed messages that the server decodes with simulated ones.

Prints the largest difference of the server's states after three rounds of private
clients, whose messages the server clips.
"""

from fedjax_muon import compression
from fedjax_muon.algorithms import fedavg
from fedjax_muon.privacy import AdaptiveClip, ClientPrivacy, banded
from fedjax_muon.wrappers.compression import compress
from tests.deploy.small_federation import (
    KEY,
    described,
    largest_difference,
    served,
    simulation_of,
)

ROUNDS = 3
PRIVACY = {
    "clip_norm": 0.5,
    "cohort": 2,
    "rounds": ROUNDS,
    "delta": 1e-2,
    "noise_multiplier": 0.7,
    "insecure_fixed_noise": True,  # noise from the key, so that it can be compared
}
CASES = {
    "quantized": (compress(fedavg(lr=0.3), compression.quantize(4)), {}),
    "adaptive": (
        fedavg(lr=0.3),
        {"clip_norm": AdaptiveClip(count_noise=2.0), "strategy": banded(ROUNDS, 2)},
    ),
}


def compared(algorithm, privacy):
    """The difference and the number of missing answers, with the server's noise."""
    given = {"cohort": None, "privacy": privacy}
    simulation = simulation_of(algorithm, **given)
    state, _ = simulation.train_rounds(simulation.init(KEY), ROUNDS)
    shared = described(algorithm, **given)
    assert shared.guarantee.spec == simulation.guarantee.spec
    ended, missing = served(shared, rounds=ROUNDS)
    return largest_difference(state, ended), len(missing)


if __name__ == "__main__":
    for name, (algorithm, changes) in CASES.items():
        print(name, *compared(algorithm, ClientPrivacy(**(PRIVACY | changes))))
