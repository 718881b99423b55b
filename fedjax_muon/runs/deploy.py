"""The server of a deployed run: what nodes are told, and what is recorded.

config.json     what was asked for
deployed.json   shapes and classes of the examples, which nodes are told
metrics.csv     one row an evaluation, of test examples
missing.csv     who was left out of which exchange, and why
checkpoints/    the last two states of the server
"""

import csv
import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core.atomic_files import write
from fedjax_muon.data import Dataset
from fedjax_muon.deploy.federation import Federation, federation
from fedjax_muon.deploy.server import Missing, Progress, Send, serve
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import directory
from fedjax_muon.runs.build import (
    SAMPLERS,
    WEIGHTINGS,
    federated_of,
    start_key,
    task_of,
)
from fedjax_muon.runs.config import Run
from fedjax_muon.runs.config_json import from_json, to_json
from fedjax_muon.simulation.arguments import check_dataset
from fedjax_muon.simulation.evaluation import measure

FACTS, MISSING = "deployed.json", "missing.csv"
SECONDS_BETWEEN_CHECKPOINTS = 2.0  # nodes keep all states that were made since


@dataclasses.dataclass(frozen=True)
class Facts:
    """What nodes are told of the examples of all clients."""

    shape: tuple[int, ...]  # of an example
    dtype: str
    classes: tuple[str, ...]
    tokens: int  # size of a text's vocabulary
    max_client_size: int  # bound of the clients' numbers of examples


def facts_of(dataset: Dataset, largest_client: int) -> Facts:
    """Describes the examples of a data set.

    Args:
      dataset: A data set.
      largest_client: Most examples of a client.

    Returns:
      What nodes are told of them.
    """
    x = np.asarray(dataset.x_train)
    bound = 1 << (largest_client - 1).bit_length()
    classes = tuple(map(str, dataset.classes))
    return Facts(x.shape[1:], x.dtype.name, classes, dataset.tokens, bound)


def check(run: Run) -> None:
    """Raises `ValueError` for options that a deployed run can't have."""
    config = run.config
    reasons = {
        "dropout": (config.dropout, 0.0, "clients drop out by themselves"),
        "devices": (config.devices, 1, "every client has its own device"),
        "split_examples": (config.split_examples, False, "every client has its own"),
        "local_epochs": (config.local_epochs, (), "nodes take the same local_steps"),
        "client_tests": (config.client_tests, False, "the server tests on its own"),
        "checkpoint": (config.checkpoint, None, "nodes would not find the file"),
    }
    for name, (given, default, reason) in reasons.items():
        if given != default:
            raise ValueError(f"deploy has no {name}, since {reason}; leave it out")
    if config.plan not in ("default", "mapped"):
        raise ValueError(
            f"deploy adds messages in the order of the plan mapped; got {config.plan}"
        )


def federation_of(run: Run, facts: Facts) -> Federation:
    """Makes what the server and all nodes share, without any examples."""
    config = run.config
    one = np.zeros((1, *facts.shape), facts.dtype)
    label = np.zeros(1, np.int32)
    like = Dataset(one, label, one, label, facts.classes, facts.tokens)
    return federation(
        federated_of(run),
        task_of(config, like),
        num_clients=config.num_clients,
        cohort_size=config.cohort_size,
        local_steps=config.local_steps,
        batch_size=config.batch_size,
        max_client_size=facts.max_client_size,
        classes=len(facts.classes),
        sampler=SAMPLERS[config.sampler],
        weighting=WEIGHTINGS[config.weighting],
    )


def greeting_of(run: Run, facts: Facts) -> dict[str, Any]:
    """What a node is told when it connects: names and numbers alone.

    Returns:
      Values of JSON, which `run_of_greeting` reads.
    """
    config = dataclasses.replace(run.config, data_dir=None)
    job = to_json(dataclasses.replace(run, config=config))
    return {"job": job, "facts": dataclasses.asdict(facts)}


def run_of_greeting(greeting: Mapping[str, Any]) -> tuple[Run, Facts]:
    """Reads what `greeting_of` made.

    Args:
      greeting: From the server.

    Returns:
      The run, and what is known of the examples.
    """
    try:
        told = dict(greeting["facts"])
        told["shape"], told["classes"] = tuple(told["shape"]), tuple(told["classes"])
        run, facts = from_json(greeting["job"]), Facts(**told)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"the server's greeting can't be read ({error}); install the same version "
            "of fedjax_muon on all machines"
        ) from error
    if not isinstance(run, Run):
        raise ValueError("the server does not train one algorithm")
    return run, facts


def begin(output: Path | None, run: Run, facts: Facts) -> Path:
    """Makes the directory of a deployed run, or finds the one to go on in.

    Args:
      output: Where; by default in `runs`, named after the time.
    """
    text = json.dumps(dataclasses.asdict(facts), indent=2) + "\n"
    if output is not None and (output / FACTS).is_file():
        if to_json(directory.read(output)) != to_json(run):
            raise ValueError(
                f"{output} was made by other options; choose another --output"
            )
        if (output / FACTS).read_text() != text:
            raise ValueError(f"{output} was made for other examples than these")
        return output
    run_dir = directory.create(output, run, f"{run.algorithm}-deployed")
    write(run_dir / FACTS, text)
    return run_dir


def train(
    run: Run,
    facts: Facts,
    dataset: Dataset,
    send: Send,
    run_dir: Path,
    *,
    deadline: float | None = None,
    tick: Callable[[int], None] = lambda rounds: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Trains with nodes, from the newest checkpoint of a directory if there is one.

    Args:
      dataset: Provides the test examples.
      send: Transport.
      run_dir: The directory.
      deadline: Seconds to wait for the answers of an exchange.
      tick: Called with the number of new rounds.
      stop: Asked after every round.

    Raises:
      KeyboardInterrupt: After `stop`.
    """
    record = _Record(run, facts, dataset, run_dir, tick, stop)
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

    def __init__(
        self,
        run: Run,
        facts: Facts,
        dataset: Dataset,
        run_dir: Path,
        tick: Callable[[int], None],
        stop: Callable[[], bool],
    ) -> None:
        self.shared, self.config = federation_of(run, facts), run.config
        dataset = check_dataset(dataset)
        self.test = jnp.asarray(dataset.x_test), jnp.asarray(dataset.y_test)
        self.metrics = run_dir / directory.METRICS
        self.missing = run_dir / MISSING
        self.tick, self.stop = tick, stop
        self.round = -1  # the newest one that is recorded
        self.since = time.monotonic()
        self.measure = jax.jit(measure)

    def add(self, progress: Progress, missing: list[Missing]) -> None:
        """Records a round."""
        now = progress.state.round
        if self.round < 0:  # rows after the checkpoint are computed again
            _keep_before(self.metrics, now)
            _keep_before(self.missing, now)
        for answer in missing:
            metrics_csv.append(self.missing, answer._asdict())
        rounds = self.config.rounds
        if now % self.config.evaluate_every == 0 or now == rounds:
            found = self.measure(self.shared.setup.task, progress.params, *self.test)
            scores = {f"test_{name}": float(value) for name, value in found.items()}
            seconds = time.monotonic() - self.since
            row = {"round": now, "missing": len(missing), **scores}
            metrics_csv.append(self.metrics, {**row, "seconds": round(seconds, 3)})
        self.tick(now - max(self.round, 0))
        self.round = now
        if self.stop() and now < rounds:
            raise KeyboardInterrupt


def _keep_before(path: Path, round: int) -> None:
    """Removes the rows of later rounds."""
    if not path.exists():
        return
    with path.open(newline="") as file:
        header, *rows = list(csv.reader(file)) or [[]]
    at = header.index("round") if "round" in header else 0
    kept = [row for row in rows if len(row) == len(header) and int(row[at]) < round]
    lines = [dict(zip(header, row, strict=True)) for row in kept]
    if lines:
        write(path, metrics_csv.text_of(lines, header=True))
    else:
        path.unlink()
