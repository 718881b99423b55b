"""Runs and comparisons that go on for more rounds than they were made for."""

import dataclasses
import json
import shutil

import jax
import pytest
from command import SMALL, assert_same_but_for_seconds, refused, run

from fedjax_muon.runs import directory, launch
from fedjax_muon.runs.config import Comparison, Config, Run, Sweep
from fedjax_muon.runs.directory import to_json
from fedjax_muon.runs.extend import lengthen
from fedjax_muon.runs.load import load_run
from fedjax_muon.simulation.checkpoint import digest

TINY = (*SMALL, "--hidden", 4)
TRAIN = ("train", "--algorithm", "fedavg_m", *TINY)
COMPARE = ("compare", "fedavg_m", "--seeds", "0,1", "--quick", *TINY)
CELLS = ["fedavg_m/seed0", "fedavg_m/seed1"]
# 5 is no multiple of --evaluate-every 2, so that only a run of 5 rounds evaluates it
SHORT, LONG = 5, 8


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Runs and comparisons of few rounds, and of many from the start."""
    place = tmp_path_factory.mktemp("made")
    for rounds in (SHORT, LONG):
        run(*TRAIN, "--rounds", rounds, "--output", place / f"train{rounds}")
    return place


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    place = tmp_path_factory.mktemp("compared")
    for rounds in (SHORT, LONG):
        run(*COMPARE, "--rounds", rounds, "--output", place / f"compare{rounds}")
    return place


@pytest.fixture
def short(made, tmp_path):
    return shutil.copytree(made / f"train{SHORT}", tmp_path / "run")


def assert_same(place, whole) -> None:
    """Two run directories have the same config, rows and final bits."""
    assert (place / "config.json").read_bytes() == (whole / "config.json").read_bytes()
    assert_same_but_for_seconds(place / "metrics.csv", whole / "metrics.csv")
    assert digest(load_run(place).state) == digest(load_run(whole).state)


def test_a_longer_run_is_that_of_all_its_rounds_from_the_start(short, made):
    run("resume", short, "--rounds", LONG)
    assert_same(short, made / f"train{LONG}")
    run("resume", short, "--rounds", LONG)  # again, as after a kill
    assert_same(short, made / f"train{LONG}")


@pytest.mark.slow
def test_a_run_goes_on_after_a_kill_before_its_next_checkpoint(short, made):
    lengthen(short, LONG)
    run("resume", short)
    assert_same(short, made / f"train{LONG}")


@pytest.mark.slow
def test_a_run_that_is_not_finished_may_have_fewer_rounds(short, made):
    shutil.rmtree(short / "checkpoints" / str(SHORT))  # the one before is of round 0
    run("resume", short, "--rounds", 4)
    run("resume", short, "--rounds", LONG)
    assert_same(short, made / f"train{LONG}")


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["never", "before the last run"])
def test_a_longer_comparison_is_that_of_all_its_rounds(compared, tmp_path, killed):
    place = shutil.copytree(compared / f"compare{SHORT}", tmp_path / "run")
    whole = compared / f"compare{LONG}"
    if killed == "never":
        run("resume", place, "--rounds", LONG)
    else:
        lengthen(place, LONG)
        for cell in CELLS[:-1]:
            shutil.copy(whole / cell / "config.json", place / cell)
        run("resume", place)
    assert (place / "config.json").read_bytes() == (whole / "config.json").read_bytes()
    for cell in CELLS:
        assert_same(place / cell, whole / cell)


@pytest.mark.slow
def test_a_longer_comparison_keeps_the_rates_that_it_chose(tmp_path):
    place = tmp_path / "run"
    words = ("--seeds", 0, "--alpha", 1, "--hidden", 8, *SMALL)
    run("compare", "fedavg", *words, "--rounds", 2, "--output", place)
    before = directory.read(place / "fedavg/seed0")
    run("resume", place, "--rounds", 4)
    job, after = directory.read(place), directory.read(place / "fedavg/seed0")
    assert (job.grids, job.lr) == ({}, {"fedavg": before.hyper["lr"]})
    assert after.hyper == before.hyper
    assert after.config == dataclasses.replace(before.config, rounds=4)


CONFIG = Config(rounds=4)
OF_AUC = Config(problem="auc", dataset="breast_cancer", epsilon=(4.0,), rounds=4)
JOBS = {
    "fedavg has a cosine schedule over 4 rounds": Run(
        "fedavg", {}, 0, dataclasses.replace(CONFIG, lr_schedule="cosine")
    ),
    "scaffold has a cosine schedule over 4 rounds": Comparison(
        ("fedavg", "scaffold"), {}, {"scaffold": "cosine"}, (0,), CONFIG
    ),
    "is private: its noise is for 4 rounds": Run("dpmixsgd", {}, 0, OF_AUC),
    "is a sweep, which cannot be trained further": Sweep(
        ("fedavg",), {"fedavg": {}}, (0,), 0.1, None, CONFIG
    ),
}


@pytest.mark.parametrize("message", JOBS)
def test_what_would_be_another_run_is_refused(message, tmp_path, capsys):
    text = to_json(JOBS[message])
    (tmp_path / "config.json").write_text(text)
    assert message in refused(capsys, "resume", tmp_path, "--rounds", 9)
    assert (tmp_path / "config.json").read_text() == text


def test_other_directories_and_numbers_are_refused(short, capsys, monkeypatch):
    text = (short / "config.json").read_text()
    words = ("resume", short, "--rounds")
    fewer = "has 5 rounds already; --rounds must be larger, got 3"
    assert fewer in refused(capsys, *words, 3)
    monkeypatch.setattr(launch, "begin", lambda *_: None)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert "several processes" in refused(capsys, *words, 9)
    monkeypatch.undo()
    with directory.held(short):
        assert "another process is using" in refused(capsys, *words, 9)
    assert (short / "config.json").read_text() == text


def test_a_run_of_a_comparison_is_extended_with_it(tmp_path, capsys):
    job = Comparison(("fedavg",), {}, {}, (0,), CONFIG)
    cell = directory.cell_of(tmp_path, job.cell("fedavg", 0))
    directory.create(cell, job.cell("fedavg", 0))
    (tmp_path / "config.json").write_text(to_json(job))
    said = refused(capsys, "resume", cell, "--rounds", 9)
    assert f"{cell} is a run of the comparison in {tmp_path}" in said


def test_fewer_rounds_in_config_json_than_are_done_are_refused(short, capsys):
    about = json.loads((short / "config.json").read_text())
    about["config"]["rounds"] = 3
    (short / "config.json").write_text(json.dumps(about))
    assert "is of round 5, but the run has 3" in refused(capsys, "resume", short)
