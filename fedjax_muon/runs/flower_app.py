"""The Flower app of a deployed run, and what its server and its nodes do.

    pyproject.toml   the app, with its defaults of `flwr run --run-config`
    server_app.py    calls `train`
    client_app.py    calls `node_of`
    config.json      the options of the run
    deployed.json    shapes and classes of the examples

Flower copies these files to all nodes. A node has its examples in a file of its own, or
in Flower's simulation, the part that `train` would give to its client. The server
writes its results:

    metrics.csv      one row an evaluation, of test examples
    missing.csv      who was left out of which exchange, and why
    arrivals.csv     the messages of asynchronous rounds in their order
    checkpoints/     the last two states of the server
"""

import contextlib
import csv
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pydantic

from fedjax_muon.core.atomic_files import write
from fedjax_muon.data import Dataset
from fedjax_muon.data.npz import arrays_of
from fedjax_muon.deploy.federation import Federation, federation
from fedjax_muon.deploy.node import Node
from fedjax_muon.deploy.rounds import Missing, Progress, Send
from fedjax_muon.deploy.server import serve
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.reporting.comparison import score_column
from fedjax_muon.runs import directory
from fedjax_muon.runs.build import (
    SAMPLERS,
    WEIGHTINGS,
    arrivals_of,
    federated_of,
    parts_of,
    start_key,
    task_of,
)
from fedjax_muon.runs.config import Run
from fedjax_muon.runs.directory import from_json, to_json
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.simulation.arguments import check_dataset
from fedjax_muon.simulation.arrivals import PROLOGUE
from fedjax_muon.simulation.evaluation import measure

FACTS, MISSING, ARRIVALS = "deployed.json", "missing.csv", "arrivals.csv"
SECONDS_BETWEEN_CHECKPOINTS = 2.0  # nodes keep all states that were made since


@dataclasses.dataclass(frozen=True)
class Facts:
    """What nodes know of the examples of all clients."""

    shape: tuple[int, ...]  # of an example
    dtype: str
    classes: tuple[str, ...]
    tokens: int  # size of a text's vocabulary
    max_client_size: int  # bound of the clients' numbers of examples


def facts_of(dataset: Dataset, largest_client: int) -> Facts:
    """Describes the examples of a dataset, of which a client has at most so many."""
    x = np.asarray(dataset.x_train)
    bound = 1 << (largest_client - 1).bit_length()
    classes = tuple(map(str, dataset.classes))
    return Facts(x.shape[1:], x.dtype.name, classes, dataset.tokens, bound)


def check(run: Run) -> None:
    """Raises `ValueError` for options that a deployed run can't have."""
    config = run.config
    reasons = {
        "dropout": (config.dropout, 0.0, "clients drop out by themselves"),
        "clock": (config.clock, None, "real rounds take their own time"),
        "replay": (config.replay, None, "messages are taken as they come"),
        "devices": (config.devices, 1, "every client has its own device"),
        "split_examples": (config.split_examples, False, "every client has its own"),
        "local_epochs": (config.local_epochs, (), "nodes take the same local_steps"),
        "client_tests": (config.client_tests, False, "the server tests on its own"),
        "checkpoint": (config.checkpoint, None, "nodes would not find the file"),
    }
    for name, (value, default, reason) in reasons.items():
        if value != default:
            raise ValueError(
                f"deploy does not support {name}, since {reason}; leave it out"
            )
    if config.plan not in ("default", "mapped"):
        raise ValueError(
            f"deploy supports only the plan mapped; leave out plan, got {config.plan}"
        )


def federation_of(run: Run, facts: Facts) -> Federation:
    """Makes what the server and all nodes share, without any examples."""
    config, arrivals = run.config, arrivals_of(run.config)
    one = np.zeros((1, *facts.shape), facts.dtype)
    label = np.zeros(1, np.int32)
    like = Dataset(one, label, one, label, facts.classes, facts.tokens)
    return federation(
        federated_of(run),
        task_of(config, like),
        num_clients=config.num_clients,
        cohort_size=config.cohort_size if arrivals is None else None,
        local_steps=config.local_steps,
        batch_size=config.batch_size,
        max_client_size=facts.max_client_size,
        classes=len(facts.classes),
        sampler=SAMPLERS[config.sampler],
        weighting=WEIGHTINGS[config.weighting],
        arrivals=arrivals,
    )


def train_with(
    run: Run,
    facts: Facts,
    dataset: Dataset,
    send: Send,
    run_dir: Path,
    *,
    deadline: float | None = None,
) -> None:
    """Trains with nodes, from the newest checkpoint of a directory if there is one."""
    record = _Record(run, facts, dataset, run_dir)
    serve(
        record.shared,
        send,
        start_key(run.seed),
        rounds=run.config.rounds,
        deadline=deadline,
        directory=run_dir / directory.CHECKPOINTS,
        checkpoint_seconds=SECONDS_BETWEEN_CHECKPOINTS,
        on_round=record.add,
    )


class _Record:
    """The rows of a deployed run."""

    def __init__(self, run: Run, facts: Facts, dataset: Dataset, run_dir: Path) -> None:
        self.shared, self.config = federation_of(run, facts), run.config
        dataset = check_dataset(dataset)
        self.test = jnp.asarray(dataset.x_test), jnp.asarray(dataset.y_test)
        self.metrics, self.missing = run_dir / directory.METRICS, run_dir / MISSING
        self.arrivals = run_dir / ARRIVALS
        self.resumes = any((run_dir / directory.CHECKPOINTS).glob("[0-9]*"))
        self.begun = False
        self.since = time.monotonic()
        self.measure = jax.jit(measure)

    def add(self, progress: Progress, missing: Sequence[Missing]) -> None:
        """Records a round."""
        now, rounds = progress.state.round, self.config.rounds
        if not self.begun:  # rows after the checkpoint are computed again
            first = now if self.resumes else PROLOGUE
            for path in (self.metrics, self.missing):
                _keep_before(path, first)
            again = [arrival.round for arrival in progress.arrived]
            _keep_before(self.arrivals, min([first, *again]))
            self.begun = True
        for answer in missing:
            metrics_csv.append(self.missing, answer._asdict())
        for arrival in progress.arrived:
            metrics_csv.append(self.arrivals, arrival._asdict())
        if now % self.config.evaluate_every and now < rounds:
            return
        scores = self.measure(self.shared.setup.task, progress.params, *self.test)
        row: dict[str, Any] = {"round": now, "missing": len(missing)}
        row |= {f"test_{name}": float(value) for name, value in scores.items()}
        row["seconds"] = round(time.monotonic() - self.since, 3)
        metrics_csv.append(self.metrics, row)
        score = row[score_column(row)]
        print(f"round {now} of {rounds}: test {self.config.score} {score:.4f}")


def _undamaged(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """Those that the module csv can read."""
    while True:
        try:
            yield next(rows)
        except csv.Error:  # a field longer than its limit, for example
            continue
        except StopIteration:
            return


def _keep_before(path: Path, round: int) -> None:
    if not path.exists():
        return
    with path.open(newline="", errors="replace") as file:
        header, *rows = [*_undamaged(csv.reader(file))] or [[]]
    kept = []
    for values in rows:
        with contextlib.suppress(ValueError, KeyError):  # a damaged row is left out
            row = dict(zip(header, values, strict=True))
            if int(row["round"]) < round:
                kept.append(row)
    if kept:
        write(path, metrics_csv.text_of(kept, header=True))
    else:
        path.unlink()


PROJECT = """\
[project]
name = "fedjax-muon-app"
version = "1.0.0"
description = "A deployed run of fedjax-muon"
license = "Apache-2.0"
# the SuperLink and the SuperNodes need the same version of fedjax-muon

[tool.flwr.app]
publisher = "fedjax-muon"
fab-include = ["/server_app.py", "/client_app.py", "/config.json", "/deployed.json"]

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
output = "results"  # directory of metrics.csv and checkpoints, for the server
deadline = {deadline}  # seconds to wait for the answers of an exchange
patience = {patience}  # seconds to wait for a client without a SuperNode
"""
SERVER = '''\
"""The server: it runs the rounds, and writes metrics.csv."""

from pathlib import Path

from flwr.serverapp import ServerApp

from fedjax_muon.runs import flower_app

app = ServerApp()


@app.main()
def main(grid, context):
    flower_app.train(grid, context.run_config, Path(__file__).parent)
'''
CLIENT = '''\
"""A client: it trains on its own examples, which never leave it."""

from pathlib import Path

from fedjax_muon.deploy.flower import client_app
from fedjax_muon.runs import flower_app


def make_node(context):
    config = context.run_config | context.node_config
    return flower_app.node_of(config, Path(__file__).parent)


app = client_app(make_node)
'''
EXAMPLES = "examples.npz"


def write_app(
    place: Path, run: Run, facts: Facts, *, deadline: float, patience: float
) -> None:
    """Writes the app, or checks that the directory has it already."""
    text = json.dumps(dataclasses.asdict(facts), indent=2) + "\n"
    if (place / FACTS).is_file():
        if to_json(directory.read(place)) != to_json(run):
            raise ValueError(
                f"{place} was made with other options; choose another directory"
            )
        if (place / FACTS).read_text() != text:
            raise ValueError(
                f"{place} was made for other examples; choose another directory"
            )
        return
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ValueError(f"{place} is already used; choose another directory")
    directory.create(place, run)
    project = PROJECT.format(deadline=float(deadline), patience=float(patience))
    write(place / "pyproject.toml", project)
    write(place / "server_app.py", SERVER)
    write(place / "client_app.py", CLIENT)
    write(place / FACTS, text)


def read_app(place: Path) -> tuple[Run, Facts]:
    """The run of an app, and the facts about its examples."""
    try:
        facts = pydantic.TypeAdapter(Facts).validate_json((place / FACTS).read_text())
        run = from_json((place / directory.CONFIG).read_text())
    except ValueError as error:
        raise ValueError(
            f"the app can't be read ({error}); install the same version of fedjax_muon "
            "on all machines"
        ) from error
    if not isinstance(run, Run):
        raise ValueError("the app does not train one algorithm")
    return run, facts


def save_examples(
    run_dir: Path, dataset: Dataset, parts: Sequence[np.ndarray]
) -> list[Path]:
    """Writes a file for each client, in a directory with nothing but its examples."""
    dataset, paths = check_dataset(dataset), []
    for client, part in enumerate(parts):
        path = run_dir / f"node{client}" / EXAMPLES
        path.parent.mkdir(exist_ok=True)
        np.savez(path, x=np.asarray(dataset.x_train)[part], y=dataset.y_train[part])
        paths.append(path)
    return paths


def load_examples(path: Path, facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    """Reads the arrays x and y of a client from a NumPy archive."""
    x, y = arrays_of(path, ("x", "y")).values()
    if x.shape[1:] != facts.shape or x.dtype.name != facts.dtype:
        raise ValueError(
            f"{path}: x must be {facts.dtype} of shape [n, "
            f"{', '.join(map(str, facts.shape))}], got {x.dtype}{list(x.shape)}"
        )
    return x, y


def check_own(run: Run, allowed: str, *, divides: bool = False) -> None:
    """Checks that a node's user has named all code of others that the run imports.

    Args:
      allowed: MODULE:FUNCTION of algorithms, models and partitions, separated by
        spaces.
    """
    for option, [name] in directory.own_code_of(run).items():
        if option == "partition" and not divides:
            continue
        if name not in allowed.split():
            raise ValueError(
                f"the server's {option} is {name}, which is imported only if this "
                f'SuperNode has --node-config own-code="{name}"'
            )


def node_of(config: Mapping[str, Any], place: Path) -> Node:
    """Makes the node of a SuperNode.

    Args:
      config: What the SuperNode was started with: the client's id as `partition-id`,
        the file of its examples as `data`, the directory of its states as `states`, by
        default beside the examples, and allowed MODULE:FUNCTION as `own-code`.
    """
    run, facts = read_app(place)
    allowed = str(config.get("own-code", ""))
    check_own(run, allowed, divides="data" not in config)
    if type(client := config.get("partition-id")) is not int:
        raise ValueError(
            "a SuperNode needs the id of its client: --node-config 'partition-id=0'"
        )
    if "data" in config:
        data = Path(config["data"])
        states = data.with_name(f"{data.stem}_states")
        x, y = load_examples(data, facts)
    else:
        dataset = check_dataset(dataset_of(run.config))
        part = parts_of(run.config, dataset, run.seed)[client]
        states = Path(config["output"]) / f"states{client}"
        x, y = np.asarray(dataset.x_train)[part], dataset.y_train[part]
    states = Path(config.get("states", states))
    return Node(federation_of(run, facts), client, x, y, states)


def train(grid: Any, config: Mapping[str, Any], place: Path) -> None:
    """Trains with the SuperNodes of a grid."""
    # needs flwr, which nodes and the writing of an app do not
    from fedjax_muon.deploy.flower import FlowerServer

    run, facts = read_app(place)
    clients, deadline = run.config.num_clients, float(config["deadline"])
    server = FlowerServer(grid, clients, patience=float(config["patience"]))
    output = Path(config["output"])
    output.mkdir(parents=True, exist_ok=True)
    dataset = dataset_of(run.config)
    print(f"waiting for {clients} SuperNodes")
    server.wait(clients, deadline)
    train_with(run, facts, dataset, server.send, output, deadline=deadline)
