"""What trackers are told, what they have written, and what a failure does."""

import contextlib
import importlib
import json
import math
import time
import types
import warnings
from collections import defaultdict

import federation
import jax
import numpy as np
import pytest
from packages import needs

from fedjax_muon import tracking
from fedjax_muon.simulation import training
from fedjax_muon.tracking import Tracker, flat, follow, metrics_of

ROWS = [{"round": r, "train_loss": 1 / (1 + r), "seconds": r / 8} for r in (0, 5, 10)]
LATER = {"round": 15, "train_loss": 0.25, "seconds": 2.0}
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


class Server(types.ModuleType):
    """Runs by id: steps go up, as on the server of Weights & Biases."""

    def __init__(self, first: str):
        super().__init__("a server")
        self.first, self.points = first, defaultdict(dict)
        self.started, self.ended = [], []

    def init(self, **given):
        self.started.append(given)
        points = self.points[given["id"]]
        first = max(points) + 1 if points else 0

        def log(metrics, step):
            assert step >= first, "the server drops it"
            points[step] = metrics

        return types.SimpleNamespace(log=log, **{self.first: first})

    def finish(self, exit_code=None):
        self.ended.append(exit_code)


@pytest.mark.parametrize("first", ["starting_step", "_next_step"])
def test_a_run_of_a_server_is_continued_after_its_last_step(first):
    server = Server(first)
    make = lambda: tracking.wandb(server, project="p", id="x")
    logged(make(), ROWS, KeyboardInterrupt)
    logged(make(), [*ROWS, LATER])
    assert [{"round": step, **row} for step, row in server.points["x"].items()] == [
        *ROWS,
        LATER,
    ]
    assert server.ended == [1, 0]
    given = {"project": "p", "id": "x", "resume": "allow", "config": CONFIG}
    assert server.started == [given, given]


@pytest.mark.slow
def test_files_of_wandb_have_every_record(tmp_path, monkeypatch):
    wandb = needs("wandb")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    options = {"dir": str(tmp_path), "mode": "offline", "settings": {"silent": True}}
    logged(tracking.wandb(wandb, project="p", id="x", **options), [*ROWS, LATER])
    (path,) = tmp_path.glob("wandb/offline-run-*/run-x.wandb")
    numbers = [json.dumps(row["train_loss"]).encode() for row in [*ROWS, LATER]]
    deadline = time.monotonic() + 60
    while not all(number in path.read_bytes() for number in numbers):
        # wandb's own process may write after the end of `finish`
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_a_database_of_trackio_has_every_record_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # read by the first import
    trackio = pytest.importorskip("trackio")
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    for rows in (ROWS, [*ROWS, LATER]):
        logged(tracking.wandb(trackio, project="p", name="x", embed=False), rows)
    steps = [row["step"] for row in storage.get_logs("p", "x")]
    assert steps == [row["round"] for row in [*ROWS, LATER]]
