"""The server of a deployed run: what it shares with nodes, and what is recorded.

metrics.csv     one row an evaluation, of test examples
missing.csv     who was left out of which exchange, and why
checkpoints/    the last two states of the server
"""

import csv
import dataclasses
import time
from collections.abc import Sequence
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
from fedjax_muon.reporting.comparison import score_column
from fedjax_muon.runs import directory
from fedjax_muon.runs.build import (
    SAMPLERS,
    WEIGHTINGS,
    federated_of,
    start_key,
    task_of,
)
from fedjax_muon.runs.config import Run
from fedjax_muon.simulation.arguments import check_dataset
from fedjax_muon.simulation.evaluation import measure

FACTS, MISSING = "deployed.json", "missing.csv"
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


def train(
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
        self.begun = False
        self.since = time.monotonic()
        self.measure = jax.jit(measure)

    def add(self, progress: Progress, missing: Sequence[Missing]) -> None:
        """Records a round."""
        now, rounds = progress.state.round, self.config.rounds
        if not self.begun:  # rows after the checkpoint are computed again
            _keep_before(self.metrics, now)
            _keep_before(self.missing, now)
            self.begun = True
        for answer in missing:
            metrics_csv.append(self.missing, answer._asdict())
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
    """Removes the rows of later rounds."""
    if not path.exists():
        return
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    if kept := [row for row in rows if int(row["round"]) < round]:
        write(path, metrics_csv.text_of(kept, header=True))
    else:
        path.unlink()
