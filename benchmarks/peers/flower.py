"""Flower: its simulation engine, one Ray actor per core, and PyTorch in the clients.

The actors compute on the CPU.
"""

import functools
import logging
import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import numpy as np
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from benchmarks.peers.torch_nets import batches, examples, loss_of, network
from benchmarks.turns import Turns
from benchmarks.workloads import LR, Workload


@functools.cache
def data_of(workload: Workload):
    """Returns the examples, loaded once per actor."""
    torch.set_num_threads(1)
    return examples(workload)


def train(
    message: Message, partition: int, workload: Workload, net: nn.Module
) -> Message:
    """Takes a client's local steps."""
    x, y, parts = data_of(workload)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), LR)
    turn = message.content["config"]["server-round"]
    rng = np.random.default_rng((turn, partition))
    for ids in torch.from_numpy(batches(workload, parts[partition], rng)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[ids]), y[ids]).backward()
        optimizer.step()
    count = MetricRecord({"num-examples": len(parts[partition])})
    arrays = ArrayRecord(net.state_dict())
    content = RecordDict({"arrays": arrays, "metrics": count})
    return Message(content=content, reply_to=message)


def run(workload: Workload, weights, turns: Turns, *, cores: int, rounds: int) -> None:
    """Runs rounds; a turn ends where the server would evaluate."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    net = network(workload, weights)
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def local(message, context):
        return train(message, int(context.node_config["partition-id"]), workload, net)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if server_round:
            turns.stop()
        if not turns.start():
            net.load_state_dict(arrays.to_torch_state_dict())
            x, y, _ = data_of(workload)
            turns.finish([loss_of(workload, net, x, y)])
        return MetricRecord()

    @server_app.main()
    def serve(grid, context):
        strategy = FedAvg(
            fraction_train=workload.cohort / workload.clients,
            fraction_evaluate=0.0,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.clients,
        )
        strategy.start(
            grid,
            ArrayRecord(net.state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord(),
            evaluate_fn=evaluate,
        )

    run_simulation(
        server_app,
        client_app,
        num_supernodes=workload.clients,
        backend_config={
            "init_args": {"num_cpus": cores, "num_gpus": 0},
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
        },
    )
