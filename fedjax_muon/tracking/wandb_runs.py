"""Records as a run of Weights & Biases."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_muon.tracking.tracker import (
    Record,
    Status,
    Tracker,
    imported,
    metrics_of,
)
from fedjax_muon.versions import check_installed


def wandb(
    project: str | None = None,
    *,
    name: str | None = None,
    group: str | None = None,
    run_id: str | None = None,
    directory: str | Path | None = None,
) -> Tracker:
    """Writes records as a run of Weights & Biases, with the round as the step.

    Its environment variables apply, such as WANDB_MODE=offline. A run on the server is
    continued after its last round. Offline, every start has a directory of its own,
    with all records that are given to it. Requires the extra `wandb`.

    Args:
      project: Project of the run, by default that of the environment.
      name: What the run is called, by default a random name.
      group: Group of the run.
      run_id: Identifies a run that is continued, or a new one; by default random.
      directory: Where files are written, in a new folder `wandb`.
    """
    check_installed("wandb", "the tracker of Weights & Biases")
    run_id = run_id or secrets.token_hex(4)
    runs: list[Any] = []

    def on_start(config: Mapping[str, Any]) -> None:
        client = imported("wandb")
        if directory is not None:
            Path(directory).mkdir(parents=True, exist_ok=True)
        run = client.init(
            project=project,
            name=name,
            group=group,
            id=run_id,
            resume="allow",
            config=dict(config),
            dir=None if directory is None else str(directory),
            settings=client.Settings(silent=True, console="off"),
        )
        runs.append(run)

    def on_record(record: Record) -> None:
        run = runs[-1]
        if record["round"] >= run.starting_step:  # else the server has it
            run.log(metrics_of(record), step=record["round"])

    def on_end(status: Status) -> None:
        runs.pop().finish(exit_code=0 if status == "finished" else 1)

    return Tracker("Weights & Biases", on_start, on_record, on_end)
