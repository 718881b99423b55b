"""Training of a `Run` in its directory, see `experiments.recording`."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedjax_muon.experiments import recording
from fedjax_muon.experiments.recording import Course
from fedjax_muon.runs import privacy
from fedjax_muon.runs.build import start_key
from fedjax_muon.runs.config import Run
from fedjax_muon.runs.directory import CHECKPOINTS, resume_command, to_json
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.terminal import Progress
from fedjax_muon.tracking import Tracker


def train(
    run: Run,
    simulation: Simulation,
    directory: Path,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    trackers: Sequence[Tracker] = (),
) -> None:
    """Trains a run in its directory, see `experiments.recording.record`."""
    course = course_of(run, privacy.secret_of(run, directory))
    progress = progress or Progress(run.config.rounds)
    recording.record(simulation, course, directory, progress, stop, trackers)


def course_of(run: Run, secret: privacy.Secret | None = None) -> Course:
    """How a run is trained, and what it is known by.

    With more rounds, if the first ones do not depend on their number, it is the same
    run.
    """
    about, identity = (json.loads(to_json(run)) for _ in range(2))
    if not run.config.fixes_rounds:
        del identity["config"]["rounds"]
    config = run.config
    return Course(
        start_key(run.seed),
        config.rounds,
        config.evaluate_every,
        config.drops,
        identity,
        about,
        secret,
    )


def is_complete(run: Run, simulation: Simulation, directory: Path) -> bool:
    """Whether a run has its last checkpoint, by which metrics.csv is then restored."""
    return recording.is_complete(simulation, course_of(run), directory)


def last_state(run: Run, simulation: Simulation, directory: Path) -> Any:
    """The state in the newest checkpoint of a run."""
    finished = (directory / CHECKPOINTS).exists()
    secret = None if finished else privacy.secret_of(run, directory)
    state = recording.last_state(simulation, course_of(run, secret), directory)
    if state is None:
        raise ValueError(
            f"{directory} has no checkpoint yet; train first, with: "
            f"{resume_command(directory)}"
        )
    return state
