"""What trackers are told, what is in a file of JSON lines, and what a failure does."""

import json
import math
import sys
import warnings

import federation
import jax
import numpy as np
import pytest
from packages import needs

import fedjax_muon as fm
from fedjax_muon.core.packages import check_installed
from fedjax_muon.simulation import training
from fedjax_muon.tracking import Tracker, follow, json_lines
from fedjax_muon.tracking.tracker import flat, metrics_of

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

    def run():
        with follow([spy(seen)], {"lr": 0.1}) as log:
            log(ROWS[0])
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(error):
            run()
    assert seen == [("start", {"lr": 0.1}), ("record", ROWS[0]), ("end", status)]


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
    assert [told for word, told in seen if word == "record"] == records
    assert seen[-1] == ("end", "finished")
    _, config = seen[0]
    assert config["algorithm"] == "fedavg"
    assert config["hyper"]["lr"] == prepared.setup.algorithm.recipe.arguments["lr"]
    assert config["cohort_size"] == prepared.setup.cohort_size
    assert config["rounds"] == 50
    assert training._shortest(np.float32([0.1, 0.01])) == [0.1, 0.01]  # two rates


# -------------------------------------------------------------------- JSON lines


def logged(tracker, rows, config=None):
    with follow([tracker], config or {}) as log:
        for row in rows:
            log(row)


@pytest.mark.slow
def test_lines_are_read_by_pandas(tmp_path):
    pandas = needs("pandas")
    path = tmp_path / "new" / "log.jsonl"
    logged(json_lines(path), ROWS)
    assert pandas.read_json(path, lines=True).to_dict("records") == ROWS


def test_numbers_that_are_not_finite_are_null(tmp_path):
    path = tmp_path / "log.jsonl"
    logged(json_lines(path), [{"round": 0, "loss": math.nan, "seconds": math.inf}])
    assert path.read_text() == '{"round": 0, "loss": null, "seconds": null}\n'


@pytest.mark.parametrize("cut", [0, 1, 30])
def test_a_log_that_is_continued_has_every_round_once(tmp_path, cut):
    path = tmp_path / "log.jsonl"
    logged(json_lines(path), ROWS)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])  # by a kill
    logged(json_lines(path, resume=True), [*ROWS, {"round": 12, "loss": 0.5}])
    assert path.read_bytes() == whole + b'{"round": 12, "loss": 0.5}\n'


def test_a_log_without_its_beginning_gets_what_it_lacks(tmp_path):
    path = tmp_path / "log.jsonl"
    logged(json_lines(path), ROWS[1:2])
    logged(json_lines(path, resume=True), ROWS)
    rounds = [json.loads(line)["round"] for line in path.read_text().splitlines()]
    assert sorted(rounds) == [0, 5, 9]


def test_an_existing_file_is_refused_unless_it_is_continued(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("")
    with pytest.raises(ValueError, match=r"exists already; .* resume=True"):
        json_lines(path)


@pytest.mark.parametrize("text", ["no\n", "[]\n", '{"rounds": 1}\n', '{"round": {}}\n'])
def test_another_file_is_left_alone(tmp_path, text):
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.warns(UserWarning, match=r"line 1 of .*log.jsonl is not a record"):
        logged(json_lines(path, resume=True), ROWS)
    assert path.read_text() == text


# --------------------------------------------------------------------- packages


@pytest.mark.parametrize(
    ("make", "package"),
    [
        (lambda: fm.tracking.tensorboard("logs"), "tensorboardX"),
        (fm.tracking.wandb, "wandb"),
        (fm.tracking.trackio, "trackio"),
        (fm.tracking.mlflow, "mlflow"),
    ],
)
def test_a_missing_package_is_refused_with_the_pip_command(make, package, monkeypatch):
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == package else name
    )
    with pytest.raises(ValueError, match=rf'run: pip install "{package}'):
        make()


def test_no_package_is_imported_before_training():
    check_installed("json", "a test")
    assert not {"mlflow", "trackio"} & set(sys.modules)


def test_names_of_nested_values_are_joined():
    config = {"lr": 0.1, "config": {"data": {"name": "digits"}, "sizes": (1, 2)}}
    expected = {"lr": 0.1, "config.data.name": "digits", "config.sizes": (1, 2)}
    assert flat(config) == expected


def test_metrics_are_the_finite_numbers():
    record = {"round": 3, "loss": 0.5, "nan": math.nan, "inf": -math.inf, "note": "x"}
    assert metrics_of(record) == {"loss": 0.5}
