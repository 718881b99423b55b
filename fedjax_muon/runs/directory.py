"""Directories of runs: who works there, on which data, and with which versions.

identity.json    what a run computes, in words; see `identity`
about.json       the model, its inputs and classes, for who uses the parameters
versions.json    of everything that computes, and the git revision
metrics.csv      one row an evaluation
clients.csv      one row a client, if they have test examples: their last scores
checkpoints/     the last two states
"""

import contextlib
import importlib.metadata
import json
import platform
import signal
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import jax

from fedjax_muon.engine.processes import run_on_first
from fedjax_muon.files import claim, read_text, reading, write
from fedjax_muon.versions import of_computing

VERSIONS, METRICS = "versions.json", "metrics.csv"
CLIENTS = "clients.csv"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"  # held by the process that works in a directory
SIGNALS = (signal.SIGINT, signal.SIGTERM)  # Ctrl-C; preemption


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Nobody else works in a run directory meanwhile.

    Raises `ValueError` if somebody does already, or if it can't be written.
    """
    lock = filelock.FileLock(directory / LOCK, timeout=0)

    def acquire() -> None:
        try:
            lock.acquire()
            while not (directory / LOCK).exists():  # its last holder removed the file
                lock.release()
                lock.acquire()
        except filelock.Timeout as error:
            raise ValueError(
                f"another process is using {directory}; wait until it ends, or choose "
                "another directory"
            ) from error

    run_on_first(acquire)
    try:
        yield
    finally:
        if lock.is_locked:
            with contextlib.suppress(PermissionError):  # Windows keeps open files
                (directory / LOCK).unlink(missing_ok=True)
            lock.release()


def versions() -> dict[str, str]:
    """Versions of Python, the packages that compute and the source, and the device."""
    return {
        **of_computing(),
        "orbax-checkpoint": importlib.metadata.version("orbax-checkpoint"),
        "git_revision": _git_revision(),
        "device": jax.devices()[0].device_kind,
        "machine": platform.platform(),
    }


def note_versions(directory: Path) -> None:
    """Notes what computes in a directory; warns if it continues with other versions."""
    path, now = directory / VERSIONS, versions()
    if claim(path, json.dumps(now, indent=2) + "\n"):
        return
    with reading(path, "versions of packages", "delete it"):
        first = dict(json.loads(read_text(path)))
        before = dict([first, *first.get("later", [])][-1])
    names = [name for name in of_computing() if before.get(name) != now[name]]
    if names:
        differ = [f"{name} {before.get(name)}, now {now[name]}" for name in names]
        warnings.warn(
            f"{directory} continues with other versions than before: "
            f"{'; '.join(differ)}",
            stacklevel=2,
        )
        later = [*first.get("later", []), now]
        write(path, json.dumps({**first, "later": later}, indent=2) + "\n")


def _git_revision() -> str:
    """Of the source, where it is a git checkout and git is installed."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return result.stdout.strip()


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Notes interrupts, for whoever finishes a round and saves it before they end.

    A second Ctrl-C, or SIGTERM, stops at once.

    Yields:
      A function that tells whether an interrupt has come, to be asked between rounds:
      anywhere else it could be lost in a library's callback. Whoever asks saves what is
      needed, and raises `KeyboardInterrupt`.
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set  # signals are for the main thread
        return

    def press(number: int, frame: object) -> None:
        del number, frame
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    previous = {number: signal.signal(number, press) for number in SIGNALS}
    try:
        yield pressed.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
