"""Algorithms on real clients, bitwise identical to the simulation.

The server calls `serve`, and every client is a `Node` with its own examples. A
transport takes requests to nodes, and answers back: `in_process` calls nodes of this
process, and the modules `flower` and `nvflare` those of other machines.

    shared = federation(fedavg(lr=0.1), task, num_clients=3, ...)
    ended = serve(shared, in_process(nodes), jax.random.key(0), rounds=50)
"""

from fedjax_muon.deploy.federation import Federation, federation
from fedjax_muon.deploy.messages import MessageError
from fedjax_muon.deploy.node import Node
from fedjax_muon.deploy.rounds import Missing, Progress, SecureSum, Send, Sum
from fedjax_muon.deploy.server import in_process, serve

__all__ = [
    "Federation",
    "MessageError",
    "Missing",
    "Node",
    "Progress",
    "SecureSum",
    "Send",
    "Sum",
    "federation",
    "in_process",
    "serve",
]
