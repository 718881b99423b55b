"""Records as a run of Trackio."""

import contextlib
import io
import secrets
from collections.abc import Mapping
from typing import Any

from fedjax_muon.tracking.tracker import (
    Record,
    Status,
    Tracker,
    imported,
    metrics_of,
)
from fedjax_muon.versions import check_installed


def trackio(
    project: str = "fedjax-muon", *, name: str | None = None, group: str | None = None
) -> Tracker:
    """Writes records as a run of Trackio, with the round as the step.

    Its environment variables apply: without TRACKIO_SPACE_ID and TRACKIO_SERVER_URL
    the project is a database on this machine, in TRACKIO_DIR. A run is continued after
    its last round. Requires the extra `trackio`.

    Args:
      project: Project of the run.
      name: What the run is called: an existing one is continued. By default random.
      group: Group of the run.
    """
    check_installed("trackio", "the tracker of Trackio")
    name = name or secrets.token_hex(4)
    runs: list[tuple[Any, int]] = []

    def on_start(config: Mapping[str, Any]) -> None:
        client = imported("trackio")
        with contextlib.redirect_stdout(io.StringIO()):
            run = client.init(
                project,
                name=name,
                group=group,
                config=dict(config),
                resume="allow",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
        runs.append((run, run._next_step))  # which has no public name

    def on_record(record: Record) -> None:
        run, first = runs[-1]
        if record["round"] >= first:
            run.log(metrics_of(record), step=record["round"])

    def on_end(status: Status) -> None:
        del status
        runs.pop()
        with contextlib.redirect_stdout(io.StringIO()):
            imported("trackio").finish()

    return Tracker("Trackio", on_start, on_record, on_end)
