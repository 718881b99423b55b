"""A deployed run of three clients: its examples, its nodes and its numbers."""

import contextlib
import itertools
import os

import numpy as np
import psutil

from fedjax_muon.deploy import in_process
from fedjax_muon.runs import flower_app
from fedjax_muon.runs.build import parts_of, simulation_of, start_key
from fedjax_muon.runs.config import Config, Run
from fedjax_muon.runs.pretrained import dataset_of

SIZES = {"num_clients": 3, "cohort_size": 3, "local_steps": 2, "batch_size": 8}
CONFIG = Config(**SIZES, hidden=(8,), rounds=4, evaluate_every=1, plan="mapped")
RUN = Run("fedmuon", {"lr": 0.02}, 0, CONFIG)


def data_of(run):
    """The dataset, each client's part of it, and the facts about both."""
    dataset = dataset_of(run.config)
    parts = parts_of(run.config, dataset, run.seed)
    return dataset, parts, flower_app.facts_of(dataset, max(map(len, parts)))


def written(place, run=RUN):
    """Writes an app, and a file of each client's examples; returns what nodes have."""
    dataset, parts, facts = data_of(run)
    flower_app.write_app(place, run, facts)
    configs = []
    for client, part in enumerate(parts):
        (own := place / f"node{client}").mkdir()
        data = str(own / "examples.npz")
        np.savez(data, x=np.asarray(dataset.x_train)[part], y=dataset.y_train[part])
        configs.append({"partition-id": client, "data": data})
    return configs


def nodes_from(place, configs):
    """The nodes of a written app in this process."""
    nodes = [flower_app.node_of(config, {}, place) for config in configs]
    return dict(enumerate(nodes))


def without(client, nodes, after):
    """A transport to nodes of which one does not answer after so many exchanges."""
    send, calls = in_process(nodes), itertools.count()

    def sent(requests, deadline):
        gone = client if next(calls) >= after else None
        yield from send({i: r for i, r in requests.items() if i != gone}, deadline)

    return sent


def assert_simulated(run, rows, rounds):
    """The first rows have the numbers of `train`."""
    simulation = simulation_of(run, dataset_of(run.config))
    state = simulation.init(start_key(run.seed))
    for round in range(rounds + 1):
        if round:
            state, _ = simulation.train_round(state)
        scores = simulation.evaluate(state)
        for name in ("test_accuracy", "test_loss"):
            assert float(scores[name]) == rows[name][round]


def kill_processes(name, value):
    """Kills all others that have an environment variable."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(name) == value and process.pid != os.getpid():
                process.kill()
