"""The Flower app of a deployed run, and what its server and its nodes do.

    flower_template/   the app: its defaults, and what calls `train` and `node_of`
    command.json       the words of the command `deploy`
    deployed.json      what nodes know of the clients: shapes, classes, sizes

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
import inspect
import json
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.cli.commands import Place, at_home, command_of, usual_method
from fedjax_muon.cli.errors import refusing
from fedjax_muon.cli.jobs import Job, Words, dashed, launch
from fedjax_muon.cli.names import UntrustedError, importing_only
from fedjax_muon.core import check_count
from fedjax_muon.data import Dataset
from fedjax_muon.data.loading import OPTIONS
from fedjax_muon.data.npz import arrays_of
from fedjax_muon.deploy.federation import Federation, federation
from fedjax_muon.deploy.node import Node
from fedjax_muon.deploy.rounds import Missing, Progress, Send
from fedjax_muon.deploy.server import serve
from fedjax_muon.files import read_text, reading, write
from fedjax_muon.problems import Problem
from fedjax_muon.runs import metrics_csv
from fedjax_muon.runs.directory import CHECKPOINTS, METRICS
from fedjax_muon.runs.simulate import (
    needs_all,
    score_of,
    settings_of,
    start_key,
)
from fedjax_muon.runs.summary import score_column
from fedjax_muon.simulation.arguments import check_dataset
from fedjax_muon.simulation.arrivals import PROLOGUE
from fedjax_muon.simulation.evaluation import measure

TEMPLATE = Path(__file__).with_name("flower_template")
FACTS, MISSING, ARRIVALS = "deployed.json", "missing.csv", "arrivals.csv"
SECONDS_BETWEEN_CHECKPOINTS = 2.0  # nodes keep all states that were made since


# arguments of problems that say which examples there are; nodes have their own
OF_DATA = {"data_dir", "train_share", "divide", *OPTIONS}
# what a deployed run can't have, and why
REASONS = {
    **dict.fromkeys(inspect.signature(launch).parameters, "clients have their own"),
    "dropout": "clients drop out by themselves",
    "clock": "real rounds take their own time",
    "deadline": "it is an option of flwr run",
    "split_examples": "every client has its own",
    "local_epochs": "nodes take the same local_steps",
    "client_tests": "the server tests on its own",
    "validation": "the server tests on its own",
    "epsilon": "no ledger would know of its rounds",
}


@dataclasses.dataclass(frozen=True)
class Facts:
    """What nodes know of the examples of all clients."""

    shape: tuple[int, ...]  # of an example
    dtype: str
    classes: tuple[str, ...]
    tokens: int  # size of a text's vocabulary
    sizes: Mapping[str, Any]  # arguments of `federation`


def facts_of(job: Job, problem: Problem, largest_client: int | None = None) -> Facts:
    """Describes the examples of a problem.

    Args:
      largest_client: Upper bound of a client's number of examples. By default that of
        the clients of `train`.
    """
    [method], dataset = job.methods().values(), problem.dataset
    how, parts = job.settings(problem), problem.parts(seed_of(job))
    largest = max(map(len, parts)) if largest_client is None else largest_client
    check_count("largest_client", largest)
    sizes = settings_of(method, problem, how)
    if needs_all(method, problem, how):
        sizes["cohort"] = len(parts)
    sizes |= {"num_clients": len(parts), "classes": len(dataset.classes)}
    sizes["max_client_size"] = 1 << (largest - 1).bit_length()
    kept = {name: sizes[name] for name in SIZES if isinstance(sizes.get(name), int)}
    x = np.asarray(dataset.x_train)
    classes = tuple(map(str, dataset.classes))
    return Facts(x.shape[1:], x.dtype.name, classes, dataset.tokens, kept)


SIZES = (  # arguments of `federation` that nodes are told
    *("cohort", "local_steps", "batch_size"),
    *("num_clients", "max_client_size", "classes"),
)


def deploying(*, largest_client: int | None = None) -> None:
    """What real clients are.

    Args:
      largest_client: Upper bound of a client's number of examples. By default that of
        the clients of train.
    """


def training(*, rounds: int = 100, seed: int = 0, evaluate_every: int = 5) -> None:
    """How long a deployed run trains.

    Args:
      rounds: Number of rounds since the beginning.
      seed: Decides the first parameters, cohorts and batches.
      evaluate_every: Rounds between evaluations.
    """


def parsed_deploy(argv: Sequence[str]) -> Job:
    """The job of `deploy`, whose first word is the directory of the app."""
    words = Words(argv)
    if not 1 <= len(words.first) <= 2:
        raise ValueError(
            "deploy takes a new directory and one method, such as: deploy my_app "
            "fedmuon"
        )
    _check(words.options)
    directory, *words.first = words.first
    job = Job(words, training, deploying, [usual_method(words)])
    job.given["directory"] = directory
    _check(job.problem_call.keywords)
    if not job.federated:
        raise ValueError(f"{job.calls[0].name} has no server; choose one that has")
    plan, cohort = (job.how.get(name) for name in ("plan", "cohort"))
    if plan is not None and plan.name != "mapped":
        raise ValueError(
            f"deploy supports only the plan mapped; leave out --plan, got {plan.name}"
        )
    if getattr(cohort, "name", "") == "replayed":
        raise ValueError(
            "deploy takes messages as they come; replay them by train --cohort replayed"
        )
    return job


def _check(options: Collection[str]) -> None:
    for name in REASONS.keys() & {*options}:
        raise ValueError(
            f"deploy does not support {dashed(name)}, since {REASONS[name]}; leave it "
            "out"
        )


def problem_of_nodes(job: Job, facts: Facts) -> Problem:
    """The problem with one example of zeros, since only the server has its data."""
    call = job.problem_call
    if "dataset" not in inspect.signature(call.function).parameters:
        raise ValueError(
            f"{call.name} must have an argument dataset to be deployed: nodes make the "
            "task of one that has the shapes and classes of yours"
        )
    one, label = np.zeros((1, *facts.shape), facts.dtype), np.zeros(1, np.int32)
    like = Dataset(one, label, one, label, facts.classes, facts.tokens)
    kept = {name: v for name, v in call.keywords.items() if name not in OF_DATA}
    return call.given({**kept, "dataset": like}).made(job.rounds)


def problem_of_server(job: Job, place: Path) -> Problem:
    """The problem with its data; paths are relative to where `deploy` was run."""
    with at_home(command_of(place)):
        return job.problem()


def federation_of(job: Job, problem: Problem, facts: Facts) -> Federation:
    """Makes what the server and all nodes share."""
    method: Any
    [method], how = job.methods().values(), job.settings(problem)
    given = {name: how[name] for name in SHARED if name in how}
    return federation(method, problem.task, **{**facts.sizes, **given})


SHARED = ("sampler", "weighting", "cohort")  # arguments of `federation`


def deploy(argv: Sequence[str]) -> None:
    """Writes a Flower app that trains one method with real clients."""
    with refusing():
        job = parsed_deploy(argv)
        problem = job.problem()
        facts = facts_of(job, problem, job.extra.get("largest_client"))
        federation_of(job, problem_of_nodes(job, facts), facts)  # as nodes will do
        place = write_app(argv, job, facts)
    words = shlex.join(["flwr", "run", str(place), "--stream"])
    print(
        f"wrote a Flower app; run it by: {words}\non this machine alone: {words} "
        f"--federation-config num-supernodes={facts.sizes['num_clients']}"
    )


def train_with(
    job: Job,
    facts: Facts,
    problem: Problem,
    send: Send,
    run_dir: Path,
    *,
    deadline: float | None = None,
) -> None:
    """Trains with nodes, from the newest checkpoint of a directory if there is one."""
    record = _Record(job, facts, problem, run_dir)
    serve(
        record.shared,
        send,
        start_key(seed_of(job)),
        rounds=job.rounds,
        deadline=deadline,
        directory=run_dir / CHECKPOINTS,
        checkpoint_seconds=SECONDS_BETWEEN_CHECKPOINTS,
        on_round=record.add,
    )


class _Record:
    """The rows of a deployed run."""

    def __init__(self, job: Job, facts: Facts, problem: Problem, run_dir: Path):
        self.shared, self.rounds = federation_of(job, problem, facts), job.rounds
        self.evaluate_every = job.given.get("evaluate_every", 5)
        self.score = score_of(problem)
        dataset = check_dataset(problem.dataset)
        self.test = jnp.asarray(dataset.x_test), jnp.asarray(dataset.y_test)
        self.metrics, self.missing = run_dir / METRICS, run_dir / MISSING
        self.arrivals = run_dir / ARRIVALS
        self.resumes = any((run_dir / CHECKPOINTS).glob("[0-9]*"))
        self.begun = False
        self.since = time.monotonic()
        self.measure = jax.jit(measure)

    def add(self, progress: Progress, missing: Sequence[Missing]) -> None:
        """Records a round."""
        now, rounds = progress.state.round, self.rounds
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
        if now % self.evaluate_every and now < rounds:
            return
        scores = self.measure(self.shared.setup.task, progress.params, *self.test)
        row: dict[str, Any] = {"round": now, "missing": len(missing)}
        row |= {f"test_{name}": float(value) for name, value in scores.items()}
        row["seconds"] = round(time.monotonic() - self.since, 3)
        metrics_csv.append(self.metrics, row)
        score = row[score_column(row)]
        print(f"round {now} of {rounds}: test {self.score} {score:.4f}")


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


def write_app(argv: Sequence[str], job: Job, facts: Facts) -> Path:
    """Copies the template to a new directory, and fills it in."""
    place = Place("deploy", ["deploy", *argv], job)
    app = place.directory
    if app.exists() and (not app.is_dir() or any(app.iterdir())):
        raise ValueError(f"{app} is already used; choose another directory")
    place.begun()
    write(app / FACTS, json.dumps(dataclasses.asdict(facts), indent=2) + "\n")
    filled = {'"OUTPUT"': str(app.resolve()), '"OWN_CODE"': ",".join(job.modules)}
    for name in ("pyproject.toml", "server_app.py", "client_app.py"):
        text = (TEMPLATE / name).read_text()
        for word, value in filled.items():
            text = text.replace(word, json.dumps(value, ensure_ascii=False))
        write(app / name, text)
    return app


def read_app(place: Path, allowed: str | None = None) -> tuple[Job, Facts]:
    """The job of an app, and the facts about its examples.

    Args:
      allowed: Modules of others that the job may import, separated by commas; None for
        all of them.
    """
    try:
        about = command_of(place)
        command, *argv = about["argv"]
        facts = _read_facts(place / FACTS)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"the app can't be read ({error}); install the same version of fedjax_muon "
            "on all machines"
        ) from error
    if command != "deploy":
        raise ValueError(f"the app was made by {command}, not by deploy")
    with importing_only(None if allowed is None else allowed.split(",")):
        return parsed_deploy(argv), facts


def _read_facts(path: Path) -> Facts:
    with reading(path, "facts about clients", "write the app again"):
        about = json.loads(read_text(path))
        shape, classes = map(int, about["shape"]), map(str, about["classes"])
        named = about["sizes"]
        sizes = {name: int(named[name]) for name in SIZES if name in named}
        dtype, tokens = np.dtype(str(about["dtype"])).name, int(about["tokens"])
        return Facts(tuple(shape), dtype, tuple(classes), tokens, sizes)


def seed_of(job: Job) -> int:
    """The seed of a deployed run."""
    return job.given.get("seed", 0)


def load_examples(path: Path, facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    """Reads the arrays x and y of a client from a NumPy archive."""
    x, y = arrays_of(path, ("x", "y")).values()
    if x.shape[1:] != facts.shape or x.dtype.name != facts.dtype:
        raise ValueError(
            f"{path}: x must be {facts.dtype} of shape [n, "
            f"{', '.join(map(str, facts.shape))}], got {x.dtype}{list(x.shape)}"
        )
    return x, y


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
    simulated = "data" not in config
    allowed = (run_config if simulated else config).get("own-code", "")
    try:
        job, facts = read_app(place, allowed)
    except UntrustedError as error:
        raise ValueError(
            f"the server's {error.name} is imported only if this SuperNode has "
            f'--node-config own-code="{error.module}"'
        ) from error
    if type(client := config.get("partition-id")) is not int:
        raise ValueError(
            "a SuperNode needs the id of its client: --node-config 'partition-id=0'"
        )
    if simulated:
        problem = problem_of_server(job, place)
        dataset = check_dataset(problem.dataset)
        part = problem.parts(seed_of(job))[client]
        states = Path(run_config["output"]) / f"states{client}"
        x, y = np.asarray(dataset.x_train)[part], dataset.y_train[part]
    else:
        problem = problem_of_nodes(job, facts)
        data = Path(config["data"])
        states = Path(config.get("states", data.with_name(f"{data.stem}_states")))
        x, y = load_examples(data, facts)
    return Node(federation_of(job, problem, facts), client, x, y, states)


def train(grid: Any, config: Mapping[str, Any], place: Path) -> None:
    """Trains with the SuperNodes of a grid."""
    # needs flwr, which nodes and the writing of an app do not
    from fedjax_muon.deploy.flower import FlowerServer

    job, facts = read_app(place)
    clients, deadline = facts.sizes["num_clients"], float(config["deadline"])
    server = FlowerServer(grid, clients, patience=float(config["patience"]))
    output = Path(config["output"])
    output.mkdir(parents=True, exist_ok=True)
    problem = problem_of_server(job, place)
    print(f"waiting for {clients} SuperNodes")
    server.wait(clients, deadline)
    train_with(job, facts, problem, server.send, output, deadline=deadline)
