"""Seconds per round of deployed FedAvg, and of its computation alone.

    python -m benchmarks.deployment_overhead --rounds 5 --output overhead.jsonl

Eight processes of this machine train an MLP of 199,210 parameters: with this library
over TCP, with this library over Flower, and with Flower's own FedAvg strategy, whose
clients run the same compiled local steps. `alone` runs the steps of all clients one
after the other in one process. A first round, which compiles, does not count.

Flower starts a process for every message, here in its isolation mode `subprocess`; its
mode `process` does the same from outside of the SuperNode. Its intervals are the
defaults: a SuperNode looks for messages every three seconds, and for tasks every
second. The strategy looks for answers every three seconds, this library every 0.2
seconds. Nodes over TCP stay.

Prints a table, and appends one line of JSON to `--output`. It needs flwr, the extra
`flower`.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import flower_engine, overhead_clients as clients
from benchmarks.machine import machine
from fedjax_muon.deploy import messages
from fedjax_muon.deploy.tcp import TcpServer, join

ROOT = Path(__file__).parents[1]
TOKEN = "of a benchmark on the loopback address"
SECONDS_TO_START, SECONDS_A_ROUND = 300.0, 300.0
APP = """\
[project]
name = "deployment-overhead"
version = "1.0.0"
description = "Apps of a benchmark"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "benchmarks"

[tool.flwr.app.components]
serverapp = "benchmarks.overhead_apps:server_app"
clientapp = "benchmarks.overhead_apps:node_app"

[tool.flwr.app.config]
way = ""
output = ""
rounds = 0
"""


@contextlib.contextmanager
def tcp_nodes(port: int, place: Path) -> Iterator[None]:
    """Runs the clients as processes that connect to a port."""
    command = [sys.executable, "-m", "benchmarks.deployment_overhead"]
    variables = {"JAX_COMPILATION_CACHE_DIR": str(place / "programs")}
    with contextlib.ExitStack() as stack:
        for client in range(clients.CLIENTS):
            process = subprocess.Popen(
                [*command, "--join", str(port), "--client", str(client)],
                cwd=ROOT,
                env=os.environ | variables,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield


def over_tcp(rounds: int, place: Path) -> clients.Timed:
    """This library over its own transport."""
    address = (flower_engine.HOST, 0)
    with (
        TcpServer(address, clients.CLIENTS, token=TOKEN) as server,
        tcp_nodes(server.address[1], place),
    ):
        found = server.wait(clients.CLIENTS, SECONDS_TO_START)
        if len(found) < clients.CLIENTS:
            raise RuntimeError(f"nodes that did not start in time: got {sorted(found)}")
        return clients.timed(server.send, rounds)


def over_flower(rounds: int, place: Path) -> dict[str, tuple[list[float], list]]:
    """This library over Flower, and Flower's FedAvg, on one engine."""
    app, found = place / "app", {}
    app.mkdir()
    (app / "pyproject.toml").write_text(APP)
    configs = [{"client": client} for client in range(clients.CLIENTS)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": path}
    with flower_engine.engine(place / "engine", configs, variables) as engine:
        for way in ("fedjax_muon", "flower"):
            output = place / f"{way}.json"
            config = {"way": way, "rounds": rounds, "output": str(output)}
            seconds = SECONDS_TO_START + rounds * SECONDS_A_ROUND
            said = engine.run(app, config, seconds)
            if not output.exists():
                raise RuntimeError(f"Flower has not run {way}:\n{said}")
            with np.load(output.with_suffix(".npz")) as arrays:
                found[way] = json.loads(output.read_text()), list(arrays.values())
    return found


def seconds_of(times: list[float]) -> list[float]:
    """Seconds of each round but the first."""
    return [round(after - before, 4) for before, after in pairwise(times[1:])]


def measured(rounds: int) -> dict[str, Any]:
    """Runs all ways; returns the line of results."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        alone = clients.alone(rounds + 1)
        tcp, params = over_tcp(rounds + 1, place)
        flower = over_flower(rounds + 1, place)
    ours, theirs = flower["fedjax_muon"][1], messages.pack(params)
    times = {
        "alone": alone,
        "fedjax_muon over TCP": tcp,
        "fedjax_muon over Flower": flower["fedjax_muon"][0],
        "Flower's FedAvg": flower["flower"][0],
    }
    seconds = {name: seconds_of(found) for name, found in times.items()}
    return {
        "clients": clients.CLIENTS,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(clients.shapes())),
        "rounds": rounds,
        "same_bits": all(map(np.array_equal, ours, theirs)),
        "seconds": seconds,
        "median": {n: round(statistics.median(s), 4) for n, s in seconds.items()},
    }


def table(median: dict[str, float]) -> str:
    """The medians, and what is added to the computation."""
    rows = ["| | seconds a round | besides computation |", "|---|---:|---:|"]
    for name, seconds in median.items():
        rows.append(f"| {name} | {seconds:.3g} | {seconds - median['alone']:.3g} |")
    return "\n".join(rows)


def main() -> None:
    """Measures, or runs one client over TCP."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="that count")
    parser.add_argument(
        "--output", type=Path, help="append a line of JSON to this file"
    )
    parser.add_argument("--join", type=int, help=argparse.SUPPRESS)  # a port
    parser.add_argument("--client", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.join:
        node = clients.node_of(args.client)
        address = (flower_engine.HOST, args.join)
        join(address, args.client, lambda greeting: node.answer, token=TOKEN)
        return
    if args.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {args.rounds}")
    line: dict[str, Any] = machine("benchmarks.deployment_overhead")
    line |= {"flwr": importlib.metadata.version("flwr"), "load": os.getloadavg()[0]}
    line |= measured(args.rounds)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with args.output.open("a") as file:
            print(json.dumps(line), file=file)
    print(json.dumps(line))
    print(table(line["median"]))


if __name__ == "__main__":
    main()
