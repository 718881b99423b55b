"""Training of one method on one seed, in a directory or without one.

    result = train(fm.fedmuon(lr=0.03), problem, rounds=100, directory="runs/a")

The same call with the same directory continues where it was interrupted.
"""

import contextlib
import functools
import json
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import jax
import numpy as np

from fedjax_muon import files
from fedjax_muon.core import check_count
from fedjax_muon.core.hyperparameters import plain_numbers
from fedjax_muon.data import Dataset, dataset as data
from fedjax_muon.data.dataset import digest
from fedjax_muon.engine.processes import is_first, run_on_first
from fedjax_muon.files import claim
from fedjax_muon.privacy.guarantees import CLIENT
from fedjax_muon.problems import Problem
from fedjax_muon.runs import metrics_csv, private, trackers
from fedjax_muon.runs.about import ABOUT, keeps_parameters, metadata_of
from fedjax_muon.runs.directory import (
    CHECKPOINTS,
    CLIENTS,
    METRICS,
    VERSIONS,
    held,
    interruptible,
    note_versions,
)
from fedjax_muon.runs.hints import hints, rate_words
from fedjax_muon.runs.identity import (
    IDENTITY,
    arrays_of,
    as_begun,
    check_same,
    claimed,
    identity,
)
from fedjax_muon.runs.methods import (
    Made,
    check_suited,
    finished,
    unsearched,
    usual,
)
from fedjax_muon.runs.record import Course, is_complete, last_state, record
from fedjax_muon.runs.results import Trained
from fedjax_muon.runs.simulate import (
    Method,
    Settings,
    name_of,
    promised,
    simulate,
    start_key,
)
from fedjax_muon.runs.trackers import NOT_FOLLOWED, Followed
from fedjax_muon.simulation.memory import check_memory
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.training import Record, steps
from fedjax_muon.terminal import Progress, plain_console, shown


class Job(NamedTuple):
    """One run of an experiment, whose simulation is prepared."""

    name: str  # of the method, in tables
    seed: int
    simulation: Simulation
    public: Mapping[str, str]  # of its identity, what its directory says
    hidden: Mapping[str, str]  # if it has secrets, what tells of its data; else empty
    clients: str  # digest of which client has which examples
    directory: Path | None
    rounds: int
    evaluate_every: int
    drop_nonfinite: bool
    title: str  # of its problem
    about: Mapping[str, Any]  # what a program needs to use its parameters

    @property
    def has_secrets(self) -> bool:
        """Whether its noise is secret, and its data must not be guessed."""
        return _has_secrets(self.simulation)

    @property
    def course(self) -> Course:
        """How it is trained; the directory of a private run must be charged."""
        secret = None
        if self.directory is not None:
            guarantee = self.simulation.guarantee
            secret = private.secret_of(guarantee, self.directory)
        public = dict(self.public)
        about = {"method": self.name, "rounds": self.rounds, **public}
        key, numbers = start_key(self.seed), (self.rounds, self.evaluate_every)
        return Course(key, *numbers, self.drop_nonfinite, public, about, secret)


def _has_secrets(simulation: Simulation) -> bool:
    guarantee = simulation.guarantee
    return guarantee is not None and not guarantee.fixed_noise


def job_of(
    name: str,
    method: Method,
    problem: Problem,
    seed: int,
    how: Mapping[str, Any],
    simulation: Simulation,
    data_digest: str = "",
    directory: Path | None = None,
    *,
    rounds: int,
    evaluate_every: int,
    drop_nonfinite: bool,
) -> Job:
    """One run; `data_digest` is that of its dataset, if it has a directory."""
    for option, value in {"rounds": rounds, "evaluate_every": evaluate_every}.items():
        check_count(option, value)
    guarantee = simulation.guarantee
    if guarantee is not None:
        guarantee.check_rounds(0, rounds)
        if files.WINDOWS:
            raise ValueError(
                "private runs keep keys of noise in files that only you may read, "
                "which Python can't make on Windows; use WSL, Linux or macOS"
            )
        if jax.process_count() > 1:
            raise ValueError(
                "private runs cannot span several processes; leave out privacy"
            )
        if directory is None and not guarantee.fixed_noise:
            raise ValueError(
                "private runs are charged to a ledger, and need a directory; add "
                "directory"
            )
    # a private run does not stop for them, since that would tell of its data
    drop = drop_nonfinite or guarantee is not None
    public, hidden, arrays = dict[str, str](), dict[str, str](), dict[str, str]()
    if directory is not None:
        others: Any = {"evaluate_every": evaluate_every, "drop_nonfinite": drop}
        words = functools.partial(identity, method, problem, seed, how, **others)
        arrays = arrays_of(simulation, data_digest)
        public = words() | arrays
        if _has_secrets(simulation):
            public, hidden = words(publishable=True), public
            if private.is_charged(directory):
                hidden = as_begun(private.secret_in(directory).folder, hidden)
        public = as_begun(directory, public)
    known = public, hidden, arrays.get("clients", "")
    executed = getattr(simulation.settings, "algorithm", method)
    about = metadata_of(problem, method) | {"personal": keeps_parameters(executed)}
    if _has_secrets(simulation):
        for secret in ("tokenizer", "words"):  # those of private texts
            about.pop(secret, None)
    numbers: Any = rounds, evaluate_every, drop, problem.name, about
    return Job(name, seed, simulation, *known, directory, *numbers)


def begin(
    jobs: Sequence[Job],
    dataset: Dataset,
    root: Path,
    ledger: Path | None = None,
    budget: float | None = None,
) -> list[str]:
    """Makes the directories of jobs, or checks them, and charges private ones: all or
    none, before the first starts. Returns the statements of what these promise."""
    run_on_first(lambda: _check_same(jobs))
    charged = {_place(job): _private(job) for job in jobs if job.simulation.guarantee}
    if not charged and (ledger is not None or budget is not None):
        raise ValueError(
            "a ledger and a budget are for private runs; leave them out, or add privacy"
        )
    private.check_budget(charged, dataset, ledger, budget)
    if charged and (dataset.held_out or dataset.test_owners is not None):
        taken = "taken from the private ones, since none were given"
        whose = taken if dataset.held_out else "those of private clients"
        warnings.warn(
            f"test scores are published without noise, and the test examples are "
            f"{whose}; give test examples of people whom privacy need not protect",
            stacklevel=2,
        )
    for job in jobs:
        claimed(_place(job), job.public)
        text = json.dumps(job.about) + "\n"
        run_on_first(functools.partial(claim, _place(job) / ABOUT, text))
    run_on_first(lambda: note_versions(root))
    if not charged:
        return []
    statements = private.state(charged, dataset, root, ledger, budget)
    for job in (job for job in jobs if job.has_secrets):
        folder = private.secret_in(_place(job)).folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        claimed(folder, job.hidden)
    return statements


def _check_same(jobs: Sequence[Job]) -> None:
    for job in jobs:
        check_same(_place(job), job.public)
        if job.has_secrets and private.is_charged(_place(job)):
            check_same(private.secret_in(_place(job)).folder, job.hidden)


def _place(job: Job) -> Path:
    assert job.directory is not None
    return job.directory


def _private(job: Job) -> private.Private:
    guarantee = job.simulation.guarantee
    assert guarantee is not None
    epsilon = getattr(job.simulation.settings.privacy, "epsilon", None)
    if epsilon is None:  # the noise was given instead
        epsilon = guarantee.report().epsilon
    method = job.name.partition(", epsilon ")[0]
    about = f"{method} at epsilon {epsilon:g} on {job.title}, seed {job.seed}"
    clients = job.clients if guarantee.spec.unit == CLIENT else ""
    made = guarantee, epsilon, method, job.name, about, job.seed, clients
    return private.Private(*made)


@contextlib.contextmanager
def resumable(directory: Path | None) -> Iterator[Any]:
    """Holds a directory, if there is one, and ends with how to go on if interrupted.

    Yields a function that tells whether an interrupt has come.
    """
    if directory is None:
        yield lambda: False
        return
    try:
        with held(directory), interruptible() as stop:
            yield stop
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; the same call with directory={str(directory)!r} continues"
        ) from None


@contextlib.contextmanager
def followed(progress: bool | Progress, total: int, title: str) -> Iterator[Progress]:
    """Shows progress on standard error if that is wanted, or advances what is given."""
    if isinstance(progress, Progress):
        progress.total = total
        yield progress
        return
    console = plain_console(stderr=True, quiet=not progress)
    with shown(console, Progress(total, title)) as made:
        yield made


def run(
    job: Job, progress: Progress, stop: Any, logs: Followed = NOT_FOLLOWED
) -> tuple[Any, list[Record]]:
    """Trains a job from its newest checkpoint, or from the start: state and records."""
    course, directory = job.course, job.directory
    if directory is not None:
        # of a private run, its secrets are removed; of several processes, all would
        # write its files
        plain = course.secret is None and jax.process_count() == 1
        if plain and is_complete(job.simulation, course, directory):
            progress.skip(job.rounds)
        else:
            with _given_back(job, directory):
                record(job.simulation, course, directory, progress, stop, logs)
        return None, metrics_csv.rows_of(directory / METRICS)
    drop, rows = job.drop_nonfinite, []
    state = job.simulation.init(course.key, drop_nonfinite=drop)
    for step in steps(
        job.simulation,
        state,
        rounds=job.rounds,
        evaluate_every=job.evaluate_every,
        drop_nonfinite=drop,
    ):
        progress.advance(step.rounds, step.record)
        state = step.state
        rows += [] if step.record is None else [step.record]
    return state, rows


@contextlib.contextmanager
def _given_back(job: Job, directory: Path) -> Iterator[None]:
    """Leaves a directory to other runs if this one fails before its first record."""
    try:
        yield
    except Exception:
        if not job.has_secrets and not (directory / METRICS).exists():
            run_on_first(lambda: _cleared(directory))
        raise


def _cleared(directory: Path) -> None:
    shutil.rmtree(directory / CHECKPOINTS, ignore_errors=True)
    for name in (CLIENTS, VERSIONS, ABOUT, IDENTITY):
        (directory / name).unlink(missing_ok=True)


@plain_numbers
def train(
    method: Made,
    problem: Problem | None = None,
    *,
    rounds: int = 100,
    seed: int = 0,
    evaluate_every: int = 5,
    drop_nonfinite: bool = False,
    directory: str | Path | None = None,
    ledger: str | Path | None = None,
    budget: float | None = None,
    log: Sequence[str] = (),
    progress: bool | Progress = True,
    **how: Unpack[Settings],
) -> Trained:
    """Trains a method on a problem.

    In a directory, training continues from the newest checkpoint if there is one, and
    the numbers are bitwise those of an uninterrupted run. More rounds extend a run.

    Args:
      method: An algorithm with a server, such as `fm.fedmuon(lr=0.03)`, or without one,
        such as `fm.decentralized.dsgd(lr=0.1)`; or a function that makes one. With
        `fm.fedmuon`, the rate falls from 0.03 to 0 along a cosine, and a line says so.
      problem: Such as `fm.problems.classification(alpha=0.5)`; by default, the one that
        suits the method.
      rounds: Total number of rounds, including those before an interruption.
      seed: Decides the clients, the initial parameters, cohorts and batches.
      evaluate_every: Rounds between evaluations. Each evaluation is a record.
      drop_nonfinite: Whether messages with NaN or infinity are left out of the mean,
        instead of raising an error.
      directory: Where records and checkpoints are kept. By default, Python keeps
        none, and the command makes a new directory in `runs/`.
      ledger: File that records what private runs on the data cost together. By default,
        one file for all datasets in your user data directory.
      budget: Largest total epsilon of all runs in the ledger.
      log: Trackers that get the records: tensorboard, wandb or mlflow.
      progress: Whether to show the rounds on standard error; or what counts them.
      how: Arguments of `federate` or `decentralize`, in place of the problem's sizes,
        such as `batch_size=16` or `privacy=fm.privacy.ClientPrivacy(...)`.

    Returns:
      The last state, the records, and the simulation.

    Raises:
      NonFiniteError: If a message or the training loss is not finite.

    Example:
      >>> problem = fm.problems.classification(alpha=0.5)
      >>> result = train(fm.fedavg(lr=0.1), problem, rounds=20)
      >>> accuracy = result.records[-1]["test_accuracy"]
    """
    place = None if directory is None else Path(directory).expanduser()
    check_directory(place, ledger, budget, log)
    for name, value in {"rounds": rounds, "evaluate_every": evaluate_every}.items():
        check_count(name, value)
    problem = usual({"": method}, problem)
    method, known = unsearched(method)
    method = finished(method, rounds)
    check_suited({"": method}, problem)
    settings = promised(how, problem, rounds)
    if isinstance(settings.get("privacy"), list):
        raise ValueError(
            "train takes one promise and one epsilon; compare takes several"
        )
    simulation = simulate(method, problem, seed, **settings)
    check_memory(simulation)
    digested = "" if place is None else digest(problem.dataset)
    job = job_of(
        name_of(method),
        method,
        problem,
        seed,
        settings,
        simulation,
        digested,
        place,
        rounds=rounds,
        evaluate_every=evaluate_every,
        drop_nonfinite=drop_nonfinite,
    )
    logs = NOT_FOLLOWED
    if place is not None:
        book = None if ledger is None else Path(ledger).expanduser().resolve()
        for statement in begin([job], problem.dataset, place, book, budget):
            say(statement, progress)
        logs = Followed(log, place, place.name)
    say(data_words(simulation, problem), progress)
    if known is not None:
        say(rate_words(name_of(method), known, simulation), progress)
    for hint in hints(simulation):
        say(hint, progress)
    with resumable(place) as stop, followed(progress, rounds, job.name) as shown_rounds:
        state, records = run(job, shown_rounds, stop, logs)
    if place is not None:
        state = last_state(simulation, job.course, place)
    made: Any = simulation, job.about, problem.model
    return Trained(records, lambda: state, place, *made)


def data_words(simulation: Simulation, problem: Problem) -> str:
    """What is trained, and on what."""
    members = "client" if simulation.program.mix is None else "agent"
    sizes = np.asarray(simulation.clients.size).tolist()
    devices = simulation.settings.devices or jax.devices()[:1]
    many = f"{len(devices)} x " if len(devices) > 1 else ""
    words = data.summary(problem.dataset, sizes, members=members)
    return f"{words}\non {many}{devices[0].device_kind}"


def check_directory(
    directory: Path | None,
    ledger: str | Path | None,
    budget: float | None,
    log: Sequence[str],
) -> None:
    """Raises `ValueError` for what needs a directory, where there is none."""
    if isinstance(log, str):
        raise TypeError(f"log must be a list of names, got {log!r}")
    trackers.check(log)
    needing = {"ledger": ledger, "budget": budget, "log": log or None}
    for name, value in needing.items() if directory is None else ():
        if value is not None:
            raise ValueError(f"{name} is for runs in a directory; add directory")
    if directory is None and jax.process_count() > 1:
        raise ValueError("several processes need a shared directory; add directory")


def check_one_process() -> None:
    """Raises `ValueError` if several processes would train many runs together."""
    if jax.process_count() > 1:
        raise ValueError(
            "several processes can train only one run together; use train, or one "
            "process"
        )


def say(words: str, progress: bool | Progress) -> None:
    """Prints words on standard error, where progress is shown."""
    if words and progress is True and is_first():
        print(words, file=plain_console(stderr=True).file, flush=True)
