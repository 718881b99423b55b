"""Runs of Weights & Biases, MLflow and Trackio: what they are told, and what they have.

A fake of each records the calls; where the package is installed, its own files are read
back.
"""

import importlib.util
import struct
import sys
import time
import types
from collections import defaultdict
from importlib.machinery import ModuleSpec

import pytest
from packages import needs

from fedjax_muon import tracking
from fedjax_muon.tracking import follow

ROWS = [{"round": r, "train_loss": 1 / (1 + r), "seconds": r / 8} for r in (0, 5, 10)]
LATER = {"round": 15, "train_loss": 0.25, "seconds": 2.0}
POINTS = {
    name: [(row["round"], row[name]) for row in [*ROWS, LATER]]
    for name in ("train_loss", "seconds")
}


def installed(package: str):
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None,
        reason=f"{package} is of extra [{package}]",
    )


def logged(tracker, rows, error=None):
    with follow([tracker], {"lr": 0.1, "config": {"dataset": "digits"}}) as log:
        for row in rows:
            log(row)
        if error:
            raise error


def interrupted(tracker, rows):
    with pytest.raises(KeyboardInterrupt):
        logged(tracker, rows, KeyboardInterrupt)


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

        return types.SimpleNamespace(
            starting_step=first,
            log=log,
            finish=lambda exit_code: self.ended.append(exit_code),
        )


def test_a_run_of_wandb_is_continued_after_its_last_step(monkeypatch):
    server = Server()
    fake(monkeypatch, "wandb", init=server.init, Settings=dict)
    make = lambda: tracking.wandb("p", name="a", group="g", run_id="x")
    interrupted(make(), ROWS)
    logged(make(), [*ROWS, LATER])
    steps = server.points["x"]
    for name, points in POINTS.items():
        assert [(step, row[name]) for step, row in steps.items()] == points
    assert server.ended == [1, 0]
    first, second = server.started
    assert first == second
    assert (first["project"], first["name"], first["group"]) == ("p", "a", "g")
    assert first["config"] == {"lr": 0.1, "config": {"dataset": "digits"}}


def test_trackers_of_two_runs_have_different_ids(monkeypatch):
    server = Server()
    fake(monkeypatch, "wandb", init=server.init, Settings=dict)
    for _ in range(2):
        logged(tracking.wandb(), ROWS)
    assert len(server.points) == 2


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
    interrupted(tracking.trackio("p", name="a"), ROWS)
    changed = [{**row, "train_loss": -1.0} for row in ROWS]  # which is not logged
    logged(tracking.trackio("p", name="a"), [*changed, LATER])
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
    interrupted(tracker, ROWS)
    logged(tracker, [*ROWS, LATER])
    files = sorted((tmp_path / "wandb").glob("offline-run-*-x/run-x.wandb"))
    read = wandb_internal_pb2.Record.FromString
    deadline = time.monotonic() + 60
    while True:  # wandb's own process may write after the end of `finish`
        records = [read(data) for data in stored(files[-1].read_bytes())]
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
    interrupted(tracking.mlflow(uri, experiment="e", name="a", run_id="x"), ROWS)
    client = MlflowClient(uri)
    place = client.get_experiment_by_name("e").experiment_id
    (run,) = client.search_runs([place])
    assert run.info.status == "KILLED"
    changed = [{**row, "train_loss": -1.0} for row in ROWS]  # which is not logged
    logged(tracking.mlflow(uri, experiment="e", run_id="x"), [*changed, LATER])
    logged(tracking.mlflow(uri, experiment="e"), ROWS[:1])  # another run
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

    interrupted(tracking.trackio("p-test", name=tmp_path.name), ROWS)
    changed = [{**row, "train_loss": -1.0} for row in ROWS]  # which is not logged
    logged(tracking.trackio("p-test", name=tmp_path.name), [*changed, LATER])
    rows = SQLiteStorage.get_logs("p-test", tmp_path.name)
    for name, points in POINTS.items():
        assert [(row["step"], row[name]) for row in rows] == points
