"""Records as scalars in event files, which TensorBoard shows."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_muon.tracking.tracker import (
    Record,
    Status,
    Tracker,
    flat,
    imported,
    metrics_of,
)
from fedjax_muon.versions import check_installed

PREFIX = "events"  # TensorBoard finds files by events.out.tfevents
PACKAGE = "tensorboardX"


def tensorboard(directory: str | Path, *, resume: bool = False) -> Tracker:
    """Writes records as scalars for TensorBoard, with the round as the step.

    The configuration is under "Text". Every start has an event file of its own; its
    beginning tells TensorBoard to drop the points of older files from its first round
    on. Every record is in the file when `on_record` returns. Requires the extra
    `tensorboard`; TensorBoard itself is only needed to look at the curves.

    Args:
      directory: Directory of the event files of this run.
      resume: Whether the run that has event files there is continued.
    """
    check_installed(PACKAGE, "the tracker of TensorBoard")
    directory = Path(directory)
    if not resume and any(directory.glob(f"{PREFIX}.out.tfevents.*")):
        raise ValueError(
            f"{directory} has the event files of another run; choose another "
            "directory, or continue it with resume=True"
        )
    about: dict[str, Any] = {}
    opened: list[_EventFile] = []
    last = -1

    def on_start(config: Mapping[str, Any]) -> None:
        about.clear()
        about.update(flat(config))
        # at once, so that a directory that can't be written is noticed
        directory.mkdir(parents=True, exist_ok=True)
        opened.append(_EventFile(directory))

    def on_record(record: Record) -> None:
        nonlocal last
        if record["round"] == last:  # of a second call of `train`
            return
        file = opened[-1]
        if file.is_empty:
            file.begin(record["round"], about)
        file.add(record)
        last = record["round"]

    def on_end(status: Status) -> None:
        del status
        opened.pop().close()

    return Tracker(f"TensorBoard in {directory}", on_start, on_record, on_end)


class _EventFile:
    """One event file, written without a thread, whose errors would be lost."""

    def __init__(self, directory: Path):
        writer = imported(f"{PACKAGE}.event_file_writer")
        self.event = imported(f"{PACKAGE}.proto.event_pb2")
        self.summary = imported(f"{PACKAGE}.summary")
        # files are read in the order of their names, which have seconds only
        suffix = f".{time.time_ns()}"
        self.writer = writer.EventsWriter(str(directory / PREFIX), suffix)
        self.writer.flush()
        self.is_empty = True

    def begin(self, round: int, config: Mapping[str, Any]) -> None:
        """Drops points from a round on, and adds the configuration."""
        start = self.event.SessionLog(status=self.event.SessionLog.START)
        self._write(step=round, session_log=start)
        lines = json.dumps(config, indent=2, default=str).replace("\n", "\n    ")
        self._write(step=round, summary=self.summary.text("config", f"    {lines}"))
        self.is_empty = False

    def add(self, record: Record) -> None:
        """Adds the numbers of a record."""
        for name, value in metrics_of(record).items():
            scalar = self.summary.scalar(name, value)
            self._write(step=record["round"], summary=scalar)
        self.writer.flush()

    def _write(self, **fields: Any) -> None:
        event = self.event.Event(wall_time=time.time(), **fields)
        self.writer.write_event(event)

    def close(self) -> None:
        self.writer.close()
