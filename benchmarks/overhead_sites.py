"""Job of `benchmarks.deployment_overhead`: this library over NVFlare.

    python -m benchmarks.overhead_sites ROUNDS OUTPUT WORKSPACE

Every site is a process that stays. It writes when each round has ended, and the
parameters.
"""

import json
import sys
from pathlib import Path

import numpy as np
from nvflare.collab import CollabRecipe, collab
from nvflare.recipe import SimEnv

from benchmarks import overhead_clients as clients
from fedjax_muon.deploy import messages
from fedjax_muon.deploy.nvflare import published, sites


def make_node(site: str) -> clients.Node:
    """The node of a site."""
    return clients.node_of(int(site.removeprefix("site-")) - 1)


answer = published(make_node)


@collab.main
def train() -> None:
    """Runs the rounds."""
    rounds = collab.get_app_prop("rounds")
    place = Path(collab.get_app_prop("output"))
    times, params = clients.timed(sites(collab.clients), rounds)
    np.savez(place.with_suffix(".npz"), *messages.pack(params))
    place.write_text(json.dumps(times))


def main(rounds: str, output: str, workspace: str) -> None:
    """Runs the job with a process for every site."""
    recipe = CollabRecipe("overhead", min_clients=clients.CLIENTS)
    recipe.set_server_prop("rounds", int(rounds))
    recipe.set_server_prop("output", output)
    recipe.run(SimEnv(num_clients=clients.CLIENTS, workspace_root=workspace))


if __name__ == "__main__":
    main(*sys.argv[1:])
