"""`--log`: logs of runs in directories, that go on and decide nothing about the run."""

import csv
import json
import shutil

import pytest
from command import SMALL, assert_same_but_for_seconds, refused, run

from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import logs
from fedjax_muon.runs import train as training
from fedjax_muon.tracking import Tracker

TRAIN = ("train", "--algorithm", "fedavg", *SMALL, "--hidden", "4", "--rounds", "8")


def records(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_logged(run_dir) -> None:
    """The log has every row of metrics.csv once; times differ for rounds run twice."""
    with (run_dir / "metrics.csv").open() as file:
        rows = [
            {name: float(value) for name, value in row.items() if name != "seconds"}
            for row in csv.DictReader(file)
        ]
    found = records(run_dir / "metrics.jsonl")
    assert [{k: v for k, v in r.items() if k != "seconds"} for r in found] == rows
    assert all(row["seconds"] >= 0 for row in found)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without a log."""
    place = tmp_path_factory.mktemp("plain") / "run"
    run(*TRAIN, "--output", place)
    return place


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A logged run that ended in round 6, whose newest checkpoint is of round 2."""
    place = tmp_path_factory.mktemp("killed") / "run"

    def append(path, row):
        if row["round"] == 6:
            raise RuntimeError("killed")
        real(path, row)
        patched.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 3 * (row["round"] > 2))

    real = metrics_csv.append
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0)
        patched.setattr(metrics_csv, "append", append)
        with pytest.raises(SystemExit):
            run(*TRAIN, "--log", "json", "--output", place)
    assert [row["round"] for row in records(place / "metrics.jsonl")] == [0, 2, 4, 6]
    assert max(int(p.name) for p in (place / "checkpoints").iterdir()) == 2
    return place


@pytest.fixture
def copied(killed, tmp_path):
    return shutil.copytree(killed, tmp_path / "run")


def test_a_resumed_run_has_every_round_in_its_log_once(copied, plain):
    run("resume", copied)
    assert_logged(copied)
    assert_same_but_for_seconds(copied / "metrics.csv", plain / "metrics.csv")
    assert (copied / "config.json").read_bytes() == (plain / "config.json").read_bytes()


@pytest.mark.slow
def test_a_run_goes_on_without_its_log_and_gets_it_back(copied, plain):
    run("resume", copied, "--log", "none")
    assert len(records(copied / "metrics.jsonl")) == 4
    assert_same_but_for_seconds(copied / "metrics.csv", plain / "metrics.csv")
    run("resume", copied)
    assert_logged(copied)


def test_a_run_without_a_log_gets_a_whole_one(plain, tmp_path):
    place = shutil.copytree(plain, tmp_path / "run")
    assert not (place / "tracking.json").exists()
    run("resume", place, "--log", "json")
    assert_logged(place)
    assert json.loads((place / "tracking.json").read_text())["log"] == ["json"]


@pytest.mark.slow
def test_every_run_of_a_comparison_has_a_log(tmp_path):
    place = tmp_path / "both"
    rest = "--seeds", "0,1", "--rounds", "2", "--hidden", "4"
    run("compare", "fedavg", *SMALL, *rest, "--log", "json", "--output", place)
    for seed in (0, 1):
        assert_logged(place / "fedavg" / f"seed{seed}")


@pytest.mark.slow
def test_trackers_know_the_config_and_one_id(plain, tmp_path, monkeypatch):
    place, told = shutil.copytree(plain, tmp_path / "run"), []
    append = lambda *_: None

    def make(found: logs.Place) -> Tracker:
        begun = lambda config: told.append((found, config))
        return Tracker("spy", begun, append, append)

    monkeypatch.setitem(logs.TRACKERS, "spy", (None, make))
    for _ in range(2):
        run("resume", place, "--log", "spy")
    (first, config), second = told
    assert (first, config) == second
    assert (first.directory, first.name, first.group) == (place, "run", None)
    assert len(first.run_id) == 8
    assert config == json.loads((place / "config.json").read_text())


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # printed, as for a user
def test_a_log_that_fails_stops_no_run(copied, plain, capsys):
    (copied / "metrics.jsonl").write_text("damaged\n")
    run("resume", copied)
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert "metrics.jsonl is not a record); training continues" in said
    assert_same_but_for_seconds(copied / "metrics.csv", plain / "metrics.csv")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("jsonl", "unknown tracker 'jsonl'; log takes json, tensorboard, wandb, "),
        ("json,json", "log names 'json' twice"),
        ("none", "unknown tracker 'none'"),
    ],
)
def test_wrong_names_are_refused_before_anything_is_made(
    names, message, capsys, tmp_path
):
    place = tmp_path / "run"
    said = refused(capsys, *TRAIN, "--log", names, "--output", place)
    assert said.startswith(message)
    assert not place.exists()


def test_a_missing_package_is_refused_before_anything_is_made(
    capsys, tmp_path, monkeypatch, copied
):
    monkeypatch.setitem(logs.TRACKERS, "absent", ("no_such_package", logs._json))
    place = tmp_path / "other"
    said = refused(capsys, *TRAIN, "--log", "absent", "--output", place)
    assert said.endswith('run: pip install "no_such_package"')
    assert not place.exists()
    (copied / "tracking.json").write_text('{"log": ["absent"], "run_id": "x"}')
    said = refused(capsys, "resume", copied)
    assert said.endswith("or continue without trackers, by --log none")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "[]", '{"log": [1], "run_id": "x"}', "{"])
def test_a_damaged_list_of_trackers_is_named(text, capsys, copied):
    (copied / "tracking.json").write_text(text)
    said = refused(capsys, "resume", copied)
    assert said.startswith(f"{copied / 'tracking.json'}: expected names of trackers")


def test_a_sweep_has_no_log(capsys):
    with pytest.raises(SystemExit):
        run("sweep", "--algorithms", "fedavg", "--log", "json")
    assert "unknown option --log" in capsys.readouterr().err
