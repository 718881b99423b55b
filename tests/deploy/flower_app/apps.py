"""Apps of a federation over Flower that runs several methods, one after the other.

Before the last exchange, the server's app kills one of the SuperNodes.
"""

import json
import os
import signal
import time
from pathlib import Path

import jax
import numpy as np
from flwr.serverapp import ServerApp

from fedjax_muon import models
from fedjax_muon.algorithms import ALL
from fedjax_muon.deploy import Node, federation, messages, serve
from fedjax_muon.deploy.flower import FlowerServer, client_app
from fedjax_muon.tasks.classification import classification

# Rounds by method, before the one with a killed SuperNode; a process starts for every
# message, so they are few.
ROUNDS = {"fedmuon_correct": 2, "fedmuon": 1, "fedmuon_svd": 1}
METHODS = tuple(ROUNDS)
CLIENTS, COHORT, CLASSES = 3, 2, 3
SIZES = {"cohort_size": COHORT, "local_steps": 2, "batch_size": 4}


def federation_of(method):
    return federation(
        ALL[method].function(),
        classification(models.MLP(CLASSES, ()), (5,)),
        num_clients=CLIENTS,
        max_client_size=32,
        classes=CLASSES,
        **SIZES,
    )


class Nodes:
    """A client's nodes of all methods; a request says which of them is meant."""

    def __init__(self, client, directory):
        self.client, self.directory = client, directory

    def answer(self, request):
        described = messages.read(request).about["federation"]
        method = described["algorithm"].rpartition(".")[2]
        with np.load(self.directory / "examples.npz") as own:
            x, y = own["x"], own["y"]
        states = self.directory / method
        return Node(federation_of(method), self.client, x, y, states).answer(request)


def make_nodes(context):
    config = context.node_config
    return Nodes(config["client"], Path(config["directory"]))


node_app = client_app(make_nodes)
server_app = ServerApp()


class Killing:
    """A transport that kills a SuperNode before the last exchange.

    Flower does not notice that for a minute. The deadline of that exchange is twice as
    long as the one before took.
    """

    def __init__(self, send, processes):
        self.send, self.processes = send, processes
        self.calls, self.seconds, self.killed = 0, 0.0, None

    def __call__(self, requests, deadline):
        begin, self.calls = time.monotonic(), self.calls + 1
        if self.calls > ROUNDS[METHODS[-1]]:
            self.killed = min(requests)
            deadline = max(10.0, 2 * self.seconds)
            os.kill(self.processes[self.killed], signal.SIGKILL)
        yield from self.send(requests, deadline)
        self.seconds = time.monotonic() - begin


@server_app.main()
def main(grid, context):
    place = Path(context.run_config["output"])
    server, missing = FlowerServer(grid, CLIENTS), []
    assert server.wait(CLIENTS, 120) == set(range(CLIENTS))
    for method in METHODS:
        last = method == METHODS[-1]
        processes = json.loads((place / "processes.json").read_text())
        send = Killing(server.send, processes) if last else server.send

        def save(progress, lost, method=method):
            missing.extend((method, *lost) for lost in lost)
            leaves = map(np.asarray, jax.tree.leaves(progress.state.training.server))
            np.savez(place / f"{method}_{progress.state.round}.npz", *leaves)

        serve(
            federation_of(method),
            send,
            jax.random.key(5),
            rounds=ROUNDS[method] + last,
            on_round=save,
        )
    ended = {"missing": missing, "killed": send.killed, "refused": server.refused}
    (place / "ended.json").write_text(json.dumps(ended))
