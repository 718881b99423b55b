"""A federation of four clients with unequal data, simulated and deployed."""

import jax
import numpy as np

from fedjax_muon import engine, models
from fedjax_muon.data import Dataset
from fedjax_muon.deploy import Node, Sum, federation, in_process, messages, serve
from fedjax_muon.simulation.federated import federate
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
    return {"cohort": cohort, "local_steps": STEPS, "batch_size": BATCH}


def simulation_of(algorithm, **changes):
    sizes = sizes_of(algorithm) | changes
    return federate(algorithm, TASK, DATA, PARTS, plan=engine.plans.mapped, **sizes)


def simulated(algorithm, rounds=3, **changes):
    """The state of a simulation."""
    simulation = simulation_of(algorithm, **changes)
    state = simulation.init(KEY)
    for _ in range(rounds):
        state, _ = simulation.train_round(state)
    return state


def described(algorithm, **changes):
    numbers = {"num_clients": CLIENTS, "max_client_size": 32, "classes": CLASSES}
    return federation(algorithm, TASK, **numbers | sizes_of(algorithm) | changes)


def nodes_of(shared, directory=None):
    """Every client with its own examples."""
    places = [directory and directory / f"client{i}" for i in range(CLIENTS)]
    return {
        i: Node(shared, i, X[part], Y[part], places[i]) for i, part in enumerate(PARTS)
    }


def served(shared, send=None, rounds=3, arrived=None, **given):
    """The end of a run, and what was missing; by default of all clients in process."""
    missing, send = [], send or in_process(nodes_of(shared))
    arrived = [] if arrived is None else arrived
    keep = lambda progress, lost: (
        missing.extend(lost),
        arrived.extend(progress.arrived),
    )
    return serve(shared, send, KEY, rounds=rounds, on_round=keep, **given), missing


def adding(nodes, silent=(), asked=None):
    """A transport that adds summands in another order than that of requests."""

    def secure_sum(requests, deadline):
        del deadline
        there = [client for client in reversed(requests) if client not in silent]
        if asked is not None:
            asked.update(requests)
        total = sum(nodes[client].summand(requests[client]) for client in there)
        return Sum(there, np.asarray(total), "it was silent")

    return secure_sum


def asked(server, deadline=5.0, **requests):
    """Answers to requests that are named c0, c1, ... by their clients."""
    found = {int(name[1:]): data for name, data in requests.items()}
    return sorted(server.send(found, deadline))


def refusal(answer):
    return messages.read(answer).about["refused"]


def deployed(algorithm, **changes):
    return served(described(algorithm, **changes))


def server_leaves(state, ended):
    """Pairs of a simulation and of the end of a run."""
    servers = state.training.server, ended.state.training.server
    return zip(*map(jax.tree.leaves, servers), strict=True)


def largest_difference(state, ended):
    apart = lambda a, b: np.abs(np.asarray(a, float) - np.asarray(b, float)).max()
    return max(apart(*pair) for pair in server_leaves(state, ended))


def assert_same(state, ended):
    """The server's states are equal to the bit."""
    assert int(state.training.index) == int(ended.state.training.index)
    for a, b in server_leaves(state, ended):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def assert_saved(path, tree):
    """An archive has the leaves of a tree."""
    with np.load(path) as archive:
        for a, b in zip(jax.tree.leaves(tree), archive.values(), strict=True):
            np.testing.assert_array_equal(np.asarray(a), b)
