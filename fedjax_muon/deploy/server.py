"""The server of a deployed federation: the order of its rounds, and its checkpoints."""

import contextlib
import functools
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import filelock
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon import files
from fedjax_muon.deploy.asynchronous import AsynchronousRounds
from fedjax_muon.deploy.federation import Federation, description
from fedjax_muon.deploy.messages import plain
from fedjax_muon.deploy.node import INITIAL, Node
from fedjax_muon.deploy.rounds import (
    Missing,
    Progress,
    Rest,
    Rounds,
    SecureSum,
    Send,
)
from fedjax_muon.simulation import checkpoint
from fedjax_muon.simulation.arrivals import Arrival, Buffered
from fedjax_muon.simulation.checkpoint import CheckpointError
from fedjax_muon.simulation.rounds import init_state

LOCK, NEWEST = "server.lock", "newest"  # files beside the checkpoints
NONE = -1  # the note of a run that has no checkpoint yet


def serve(
    shared: Federation,
    send: Send | SecureSum,
    key: jax.Array,
    *,
    rounds: int,
    deadline: float | None = None,
    directory: Path | None = None,
    checkpoint_seconds: float = 0.0,
    on_round: Callable[[Progress, list[Missing]], None] = lambda progress, missing: (
        None
    ),
) -> Progress:
    """Trains with real clients.

    A client that does not answer in time, or whose answer can't be used, is left out of
    the mean of that exchange and of the rest of the round. Its state stays as it was.

    With a cohort from `fm.buffered`, clients train at the same time, and a round ends
    when the buffer is full, or no client is left that could answer. A client whose
    message is lost or too late starts again from newer parameters. `fm.replayed`
    repeats the order of arrivals in a simulation.

    Args:
      send: Transport, such as `in_process(nodes)` or a `FlowerServer`'s `send`, or for
        an algorithm of `fm.secure_sums`, a `FlowerServer`'s `secure_sum`.
      key: Typed key of the run, as for `Simulation.init`. It never leaves the server.
        In a private run, it decides only the initial parameters. All else, such
        as the noise of an exchange, is drawn from the operating system.
      deadline: Seconds to wait for the answers of an exchange, or of a client if rounds
        are asynchronous; by default, as long as the transport waits.
      directory: Where checkpoints are kept; a server that is started again resumes from
        the newest one. A private server saves every exchange before anything that
        depends on its noise is sent. So each noisy sum is sent in one version, unless
        an older checkpoint is put back. Only their owner can read its checkpoints.
      checkpoint_seconds: Shortest time between two checkpoints; by default, there is
        one after every round, as there must be with privacy. Nodes keep the states that
        were made since the last one. Asynchronous clients that were at work start
        again.
      on_round: Called after the prologue and after every round, with the answers that
        are missing. A server that resumes after one of these calls it first with the
        progress of its checkpoint, perhaps again.
    """
    private = shared.guarantee is not None
    if shared.guarantee is not None:
        shared.guarantee.check_rounds(0, rounds)
        if directory is not None and checkpoint_seconds:
            raise ValueError(
                "a private server saves every exchange before it sends what follows, "
                "so that no noisy sum is sent twice with different noise; leave out "
                f"checkpoint_seconds, got {checkpoint_seconds}"
            )
    cohort, about = shared.setup.cohort, description(shared)
    with _opened(directory, secret=private) as stored:
        save = functools.partial(_save, stored, shared, about)
        each = save if private else lambda progress: progress  # exchange
        server = Rounds(shared, send, key, deadline, each)
        course: Rounds | AsynchronousRounds = server
        if isinstance(cohort, Buffered):
            course = AsynchronousRounds(server, cohort, key)
        progress = _begun(shared, about, key, stored)
        if progress.rest is not None and progress.rest.number <= shared.first:
            progress = save(course.prologue(progress))
        if progress.rest is None:
            on_round(progress, [*progress.missing])
        since = time.monotonic()
        while progress.state.round < rounds:
            progress = course.round(progress)
            last = progress.state.round == rounds
            if last or time.monotonic() - since >= checkpoint_seconds:
                progress = save(progress)
                since = time.monotonic()
            on_round(progress, [*progress.missing])
    return progress


@contextlib.contextmanager
def _opened(directory: Path | None, *, secret: bool) -> Iterator[Any]:
    """The checkpoints of a directory, which this server alone uses meanwhile."""
    if directory is None:
        yield None
        return
    checkpoint.check_path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        lock = filelock.FileLock(directory / LOCK, timeout=0, mode=0o600).acquire()
    except filelock.Timeout as error:
        raise ValueError(
            f"another server is using {directory}; wait until it ends, or choose "
            "another directory"
        ) from error
    with lock, checkpoint.open_checkpoints(directory, secret=secret) as stored:
        yield stored


def _begun(shared: Federation, about: Any, key: jax.Array, stored: Any) -> Progress:
    """The newest checkpoint, or the state before the prologue."""
    state = init_state(shared.setup, key)
    bare = state._replace(training=state.training._replace(client_states=()))
    number = shared.setup.num_clients
    accepted = np.full(number, INITIAL, np.int32)
    drawn = map(np.asarray, shared.setup.cohort.asked(state.key, number))
    begun = Progress(bare, accepted, secrets.token_hex(8), rest=Rest(0, *drawn))
    if not stored:
        return begun
    restored = checkpoint.restore(stored, _values(begun), _mark(about, begun))
    if shared.guarantee is not None:
        _check_newest(stored)
        if restored is None:  # from now on there is a note
            _note(stored, NONE)
    if restored is not None:
        values, notes = restored
        accepted, rest = np.asarray(values["accepted"]), notes.get("rest")
        arrived = tuple(Arrival(*row) for row in notes.get("arrived", ()))
        begun = Progress(values["state"], accepted, notes["run"], arrived)
        if rest is not None:
            number, cohort, present = rest
            rest = Rest(number, np.asarray(cohort, np.int32), np.asarray(present, bool))
            begun = begun._replace(rest=rest)
    return begun._replace(saved=accepted)


def _values(progress: Progress) -> dict[str, Any]:
    return {"state": progress.state, "accepted": jnp.asarray(progress.accepted)}


def _mark(about: Any, progress: Progress) -> str:
    return checkpoint.fingerprint(about, progress.state)


def _save(stored: Any, shared: Federation, about: Any, progress: Progress) -> Progress:
    """Writes a checkpoint, numbered by the exchanges that are complete.

    Returns:
      The progress, which knows what is saved.
    """
    if not stored:
        return progress
    rest = progress.rest
    number = shared.first if rest is None else rest.number
    step = shared.turn(progress.state.round, number)
    notes: dict[str, Any] = {"run": progress.run, "arrived": progress.arrived}
    if rest is not None:
        notes["rest"] = [number, rest.cohort.tolist(), rest.present.tolist()]
    mark = _mark(about, progress)
    checkpoint.save(stored, step, _values(progress), mark, notes)
    if shared.guarantee is not None:
        _note(stored, step)
    return progress._replace(saved=progress.accepted)


def _check_newest(stored: Any) -> None:
    """Refuses to release again what follows an older checkpoint than the newest."""
    path = Path(stored.directory) / NEWEST
    step = NONE if stored.latest is None else stored.latest.step
    noted = path.read_text("utf-8").strip() if path.exists() else ""
    known = noted.removeprefix("-").isdecimal() and int(noted) <= step
    if not known and (noted or step != NONE):
        gone = f"checkpoint {plain(noted)}" if noted else f"the file {NEWEST}"
        raise CheckpointError(
            f"{gone} of {path.parent} is gone; an older checkpoint would release noisy "
            "sums again. Put it back, or start a new run in another directory"
        )


def _note(stored: Any, step: int) -> None:
    """Notes the newest checkpoint, which may not be forgotten."""
    files.write(Path(stored.directory) / NEWEST, f"{step}\n", 0o600)


def in_process(nodes: Mapping[int, Node]) -> Send:
    """Makes a transport to nodes of this process.

    Args:
      nodes: Nodes by client id; requests to others are never answered.
    """
    workers = ThreadPoolExecutor(max(1, len(nodes)))

    def answered(client: int, request: bytes) -> bytes:
        if not threading.current_thread().daemon:
            return nodes[client].answer(request)
        # Python ends daemons anywhere, also inside XLA, and waits for workers.
        return workers.submit(nodes[client].answer, request).result()

    def send(
        requests: Mapping[int, bytes], deadline: float | None
    ) -> Iterator[tuple[int, bytes]]:
        del deadline
        for client, request in requests.items():
            if client in nodes:
                yield client, answered(client, request)

    return send
