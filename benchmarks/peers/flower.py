"""With Flower: its simulation engine, one Ray actor a core, PyTorch in the clients.

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
from benchmarks.works import LR, Work


@functools.cache
def data_of(work: Work):
    """Once an actor."""
    torch.set_num_threads(1)
    return examples(work)


def train(message: Message, partition: int, work: Work, net: nn.Module) -> Message:
    """A client's local steps."""
    x, y, parts = data_of(work)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), LR)
    turn = message.content["config"]["server-round"]
    rng = np.random.default_rng((turn, partition))
    for ids in torch.from_numpy(batches(work, parts[partition], rng)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[ids]), y[ids]).backward()
        optimizer.step()
    count = MetricRecord({"num-examples": len(parts[partition])})
    arrays = ArrayRecord(net.state_dict())
    content = RecordDict({"arrays": arrays, "metrics": count})
    return Message(content=content, reply_to=message)


def play(work: Work, weights, turns: Turns, *, cores: int, rounds: int) -> None:
    """Turns change where the server would evaluate."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    net = network(work, weights)
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def local(message, context):
        return train(message, int(context.node_config["partition-id"]), work, net)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if server_round:
            turns.stop()
        if not turns.start():
            net.load_state_dict(arrays.to_torch_state_dict())
            x, y, _ = data_of(work)
            turns.finish([loss_of(work, net, x, y)])
        return MetricRecord()

    @server_app.main()
    def serve(grid, context):
        strategy = FedAvg(
            fraction_train=work.cohort / work.clients,
            fraction_evaluate=0.0,
            min_train_nodes=work.cohort,
            min_available_nodes=work.clients,
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
        num_supernodes=work.clients,
        backend_config={
            "init_args": {"num_cpus": cores, "num_gpus": 0},
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
        },
    )
