"""The federation of `benchmarks.deployment_overhead`: its clients and their steps.

Eight clients train an MLP of 199,210 parameters on their own 600 examples, 30 steps of
20 examples in every round.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon import models
from fedjax_muon.algorithms import fedavg
from fedjax_muon.deploy import (
    Federation,
    Node,
    Progress,
    Send,
    federation,
    in_process,
    messages,
    serve,
)
from fedjax_muon.deploy.node import client_program, round_of
from fedjax_muon.tasks.classification import classification

CLIENTS, EXAMPLES, INPUTS, CLASSES = 8, 600, 784, 10
KEY = 0
Timed = tuple[list[float], Any]  # when rounds have ended, and the parameters


@functools.cache
def shared() -> Federation:
    """The federation."""
    return federation(
        fedavg(lr=0.1),
        classification(models.MLP(CLASSES), (INPUTS,)),
        num_clients=CLIENTS,
        cohort=CLIENTS,
        local_steps=30,
        batch_size=20,
        max_client_size=1024,
        classes=CLASSES,
    )


def node_of(client: int) -> Node:
    """A client with its examples, which are drawn at random."""
    rng = np.random.default_rng(client)
    x = rng.standard_normal((EXAMPLES, INPUTS), np.float32)
    y = rng.integers(0, CLASSES, EXAMPLES).astype(np.int32)
    return Node(shared(), client, x, y)


def initial() -> Any:
    """Parameters to begin with."""
    return shared().setup.task.init(jax.random.key(KEY))


def shapes() -> Any:
    """Shapes of the parameters."""
    return jax.eval_shape(initial)


def local_steps(node: Node) -> Callable[[Any, int], Any]:
    """The compiled steps of a node in a round, without any message."""
    algorithm = shared().setup.algorithm
    program = client_program(shared(), 0)

    def run(params: Any, turn: int) -> Any:
        key = jax.random.fold_in(jax.random.key(turn), node.client)
        present, index = jnp.float32(CLIENTS), jnp.int32(turn)
        round = round_of(shared(), 0, index, key, present)
        broadcast = shared().exchanges[0].broadcast(algorithm.init(params), round)
        request = {"broadcast": broadcast, "keys": (key, key), "present": present}
        state = algorithm.init_client(params)
        client = jnp.int32(node.client)
        sent, _, _ = program(client, node._clients, request, state, index)
        return jax.tree.map(jnp.subtract, params, sent.params)

    return run


def timed(send: Send, rounds: int) -> Timed:
    """Runs rounds of this library's server."""
    times: list[float] = []

    def note(progress: Progress, missing: list) -> None:
        if missing:
            raise RuntimeError(f"an answer is missing: {missing[0]}")
        jax.block_until_ready(progress.params)
        times.append(time.perf_counter())

    ended = serve(shared(), send, jax.random.key(KEY), rounds=rounds, on_round=note)
    return times, ended.params


def in_one_process(rounds: int) -> list[np.ndarray]:
    """The parameters after rounds of nodes in this process."""
    nodes = {client: node_of(client) for client in range(CLIENTS)}
    return messages.pack(timed(in_process(nodes), rounds)[1])


def alone(rounds: int) -> list[float]:
    """Runs the steps of all clients one after the other, and nothing else."""
    steps = [local_steps(node_of(client)) for client in range(CLIENTS)]
    params, times = initial(), [time.perf_counter()]
    for turn in range(rounds):
        jax.block_until_ready([run(params, turn) for run in steps])
        times.append(time.perf_counter())
    return times
