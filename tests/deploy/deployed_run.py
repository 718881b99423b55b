"""A deployed run of three clients: its examples, its nodes and its numbers."""

import contextlib
import itertools
import os

import numpy as np
import psutil

from fedjax_muon import engine, runs
from fedjax_muon.cli import call, flower_app
from fedjax_muon.deploy import in_process
from fedjax_muon.runs.simulate import start_key
from tests.support import command

RUN = ["fedmuon:lr=0.02", "--problem", "digits:clients=3,model=mlp:8", "--rounds", "4"]
RUN += ["--cohort", "3", "--local-steps", "2", "--batch-size", "8"]
RUN += ["--evaluate-every", "1"]


def job_of(words):
    """What words deploy, its problem, and what nodes know of that."""
    values = call.parsed("deploy", ["app", *words])
    del values["directory"]
    largest = values.pop("largest_client", None)
    ours, problem = flower_app.prepared(**values)
    return ours, problem, flower_app.facts_of(ours, problem, largest)


def written(place, words=RUN):
    """Writes an app, and a file of each client's examples; returns what nodes have."""
    command.run("deploy", place, *words)
    problem = job_of(words)[1]
    dataset, configs = problem.dataset, []
    for client, part in enumerate(problem.parts(0)):
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


def assert_simulated(words, rows, rounds, **how):
    """The first rows have the numbers of `train`."""
    ours, problem, _ = job_of(words)
    how = {**ours.how, "plan": engine.plans.mapped, **how}
    simulation = runs.simulate(ours.algorithm(), problem, 0, **how)
    state = simulation.init(start_key(0))
    for round in range(rounds + 1):
        if round:
            state, _ = simulation.train_round(state)
        scores = simulation.evaluate(state)
        for name in ("test_accuracy", "test_loss"):
            assert float(scores[name]) == rows[name][round], (round, name)


def kill_processes(name, value):
    """Kills all others that have an environment variable."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(name) == value and process.pid != os.getpid():
                process.kill()
