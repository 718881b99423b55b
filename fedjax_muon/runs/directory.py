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
from collections.abc import Iterator
from pathlib import Path

import filelock
import jax

from fedjax_muon.engine.processes import first_does
from fedjax_muon.runs.config import Comparison, Job, Run, from_json, to_json

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


def create(directory: Path, job: Job) -> None:
    """Makes a new run directory. Raises `ValueError` if something is there already,
    and `OSError` if it can't be written. Of several processes, the first does it."""
    first_does(functools.partial(_create, directory, job))


def _create(directory: Path, job: Job) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(
            f"{directory} is already used; choose another --output, or continue it "
            f"with: fedjax-muon resume {directory}"
        )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG).write_text(to_json(job))
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


def read(directory: Path) -> Job:
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
