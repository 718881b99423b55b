"""What trackers are told, what they have written, and what a failure does."""

import contextlib
import importlib.util
import json
import math
import struct
import sys
import time
import types
import warnings
from collections import defaultdict
from importlib.machinery import ModuleSpec

import federation
import jax
import numpy as np
import pytest
from packages import needs

from fedjax_muon import tracking
from fedjax_muon.simulation import training
from fedjax_muon.tracking import Tracker, flat, follow, json_lines, metrics_of

ROWS = [
    {"round": 0, "train_loss": 2.5, "bytes_up": 0},
    {"round": 5, "train_loss": 0.1 + 0.2, "bytes_up": 2**40},
    {"round": 9, "train_loss": 1e-30, "bytes_up": 2**41},
]


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


CONFIG = {"lr": 0.1, "config": {"dataset": "digits"}}


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
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with follow([bad, spy(seen)], {}) as log:
            for row in ROWS:
                log(row)
    assert [word for word, _ in seen] == ["start", *3 * ["record"], "end"]
    (warning,) = caught
    assert str(warning.message).startswith("bad failed and gets no further records")
    assert "No space left on device" in str(warning.message)


def test_a_tracker_that_changes_a_record_changes_its_own_only():
    row = dict(ROWS[0])
    with follow([spy([], on_record=lambda r: r.clear())], {}) as log:
        log(row)
    assert row == ROWS[0]


def test_training_tells_trackers_and_functions_may_still_end_it():
    prepared, seen, asked = federation.federation(), [], []

    def enough(state, record):
        asked.append(state.round)
        return record["round"] >= 4

    start = prepared.init(jax.random.key(8))
    both = [spy(seen), enough]
    _, records = training.train(
        prepared, start, rounds=50, evaluate_every=2, callbacks=both
    )
    assert asked == [0, 2, 4]
    (_, config), *told = seen
    assert told == [*(("record", each) for each in records), ("end", "finished")]
    assert config["algorithm"] == "fedavg"
    assert config["hyper"]["lr"] == prepared.setup.algorithm.recipe.arguments["lr"]
    assert config["cohort_size"] == prepared.setup.cohort_size
    assert config["rounds"] == 50
    assert training._shortest(np.float32([0.1, 0.01])) == [0.1, 0.01]  # two rates


# -------------------------------------------------------------------- JSON lines
@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def test_numbers_that_are_not_finite_are_null(path):
    logged(json_lines(path), [{"round": 0, "loss": math.nan, "seconds": math.inf}])
    assert path.read_text() == '{"round": 0, "loss": null, "seconds": null}\n'


def test_a_tracker_takes_no_second_run(path):
    tracker = json_lines(path)
    logged(tracker, ROWS[:2])
    logged(tracker, ROWS[1:])  # another call of `train`, of the same run
    with pytest.warns(UserWarning, match="it has another run; give every run a tr"):
        logged(tracker, ROWS)
    assert [json.loads(line) for line in path.read_text().splitlines()] == ROWS


@pytest.mark.parametrize("cut", [0, 1, 30])
def test_a_log_that_is_continued_has_every_round_once(path, cut):
    logged(json_lines(path), ROWS)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])  # by a kill
    logged(json_lines(path, resume=True), [*ROWS, {"round": 12, "loss": 0.5}])
    assert path.read_bytes() == whole + b'{"round": 12, "loss": 0.5}\n'


def test_a_log_without_its_beginning_gets_what_it_lacks(path):
    logged(json_lines(path), ROWS[1:2])
    logged(json_lines(path, resume=True), ROWS)
    rounds = [json.loads(line)["round"] for line in path.read_text().splitlines()]
    assert sorted(rounds) == [0, 5, 9]


def test_another_file_is_left_alone(path):
    path.write_text("")
    with pytest.raises(ValueError, match=r"exists already; .* resume=True"):
        json_lines(path)
    for text in ("no\n", "[]\n", '{"rounds": 1}\n', '{"round": {}}\n'):
        path.write_text(text)
        with pytest.warns(UserWarning, match=r"line 1 of .*log.jsonl is not a record"):
            logged(json_lines(path, resume=True), ROWS)
        assert path.read_text() == text


# --------------------------------------------------------------------- packages
def test_a_missing_package_is_refused_with_the_pip_command(monkeypatch):
    for make, package in (
        (lambda: tracking.tensorboard("logs"), "tensorboardX"),
        (tracking.wandb, "wandb"),
        (tracking.trackio, "trackio"),
        (tracking.mlflow, "mlflow"),
    ):
        found = lambda name, missing=package: None if name == missing else name
        monkeypatch.setattr("importlib.util.find_spec", found)
        with pytest.raises(ImportError, match=rf'run: pip install "{package}'):
            make()


def test_names_of_nested_values_are_joined_and_metrics_are_finite():
    config = {"lr": 0.1, "config": {"data": {"name": "digits"}, "sizes": (1, 2)}}
    expected = {"lr": 0.1, "config.data.name": "digits", "config.sizes": (1, 2)}
    assert flat(config) == expected
    record = {"round": 3, "loss": 0.5, "nan": math.nan, "inf": -math.inf, "note": "x"}
    assert metrics_of(record) == {"loss": 0.5}


# ----------------------------- runs of Weights & Biases, MLflow and Trackio

# A fake of each records the calls; where the package is installed, its own files are
# read back.
FIRST = [{"round": r, "train_loss": 1 / (1 + r), "seconds": r / 8} for r in (0, 5, 10)]
LATER = {"round": 15, "train_loss": 0.25, "seconds": 2.0}
CHANGED = [{**row, "train_loss": -1.0} for row in FIRST]  # which is not logged
POINTS = {
    name: [(row["round"], row[name]) for row in [*FIRST, LATER]]
    for name in ("train_loss", "seconds")
}


def installed(package: str):
    absent = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(absent, reason=f"{package} is of extra [{package}]")


def interrupted(tracker):
    logged(tracker, FIRST, KeyboardInterrupt)


def fake(monkeypatch, name: str, **attributes):
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module


class Server:
    """Runs by id: steps go up, as on the server of Weights & Biases."""

    def __init__(self):
        self.points = defaultdict(dict)
        self.started, self.ended = [], []

    def init(self, **given):
        self.started.append(given)
        points = self.points[given["id"]]
        first = max(points) + 1 if points else 0

        def log(metrics, step):
            assert step >= first, "the server drops it"
            points[step] = metrics

        finish = lambda exit_code: self.ended.append(exit_code)
        return types.SimpleNamespace(starting_step=first, log=log, finish=finish)


def test_a_run_of_wandb_is_continued_after_its_last_step(monkeypatch):
    server = Server()
    fake(monkeypatch, "wandb", init=server.init, Settings=dict)
    make = lambda: tracking.wandb("p", name="a", group="g", run_id="x")
    interrupted(make())
    logged(make(), [*FIRST, LATER])
    steps = server.points["x"]
    for name, points in POINTS.items():
        assert [(step, row[name]) for step, row in steps.items()] == points
    assert server.ended == [1, 0]
    first, second = server.started
    assert first == second
    assert (first["project"], first["name"], first["group"]) == ("p", "a", "g")
    assert first["config"] == CONFIG
    for _ in range(2):  # other runs have other ids
        logged(tracking.wandb(), FIRST)
    assert len(server.points) == 3


def test_a_run_of_trackio_is_continued_after_its_last_step(monkeypatch):
    points: dict[str, dict] = defaultdict(dict)
    ended = []

    def init(project, *, name, resume, **given):
        assert resume == "allow"
        steps = points[name]
        log = lambda metrics, step: steps.setdefault(step, metrics)
        following = max(steps) + 1 if steps else 0
        return types.SimpleNamespace(_next_step=following, log=log)

    fake(monkeypatch, "trackio", init=init, finish=lambda: ended.append(1))
    interrupted(tracking.trackio("p", name="a"))
    logged(tracking.trackio("p", name="a"), [*CHANGED, LATER])
    found = [(step, row["train_loss"]) for step, row in points["a"].items()]
    assert found == POINTS["train_loss"]
    assert ended == [1, 1]


# --------------------------------------------------------------- the packages

BLOCK = 2**15


def stored(data: bytes) -> list[bytes]:
    """The records of a file of wandb: a header of 7 bytes, and the blocks of a log of
    LevelDB, in which a record is a checksum, a length, a kind, and the data."""
    place, found, part = 7, [], b""
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:  # padding
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        if place + 7 + length > len(data):  # still being written
            break
        part += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or its last part
            found.append(part)
            part = b""
    return found


@pytest.mark.slow
def test_files_of_wandb_have_every_record(tmp_path, monkeypatch):
    wandb_internal_pb2 = needs("wandb.proto.wandb_internal_pb2")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    tracker = tracking.wandb("p", run_id="x", directory=tmp_path)
    interrupted(tracker)
    logged(tracker, [*FIRST, LATER])
    # names have seconds only, and two runs may begin in one
    files = (tmp_path / "wandb").glob("offline-run-*/run-x.wandb")
    last = max(files, key=lambda file: file.stat().st_mtime_ns)
    read = wandb_internal_pb2.Record.FromString
    deadline = time.monotonic() + 60
    while True:  # wandb's own process may write after the end of `finish`
        records = [read(data) for data in stored(last.read_bytes())]
        kinds = [record.WhichOneof("record_type") for record in records]
        if "exit" in kinds:
            break
        assert time.monotonic() < deadline, kinds
        time.sleep(0.1)
    points = defaultdict(list)
    for record, kind in zip(records, kinds, strict=True):
        if kind != "history":
            continue
        items = {
            item.key or "/".join(item.nested_key): float(item.value_json)
            for item in record.history.item
        }
        for name in POINTS:
            points[name].append((int(items["_step"]), items[name]))
    assert points == POINTS


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own packages
@installed("mlflow")
@pytest.mark.slow
def test_a_store_of_mlflow_has_every_record_once(tmp_path):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    interrupted(tracking.mlflow(uri, experiment="e", name="a", run_id="x"))
    client = MlflowClient(uri)
    place = client.get_experiment_by_name("e").experiment_id
    (run,) = client.search_runs([place])
    assert run.info.status == "KILLED"
    logged(tracking.mlflow(uri, experiment="e", run_id="x"), [*CHANGED, LATER])
    logged(tracking.mlflow(uri, experiment="e"), FIRST[:1])  # another run
    found = client.search_runs([place], order_by=["start_time"])
    assert len(found) == 2
    (run,) = [one for one in found if one.info.run_name == "a"]
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1", "config.dataset": "digits"}
    for name, points in POINTS.items():
        history = client.get_metric_history(run.info.run_id, name)
        assert sorted((point.step, point.value) for point in history) == points


@installed("trackio")
@pytest.mark.slow
def test_a_database_of_trackio_has_every_record_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # read by the first import
    from trackio.sqlite_storage import SQLiteStorage

    interrupted(tracking.trackio("p-test", name=tmp_path.name))
    logged(tracking.trackio("p-test", name=tmp_path.name), [*CHANGED, LATER])
    rows = SQLiteStorage.get_logs("p-test", tmp_path.name)
    for name, points in POINTS.items():
        assert [(row["step"], row[name]) for row in rows] == points
