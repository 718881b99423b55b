"""What trackers are told, what they have written, and what a failure does."""

import contextlib
import json
import math
import struct
import time
import types
import warnings
from collections import defaultdict

import jax
import pytest

from fedjax_muon import tracking
from fedjax_muon.runs import trackers
from fedjax_muon.runs.trackers import Followed, follow
from fedjax_muon.simulation import training
from fedjax_muon.tracking import flat, metrics_of
from tests.support import federation
from tests.support.packages import needs

ROWS = [{"round": r, "train_loss": 1 / (1 + r), "seconds": r / 8} for r in (0, 5, 10)]
LATER = {"round": 15, "train_loss": 0.25, "seconds": 2.0}
ALL = [*ROWS, LATER]
CONFIG = {"lr": 0.1, "config": {"dataset": "digits"}}


def spy(seen: list):
    """A tracker that remembers how it is started, what it gets, and how it ends."""

    @contextlib.contextmanager
    def tracker(run, about):
        seen.append(("start", run.name, about))
        try:
            yield lambda state, record: seen.append(record)
        except BaseException as error:
            seen.append(type(error))
            raise
        seen.append("finished")

    return "json", tracker


def broken(at: str):
    """A tracker that fails at the start, at a record, or at the end."""

    def fails(now: str):
        if now == at:
            raise OSError(28, "No space left on device")

    @contextlib.contextmanager
    def tracker(run, about):
        fails("start")
        yield lambda state, record: fails("record")
        fails("end")

    return "json", tracker


@pytest.mark.parametrize("error", [KeyboardInterrupt, ArithmeticError, SystemExit])
def test_a_tracker_sees_how_the_run_ended(monkeypatch, error):
    seen: list = []
    monkeypatch.setitem(trackers.TRACKERS, "spy", spy(seen))
    start = ("start", "a", CONFIG)
    with follow(Followed(("spy",), name="a"), CONFIG) as log:
        log(ROWS[0])
    assert seen == [start, ROWS[0], "finished"]
    with pytest.raises(error), follow(Followed(("spy",), name="a"), CONFIG):
        raise error
    assert seen[3:] == [start, error]


@pytest.mark.parametrize("at", ["start", "record", "end"])
def test_a_failure_is_said_once_and_stops_nothing_else(monkeypatch, at):
    seen: list = []
    monkeypatch.setitem(trackers.TRACKERS, "bad", broken(at))
    monkeypatch.setitem(trackers.TRACKERS, "spy", spy(seen))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with follow(Followed(("bad", "spy")), {}) as log:
            for row in ROWS:
                log(row)
    assert seen == [("start", "", {}), *ROWS, "finished"]
    (warning,) = caught
    assert str(warning.message).startswith("the tracker bad failed and gets no further")
    assert "No space left on device" in str(warning.message)


def test_callbacks_get_every_record_and_may_end_training():
    prepared, seen, asked = federation.federation(), [], []

    def enough(state, record):
        asked.append(state.round)
        return record["round"] >= 4

    start = prepared.init(jax.random.key(8))
    both = [lambda state, record: seen.append(record), enough]
    _, records = training.run(
        prepared, start, rounds=50, evaluate_every=2, callbacks=both
    )
    assert asked == [0, 2, 4]
    assert seen == records


@pytest.mark.parametrize(
    ("make", "package"),
    [
        (lambda: tracking.tensorboard("a"), "tensorboardX"),
        (tracking.wandb, "wandb"),
        (tracking.mlflow, "mlflow"),
    ],
)
def test_a_missing_package_is_refused_with_the_pip_command(monkeypatch, make, package):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=rf'run: pip install "{package}'), make():
        pass


def test_names_of_nested_values_are_joined_and_metrics_are_finite():
    config = {"lr": 0.1, "config": {"data": {"name": "digits"}, "sizes": (1, 2)}}
    expected = {"lr": 0.1, "config.data.name": "digits", "config.sizes": (1, 2)}
    assert flat(config) == expected
    record = {"round": 3, "loss": 0.5, "nan": math.nan, "inf": -math.inf, "note": "x"}
    assert metrics_of(record) == {"loss": 0.5}


def logged(tracker, rows, error=None):
    ends = pytest.raises(error) if error else contextlib.nullcontext()
    with ends, tracker as log:
        for row in rows:
            log(None, row)
        if error:
            raise error


# ------------------------------------------------------------------- TensorBoard
@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 2])  # with all records, or the new ones alone
def test_tensorboard_shows_every_round_of_a_resumed_run_once(tmp_path, first):
    """Its event files have a length, a checksum, an event, and its checksum."""
    protocol = needs("tensorboardX.proto.event_pb2")
    make = lambda: tracking.tensorboard(tmp_path, config=CONFIG)
    logged(make(), ROWS[:2])
    logged(make(), ROWS[1:])  # `train` evaluates the state that it is given
    logged(make(), ALL[first:])
    points, texts = [], []
    for path in sorted(tmp_path.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = protocol.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            if event.session_log.status == protocol.SessionLog.START:  # drops points
                points = [point for point in points if point[0] < event.step]
            values = {value.tag: value for value in event.summary.value}
            if "seconds" in values:
                points.append((event.step, values["seconds"].simple_value))
            texts += [v.tensor for tag, v in values.items() if "config" in tag]
    assert points == [(row["round"], row["seconds"]) for row in ALL]
    assert b'"config.dataset": "digits"' in texts[0].string_val[0]
    assert len(texts) == 3


@pytest.mark.slow
def test_a_directory_that_cannot_be_made_is_said_at_the_start(tmp_path):
    needs("tensorboardX")
    (tmp_path / "tensorboard").write_text("")
    run = Followed(("tensorboard",), tmp_path)
    with pytest.warns(UserWarning, match="tracker tensorboard failed"), follow(run, {}):
        pass


# ------------------------------------------------------------ the interface of wandb
def test_a_run_of_a_server_is_continued_after_its_last_step():
    points, started, ended = defaultdict(dict), [], []

    def init(**given):
        started.append(given)
        steps = points[given["id"]]
        following = max(steps) + 1 if steps else 0

        def log(metrics, step):
            assert step >= following, "the server drops it"
            steps[step] = metrics

        return types.SimpleNamespace(log=log, starting_step=following)

    server = types.ModuleType("a server")
    server.init = init
    server.finish = lambda exit_code=None: ended.append(exit_code)
    given = {"project": "p", "id": "x", "resume": "allow", "config": CONFIG}
    make = lambda: tracking.wandb(server, **given)
    logged(make(), ROWS, KeyboardInterrupt)
    logged(make(), ALL)
    assert [{"round": step, **row} for step, row in points["x"].items()] == ALL
    assert ended == [1, 0]
    assert started == [given, given]


@pytest.mark.slow
def test_files_of_wandb_have_every_record(tmp_path, monkeypatch):
    wandb = needs("wandb")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    options = {"dir": str(tmp_path), "mode": "offline", "settings": {"silent": True}}
    logged(tracking.wandb(wandb, project="p", id="x", **options), ALL)
    (path,) = tmp_path.glob("wandb/offline-run-*/run-x.wandb")
    numbers = [json.dumps(row["train_loss"]).encode() for row in ALL]
    deadline = time.monotonic() + 60
    while not all(number in path.read_bytes() for number in numbers):
        # wandb's own process may write after the end of `finish`
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_a_database_of_trackio_has_every_record(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # read by the first import
    trackio = pytest.importorskip("trackio")
    storage = needs("trackio.sqlite_storage").SQLiteStorage
    logged(tracking.wandb(trackio, project="p", name="x", embed=False), ALL)
    steps = [row["step"] for row in storage.get_logs("p", "x")]
    assert steps == [row["round"] for row in ALL]


def test_a_run_of_mlflow_has_every_record_and_its_end(monkeypatch):
    steps, ended = [], []

    @contextlib.contextmanager
    def start_run(**options):
        assert options == {"run_name": "a"}
        try:
            yield
        except BaseException as error:
            ended.append(type(error))
            raise

    server = types.ModuleType("mlflow")
    server.start_run = start_run
    server.log_params = steps.append
    server.log_metrics = lambda metrics, step: steps.append({"round": step, **metrics})
    monkeypatch.setattr(tracking, "optional", lambda *names: server)
    logged(tracking.mlflow(config=CONFIG, run_name="a"), ALL, KeyboardInterrupt)
    assert steps == [{"lr": 0.1, "config.dataset": "digits"}, *ALL]
    assert ended == [KeyboardInterrupt]
