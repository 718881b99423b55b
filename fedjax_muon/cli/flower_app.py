"""The Flower app of a deployed run, and what its server and its nodes do.

    flower_template/   the app: its defaults, and what calls `train` and `node_of`
    experiment.py      what is trained, in Python, see `experiment`
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.algorithms import minimax
from fedjax_muon.cli import experiment, names
from fedjax_muon.cli.experiment import Experiment, UntrustedError
from fedjax_muon.cli.names import Call
from fedjax_muon.core import Algorithm, check_count
from fedjax_muon.data import Dataset, Standardization, partition
from fedjax_muon.data.columns import as_json, from_json, read_rows
from fedjax_muon.data.npz import arrays_of
from fedjax_muon.deploy.federation import Federation, federation
from fedjax_muon.deploy.node import Node
from fedjax_muon.deploy.rounds import Missing, Progress, SecureSum, Send
from fedjax_muon.deploy.server import serve
from fedjax_muon.files import read_text, reading, write
from fedjax_muon.problems import Problem
from fedjax_muon.runs import metrics_csv
from fedjax_muon.runs.directory import CHECKPOINTS, METRICS
from fedjax_muon.runs.methods import cosine
from fedjax_muon.runs.rates import UNSEARCHED
from fedjax_muon.runs.simulate import needs_all, score_of, settings_of, start_key
from fedjax_muon.runs.summary import score_column
from fedjax_muon.simulation.arguments import check_dataset
from fedjax_muon.simulation.arrivals import PROLOGUE
from fedjax_muon.simulation.batching import Sampler
from fedjax_muon.simulation.cohorts import Cohort
from fedjax_muon.simulation.evaluation import measure

TEMPLATE = Path(__file__).with_name("flower_template")
EXPERIMENT, FACTS = "experiment.py", "deployed.json"
MISSING, ARRIVALS = "missing.csv", "arrivals.csv"
SECONDS_BETWEEN_CHECKPOINTS = 2.0  # nodes keep all states that were made since
SHARED = ("sampler", "weighting", "cohort")  # arguments of `federation`
SIZES = (  # arguments of `federation` that nodes are told
    *("cohort", "local_steps", "batch_size"),
    *("num_clients", "max_client_size", "classes"),
)
# arguments of problems that say which examples there are; nodes have their own
OF_DATA = {"train_share", "divide"}
# what a deployed run can't have, and why
REASONS = {
    "devices": "clients have their own",
    "distributed": "clients have their own",
    "deadline": "it is an option of flwr run",
    "split_examples": "every client has its own",
    "local_epochs": "nodes take the same local_steps",
    "client_tests": "the server tests on its own",
    "privacy": "no ledger would know of its rounds",
    "plan": "nodes train one by one",
}


def check(options: Sequence[str]) -> None:
    """Raises `ValueError` for options that a deployed run can't have."""
    for name in options:
        if name in REASONS:
            raise ValueError(
                f"deploy does not support {name}, since {REASONS[name]}; leave it out"
            )


@dataclasses.dataclass(frozen=True)
class Facts:
    """What nodes know about the examples of all clients."""

    shape: tuple[int, ...]  # of an example
    dtype: str
    classes: tuple[str, ...]
    tokens: int  # size of a text's vocabulary
    sizes: Mapping[str, Any]  # arguments of `federation`
    sites: tuple[str, ...] = ()  # names of the clients, by their numbers
    # of a CSV file: its columns, and the mean and std of their channels
    table: Mapping[str, Any] | None = None
    tested: bool = True  # whether the server has test examples


def described(dataset: Dataset) -> Facts:
    """What nodes know about a dataset, without clients."""
    if not dataset.classes:
        raise ValueError(
            "real clients have labels; targets (regression) can only be simulated yet"
        )
    x, classes = dataset.x_train, tuple(map(str, dataset.classes))
    table = None
    if dataset.columns is not None and dataset.standardization is not None:
        mean, std = (array.tolist() for array in dataset.standardization)
        columns = as_json(dataset.columns.published())
        table = {"columns": columns, "mean": mean, "std": std}
    return Facts(x.shape[1:], x.dtype.name, classes, dataset.tokens, {}, (), table)


def describe(problem: Problem, *, output: Path = Path("words.json")) -> str:
    """Writes what a server without data must know about one client's examples.

    That is their shape, their classes, and of a CSV file the categories, means and
    standard deviations of its columns, but no example and no number of examples.

    Args:
      problem: A problem with the client's dataset.
      output: A new JSON file, for `deploy --words`.
    """
    place = Path(output).expanduser()
    if place.exists():
        raise ValueError(f"{place} exists already; choose another file")
    facts = described(check_dataset(problem.dataset))
    write(place, json.dumps(dataclasses.asdict(facts), indent=2) + "\n")
    shape = " x ".join(map(str, facts.shape))
    classes = ", ".join(facts.classes)[:300]
    return f"{place} describes examples of {shape} numbers; classes: {classes}"


def facts_of(
    ours: Experiment,
    problem: Problem,
    largest_client: int | None = None,
    said: Facts | None = None,
) -> Facts:
    """Describes the examples of a problem.

    Args:
      largest_client: Upper bound on a client's number of examples. By default, the
        number of the largest client in `train`.
      said: What a client says about its examples, and the names of all sites.
    """
    method, dataset, how = ours.algorithm(), problem.dataset, ours.how
    made = said or described(dataset)
    largest, clients = largest_client, len(made.sites)
    if said is None:
        parts = problem.parts(ours.seed)
        clients = len(parts)
        largest = max(map(len, parts)) if largest is None else largest
    if largest is None:
        raise ValueError(
            "give --largest-client, an upper bound of a site's number of examples, "
            "since the server has no data"
        )
    check_count("largest_client", largest)
    sizes = settings_of(method, problem, how)
    if needs_all(method, problem, how):
        sizes["cohort"] = clients
    sizes |= {"num_clients": clients, "classes": len(made.classes)}
    sizes["max_client_size"] = 1 << (largest - 1).bit_length()
    kept = {name: sizes[name] for name in SIZES if isinstance(sizes.get(name), int)}
    by_owner = getattr(problem.divided, "args", (None,))[0] is partition.by_owner
    if by_owner and dataset.owners is not None and dataset.owner_names:
        known = [dataset.owner_names[i] for i in np.unique(dataset.owners)]
        made = dataclasses.replace(made, sites=tuple(known))
    return dataclasses.replace(made, sizes=kept)


def said_by_client(words: Path | None, sites: Sequence[str]) -> Facts | None:
    """The facts of a server without data: the words of a client, and all sites."""
    if words is None:
        if sites:
            raise ValueError("sites is for --words; with data, give it an owner")
        return None
    if len(set(sites)) < len(sites) or not sites:
        raise ValueError(
            f"--words needs --sites, the name of each site once, got {[*sites]}"
        )
    facts = _read_facts(words.expanduser(), "let a client run describe again")
    return dataclasses.replace(facts, sites=tuple(map(str, sites)), tested=False)


def problem_of_nodes(call: Call, facts: Facts) -> Problem:
    """The problem with one example of zeros, where its data are not."""
    if "dataset" not in inspect.signature(call.function).parameters:
        raise ValueError(
            f"{call.name} must have an argument dataset to be deployed: nodes make the "
            "task from a dataset with the shapes and classes of yours"
        )
    one, label = np.zeros((1, *facts.shape), facts.dtype), np.zeros(1, np.int32)
    like = Dataset(one, label, one, label, facts.classes, facts.tokens)
    kept = {name: v for name, v in call.kwargs.items() if name not in OF_DATA}
    return _problem(call._replace(kwargs={**kept, "dataset": like}))


def _problem(call: Call) -> Problem:
    made = names.made(call)
    if not isinstance(made, Problem):
        raise ValueError(
            f"{call.name} must return a Problem, got {type(made).__name__}"
        )
    return made


def federation_of(ours: Experiment, problem: Problem, facts: Facts) -> Federation:
    """Makes what the server and all nodes share."""
    method: Any = ours.algorithm()
    given = {name: value for name, value in ours.how.items() if name in SHARED}
    return federation(method, problem.task, **{**facts.sizes, **given})


def deploy(
    directory: Path,
    method: Callable[..., Any],
    problem: Problem | None = None,
    *,
    rounds: int = 100,
    seed: int = 0,
    evaluate_every: int = 5,
    largest_client: int | None = None,
    words: Path | None = None,
    sites: Sequence[str] = (),
    cohort: int | Cohort | None = None,
    local_steps: int | None = None,
    batch_size: int | None = None,
    sampler: Sampler | None = None,
    weighting: Callable[..., Any] | None = None,
) -> str:
    """Writes a Flower app that trains one method with real clients.

    Args:
      directory: A new directory for the app.
      method: A method with a server.
      problem: What is trained; only its test examples stay with the server.
      rounds: Total number of rounds, including those before a restart.
      seed: Decides the initial parameters, cohorts and batches.
      evaluate_every: Rounds between evaluations.
      largest_client: Upper bound on a client's number of examples. By default, the
        number of the largest client in `train`.
      words: The file that `describe` wrote at a client, for a server without data. Such
        a server does not test, and the problem needs no dataset.
      sites: With `words`, the names of all clients.
      cohort: Clients per round, or how they are chosen.
      local_steps: Local steps per client and round.
      batch_size: Examples per local step.
      sampler: Draws the batches of clients.
      weighting: Weights of clients in the mean.
    """
    said = said_by_client(words, sites)
    ours, problem_made = prepared(
        method,
        problem,
        said,
        rounds=rounds,
        seed=seed,
        evaluate_every=evaluate_every,
        cohort=cohort,
        local_steps=local_steps,
        batch_size=batch_size,
        sampler=sampler,
        weighting=weighting,
    )
    facts = facts_of(ours, problem_made, largest_client, said)
    federation_of(ours, problem_of_nodes(ours.problem, facts), facts)  # as nodes do
    place = write_app(directory.expanduser(), ours, facts)
    command = shlex.join(["flwr", "run", str(place), "--stream"])
    wrote = f"wrote a Flower app; run it by: {command}"
    if said is not None:
        return wrote
    number = facts.sizes["num_clients"]
    alone = f"{command} --federation-config num-supernodes={number}"
    return f"{wrote}\non this machine alone: {alone}"


def prepared(
    method: Any,
    problem: Any = None,
    said: Facts | None = None,
    *,
    rounds: int = 100,
    seed: int = 0,
    evaluate_every: int = 5,
    **settings: Any,
) -> tuple[Experiment, Problem]:
    """The experiment of calls that are not made, checked, and its problem."""
    for name, value in {"rounds": rounds, "evaluate_every": evaluate_every}.items():
        check_count(name, value)
    if problem is None:
        usual = "auc" if method.name in minimax.ALL else "classification"
        problem = names.called(usual, "problem")
    if "client_tests" in problem.kwargs:
        check(["client_tests"])
    cohort = settings.get("cohort")
    if isinstance(cohort, Call) and cohort.name == "replayed":
        raise ValueError(
            "deploy takes messages as they come; replay them with "
            "train --cohort replayed"
        )
    given = {name: value for name, value in settings.items() if value is not None}
    method = as_trained(method)
    ours = Experiment(method, problem, given, rounds, seed, evaluate_every)
    if not isinstance(ours.algorithm(), Algorithm):
        raise ValueError(f"{method.name} has no server; choose a method with one")
    if said is None:
        return ours, _problem(problem)
    for name in {"dataset", "clients", *OF_DATA} & problem.kwargs.keys():
        raise ValueError(f"--words and --sites decide {name}; leave it out")
    fewer = problem._replace(kwargs={**problem.kwargs, "clients": len(said.sites)})
    return ours, problem_of_nodes(fewer, said)


def as_trained(method: Call) -> Call:
    """The call that `train` makes of a method without arguments."""
    if method.args or method.kwargs:
        return method
    known = UNSEARCHED.get(method.name)
    if known is None:
        return method
    falling = Call(cosine, "cosine", [], {"lr": known.rate.lr})
    return method._replace(kwargs={"lr": falling})


def train_with(
    ours: Experiment,
    facts: Facts,
    problem: Problem,
    send: Send | SecureSum,
    run_dir: Path,
    *,
    deadline: float | None = None,
) -> None:
    """Trains with nodes, from the newest checkpoint of a directory if there is one."""
    record = _Record(ours, facts, problem, run_dir)
    serve(
        record.shared,
        send,
        start_key(ours.seed),
        rounds=ours.rounds,
        deadline=deadline,
        directory=run_dir / CHECKPOINTS,
        checkpoint_seconds=SECONDS_BETWEEN_CHECKPOINTS,
        on_round=record.add,
    )


class _Record:
    """The rows of a deployed run."""

    def __init__(self, ours: Experiment, facts: Facts, problem: Problem, run_dir: Path):
        self.shared, self.rounds = federation_of(ours, problem, facts), ours.rounds
        self.evaluate_every = ours.evaluate_every
        self.score, self.tested = score_of(problem), facts.tested
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
        row: dict[str, Any] = {"round": now, "missing": len(missing)}
        said = f"round {now} of {rounds}"
        if self.tested:
            scores = self.measure(self.shared.setup.task, progress.params, *self.test)
            row |= {f"test_{name}": float(value) for name, value in scores.items()}
            said += f": test {self.score} {row[score_column(row)]:.4f}"
        row["seconds"] = round(time.monotonic() - self.since, 3)
        metrics_csv.append(self.metrics, row)
        print(said)


def _keep_before(path: Path, round: int) -> None:
    """Drops rows of later rounds, and damaged ones."""
    if not path.exists():
        return
    header, *lines = path.read_text("utf-8", errors="replace").splitlines() or [""]
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


def write_app(app: Path, ours: Experiment, facts: Facts) -> Path:
    """Copies the template to a new directory, and fills it in."""
    if app.exists() and (not app.is_dir() or any(app.iterdir())):
        raise ValueError(f"{app} is already used; choose another directory")
    app.mkdir(parents=True, exist_ok=True)
    write(app / EXPERIMENT, experiment.written(ours))
    write(app / FACTS, json.dumps(dataclasses.asdict(facts), indent=2) + "\n")
    filled = {'"OUTPUT"': str(app.resolve()), '"OWN_CODE"': ",".join(ours.modules)}
    for name in ("pyproject.toml", "server_app.py", "client_app.py"):
        text = (TEMPLATE / name).read_text("utf-8")
        for word, value in filled.items():
            text = text.replace(word, json.dumps(value, ensure_ascii=False))
        write(app / name, text)
    return app


def read_app(place: Path, allowed: str | None = None) -> tuple[Experiment, Facts]:
    """The experiment of an app, and the facts about its examples.

    Args:
      allowed: Modules of others that may be imported, separated by commas; None for
        all of them.
    """
    modules = None if allowed is None else allowed.split(",")
    try:
        ours = experiment.read(read_text(place / EXPERIMENT), modules)
        return ours, _read_facts(place / FACTS)
    except UntrustedError:
        raise
    except (ValueError, OSError) as error:
        raise ValueError(
            f"the app can't be read ({error}); install the same version of fedjax_muon "
            "on all machines"
        ) from error


def _read_facts(path: Path, remedy: str = "write the app again") -> Facts:
    with reading(path, "facts about clients", remedy):
        about = json.loads(read_text(path))
        shape, classes = map(int, about["shape"]), map(str, about["classes"])
        named = about["sizes"]
        sizes = {name: int(named[name]) for name in SIZES if name in named}
        dtype, tokens = np.dtype(str(about["dtype"])).name, int(about["tokens"])
        sites, table = tuple(map(str, about.get("sites", ()))), about.get("table")
        plain = tuple(shape), dtype, tuple(classes), tokens, sizes
        return Facts(*plain, sites, table, bool(about.get("tested", True)))


def load_examples(path: Path, facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    """Reads the examples of a client, from a CSV file like that of the app, or as the
    arrays x and y of a NumPy archive, which are standardized already."""
    if path.suffix.lower() != ".npz" and facts.table is not None:
        with reading(path, "the columns of the app's table", "mend it", found=""):
            columns = from_json(facts.table["columns"])
            raw, y = read_rows(path, columns, labeled=True)
            scales = (np.asarray(facts.table[name], float) for name in ("mean", "std"))
            return Standardization(*scales).of_rows(raw), y
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
        or the name of its owner as `site`; the file of its examples as `data`, the
        directory of its states as `states`, by default beside the examples, and allowed
        MODULE:FUNCTION as `own-code`. In Flower's simulation there is only the id, and
        the server is on this machine.
      run_config: The server's run configuration.
    """
    simulated = "data" not in config
    allowed = (run_config if simulated else config).get("own-code", "")
    try:
        ours, facts = read_app(place, allowed)
    except UntrustedError as error:
        raise ValueError(
            f"the server's {error.name} is imported only if this SuperNode has "
            f'--node-config own-code="{error.module}"'
        ) from error
    client = _client_of(config, facts)
    if simulated:
        if not facts.tested:
            raise ValueError(
                "this app has no examples to simulate clients with; start SuperNodes "
                "with the file of each: --node-config 'site=\"north\" data=...'"
            )
        problem = _problem(ours.problem)
        dataset = check_dataset(problem.dataset)
        part = problem.parts(ours.seed)[client]
        states = Path(run_config["output"]) / f"states{client}"
        x, y = np.asarray(dataset.x_train)[part], dataset.y_train[part]
    else:
        problem = problem_of_nodes(ours.problem, facts)
        data = Path(config["data"])
        states = Path(config.get("states", data.with_name(f"{data.stem}_states")))
        x, y = load_examples(data, facts)
    return Node(federation_of(ours, problem, facts), client, x, y, states)


def _client_of(config: Mapping[str, Any], facts: Facts) -> int:
    """The number of a SuperNode's client."""
    if "site" in config:
        site = str(config["site"])
        if site not in facts.sites:
            known = ", ".join(facts.sites) or "none, since the app has no owner"
            raise ValueError(f"there is no site {site!r}; the app's sites are {known}")
        return facts.sites.index(site)
    if type(client := config.get("partition-id")) is not int:
        raise ValueError(
            "a SuperNode needs its client: --node-config 'partition-id=0', or the name "
            "of its owner: 'site=\"north\"'"
        )
    return client


def train(grid: Any, config: Mapping[str, Any], place: Path) -> None:
    """Trains with the SuperNodes of a grid."""
    # needs flwr, which nodes and the writing of an app do not
    from fedjax_muon.deploy.flower import FlowerServer

    ours, facts = read_app(place)
    clients, deadline = facts.sizes["num_clients"], float(config["deadline"])
    server = FlowerServer(grid, clients, patience=float(config["patience"]))
    output = Path(config["output"])
    output.mkdir(parents=True, exist_ok=True)
    has = _problem(ours.problem) if facts.tested else None
    problem = has or problem_of_nodes(ours.problem, facts)
    print(f"waiting for {clients} SuperNodes")
    server.wait(clients, deadline)
    secret = federation_of(ours, problem, facts).sums_secretly
    send = server.secure_sum if secret else server.send
    train_with(ours, facts, problem, send, output, deadline=deadline)
