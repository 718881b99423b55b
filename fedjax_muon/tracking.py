"""Trackers of training: TensorBoard, and packages with the functions of `wandb`.

A `Tracker` is given to `run` among its callbacks. What it fails to write stops no
training: a warning says so once.
"""

import contextlib
import inspect
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedjax_muon.files import reason
from fedjax_muon.versions import optional

Record = Mapping[str, Any]  # metrics by name, and the round
Status = Literal["finished", "interrupted", "failed"]


class Tracker(NamedTuple):
    """Writes the records of a run somewhere, with three functions.

    A run that is resumed starts its trackers again, and gives them the records of all
    rounds so far before new ones. So `on_record` may get a round that is already in the
    log. The log must still have every round only once.
    """

    name: str  # for warnings
    on_start: Callable[[Mapping[str, Any]], None]  # (configuration of the run)
    on_record: Callable[[Record], None]  # (metrics by name, and the round)
    on_end: Callable[[Status], None]


@contextlib.contextmanager
def follow(
    trackers: Sequence[Tracker], config: Mapping[str, Any]
) -> Iterator[Callable[[Record], None]]:
    """Starts trackers, and ends them with the status that the block ends in.

    Yields a function that gives a record to all trackers. One that raises an error gets
    no further records, and a warning says so. The values of `config` may be nested.
    """
    working = list(trackers)

    def each(call: Callable[[Tracker], None]) -> None:
        for tracker in list(working):
            try:
                call(tracker)
            except Exception as error:  # trackers name no common type
                working.remove(tracker)
                warnings.warn(
                    f"{tracker.name} failed and gets no further records of this run "
                    f"({reason(error)}); training continues",
                    stacklevel=2,
                )

    def end(status: Status) -> None:
        each(lambda tracker: tracker.on_end(status))

    each(lambda tracker: tracker.on_start(dict(config)))
    try:
        yield lambda record: each(lambda tracker: tracker.on_record(dict(record)))
    except (KeyboardInterrupt, GeneratorExit):
        end("interrupted")
        raise
    except BaseException:
        end("failed")
        raise
    end("finished")


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Joins the names of nested values by dots, after a prefix."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        nested = isinstance(value, Mapping)
        values |= flat(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return values


def metrics_of(record: Record) -> dict[str, float]:
    """The numbers of a record that are finite, without its round."""
    return {
        name: value
        for name, value in record.items()
        if name != "round" and isinstance(value, int | float) and math.isfinite(value)
    }


def tensorboard(directory: str | Path, *, resume: bool = False) -> Tracker:
    """Writes records as scalars for TensorBoard, with the round as the step.

    The configuration is under "Text". Every start has its own event file, which tells
    TensorBoard to drop the points of older files from its first round on. Requires the
    extra `tensorboard`; TensorBoard itself is only needed to look at the curves.
    """
    package = optional("tensorboardX", "the tracker of TensorBoard")
    directory = Path(directory)
    if not resume and any(directory.glob("events.out.tfevents.*")):
        raise ValueError(
            f"{directory} has the event files of another run; choose another "
            "directory, or continue it with resume=True"
        )
    writer: Any = None
    about = ""

    def on_start(config: Mapping[str, Any]) -> None:
        nonlocal about
        lines = json.dumps(flat(config), indent=2, default=str).split("\n")
        about = "\n".join(f"    {line}" for line in lines)
        # at once, so that a directory that can't be written is noticed
        directory.mkdir(parents=True, exist_ok=True)

    def on_record(record: Record) -> None:
        nonlocal writer
        step = record["round"]
        if writer is None:
            writer = package.SummaryWriter(
                str(directory),
                purge_step=step,
                max_queue=0,  # no limit: training never waits for a thread that failed
                flush_secs=1,
                # files are read in the order of their names, which have seconds only
                filename_suffix=f".{time.time_ns()}",
            )
            writer.add_text("config", about, step)
        for name, value in metrics_of(record).items():
            writer.add_scalar(name, value, step)

    def on_end(status: Status) -> None:
        del status
        nonlocal writer
        if writer is not None:
            writer.close()
        writer = None

    return Tracker(f"TensorBoard in {directory}", on_start, on_record, on_end)


def wandb(module: Any = None, **options: Any) -> Tracker:
    """Writes records as a run of Weights & Biases, with the round as the step.

    A run is continued, after its last round, if `options` name it: by `id` in W&B, by
    `name` in Trackio. The environment variables of the package apply, such as
    WANDB_MODE=offline. Offline, every start of W&B has its own directory.

    Args:
      module: A module with the functions of `wandb`, such as `trackio`. By default
        `wandb` itself, which requires the extra `wandb`.
      **options: Of the module's `init`, such as `project`, `name`, and `group`.

    Example:
      >>> import trackio  # doctest: +SKIP
      >>> fm.tracking.wandb(trackio, project="digits", name="a")  # doctest: +SKIP
    """
    client = module or optional("wandb", "the tracker of Weights & Biases")
    takes_code = "exit_code" in inspect.signature(client.finish).parameters
    run: Any = None
    first = 0

    def on_start(config: Mapping[str, Any]) -> None:
        nonlocal run, first
        run = client.init(**{"resume": "allow", **options}, config=dict(config))
        following = getattr(run, "_next_step", 0)  # Trackio has no public name for it
        first = getattr(run, "starting_step", following)

    def on_record(record: Record) -> None:
        if record["round"] >= first:  # else the run has it
            run.log(metrics_of(record), step=record["round"])

    def on_end(status: Status) -> None:
        code = {"exit_code": int(status != "finished")} if takes_code else {}
        client.finish(**code)

    return Tracker(client.__name__, on_start, on_record, on_end)


__all__ = ["Record", "Status", "Tracker", "follow", "tensorboard", "wandb"]
