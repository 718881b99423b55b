"""Seconds per round of deployed FedAvg, and of its computation alone.

    python -m benchmarks.deployment_overhead --rounds 5 --nvflare PYTHON --output FILE

Eight processes of this machine train an MLP of 199,210 parameters: with this library
over Flower, with Flower's own FedAvg strategy, whose clients run the same compiled
local steps, and with this library over NVFlare. `alone` runs the steps of all clients
one after the other in one process. A first round, which compiles, does not count.

Flower starts a process for every message, here in its isolation mode `subprocess`; its
mode `process` does the same from outside of the SuperNode. Its intervals are the
defaults: a SuperNode looks for messages every three seconds, and for tasks every
second. The strategy looks for answers every three seconds, this library every 0.2
seconds. Sites of NVFlare stay.

Prints a table, and appends one line of JSON to `--output`. It needs flwr, the extra
`flower`, and the Python of another environment with the extra `nvflare`, since their
packages exclude each other.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import overhead_clients as clients
from benchmarks.machine import machine

ROOT = Path(__file__).parents[1]
Ways = dict[str, tuple[list[float], list[np.ndarray]]]  # when rounds ended, parameters
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
CONNECTION = """\
[superlink]
default = "here"

[superlink.here]
address = "127.0.0.1:{}"
insecure = true
"""


def path_variables() -> dict[str, str]:
    """Environment variables of processes that import this package."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path)}


def written(output: Path) -> tuple[list[float], list[np.ndarray]]:
    """When rounds have ended, and the parameters; fails if there are none."""
    with np.load(output.with_suffix(".npz")) as arrays:
        return json.loads(output.read_text()), list(arrays.values())


def free_port() -> str:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


@contextlib.contextmanager
def engine(place: Path) -> Iterator[dict[str, str]]:
    """Runs a SuperLink and SuperNodes; yields the environment of `flwr run`."""
    link = free_port()
    (place / "config.toml").write_text(CONNECTION.format(link))
    path = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | path_variables() | {"PATH": os.pathsep.join(path)}
    environment |= {"FLWR_HOME": str(place), "FLWR_TELEMETRY_ENABLED": "0"}
    environment["JAX_COMPILATION_CACHE_DIR"] = str(place / "programs")
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((place / "log").open("w"))

        def start(*words: str, port: str) -> None:
            command = [*words, "--insecure", "--host", "127.0.0.1", "--port", port]
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
            stack.enter_context(process)
            stack.callback(process.terminate)

        start(
            "flower-superlink", "--disable-runtime-dependency-installation", port=link
        )
        node = ["flower-supernode", "--superlink", f"127.0.0.1:{link}"]
        for client in range(clients.CLIENTS):
            start(*node, "--node-config", f"client={client}", port=free_port())
        while True:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", int(link))),
            ):
                break
            time.sleep(0.1)
        yield environment


def over_flower(rounds: int, place: Path) -> Ways:
    """This library over Flower, and Flower's FedAvg, on the same SuperNodes."""
    app, ways = place / "app", {}
    app.mkdir()
    (app / "pyproject.toml").write_text(APP)
    with engine(place) as environment:
        for way in ("fedjax_muon", "flower"):
            output = place / f"{way}.json"
            config = f'way="{way}" rounds={rounds} output="{output}"'
            command = ["flwr", "run", str(app), "--stream", "--run-config", config]
            subprocess.run(command, env=environment, check=True)
            ways[way] = written(output)
    return {
        "fedjax_muon over Flower": ways["fedjax_muon"],
        "Flower's FedAvg": ways["flower"],
    }


def over_nvflare(python: Path, rounds: int, place: Path) -> Ways:
    """This library over NVFlare, in the environment of another Python."""
    output = place / "nvflare.json"
    command: list[str | Path] = [
        python,
        "-m",
        "benchmarks.overhead_sites",
        str(rounds),
        output,
    ]
    # the home has NVFlare's own files
    environment = os.environ | path_variables() | {"HOME": str(place)}
    with tempfile.TemporaryDirectory() as short:  # paths of sockets are bounded
        environment["TMPDIR"] = short
        subprocess.run([*command, place / "workspace"], env=environment, check=True)
    return {"fedjax_muon over NVFlare": written(output)}


def seconds_of(times: list[float]) -> list[float]:
    """Seconds of each round but the first."""
    return [round(after - before, 4) for before, after in pairwise(times[1:])]


def measured(rounds: int, nvflare: Path | None) -> dict[str, Any]:
    """Runs all ways; returns the line of results."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        alone = clients.alone(rounds + 1)
        ways = over_flower(rounds + 1, place)
        params = [ways["fedjax_muon over Flower"][1]]
        if nvflare is not None:
            ways |= over_nvflare(nvflare, rounds + 1, place)
            params.append(ways["fedjax_muon over NVFlare"][1])
    times = {"alone": alone} | {name: ended for name, (ended, _) in ways.items()}
    seconds = {name: seconds_of(ended) for name, ended in times.items()}
    params.append(clients.in_one_process(rounds + 1))
    return {
        "clients": clients.CLIENTS,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(clients.shapes())),
        "rounds": rounds,
        "same_bits": all(
            np.array_equal(*pair)
            for leaves in params
            for pair in zip(leaves, params[-1], strict=True)
        ),
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
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="that count")
    parser.add_argument("--nvflare", type=Path, help="Python that has nvflare")
    parser.add_argument(
        "--output", type=Path, help="append a line of JSON to this file"
    )
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {args.rounds}")
    line: dict[str, Any] = machine("benchmarks.deployment_overhead")
    line |= {"flwr": importlib.metadata.version("flwr"), "load": os.getloadavg()[0]}
    line |= measured(args.rounds, args.nvflare)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with args.output.open("a") as file:
            print(json.dumps(line), file=file)
    print(json.dumps(line))
    print(table(line["median"]))


if __name__ == "__main__":
    main()
