"""A federation of four clients with unequal data, simulated and deployed."""

import jax
import numpy as np

from fedjax_muon import engine, models
from fedjax_muon.data import Dataset
from fedjax_muon.deploy import Node, federation, in_process, serve
from fedjax_muon.simulation.federated import federate
from fedjax_muon.simulation.participation import uniform
from fedjax_muon.tasks.classification import classification

CLIENTS, CLASSES, STEPS, BATCH = 4, 3, 2, 4
SIZES = (3, 17, 9, 12)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((sum(SIZES), 5)).astype(np.float32)
Y = RNG.integers(0, CLASSES, sum(SIZES)).astype(np.int32)
Y[:CLASSES] = range(CLASSES)
PARTS = np.split(RNG.permutation(sum(SIZES)), np.cumsum(SIZES)[:-1])
DATA = Dataset(X, Y, X[:6], Y[:6], tuple("abc"))
TASK = classification(models.MLP(CLASSES, ()), (5,))
KEY = jax.random.key(5)


def sizes_of(algorithm):
    cohort = CLIENTS if algorithm.full_participation else 3
    return {"cohort_size": cohort, "local_steps": STEPS, "batch_size": BATCH}


def simulated(algorithm, rounds=3, weighting=uniform):
    """The state of a simulation."""
    simulation = federate(
        algorithm,
        TASK,
        DATA,
        PARTS,
        plan=engine.plans.mapped,
        weighting=weighting,
        **sizes_of(algorithm),
    )
    state = simulation.init(KEY)
    for _ in range(rounds):
        state, _ = simulation.train_round(state)
    return state


def described(algorithm, weighting=uniform):
    return federation(
        algorithm,
        TASK,
        num_clients=CLIENTS,
        max_client_size=32,
        classes=CLASSES,
        weighting=weighting,
        **sizes_of(algorithm),
    )


def nodes_of(shared, directory=None):
    """Every client with its own examples."""
    places = [directory and directory / f"client{i}" for i in range(CLIENTS)]
    return {
        i: Node(shared, i, X[part], Y[part], places[i]) for i, part in enumerate(PARTS)
    }


def served(shared, send, rounds=3, **given):
    """The state at the end, and what was missing."""
    missing = []
    on_round = lambda progress, lost: missing.extend(lost)
    ended = serve(shared, send, KEY, rounds=rounds, on_round=on_round, **given)
    return ended, missing


def deployed(algorithm, rounds=3, weighting=uniform):
    """The same of a federation whose nodes are in this process."""
    shared = described(algorithm, weighting)
    return served(shared, in_process(nodes_of(shared)), rounds)


def assert_same(state, ended):
    """The server's states are equal to the bit."""
    ours, theirs = (
        jax.tree.leaves((s.training.index, s.training.server))
        for s in (state, ended.state)
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
