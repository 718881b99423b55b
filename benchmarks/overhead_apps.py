"""Apps of `benchmarks.deployment_overhead`: this library over Flower, and its FedAvg.

Both train with the same compiled local steps. Flower starts a process of the app for
every message.
"""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks import overhead_clients as clients
from fedjax_muon.deploy import messages
from fedjax_muon.deploy.flower import FlowerServer, client_app

SECONDS_TO_START = 300.0


def make_node(context: Context) -> clients.Node:
    """The node of a SuperNode."""
    return clients.node_of(context.node_config["client"])


node_app = client_app(make_node)
server_app = ServerApp()


@node_app.train()
def train(message: Message, context: Context) -> Message:
    """Takes a client's local steps for Flower's FedAvg."""
    node = make_node(context)
    arrays = message.content["arrays"].to_numpy_ndarrays()
    params = messages.unpack(arrays, clients.shapes())
    turn = message.content["config"]["server-round"]
    after = clients.local_steps(node)(params, turn)
    content = {
        "arrays": ArrayRecord(messages.pack(after)),
        "metrics": MetricRecord({"num-examples": node.examples}),
    }
    return Message(RecordDict(content), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs rounds, and writes when each of them has ended."""
    ways = {"fedjax_muon": by_library, "flower": by_strategy}
    times, params = ways[context.run_config["way"]](grid, context.run_config["rounds"])
    place = Path(context.run_config["output"])
    np.savez(place.with_suffix(".npz"), *messages.pack(params))
    place.write_text(json.dumps(times))


def by_library(grid: Grid, rounds: int) -> clients.Timed:
    """This library's FedAvg."""
    transport = FlowerServer(grid, clients.CLIENTS)
    transport.wait(clients.CLIENTS, SECONDS_TO_START)
    return clients.timed(transport.send, rounds)


def by_strategy(grid: Grid, rounds: int) -> clients.Timed:
    """Flower's FedAvg."""
    times: list[float] = []
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_train_nodes=clients.CLIENTS,
        min_available_nodes=clients.CLIENTS,
    )
    params = clients.initial()
    result = strategy.start(
        grid,
        ArrayRecord(messages.pack(params)),
        num_rounds=rounds,
        evaluate_fn=lambda turn, arrays: times.append(time.perf_counter()),
    )
    after = messages.unpack(result.arrays.to_numpy_ndarrays(), clients.shapes())
    return times, after
