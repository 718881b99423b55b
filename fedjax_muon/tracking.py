"""Trackers: callbacks that log a run to TensorBoard, Weights & Biases or MLflow.

    with fm.tracking.tensorboard("logs") as log:
        fm.run(simulation, state, rounds=100, callbacks=[log])

The round is the step.
"""

import contextlib
import inspect
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedjax_muon.versions import optional

Record = Mapping[str, Any]  # metrics by name, and the round
Log = Callable[[Any, Record], None]  # a callback of `run`: (state, record)


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


@contextlib.contextmanager
def tensorboard(
    directory: str | Path, *, config: Mapping[str, Any] | None = None
) -> Iterator[Log]:
    """Logs records as scalars for TensorBoard.

    Every start has its own event file, which tells TensorBoard to drop the points of
    older files from its first round on. Requires the extra `tensorboard`; TensorBoard
    itself is only needed to look at the curves.

    Args:
      config: Values that are shown under "Text".
    """
    package = optional("tensorboardX", "the tracker of TensorBoard")
    lines = json.dumps(flat(config or {}), indent=2, default=str).split("\n")
    about = "\n".join(f"    {line}" for line in lines)
    # at once, so that a directory that can't be written is noticed
    Path(directory).mkdir(parents=True, exist_ok=True)
    writer: Any = None

    def log(state: Any, record: Record) -> None:
        del state
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

    try:
        yield log
    finally:
        if writer is not None:
            writer.close()


@contextlib.contextmanager
def wandb(module: Any = None, **options: Any) -> Iterator[Log]:
    """Logs records as a run of Weights & Biases.

    Args:
      module: A module with the functions of `wandb`, such as `trackio`. By default
        `wandb` itself, which requires the extra `wandb`.
      **options: Arguments of the module's `init`, such as `project`, `name` or
        `resume`. Rounds that a resumed run has are not logged again.

    Example:
      >>> import wandb  # doctest: +SKIP
      >>> with fm.tracking.wandb(project="digits") as log:  # doctest: +SKIP
      ...     fm.run(simulation, state, rounds=100, callbacks=[log])
    """
    client = module or optional("wandb", "the tracker of Weights & Biases")
    takes_code = "exit_code" in inspect.signature(client.finish).parameters
    run = client.init(**options)
    first, code = getattr(run, "starting_step", 0), 1

    def log(state: Any, record: Record) -> None:
        del state
        if record["round"] >= first:
            run.log(metrics_of(record), step=record["round"])

    try:
        yield log
        code = 0
    finally:  # as failed if the block raised an error
        client.finish(**({"exit_code": code} if takes_code else {}))


@contextlib.contextmanager
def mlflow(*, config: Mapping[str, Any] | None = None, **options: Any) -> Iterator[Log]:
    """Logs records as a run of MLflow. Requires the extra `mlflow`.

    Args:
      config: Values that become parameters of the run.
      **options: Arguments of `mlflow.start_run`, such as `run_name`; `run_id` resumes.
    """
    client = optional("mlflow", "the tracker of MLflow")
    with client.start_run(**options):  # ends as failed if the block raises an error
        client.log_params(flat(config or {}))

        def log(state: Any, record: Record) -> None:
            del state
            client.log_metrics(metrics_of(record), step=record["round"])

        yield log


__all__ = ["Log", "Record", "mlflow", "tensorboard", "wandb"]
