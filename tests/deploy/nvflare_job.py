"""A job of NVFlare in which sites answer for several methods.

A copy of this file is run with `python nvflare_job.py PLACE`; every site is a process.
A site reads the examples in its own directory PLACE/sites/NAME alone. So this module
does not import the small federation, which has the examples of all.
"""

import functools
import json
import os
import sys
from pathlib import Path

import jax
import numpy as np
from nvflare.collab import CollabRecipe, collab
from nvflare.recipe import SimEnv

from fedjax_muon import models
from fedjax_muon.algorithms import ALL
from fedjax_muon.deploy import Node, federation, serve
from fedjax_muon.deploy.nvflare import published, sites
from fedjax_muon.simulation.arrivals import buffered
from fedjax_muon.tasks.classification import classification

CLIENTS, COHORT, CLASSES, ROUNDS = 4, 3, 3, 2
METHODS = ("fedmuon_correct", "fedmuon")  # a client state, a prologue
LATE = "scaffold"  # in asynchronous rounds
FAILING = "site-2"


def shared(method):
    return federation(
        ALL[method].function(),
        classification(models.MLP(CLASSES, ()), (5,)),
        num_clients=CLIENTS,
        cohort_size=None if method == LATE else COHORT,
        local_steps=2,
        batch_size=4,
        max_client_size=32,
        classes=CLASSES,
        arrivals=buffered(3, 2) if method == LATE else None,
    )


def make_node(method, site):
    place = Path(collab.get_app_prop("sites")) / site
    (place / "process").write_text(str(os.getpid()))
    client = int(site.removeprefix("site-")) - 1
    with np.load(place / "examples.npz") as own:
        x, y = own["x"], own["y"]
    return Node(shared(method), client, x, y, place / method)


def make_failing_node(site):
    if site == FAILING:
        raise FileNotFoundError("the disk is gone")
    return make_node("fedavg", site)


fedmuon_correct = published(functools.partial(make_node, "fedmuon_correct"))
fedmuon = published(functools.partial(make_node, "fedmuon"))
scaffold = published(functools.partial(make_node, LATE))
failing = published(make_failing_node)


@collab.main
def train():
    place = Path(collab.get_app_prop("place"))
    reasons, arrived = {}, []
    for name in (*METHODS, LATE, "failing"):
        method, missing = ("fedavg" if name == "failing" else name), []
        ended = serve(
            shared(method),
            sites(collab.clients, function=name),
            jax.random.key(5),
            rounds=1 if name == "failing" else ROUNDS,
            deadline=120,
            on_round=lambda progress, lost, seen=missing: (
                seen.extend(lost),
                arrived.extend(progress.arrived),
            ),
        )
        np.savez(place / f"{name}.npz", *jax.tree.leaves(ended.state.training.server))
        reasons[name] = [(lost.client, lost.reason) for lost in missing]
    about = {"process": os.getpid(), "missing": reasons, "arrived": arrived}
    (place / "server.json").write_text(json.dumps(about))


def main(place):
    recipe = CollabRecipe("two_methods", min_clients=CLIENTS, sync_task_timeout=200)
    recipe.set_server_prop("place", str(place))
    recipe.set_client_prop("sites", str(place / "sites"))
    recipe.run(SimEnv(num_clients=CLIENTS, workspace_root=str(place / "workspace")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
