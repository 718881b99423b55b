"""Trackers of runs on disk: which ones a run has, and where they write.

They are no part of identity.json: a run has the same bits with them and without them.
tracking.json has their names, and the id by which services find the run again.
"""

import json
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_muon import tracking
from fedjax_muon.engine.processes import is_first
from fedjax_muon.files import read_text, reading, write
from fedjax_muon.tracking import Tracker
from fedjax_muon.versions import check_installed, optional

FILE = "tracking.json"
NONE = ("none",)
PROJECT = "fedjax-muon"


class Place(NamedTuple):
    """One run, as its trackers name it."""

    directory: Path
    name: str
    group: str | None  # the comparison that it belongs to
    run_id: str


def _wandb(run: Place) -> Tracker:
    return tracking.wandb(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=run.name,
        group=run.group,
        id=run.run_id,
        dir=str(run.directory),
        settings={"silent": True, "console": "off"},
    )


def _trackio(run: Place) -> Tracker:
    trackio = optional("trackio", "the tracker trackio")
    name = f"{run.name}-{run.run_id}"
    quiet = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}
    return tracking.wandb(trackio, project=PROJECT, name=name, group=run.group, **quiet)


# by the names of --log: the package that is needed, and what makes the tracker
TRACKERS: dict[str, tuple[str, Callable[[Place], Tracker]]] = {
    "tensorboard": (
        "tensorboardX",
        lambda run: tracking.tensorboard(run.directory / "tensorboard", resume=True),
    ),
    "wandb": ("wandb", _wandb),
    "trackio": ("trackio", _trackio),
}


class Log(NamedTuple):
    """The trackers of what runs in a directory."""

    names: tuple[str, ...] = ()
    run_id: str = ""

    def of_run(self, directory: Path) -> list[Tracker]:
        """The trackers of a single run in its directory."""
        return self._of(Place(directory, directory.name, None, self.run_id))

    def of_cell(self, directory: Path, cell: Path) -> list[Tracker]:
        """The trackers of one run of a comparison, which has a directory of its own."""
        name = "-".join(cell.relative_to(directory).parts)
        run_id = f"{self.run_id}-{name}"
        return self._of(Place(cell, name, directory.name, run_id))

    def _of(self, run: Place) -> list[Tracker]:
        return [TRACKERS[name][1](run) for name in self.names]


NO_LOG = Log()


def check(names: Sequence[str]) -> None:
    """Raises `ValueError` for trackers that are unknown or not installed."""
    for name in names if tuple(names) != NONE else ():
        if name not in TRACKERS:
            raise ValueError(
                f"unknown tracker {name!r}; log takes {', '.join(TRACKERS)}"
            )
        if names.count(name) > 1:
            raise ValueError(f"log names {name!r} twice")
        check_installed(TRACKERS[name][0], f"the tracker {name}")


def begin(run_dir: Path, names: Sequence[str]) -> Log:
    """The trackers of a new run, which its directory remembers."""
    if not names:
        return NO_LOG
    log = Log(tuple(names), secrets.token_hex(4))
    text = json.dumps({"log": log.names, "run_id": log.run_id}, indent=2) + "\n"
    if is_first():  # the only process that logs
        write(run_dir / FILE, text)
    return log


def again(run_dir: Path, names: Sequence[str]) -> Log:
    """The trackers of a run that may be resumed, whose services know it by its id."""
    log = _read(run_dir / FILE)
    names = () if tuple(names) == NONE else tuple(names)
    check(names)
    return log._replace(names=names) if log.run_id else begin(run_dir, names)


def _read(path: Path) -> Log:
    if not path.exists():
        return NO_LOG
    with reading(path, "names of trackers", "delete it to log anew"):
        values = json.loads(read_text(path))
        names, run_id = tuple(values["log"]), values["run_id"]
        if not all(isinstance(word, str) for word in (*names, run_id)):
            raise ValueError("these are not names")
    return Log(names, run_id)
