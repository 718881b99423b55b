"""Trackers of training: TensorBoard, Weights & Biases, Trackio, MLflow, JSON lines.

A `Tracker` is given to `train` among its callbacks. What it fails to write stops no
training: a warning says so once. Packages are imported when a run starts, since they
are slow, and in extras.
"""

import contextlib
import io
import json
import math
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedjax_muon.core.reading import reason
from fedjax_muon.versions import check_installed, optional

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


def _tracker(
    name: str,
    on_start: Callable[[Mapping[str, Any]], None],
    on_record: Callable[[Record], None],
    on_end: Callable[[Status], None],
    resumes: bool,
) -> Tracker:
    """A tracker that takes a further call of `train` of its run, and no other run.

    Args:
      resumes: Whether the log is one of a run that may be resumed, whose records are
        then given from the first one on.
    """
    last, begins = -1, True

    def start(config: Mapping[str, Any]) -> None:
        nonlocal begins
        begins = True
        on_start(config)

    def record(row: Record) -> None:
        nonlocal last, begins
        if begins and not resumes and row["round"] < last:
            raise ValueError("it has another run; give every run a tracker of its own")
        last, begins = row["round"], False
        on_record(row)

    return Tracker(name, start, record, on_end)


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


TAG = "fedjax_muon.run_id"
LONGEST = 500  # letters of a parameter's value, in all stores of MLflow
ENDS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


# -------------------------------------------------------------------- JSON lines
def json_lines(path: str | Path, *, resume: bool = False) -> Tracker:
    """Writes every record as one line of JSON.

    `pandas.read_json(path, lines=True)` reads the file. A number that is not finite is
    null, since JSON has none. A round that is in the file is not written again.

    Args:
      resume: Whether an existing file is continued. A last line that was cut off is
        removed.
    """
    path = Path(path)
    if path.exists() and not resume:
        raise ValueError(
            f"{path} exists already; choose another file, or continue it with "
            "resume=True"
        )
    rounds: set[int] = set()

    def on_start(config: Mapping[str, Any]) -> None:
        del config
        nonlocal rounds
        path.parent.mkdir(parents=True, exist_ok=True)
        rounds = _rounds_of(path) if path.exists() else set()

    def on_record(record: Record) -> None:
        if record["round"] not in rounds:
            line = json.dumps({name: _finite(value) for name, value in record.items()})
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            rounds.add(record["round"])

    return _tracker(str(path), on_start, on_record, lambda status: None, resume)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rounds_of(path: Path) -> set[int]:
    """The rounds in a file, from which a last line without an end is removed."""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        with path.open("r+b") as file:
            file.truncate(len(whole))
    rounds = set()
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            rounds.add(int(json.loads(line)["round"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} of {path} is not a record") from error
    return rounds


# ------------------------------------------------------------------- TensorBoard
def tensorboard(directory: str | Path, *, resume: bool = False) -> Tracker:
    """Writes records as scalars for TensorBoard, with the round as the step.

    The configuration is under "Text". Every start has its own event file, whose
    beginning tells TensorBoard to drop the points of older files from its first round
    on. Every record is in the file when `on_record` returns. Requires the extra
    `tensorboard`; TensorBoard itself is only needed to look at the curves.
    """
    user = "the tracker of TensorBoard"
    check_installed("tensorboardX", user)
    directory = Path(directory)
    if not resume and any(directory.glob("events.out.tfevents.*")):
        raise ValueError(
            f"{directory} has the event files of another run; choose another "
            "directory, or continue it with resume=True"
        )
    load = lambda name: optional("tensorboardX", user, module=f"tensorboardX.{name}")
    writer: Any = None
    about, last, is_empty = "", -1, True

    def write(**fields: Any) -> None:
        event = load("proto.event_pb2").Event(wall_time=time.time(), **fields)
        writer.write_event(event)

    def on_start(config: Mapping[str, Any]) -> None:
        nonlocal writer, about, is_empty
        lines = json.dumps(flat(config), indent=2, default=str).split("\n")
        about, is_empty = "\n".join(f"    {line}" for line in lines), True
        # at once, so that a directory that can't be written is noticed
        directory.mkdir(parents=True, exist_ok=True)
        # without a thread, whose errors would be lost; files are read in the order of
        # their names, which have seconds only
        events = load("event_file_writer").EventsWriter
        writer = events(str(directory / "events"), f".{time.time_ns()}")
        writer.flush()

    def on_record(record: Record) -> None:
        nonlocal last, is_empty
        step = record["round"]
        if step == last:  # of a second call of `train`
            return
        if is_empty:  # drops points from here on
            session = load("proto.event_pb2").SessionLog
            write(step=step, session_log=session(status=session.START))
            write(step=step, summary=load("summary").text("config", about))
        for name, value in metrics_of(record).items():
            write(step=step, summary=load("summary").scalar(name, value))
        writer.flush()
        last, is_empty = step, False

    close = lambda status: writer.close()
    return _tracker(f"TensorBoard in {directory}", on_start, on_record, close, resume)


# -------------------------------------------------------------- Weights & Biases
def wandb(
    project: str | None = None,
    *,
    name: str | None = None,
    group: str | None = None,
    run_id: str | None = None,
    directory: str | Path | None = None,
) -> Tracker:
    """Writes records as a run of Weights & Biases, with the round as the step.

    W&B's environment variables apply, such as WANDB_MODE=offline. A run on the server
    is continued after its last round. Offline, every start has its own directory, with
    all records that are given to it. Requires the extra `wandb`.
    """
    user = "the tracker of Weights & Biases"
    check_installed("wandb", user)
    names = {"project": project, "name": name, "group": group}
    names |= {"id": run_id or secrets.token_hex(4), "resume": "allow"}
    run: Any = None

    def on_start(config: Mapping[str, Any]) -> None:
        nonlocal run
        client = optional("wandb", user)
        if directory is not None:
            Path(directory).mkdir(parents=True, exist_ok=True)
        place = None if directory is None else str(directory)
        quiet = client.Settings(silent=True, console="off")
        run = client.init(**names, config=dict(config), dir=place, settings=quiet)

    def on_record(record: Record) -> None:
        if record["round"] >= run.starting_step:  # else the server has it
            run.log(metrics_of(record), step=record["round"])

    end = lambda status: run.finish(exit_code=int(status != "finished"))
    return _tracker("Weights & Biases", on_start, on_record, end, bool(run_id))


# ----------------------------------------------------------------------- Trackio
def trackio(
    project: str = "fedjax-muon", *, name: str | None = None, group: str | None = None
) -> Tracker:
    """Writes records as a run of Trackio, with the round as the step.

    Trackio's environment variables apply: without TRACKIO_SPACE_ID and
    TRACKIO_SERVER_URL the project is a database on this machine, in TRACKIO_DIR. A run
    is continued after its last round. Requires the extra `trackio`.
    """
    user = "the tracker of Trackio"
    check_installed("trackio", user)
    names = {"name": name or secrets.token_hex(4), "group": group, "resume": "allow"}
    quiet = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}
    run: Any = None
    first = 0

    def on_start(config: Mapping[str, Any]) -> None:
        nonlocal run, first
        client = optional("trackio", user)
        with contextlib.redirect_stdout(io.StringIO()):
            run = client.init(project, config=dict(config), **names, **quiet)
        first = run._next_step  # which has no public name

    def on_record(record: Record) -> None:
        if record["round"] >= first:
            run.log(metrics_of(record), step=record["round"])

    def on_end(status: Status) -> None:
        del status
        with contextlib.redirect_stdout(io.StringIO()):
            optional("trackio", user).finish()

    return _tracker("Trackio", on_start, on_record, on_end, bool(name))


# ------------------------------------------------------------------------ MLflow
def mlflow(
    uri: str | None = None,
    *,
    experiment: str = "fedjax-muon",
    name: str | None = None,
    run_id: str | None = None,
) -> Tracker:
    """Writes records as a run of MLflow, with the round as the step.

    A run that is continued is found by its tag `fedjax_muon.run_id`; a round that it
    has is not written again. Requires the extra `mlflow`.

    Args:
      uri: Where runs are stored, such as "sqlite:///mlflow.db" or "http://host:5000";
        by default, the environment variable MLFLOW_TRACKING_URI.
      experiment: Experiment of the run, which is made if it is missing.
      run_id: Identifies a run that is continued, or a new one; by default random.
    """
    user = "the tracker of MLflow"
    check_installed("mlflow", user)
    key = run_id or secrets.token_hex(4)
    client: Any = None
    run = ""
    rounds: set[int] | None = None

    def on_start(config: Mapping[str, Any]) -> None:
        nonlocal client, run, rounds
        client, rounds = optional("mlflow", user).MlflowClient(uri), None
        place = _experiment(client, experiment)
        known = client.search_runs([place], f"tags.`{TAG}` = '{key}'")
        if known:
            run = known[0].info.run_id
            client.update_run(run, status="RUNNING")
            return
        run = client.create_run(place, run_name=name, tags={TAG: key}).info.run_id
        values = {name: str(value)[:LONGEST] for name, value in flat(config).items()}
        client.log_batch(run, params=_entities("Param", values))

    def on_record(record: Record) -> None:
        nonlocal rounds
        values, step = metrics_of(record), record["round"]
        if rounds is None:  # the last metric is written last
            points = client.get_metric_history(run, list(values)[-1])
            rounds = {point.step for point in points}
        if step not in rounds:
            now = time.time_ns() // 10**6
            client.log_batch(run, metrics=_entities("Metric", values, now, step))
            rounds.add(step)

    end = lambda status: client.set_terminated(run, ENDS[status])
    return _tracker("MLflow", on_start, on_record, end, bool(run_id))


def _entities(kind: str, values: Mapping[str, Any], *others: int) -> list[Any]:
    make = getattr(optional("mlflow", "MLflow", module="mlflow.entities"), kind)
    return [make(name, value, *others) for name, value in values.items()]


def _experiment(client: Any, name: str) -> str:
    """The id of an experiment, which another process may make meanwhile."""
    known = client.get_experiment_by_name(name)
    if known is None:
        errors = optional("mlflow", "MLflow", module="mlflow.exceptions")
        try:
            return client.create_experiment(name)
        except errors.MlflowException:
            known = client.get_experiment_by_name(name)
            if known is None:
                raise
    return known.experiment_id


__all__ = [
    "Record",
    "Status",
    "Tracker",
    "follow",
    "json_lines",
    "mlflow",
    "tensorboard",
    "trackio",
    "wandb",
]
