"""Training in a directory: from the newest checkpoint on, or from the start.

A checkpoint has the state, the rows of metrics.csv up to its round, and clients.csv;
whatever became of these files, they are restored from there. The checkpoints of a
private run lie elsewhere until it is finished, see `privacy`. Then the run directory
gets the last one, without its secrets.
"""

import contextlib
import functools
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_muon import files
from fedjax_muon.engine.processes import broadcast_from_first, is_first, run_on_first
from fedjax_muon.privacy.ledger import AGAIN
from fedjax_muon.runs import metrics_csv
from fedjax_muon.runs.directory import CHECKPOINTS, CLIENTS, METRICS, held
from fedjax_muon.runs.private import Secret, published
from fedjax_muon.runs.trackers import NOT_FOLLOWED, Followed, follow
from fedjax_muon.simulation import checkpoint
from fedjax_muon.simulation.scores import client_scores
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.training import Step, steps
from fedjax_muon.terminal import Progress

SECONDS_BETWEEN_CHECKPOINTS = 5.0


class Course(NamedTuple):
    """How a run is trained, and what it is known by."""

    key: jax.Array  # argument of `Simulation.init`
    rounds: int
    evaluate_every: int
    drop_nonfinite: bool
    # what decides its numbers, so that checkpoints of other runs are refused
    identity: Mapping[str, Any]
    about: Mapping[str, Any]  # what trackers are told
    secret: Secret | None = None

    def checkpoints(self, directory: Path) -> Path:
        """Where the states of a run that is not finished are."""
        return (self.secret.folder if self.secret else directory) / CHECKPOINTS


def record(
    simulation: Simulation,
    course: Course,
    directory: Path,
    progress: Progress,
    stop: Callable[[], bool] = lambda: False,
    logs: Followed = NOT_FOLLOWED,
) -> None:
    """Trains a run in its directory, from its newest checkpoint if there is one.

    Rows are on disk before the checkpoint that covers them, and those of a private run
    after it, since the rounds after a checkpoint are run again with other noise. Of
    several processes, which all see the directory, the first writes the rows.

    Args:
      progress: Counts the rounds, at once those that were run before.
      stop: Asked between calls of about a tenth of a second; if it returns True, a
        checkpoint is saved.
      logs: Names trackers, which get all records of the run, those from before its
        checkpoint first.

    Raises:
      KeyboardInterrupt: After `stop`.
      NonFiniteError: If a message or the training loss is not finite.
    """
    secret, saved = course.secret, course.checkpoints(directory)
    if secret is not None:
        if is_complete(simulation, course, directory):
            shutil.rmtree(saved, ignore_errors=True)
            progress.skip(course.rounds)
            return
        secret.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    recorder = Recorder(simulation, course, directory)

    def show(row: dict[str, Any]) -> None:
        progress.advance(0, row)
        log(row)

    with (
        held(secret.folder) if secret else contextlib.nullcontext(),  # copies share it
        checkpoint.open_checkpoints(saved, secret=secret is not None) as checkpoints,
        follow(logs if is_first() else NOT_FOLLOWED, course.about) as log,
    ):
        state = recorder.begin(checkpoints)
        progress.skip(state.round)
        for row in recorder.so_far() if logs.names else ():
            log(row)
        for step in steps(
            simulation,
            state,
            rounds=course.rounds,
            evaluate_every=course.evaluate_every,
            drop_nonfinite=course.drop_nonfinite,
            evaluate_first=recorder.last_round < 0,
            dropped=recorder.dropped,
            seconds=recorder.seconds,
        ):
            stopped = bool(broadcast_from_first(stop()))
            progress.advance(step.rounds)
            recorder.add(checkpoints, step, stopped, show)
            if stopped and recorder.last_round < course.rounds:
                raise KeyboardInterrupt
            state = step.state
        if secret is not None:
            recorder.publish(state)
    if secret is not None:
        shutil.rmtree(saved)


class Recorder:
    """The rows and checkpoints of a run, kept in step with each other."""

    def __init__(self, simulation: Simulation, course: Course, directory: Path):
        self.simulation, self.course, self.directory = simulation, course, directory
        self.secret = course.secret
        self.held_back: list[dict[str, Any]] = []  # rows of a private run
        self.metrics = directory / METRICS
        self.rows = self.clients = ""  # the text of metrics.csv, and of clients.csv
        self.last_round, self.dropped, self.seconds = -1, 0, 0.0
        self.saved_round = -1
        # reading together takes barriers, at which a dead process would be waited for
        self.verified = jax.process_count() > 1
        self.saved = time.monotonic()

    def begin(self, checkpoints: Any) -> Any:
        """The state to continue from; metrics.csv is made what it was then."""
        self.template = self.simulation.init(
            self.course.key, drop_nonfinite=self.course.drop_nonfinite
        )
        self.mark = checkpoint.fingerprint(self.course.identity, self.template)
        restored = checkpoint.restore(checkpoints, self.template, self.mark)
        state = self.template
        if restored is not None:
            state, notes = restored
            self.rows, self.last_round = notes["rows"], notes["last_round"]
            self.dropped, self.seconds = notes["dropped"], notes["seconds"]
            self.clients = notes["clients"]
            self.verified = True
            self._check_rounds(state)
            self.saved_round = state.round
        elif self.secret is not None:
            if self.secret.ledger.round_of(self.secret.name) >= 0:
                raise ValueError(
                    f"the secret state of {self.directory} is missing, or a copy of "
                    f"the run was finished; {AGAIN}"
                )
            self.save(checkpoints, state)  # before anything is released
        self._release(state.round)
        state = self.simulation._owned(state)
        behind = self.secret is not None
        run_on_first(lambda: restore_rows(self.metrics, self.rows, behind=behind))
        run_on_first(lambda: write_clients(self.directory, self.clients))
        return state

    def _check_rounds(self, state: Any) -> None:
        """Leaves out the row of a last round that is none of more rounds."""
        rounds, every = self.course.rounds, self.course.evaluate_every
        if state.round > rounds:
            raise checkpoint.CheckpointError(
                f"the checkpoint of {self.directory} is from round {state.round}, but "
                f"the run has {rounds} rounds; give it at least {state.round}"
            )
        if 0 < self.last_round < rounds and self.last_round % every:
            self.rows = self.rows[: self.rows.rstrip().rfind("\n") + 1]
            self.last_round -= self.last_round % every

    def publish(self, state: Any) -> None:
        """Leaves the last checkpoint in the run directory, without secrets."""
        place = self.directory / CHECKPOINTS
        with checkpoint.open_checkpoints(place) as checkpoints:
            self.save(checkpoints, published(state))

    def so_far(self) -> list[dict[str, Any]]:
        """The records of rounds that the checkpoint has."""
        return metrics_csv.parsed(self.rows) if self.rows else []

    def add(
        self,
        checkpoints: Any,
        step: Step,
        stopped: bool,
        show: Callable[[dict[str, Any]], None],
    ) -> None:
        """Writes the row of a step, if it has one, and a checkpoint, if one is due.

        Args:
          show: Called with each row that is written: before the checkpoint that covers
            it, so that a kill leaves none out, or in a private run after it.
        """
        self.dropped, self.seconds = step.dropped, step.seconds
        row = step.record
        if row is not None:
            self.last_round = row["round"]
            self.rows += metrics_csv.text_of([row], header=not self.rows)
            self.held_back.append(row)
        if self.secret is None:
            self._write_rows(show)
        due = row is not None and self._is_due()
        if due:
            self.clients = clients_of(self.simulation, step.state)
            run_on_first(lambda: write_clients(self.directory, self.clients))
        if (stopped or due) and step.state.round > self.saved_round:
            self.save(checkpoints, step.state)
            self._release(step.state.round)
        if self.last_round <= self.saved_round:
            self._write_rows(show)

    def _write_rows(self, show: Callable[[dict[str, Any]], None]) -> None:
        rows, self.held_back = self.held_back, []
        for row in rows:
            show(row)
            run_on_first(functools.partial(metrics_csv.append, self.metrics, row))

    def _release(self, round: int) -> None:
        """Tells the ledger, if there is one, before a saved state is released."""
        if self.secret is not None:
            self.secret.ledger.reach(self.secret.name, round)

    def _is_due(self) -> bool:
        waited = broadcast_from_first(time.monotonic() - self.saved)
        return (
            waited > SECONDS_BETWEEN_CHECKPOINTS
            or self.last_round == self.course.rounds
        )

    def save(self, checkpoints: Any, state: Any) -> None:
        """Saves a checkpoint; the first is read back, where a process is alone."""
        notes = {
            "rows": self.rows,
            "clients": self.clients,
            "last_round": self.last_round,
            "dropped": self.dropped,
            "seconds": self.seconds,
        }
        checkpoint.save(checkpoints, state.round, state, self.mark, notes)
        if not self.verified:
            checkpoint.restore(checkpoints, state, self.mark)
            self.verified = True
        self.saved_round, self.saved = state.round, time.monotonic()


def is_complete(simulation: Simulation, course: Course, directory: Path) -> bool:
    """Whether a run has its last checkpoint, by which metrics.csv is then restored."""
    saved = directory / CHECKPOINTS
    if not (saved / str(course.rounds)).is_dir():
        return False
    mark = checkpoint.fingerprint(course.identity, simulation.like)
    with checkpoint.open_checkpoints(saved) as checkpoints:
        notes = checkpoint.notes_of(checkpoints, mark)
    if notes is None or notes["last_round"] < course.rounds:
        return False
    restore_rows(directory / METRICS, notes["rows"])
    write_clients(directory, notes["clients"])
    return True


def last_state(simulation: Simulation, course: Course, directory: Path) -> Any:
    """The state in the newest checkpoint of a run; None if there is none."""
    saved, secret = directory / CHECKPOINTS, course.secret
    if saved.exists():
        secret = None
    else:  # of a private run that is not finished
        saved = course.checkpoints(directory)
    if not saved.is_dir() or not any(saved.iterdir()):
        return None
    state = simulation.init(course.key, drop_nonfinite=course.drop_nonfinite)
    mark = checkpoint.fingerprint(course.identity, state)
    with checkpoint.open_checkpoints(saved) as checkpoints:
        restored = checkpoint.restore(checkpoints, state, mark)
    if restored is None:
        return None
    if secret is not None:  # who asks for the state may publish it
        secret.ledger.reach(secret.name, restored[0].round)
    return restored[0]


def restore_rows(metrics: Path, rows: str, *, behind: bool = False) -> None:
    """Makes metrics.csv what a checkpoint says, and warns if rows were not as it does.

    Rows after it are dropped: they are computed again.

    Args:
      behind: Whether the last rows may be missing, since checkpoints are saved first.
    """
    text = metrics.read_bytes().decode("utf-8", "replace") if metrics.exists() else ""
    if not (text.startswith(rows) or (behind and rows.startswith(text))):
        warnings.warn(
            f"{metrics} is not what the checkpoint says, and is restored from there",
            stacklevel=2,
        )
    if not rows:
        metrics.unlink(missing_ok=True)
    elif text != rows:
        files.write(metrics, rows)


def clients_of(simulation: Simulation, state: Any) -> str:
    """The text of clients.csv; none if clients have no test examples, or privacy."""
    if simulation.run.client_tests is None or simulation.guarantee is not None:
        return ""
    columns = client_scores(simulation, state)
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    rows = [
        {"round": state.round, "client": client, **dict(zip(columns, row, strict=True))}
        for client, row in enumerate(values)
    ]
    return metrics_csv.text_of(rows, header=True)


def write_clients(directory: Path, text: str) -> None:
    """Makes clients.csv what a checkpoint says; without a text there is none."""
    if text:
        files.write(directory / CLIENTS, text)
    else:
        (directory / CLIENTS).unlink(missing_ok=True)
