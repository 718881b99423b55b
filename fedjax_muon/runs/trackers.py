"""Trackers of runs on disk, by the names that `log` takes.

What a tracker fails to write stops no training: a warning says so once.
"""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_muon import tracking
from fedjax_muon.files import reason
from fedjax_muon.tracking import Log, Record
from fedjax_muon.versions import check_installed

PROJECT = "fedjax-muon"
Tracker = contextlib.AbstractContextManager[Log]


class Followed(NamedTuple):
    """One run, as its trackers name it."""

    names: Sequence[str] = ()  # of trackers
    directory: Path = Path()
    name: str = ""
    group: str | None = None  # the comparison that it belongs to


NOT_FOLLOWED = Followed()


def _tensorboard(run: Followed, about: Mapping[str, Any]) -> Tracker:
    return tracking.tensorboard(run.directory / "tensorboard", config=about)


def _wandb(run: Followed, about: Mapping[str, Any]) -> Tracker:
    return tracking.wandb(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=run.name,
        group=run.group,
        dir=str(run.directory),
        resume="auto",  # of a run in this directory that was interrupted
        config=dict(about),
        settings={"silent": True, "console": "off"},
    )


def _mlflow(run: Followed, about: Mapping[str, Any]) -> Tracker:
    tags = None if run.group is None else {"group": run.group}
    return tracking.mlflow(config=about, run_name=run.name, tags=tags)


# by name: the package that is needed, and what makes the tracker of a run
TRACKERS: dict[str, tuple[str, Callable[[Followed, Mapping[str, Any]], Tracker]]] = {
    "tensorboard": ("tensorboardX", _tensorboard),
    "wandb": ("wandb", _wandb),
    "mlflow": ("mlflow", _mlflow),
}


def check(names: Sequence[str]) -> None:
    """Raises `ValueError` for trackers that are unknown or not installed."""
    for name in names:
        if name not in TRACKERS:
            raise ValueError(
                f"unknown tracker {name!r}; log takes {', '.join(TRACKERS)}"
            )
        if names.count(name) > 1:
            raise ValueError(f"log names {name!r} twice")
        check_installed(TRACKERS[name][0], f"the tracker {name}")


@contextlib.contextmanager
def follow(
    run: Followed, about: Mapping[str, Any]
) -> Iterator[Callable[[Record], None]]:
    """Starts the trackers of a run; yields a function that gives a record to all.

    One that raises an error gets no further records, and a warning says so.
    """
    working = {name: TRACKERS[name][1](run, about) for name in run.names}
    logs: dict[str, Log] = {}

    def each(call: Callable[[str, Tracker], Any]) -> None:
        for name, tracker in [*working.items()]:
            try:
                call(name, tracker)
            except Exception as error:  # trackers name no common type
                del working[name]
                warnings.warn(
                    f"the tracker {name} failed and gets no further records of this "
                    f"run ({reason(error)}); training continues",
                    stacklevel=2,
                )

    def start(name: str, tracker: Tracker) -> None:
        logs[name] = tracker.__enter__()

    def log(record: Record) -> None:
        each(lambda name, _: logs[name](None, dict(record)))

    def end(error: BaseException | None) -> None:
        kind = None if error is None else type(error)
        each(lambda _, tracker: tracker.__exit__(kind, error, None))

    each(start)

    try:
        yield log
    except BaseException as error:
        end(error)
        raise
    end(None)
