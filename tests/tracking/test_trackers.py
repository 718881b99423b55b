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
import numpy as np
import pytest

from fedjax_muon import tracking
from fedjax_muon.simulation import training
from fedjax_muon.tracking import Tracker, flat, follow, metrics_of
from tests.support import federation
from tests.support.packages import needs

ROWS = [{"round": r, "train_loss": 1 / (1 + r), "seconds": r / 8} for r in (0, 5, 10)]
LATER = {"round": 15, "train_loss": 0.25, "seconds": 2.0}
ALL = [*ROWS, LATER]
CONFIG = {"lr": 0.1, "config": {"dataset": "digits"}}


def spy(seen: list, **changes) -> Tracker:
    """A tracker that remembers what it is told."""
    told = Tracker(
        "spy",
        on_start=lambda config: seen.append(("start", config)),
        on_record=lambda record: seen.append(("record", record)),
        on_end=lambda status: seen.append(("end", status)),
    )
    return told._replace(**changes)


def fails(*_):
    raise OSError(28, "No space left on device")


def logged(tracker, rows, error=None):
    ends = pytest.raises(error) if error else contextlib.nullcontext()
    with ends, follow([tracker], CONFIG) as log:
        for row in rows:
            log(row)
        if error:
            raise error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "finished"),
        (KeyboardInterrupt, "interrupted"),
        (ArithmeticError, "failed"),
        (SystemExit, "failed"),
    ],
)
def test_a_tracker_is_told_how_the_run_ended(error, status):
    seen: list = []
    logged(spy(seen), ROWS[:1], error)
    assert seen == [("start", CONFIG), ("record", ROWS[0]), ("end", status)]


@pytest.mark.parametrize("broken", ["on_start", "on_record", "on_end"])
def test_a_failure_is_said_once_and_stops_nothing_else(broken):
    seen: list = []
    bad = spy([], name="bad", **{broken: fails})
    changing = spy([], on_record=lambda record: record.clear())  # its own copy
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with follow([bad, changing, spy(seen)], {}) as log:
            for row in ROWS:
                log(row)
    told = [("record", row) for row in ROWS]
    assert seen == [("start", {}), *told, ("end", "finished")]
    (warning,) = caught
    assert str(warning.message).startswith("bad failed and gets no further records")
    assert "No space left on device" in str(warning.message)


def test_training_tells_trackers_and_functions_may_still_end_it():
    prepared, seen, asked = federation.federation(), [], []

    def enough(state, record):
        asked.append(state.round)
        return record["round"] >= 4

    start = prepared.init(jax.random.key(8))
    both = [spy(seen), enough]
    _, records = training.run(
        prepared, start, rounds=50, evaluate_every=2, callbacks=both
    )
    assert asked == [0, 2, 4]
    (_, config), *told = seen
    assert told == [*(("record", each) for each in records), ("end", "finished")]
    assert config["algorithm"] == "fedavg"
    assert config["hyper"]["lr"] == prepared.settings.algorithm.recipe.arguments["lr"]
    assert config["cohort"] == prepared.settings.cohort.size
    assert config["rounds"] == 50
    assert training._shortest(np.float32([0.1, 0.01])) == [0.1, 0.01]  # two rates


@pytest.mark.parametrize(
    ("make", "package"),
    [(lambda: tracking.tensorboard("a"), "tensorboardX"), (tracking.wandb, "wandb")],
)
def test_a_missing_package_is_refused_with_the_pip_command(monkeypatch, make, package):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=rf'run: pip install "{package}'):
        make()


def test_names_of_nested_values_are_joined_and_metrics_are_finite():
    config = {"lr": 0.1, "config": {"data": {"name": "digits"}, "sizes": (1, 2)}}
    expected = {"lr": 0.1, "config.data.name": "digits", "config.sizes": (1, 2)}
    assert flat(config) == expected
    record = {"round": 3, "loss": 0.5, "nan": math.nan, "inf": -math.inf, "note": "x"}
    assert metrics_of(record) == {"loss": 0.5}


# ------------------------------------------------------------------- TensorBoard
@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 2])  # with all records, or the new ones alone
def test_tensorboard_shows_every_round_of_a_resumed_run_once(tmp_path, first):
    """Its event files have a length, a checksum, an event, and its checksum."""
    protocol = needs("tensorboardX.proto.event_pb2")
    tracker = tracking.tensorboard(tmp_path)
    logged(tracker, ROWS[:2])
    logged(tracker, ROWS[1:])  # `train` evaluates the state that it is given
    with pytest.raises(ValueError, match=r"event files of another run.*resume=True"):
        tracking.tensorboard(tmp_path)
    logged(tracking.tensorboard(tmp_path, resume=True), ALL[first:])
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
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="TensorBoard in .* failed"):
        logged(tracking.tensorboard(tmp_path / "file" / "logs"), ROWS)


# ------------------------------------------------------------ the interface of wandb
@pytest.mark.parametrize("first", ["starting_step", "_next_step"])
def test_a_run_of_a_server_is_continued_after_its_last_step(first):
    points, started, ended = defaultdict(dict), [], []

    def init(**given):
        started.append(given)
        steps = points[given["id"]]
        following = max(steps) + 1 if steps else 0

        def log(metrics, step):
            assert step >= following, "the server drops it"
            steps[step] = metrics

        return types.SimpleNamespace(log=log, **{first: following})

    server = types.ModuleType("a server")
    server.init = init
    server.finish = lambda exit_code=None: ended.append(exit_code)
    make = lambda: tracking.wandb(server, project="p", id="x")
    logged(make(), ROWS, KeyboardInterrupt)
    logged(make(), ALL)
    assert [{"round": step, **row} for step, row in points["x"].items()] == ALL
    assert ended == [1, 0]
    given = {"project": "p", "id": "x", "resume": "allow", "config": CONFIG}
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
def test_a_database_of_trackio_has_every_record_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # read by the first import
    trackio = pytest.importorskip("trackio")
    storage = needs("trackio.sqlite_storage").SQLiteStorage
    for rows in (ROWS, ALL):
        logged(tracking.wandb(trackio, project="p", name="x", embed=False), rows)
    steps = [row["step"] for row in storage.get_logs("p", "x")]
    assert steps == [row["round"] for row in ALL]
