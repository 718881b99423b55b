"""Training in a run directory: from the newest checkpoint on, or from the start."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from fedjax_muon.engine.processes import agreed, is_first
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs.build import start_key
from fedjax_muon.runs.config import Run, to_json
from fedjax_muon.runs.directory import METRICS
from fedjax_muon.simulation import checkpoint
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.training import evaluations

SECONDS_BETWEEN_CHECKPOINTS = 5.0


def _mark(run: Run, state) -> str:
    return checkpoint.fingerprint(json.loads(to_json(run)), state)


def train(
    run: Run,
    simulation: Simulation,
    directory: Path,
    tick: Callable[[int], None] = lambda rounds: None,
) -> float | None:
    """Trains a run in its directory, from its newest checkpoint if there is one.
    Returns the seconds of the first round, compilation included, if one was run.

    Rows are on disk before the checkpoint that covers them; rows that no checkpoint
    covers are dropped first. `tick` is called with the number of new rounds, at once
    with those that were run before. Of several processes, which all see the directory,
    the first writes the rows. Raises `CheckpointError` and `NonFiniteError`.
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

        def completed(rounds: int) -> None:
            if not first:
                first.append(time.monotonic() - since)
            tick(rounds)

        rows = evaluations(
            simulation,
            state,
            rounds=run.config.rounds,
            evaluate_every=run.config.evaluate_every,
            drop_nonfinite=run.config.drop_nonfinite,
            tick=completed,
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
    saved = directory / "checkpoints"
    found = None
    if saved.is_dir():
        with checkpoint.open_checkpoints(saved) as checkpoints:
            found = checkpoint.restore(checkpoints, state, _mark(run, state))
    if found is None:
        raise ValueError(
            f"{directory} has no checkpoint yet; train first, with: fedjax-muon resume "
            f"{directory}"
        )
    return found.params
