"""Run directories: what a run leaves behind, and how it goes on from there.

config.json      what was asked for
versions.json    of everything that computes, and the git revision
metrics.csv      one row an evaluation
checkpoints/     the last two states
*.png            figures, drawn from metrics.csv alone
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import jax

from fedjax_muon.engine.processes import agreed, first_does, is_first
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs.build import start_key
from fedjax_muon.runs.config import Comparison, Run, What, from_json, to_json
from fedjax_muon.simulation import checkpoint
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.training import evaluations

CONFIG, VERSIONS, METRICS = "config.json", "versions.json", "metrics.csv"
LOCK = ".lock"  # held by the process that works in a directory
PACKAGES = (
    "fedjax-muon",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
)
SECONDS_BETWEEN_CHECKPOINTS = 5.0


def create(directory: Path, what: What) -> None:
    """Makes a new run directory. Raises `ValueError` if something is there already,
    and `OSError` if it can't be written. Of several processes, the first does it."""
    first_does(functools.partial(_create, directory, what))


def _create(directory: Path, what: What) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(
            f"{directory} is already used; choose another --output, or continue it "
            f"with: fedjax-muon resume {directory}"
        )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG).write_text(to_json(what))
    (directory / VERSIONS).write_text(json.dumps(versions(), indent=2) + "\n")


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Nobody else works in a run directory meanwhile.

    Raises `ValueError` if somebody does already, or if it can't be written.
    """
    lock = filelock.FileLock(directory / LOCK, timeout=0)

    def acquire() -> None:
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise ValueError(
                f"another process works in {directory}; wait until it ends, or choose "
                "another directory"
            ) from error

    first_does(acquire)
    try:
        yield
    finally:
        if lock.is_locked:
            (directory / LOCK).unlink(missing_ok=True)
            lock.release()


def read(directory: Path) -> What:
    """What a run directory was made for. Raises `ValueError` if it is none."""
    path = directory / CONFIG
    if not path.is_file():
        raise ValueError(f"{directory} is not a run directory: it has no {CONFIG}")
    try:
        return from_json(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def versions() -> dict[str, str]:
    """Of Python, of the packages that compute, of the source, and the device."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "python": platform.python_version(),
        **found,
        "git_revision": _git_revision(),
        "device": jax.devices()[0].device_kind,
        "machine": platform.platform(),
    }


def _git_revision() -> str:
    """Of the source, where it is a git checkout and git is installed."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def _mark(run: Run, state) -> str:
    return checkpoint.fingerprint(json.loads(to_json(run)), state)


def play(
    run: Run,
    simulation: Simulation,
    directory: Path,
    tick: Callable[[int], None] = lambda rounds: None,
) -> float | None:
    """Trains a run in its directory, from its newest checkpoint if there is one.
    Returns the seconds of the first round, compilation included, if one was played.

    Rows are on disk before the checkpoint that covers them; rows that no checkpoint
    covers are dropped first. `tick` hears of rounds as they are played, those that
    were played before at once. Of several processes, which all see the directory, the
    first writes the rows. Raises `CheckpointError` and `NonFiniteError`.
    """
    metrics = directory / METRICS
    state = simulation.init(start_key(run.seed))
    mark = _mark(run, state)
    with checkpoint.open_checkpoints(directory / "checkpoints") as checkpoints:
        found = checkpoint.restore(checkpoints, state, mark)
        state = state if found is None else found
        last = metrics_csv.truncate(metrics, state.round) if is_first() else {}
        begun = agreed(last.get("round", -1))
        tick(state.round)
        saved = since = time.monotonic()
        first: list[float] = []

        def played(rounds: int) -> None:
            if not first:
                first.append(time.monotonic() - since)
            tick(rounds)

        rows = evaluations(
            simulation,
            state,
            rounds=run.config.rounds,
            evaluate_every=run.config.evaluate_every,
            drop_nonfinite=run.config.drop_nonfinite,
            tick=played,
        )
        for state, row in rows:
            since = time.monotonic()
            if row["round"] <= begun:
                continue
            for column in ("dropped", "seconds"):
                row[column] += last.get(column, 0)
            if is_first():
                metrics_csv.append(metrics, row)
            due = agreed(time.monotonic() - saved) > SECONDS_BETWEEN_CHECKPOINTS
            if due or row["round"] == run.config.rounds:
                checkpoint.save(checkpoints, row["round"], state, mark)
                saved = since = time.monotonic()
    return first[0] if first else None


def last_params(run: Run, simulation: Simulation, directory: Path):
    """The parameters in the newest checkpoint of a run.

    Raises `CheckpointError` if it can't be used, `ValueError` if there is none.
    """
    state = simulation.init(start_key(run.seed))
    place = directory / "checkpoints"
    found = None
    if place.is_dir():
        with checkpoint.open_checkpoints(place) as checkpoints:
            found = checkpoint.restore(checkpoints, state, _mark(run, state))
    if found is None:
        raise ValueError(
            f"{directory} has no checkpoint yet; train first, with: fedjax-muon resume "
            f"{directory}"
        )
    return found.params


def is_complete(directory: Path, run: Run) -> bool:
    """Whether the run's last row and checkpoint are there."""
    done = directory / "checkpoints" / str(run.config.rounds)
    return done.is_dir() and (directory / METRICS).is_file()


def cells(directory: Path, comparison: Comparison) -> dict[Path, Run]:
    """Where each run of a comparison lies."""
    return {
        directory / algorithm / f"seed{seed}": comparison.cell(algorithm, seed)
        for algorithm in comparison.algorithms
        for seed in comparison.seeds
    }


def check_same(directory: Path, run: Run) -> None:
    """Raises `ValueError` if a directory holds another run than `run`."""
    if dataclasses.asdict(read(directory)) != dataclasses.asdict(run):
        raise ValueError(
            f"{directory / CONFIG} is not what the comparison's own config says; "
            "start anew in another directory"
        )
