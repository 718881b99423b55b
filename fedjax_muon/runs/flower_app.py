"""The Flower app of a deployed run, and what its server and its nodes do.

    flower_template/   the app: its defaults, and what calls `train` and `node_of`
    config.json        the options of the run
    deployed.json      shapes and classes of the examples

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pydantic

from fedjax_muon.data import Dataset
from fedjax_muon.data.npz import arrays_of
from fedjax_muon.deploy.federation import Federation, federation
from fedjax_muon.deploy.node import Node
from fedjax_muon.deploy.rounds import Missing, Progress, Send
from fedjax_muon.deploy.server import serve
from fedjax_muon.files import write
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
from fedjax_muon.runs.directory import from_json, own_code_of
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.simulation.arguments import check_dataset
from fedjax_muon.simulation.arrivals import PROLOGUE
from fedjax_muon.simulation.evaluation import measure

TEMPLATE = Path(__file__).with_name("flower_template")
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


def _keep_before(path: Path, round: int) -> None:
    """Drops rows of later rounds, and damaged ones."""
    if not path.exists():
        return
    header, *lines = path.read_text(errors="replace").splitlines() or [""]
    kept = []
    for line in lines:
        # a damaged row has a field longer than csv's limit, for example
        with contextlib.suppress(csv.Error, ValueError, KeyError):
            row = dict(zip(*csv.reader([header, line]), strict=True))
            if int(row["round"]) < round:
                kept.append(row)
    if kept:
        write(path, metrics_csv.text_of(kept, header=True))
    else:
        path.unlink()


def write_app(place: Path, run: Run, facts: Facts) -> None:
    """Copies the template to a new directory, and fills it in."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ValueError(f"{place} is already used; choose another directory")
    directory.create(place, run)
    write(place / FACTS, json.dumps(dataclasses.asdict(facts), indent=2) + "\n")
    code = " ".join(name for names in own_code_of(run).values() for name in names)
    filled = {'"OUTPUT"': str(place.resolve()), '"OWN_CODE"': code}
    for name in ("pyproject.toml", "server_app.py", "client_app.py"):
        text = (TEMPLATE / name).read_text()
        for word, value in filled.items():
            text = text.replace(word, json.dumps(value, ensure_ascii=False))
        write(place / name, text)


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
    for option, [name] in own_code_of(run).items():
        if option == "partition" and not divides:
            continue
        if name not in allowed.split():
            raise ValueError(
                f"the server's {option} is {name}, which is imported only if this "
                f'SuperNode has --node-config own-code="{name}"'
            )


def node_of(
    config: Mapping[str, Any], run_config: Mapping[str, Any], place: Path
) -> Node:
    """Makes the node of a SuperNode.

    Args:
      config: What the SuperNode was started with: the client's id as `partition-id`,
        the file of its examples as `data`, the directory of its states as `states`, by
        default beside the examples, and allowed MODULE:FUNCTION as `own-code`. In
        Flower's simulation there is only the id, and the server is on this machine.
      run_config: Of the server.
    """
    run, facts = read_app(place)
    simulated = "data" not in config
    allowed = (run_config if simulated else config).get("own-code", "")
    check_own(run, allowed, divides=simulated)
    if type(client := config.get("partition-id")) is not int:
        raise ValueError(
            "a SuperNode needs the id of its client: --node-config 'partition-id=0'"
        )
    if simulated:
        dataset = check_dataset(dataset_of(run.config))
        part = parts_of(run.config, dataset, run.seed)[client]
        states = Path(run_config["output"]) / f"states{client}"
        x, y = np.asarray(dataset.x_train)[part], dataset.y_train[part]
    else:
        data = Path(config["data"])
        states = Path(config.get("states", data.with_name(f"{data.stem}_states")))
        x, y = load_examples(data, facts)
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
