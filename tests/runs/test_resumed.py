"""Runs that are resumed or repeated have the same bits."""

import csv
import functools
import json
import os
import shutil
import signal

import jax
import jax.numpy as jnp
import pytest
from command import SMALL, assert_same_but_for_seconds, refused, run

from fedjax_muon import data, tracking
from fedjax_muon.experiments import logs, recording
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import compare, train
from fedjax_muon.runs.build import parts_of, simulation_of, start_key
from fedjax_muon.runs.config import Comparison, Config, Run
from fedjax_muon.runs.sweep import Suspended
from fedjax_muon.simulation import groups, training
from fedjax_muon.simulation.sweeps import Cell, run_cells

TRAIN = ("train", "--algorithm", "fedavg", *SMALL, "--hidden", "4", "--rounds", "8")


def records(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def lines(run: logs.Place) -> tracking.Tracker:
    """A tracker that writes the records of its last start."""
    path = run.directory / "log.jsonl"

    def record(row):
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    return tracking.Tracker(
        name=str(path),
        on_start=lambda config: path.write_text(""),
        on_record=record,
        on_end=lambda status: None,
    )


@pytest.fixture(scope="module", autouse=True)
def named():
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(logs.TRACKERS, "lines", ("json", lines))
        yield


def assert_logged(run_dir) -> None:
    """The log has every row of metrics.csv once; times differ for rounds run twice."""
    untimed = lambda row: {k: v for k, v in row.items() if k != "seconds"}
    with (run_dir / "metrics.csv").open() as file:
        lines = map(untimed, csv.DictReader(file))
        rows = [{k: float(v) for k, v in line.items()} for line in lines]
    found = records(run_dir / "log.jsonl")
    assert list(map(untimed, found)) == rows
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
        patched.setattr(
            recording, "SECONDS_BETWEEN_CHECKPOINTS", 3 * (row["round"] > 2)
        )

    real = metrics_csv.append
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recording, "SECONDS_BETWEEN_CHECKPOINTS", 0)
        patched.setattr(metrics_csv, "append", append)
        with pytest.raises(SystemExit):
            run(*TRAIN, "--log", "lines", "--output", place)
    assert [row["round"] for row in records(place / "log.jsonl")] == [0, 2, 4, 6]
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


def test_a_run_without_a_log_gets_a_whole_one(plain, tmp_path):
    place = shutil.copytree(plain, tmp_path / "run")
    assert not (place / "tracking.json").exists()
    run("resume", place, "--log", "lines")
    assert_logged(place)
    assert json.loads((place / "tracking.json").read_text())["log"] == ["lines"]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # printed, as for a user
def test_a_log_that_fails_stops_no_run(copied, plain, capsys):
    (copied / "log.jsonl").unlink()
    (copied / "log.jsonl").mkdir()
    run("resume", copied)
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert "Is a directory" in said
    assert said.endswith("training continues")
    assert_same_but_for_seconds(copied / "metrics.csv", plain / "metrics.csv")


def test_a_missing_package_is_refused_at_once(capsys, tmp_path, monkeypatch, copied):
    absent = "no_such_package", lines
    monkeypatch.setitem(logs.TRACKERS, "absent", absent)
    place = tmp_path / "other"
    said = refused(capsys, *TRAIN, "--log", "absent", "--output", place)
    assert said.endswith('run: pip install "no_such_package"')
    assert not place.exists()
    (copied / "tracking.json").write_text('{"log": ["absent"], "run_id": "x"}')
    said = refused(capsys, "resume", copied)
    assert said.endswith("or resume without trackers, with --log none")


@pytest.mark.slow
def test_a_damaged_list_of_trackers_is_named(capsys, copied):
    path = copied / "tracking.json"
    for text in ("", "[]", '{"log": [1], "run_id": "x"}', "{"):
        path.write_text(text)
        message = f"{path}: expected names of trackers"
        assert refused(capsys, "resume", copied).startswith(message), text


# ---------------------------------------------------------- jobs of several runs

# the states of FedAvg and FedProx have the same leaves
SWEEP = ("sweep", "--algorithms", "fedavg", "fedprox", "--grid", "lr=0.03,0.1")
SWEEP += ("--seeds", 0, *SMALL, "--hidden", 4, "--rounds", 12)
PRIVATE = ("compare", "dpmixsgd", "--epsilon", 4, "--seeds", 0)
PRIVATE += ("--rounds", 6, "--graph", "ring")
FIXED = ("--insecure-fixed-noise",)
CELL = "dpmixsgd/epsilon4/seed0/metrics.csv"
JOBS = {  # words, when they are stopped, tables, rounds of all runs
    "sweep": (SWEEP, (2, 19), ["cells/fedavg.csv", "cells/fedprox.csv"], 2 * 12),
    "private": ((*PRIVATE, *FIXED), (2,), [CELL], 6),
}


@pytest.fixture
def heard(monkeypatch):
    """The rounds of every call; with a number in `at`, SIGTERM comes after so many."""
    heard, whole = {"rounds": [], "at": None}, training.calls

    def calls(*arguments, **options):
        for call in whole(*arguments, **options):
            heard["rounds"].append(call.rounds)
            if heard["at"] is not None and sum(heard["rounds"]) >= heard["at"]:
                os.kill(os.getpid(), signal.SIGTERM)
                heard["at"] = None
            yield call

    monkeypatch.setattr(training, "calls", calls)
    monkeypatch.setattr(groups, "calls", calls)
    return heard


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_a_stopped_job_continues_where_it_was(tmp_path, capsys, heard, job):
    words, stops, tables, rounds = JOBS[job]
    place, whole = tmp_path / "stopped", tmp_path / "whole"
    again = (*words, "--output", place)
    for at in stops:  # in one run of the job, and in another
        heard["at"] = at
        with pytest.raises(SystemExit) as stop:
            run(*again)
        assert stop.value.code == 130
        printed = capsys.readouterr().out.replace("\n", "")
        assert f"fedjax-muon resume {place}" in printed
        again = ("resume", place)
    run("resume", place)
    assert sum(heard["rounds"]) == rounds, "a round was lost"
    assert not (place / "suspended").exists()
    run(*words, "--output", whole)
    for table in tables:
        assert_same_but_for_seconds(place / table, whole / table)


@pytest.mark.slow
def test_the_key_of_the_noise_is_in_no_file_that_is_published(tmp_path, heard):
    place, ledger = tmp_path / "stopped", tmp_path / "ledger.json"
    heard["at"] = 2
    with pytest.raises(SystemExit):
        run(*PRIVATE, "--ledger", ledger, "--output", place)
    (secret,) = (tmp_path / "ledger.secret").iterdir()
    assert secret.stat().st_mode & 0o077 == 0
    for path in secret.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0
    assert not [*place.rglob("checkpoints")]
    before = (place / CELL).read_text()
    run("resume", place)
    assert (place / CELL).read_text().startswith(before)
    assert sum(heard["rounds"]) == 6
    left = [path.name for path in (tmp_path / "ledger.secret").glob("*/*")]
    assert left == ["data.sha256"]


@pytest.mark.slow
def test_a_damaged_part_is_refused_and_may_be_deleted(tmp_path, capsys, heard):
    heard["at"] = 7
    place = tmp_path / "run"
    with pytest.raises(SystemExit):
        run(*SWEEP, "--output", place)
    capsys.readouterr()
    for path in (place / "suspended").rglob("*"):
        if path.is_file() and path.stat().st_size > 100:
            path.write_bytes(b"garbage")
    assert "is damaged; delete it" in refused(capsys, "resume", place)
    shutil.rmtree(place / "suspended")
    run("resume", place)
    assert (place / "summary.csv").exists()


def test_another_part_is_not_taken(tmp_path):
    suspended = Suspended(tmp_path / "suspended", lambda: False, {})
    state, (one, other) = {"w": jnp.arange(3.0)}, jax.random.split(jax.random.key(0))
    first, second, third = (
        [Cell({"lr": lr}, key, [])] for lr, key in ((1, one), (1, other), (2, one))
    )
    suspended.save(first, state, {"rows": []})
    assert suspended.restore(second, state) is None
    assert suspended.restore(third, state) is None
    assert suspended.restore(first, {"w": jnp.zeros(4)}) is None
    found, notes = suspended.restore(first, state)
    assert (found["w"] == state["w"]).all()
    assert notes == {"rows": []}
    suspended.save(second, state, {})
    assert suspended.restore(first, state) is None


# --------------- a cell has the same numbers to the bit, whichever command runs it

SEEDS = (3, 4)
SIZES = {"num_clients": 6, "cohort_size": 3, "local_steps": 4, "batch_size": 8}
RATES = {"newton_schulz_steps": 2, "lr_schedule": "cosine", "dropout": 0.2}
CONFIG = Config(**SIZES, **RATES, hidden=(8,), rounds=8, evaluate_every=2)


@pytest.fixture(scope="module")
def held_out():
    """The examples that a sweep trains on, and those it validates on."""
    return data.hold_out(data.load("digits"), 0.1)


@pytest.fixture(scope="module")
def alone(held_out, tmp_path_factory):
    """The rows of `train`, by the name of the method."""

    @functools.cache
    def rows(name):
        run_dir = tmp_path_factory.mktemp("train")
        run = Run(name, {"lr": 0.1}, SEEDS[1], CONFIG)
        train.train(run, simulation_of(run, held_out[0]), run_dir)
        found = rows_of(run_dir)
        assert len(found) == 5
        return found

    return rows


def rows_of(run_dir):
    columns = metrics_csv.read(run_dir / "metrics.csv")
    del columns["seconds"]
    count = len(columns["round"])
    return [{name: v[i] for name, v in columns.items()} for i in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedmuon_align", "fedlada"])
def test_compare_runs_what_train_runs(name, alone, held_out, tmp_path):
    job = Comparison((name,), {name: 0.1}, {}, SEEDS, CONFIG)
    compare.run(job, compare.Checked(held_out[0], "", []), tmp_path)
    assert rows_of(tmp_path / name / f"seed{SEEDS[1]}") == alone(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "grid", "seeds"),
    [
        ("fedmuon_align", [{}, {"lr": 0.03}], SEEDS),
        # grids of other hyperparameters, first their defaults
        ("fedmuon_align", [{"align": 0.5}, {"align": 0.25}], SEEDS),
        ("fedlada", [{"b2": 0.99}, {"b2": 0.9}], SEEDS),
    ],
)
def test_a_sweep_runs_what_train_runs(name, grid, seeds, alone, held_out):
    rest, validation = held_out
    begin = lambda seed: (start_key(seed), parts_of(CONFIG, rest, seed))
    cells = [Cell({"lr": 0.1} | point, *begin(s)) for point in grid for s in seeds]
    how = {"rounds": CONFIG.rounds, "evaluate_every": CONFIG.evaluate_every}
    simulation = simulation_of(Run(name, {}, seeds[0], CONFIG), rest)
    groups = run_cells(simulation, cells, validation=validation, **how)
    outcomes = [outcome for group in groups for outcome in group]
    own = outcomes[len(seeds) - 1].rows  # the first point on the last seed
    rows = alone(name)
    assert [{column: row[column] for column in rows[0]} for row in own] == rows
    others = [outcome.rows[-1]["train_loss"] for outcome in outcomes]
    assert len(set(others)) == len(cells)
