"""The command as a user meets it: what it leaves behind, and how it refuses."""

import csv
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import types
from pathlib import Path

import numpy as np
import pytest
from command import SMALL, assert_same_but_for_seconds, refused, run

from fedjax_muon.algorithms import ALL
from fedjax_muon.algorithms.minimax import ALL as MINIMAX
from fedjax_muon.cli import commands
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import compare, config, directory, launch, sweep
from fedjax_muon.runs.tuned import TUNED

TINY = (*SMALL, "--hidden", 8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run; copy it before changing it."""
    place = tmp_path_factory.mktemp("runs") / "fedavg"
    run("train", "--algorithm", "fedavg", *TINY, "--rounds", 7, "--output", place)
    return place


@pytest.fixture
def copy(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def test_a_run_leaves_its_config_versions_metrics_and_figure(trained):
    config = json.loads((trained / "config.json").read_text())
    assert config["algorithm"] == "fedavg"
    assert config["hyper"] == {"lr": 0.1, "server_lr": 1.0}
    assert config["config"]["cohort_size"] == 3
    versions = json.loads((trained / "versions.json").read_text())
    assert {"python", "jax", "git_revision", "device"} <= set(versions)
    columns = metrics_csv.read(trained / "metrics.csv")
    assert columns["round"].tolist() == [0, 2, 4, 6, 7]
    assert (np.diff(columns["seconds"]) > 0).all()
    # 64 x 8 + 8 and 8 x 10 + 10 numbers of four bytes, 3 clients
    assert columns["bytes_up"].tolist() == [r * 3 * 4 * 610 for r in (0, 2, 4, 6, 7)]
    assert (trained / "curves.png").stat().st_size > 10_000


def test_rounds_may_be_asynchronous(tmp_path, capsys):
    late = ("--clock", "lognormal:1.0:0.5", "--buffer", 2, "--concurrency", 4)
    run("train", "--algorithm", "fedavg", *TINY, *late, "--output", tmp_path)
    out = capsys.readouterr().out
    assert "on cpu" in out.splitlines()
    columns = metrics_csv.read(tmp_path / "metrics.csv")
    seconds = columns["virtual_seconds"]
    assert seconds[0] == 0
    assert (np.diff(seconds) > 0).all()
    assert f"and {seconds[-1]:.1f} virtual seconds" in " ".join(out.split())
    # a buffer of two messages a step; 64 x 8 + 8 and 8 x 10 + 10 numbers of four bytes
    np.testing.assert_array_equal(columns["bytes_up"], columns["round"] * 2 * 4 * 610)


def test_resuming_a_finished_run_or_after_a_lost_tail_gives_its_rows(copy, trained):
    before = (copy / "metrics.csv").read_text()
    run("resume", copy)
    assert (copy / "metrics.csv").read_text() == before
    # as if the run had died after it saved round 0 only: rows, but no checkpoint
    shutil.rmtree(copy / "checkpoints")
    run("resume", copy)
    assert_same_but_for_seconds(copy / "metrics.csv", trained / "metrics.csv")


def test_interrupted_runs_say_how_they_go_on(trained, tmp_path, monkeypatch, capsys):
    place, append = tmp_path / "run", metrics_csv.append

    def interrupted(path, row):
        append(path, row)
        if row["round"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    words = ("train", "--algorithm", "fedavg", *TINY, "--rounds", 7)
    monkeypatch.setattr(metrics_csv, "append", interrupted)
    with pytest.raises(SystemExit) as stop:
        run(*words, "--output", place)
    monkeypatch.setattr(metrics_csv, "append", append)
    assert stop.value.code == 130
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    assert f"fedjax-muon resume {place}" in said.out.replace("\n", "")
    assert metrics_csv.read(place / "metrics.csv")["round"][-1] < 7
    run("resume", place)
    assert_same_but_for_seconds(place / "metrics.csv", trained / "metrics.csv")


def test_compare_makes_table_summary_and_figure_and_resumes(tmp_path, capsys):
    place = tmp_path / "comparison"
    run(
        *("compare", "fedavg", "fedmuon", *TINY, "--rounds", 4, "--seeds", 3, 4),
        *("--lr", "fedavg", 0.2, "--output", place),
    )
    printed = capsys.readouterr().out
    assert "FedAvg" in printed
    assert "FedMuon" in printed
    assert "90% of the best" in " ".join(printed.split())
    assert r"FedMuon & " in (place / "summary.tex").read_text()
    with (place / "summary.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    runs = [metrics_csv.read(place / f"fedavg/seed{s}/metrics.csv") for s in (3, 4)]
    final = [columns["test_accuracy"][-1] for columns in runs]
    assert float(rows["FedAvg"]["score_mean"]) == pytest.approx(np.mean(final))
    assert float(rows["FedAvg"]["score_std"]) == pytest.approx(np.std(final, ddof=1))
    cell = json.loads((place / "fedavg" / "seed3" / "config.json").read_text())
    assert cell["hyper"] == {"lr": 0.2}
    assert rows["FedAvg"]["lr"] == "0.2"
    # the rate that is not given is the best of a sweep on another seed
    assert "learning rates first: 8 runs of 4 rounds, more where" in printed
    tuning = directory.read(place / "tuning")
    assert tuning.seeds == (5, 6)
    best = sweep.best_of(tuning, "fedmuon", place / "tuning").hyper
    cell = json.loads((place / "fedmuon" / "seed3" / "config.json").read_text())
    assert cell["hyper"] == best
    assert float(rows["FedMuon"]["lr"].split()[0]) == pytest.approx(best["lr"])
    assert (place / "comparison.png").stat().st_size > 10_000
    tried = compare.Tried(tuning.grids["fedmuon"]["lr"], best["lr"], 0)
    assert (f"FedMuon {tried}; look further with: fedjax-muon resume" in printed) == (
        best["lr"] in (min(tried.values), max(tried.values))
    )

    metrics = place / "fedmuon" / "seed4" / "metrics.csv"
    before = Path(shutil.copytree(place, tmp_path / "before"))
    shutil.rmtree(metrics.parent)
    (place / "summary.csv").unlink()
    run("resume", place)
    assert_same_but_for_seconds(metrics, before / metrics.relative_to(place))
    assert_same_but_for_seconds(place / "summary.csv", before / "summary.csv")

    figure = tmp_path / "both.pdf"
    run("plot", place, "--output", figure)
    assert figure.read_bytes().startswith(b"%PDF")

    alien = Path(shutil.copytree(place, tmp_path / "alien")) / "config.json"
    alien.write_text(alien.read_text().replace('"digits"', '"mnist"'))
    said = refused(capsys, "plot", place, alien.parent, "--output", figure)
    assert "comparison is of digits (classification) and" in said
    assert "alien of mnist (classification), which one figure cannot compare" in said

    other = place / "fedavg" / "seed3" / "config.json"
    other.write_text(other.read_text().replace('"lr": 0.2', '"lr": 0.3'))
    assert "does not match the config of the comp" in refused(capsys, "resume", place)


GRID = (0.01, 0.03, 0.1, 0.3)


@pytest.mark.parametrize(
    ("best", "diverged", "said", "beyond"),
    [
        (0.1, 1, "", ()),
        (0.1, 3, "(3 of 4 diverged)", ()),
        (0.01, 0, "(edge)", (0.003, 0.001)),
        (0.3, 2, "(edge)", (0.9, 3.0)),
        (0.01, 3, "(edge, 3 of 4 diverged)", (0.003, 0.001)),
    ],
)
def test_rates_that_are_not_settled_are_marked(best, diverged, said, beyond):
    tried = compare.Tried(GRID, best, diverged)
    assert (str(tried), tried.beyond) == (said, beyond)


@pytest.mark.slow
def test_grids_are_widened_until_the_best_is_inside(tmp_path, monkeypatch, capsys):
    """The same as one large grid from the start, also if it is killed on the way."""
    monkeypatch.setattr("fedjax_muon.runs.tuned.SHARES", (0.001, 0.003))
    given = ("compare", "fedavg", *TINY, "--rounds", 4, "--seeds", 3)
    run(*given, "--output", tmp_path / "whole")
    assert "(edge" not in capsys.readouterr().out
    tuning = directory.read(tmp_path / "whole" / "tuning")
    rates = tuning.grids["fedavg"]["lr"]
    assert 2 < len(rates) <= 8
    assert np.diff(np.log(rates)) == pytest.approx(np.log(3), rel=0.01)
    best = sweep.best_of(tuning, "fedavg", tmp_path / "whole" / "tuning").hyper["lr"]
    assert best == rates[-2]

    train, calls = sweep.train, []

    def killed(*given, **how):
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(*given, **how)

    monkeypatch.setattr(sweep, "train", killed)
    with pytest.raises(SystemExit):
        run(*given, "--output", tmp_path / "cut")
    monkeypatch.setattr(sweep, "train", train)
    run("resume", tmp_path / "cut")
    for name in ("tuning/config.json", "fedavg/seed3/config.json"):
        assert (tmp_path / "cut" / name).read_text() == (
            tmp_path / "whole" / name
        ).read_text()


@pytest.mark.slow
def test_the_command_that_looks_further_runs(tmp_path, monkeypatch, capsys):
    place = tmp_path / "comparison"
    monkeypatch.setattr("fedjax_muon.runs.tuned.SHARES", (0.01, 0.1))  # far too small
    monkeypatch.setattr(sweep, "MOST_RATES", 2)
    run(
        *("compare", "fedavg", "fedmuon", *TINY, "--rounds", 4, "--seeds", 3),
        *("--lr", "fedavg", 0.2, "--output", place),
    )
    said = " ".join(capsys.readouterr().out.split())
    assert "learning rates that were not settled: FedMuon (edge); look" in said
    command = said.partition("look further with: fedjax-muon ")[2].partition("; then")[
        0
    ]
    run(*shlex.split(command))
    rates = directory.read(place / "tuning").grids["fedmuon"]["lr"]
    assert rates == pytest.approx((0.0003, 0.003, 0.009, 0.03))


@pytest.mark.parametrize(
    ("flags", "updates"),
    [
        ("", [("jax_num_cpu_devices", 2)]),
        ("--xla_force_host_platform_device_count=4", []),
    ],
)
def test_virtual_devices_of_xla_are_kept(flags, updates, monkeypatch):
    seen = []
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(launch.os, "cpu_count", lambda: 2)
    update = lambda *given: seen.append(given)
    config = types.SimpleNamespace(jax_num_cpu_devices=-1, update=update)
    monkeypatch.setattr(launch.jax, "config", config)
    launch.begin(launch.Launch(), 4)
    assert seen == updates


@pytest.mark.slow
def test_a_diverging_method_is_named_and_the_others_go_on(tmp_path, capsys):
    place = tmp_path / "comparison"
    with pytest.raises(SystemExit) as stop:
        run(
            *("compare", "fedavg", "fedavg_momentum", *TINY, "--rounds", 4),
            *("--seeds", 0, "--quick", "--output", place),
            *("--lr", "fedavg_momentum", 1e30),
        )
    assert stop.value.code == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "FedAvg(momentum), seed 0: round" in printed
    for name in ("summary.csv", "summary.tex"):
        written = (place / name).read_text()
        assert "diverged (round " in written
        assert "FedAvg" in written
    assert not (place / "tuning").exists()


def test_a_diverging_run_stops_with_status_1_and_names_the_client(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        run(
            *("train", "--algorithm", "fedavg_momentum", "--algorithm.lr", 1e30),
            *(*TINY, "--rounds", 3, "--output", tmp_path / "run"),
        )
    assert stop.value.code == 1
    assert "not a finite message from client" in capsys.readouterr().out


@pytest.mark.slow
def test_a_model_computes_in_bfloat16(trained, tmp_path):
    place = tmp_path / "run"
    run(
        *("train", "--algorithm", "fedavg", *TINY, "--rounds", 7),
        *("--compute-dtype", "bfloat16", "--output", place),
    )
    written = json.loads((place / "config.json").read_text())["config"]
    assert written["compute_dtype"] == "bfloat16"
    loss = lambda path: metrics_csv.read(path / "metrics.csv")["test_loss"]
    relative = np.abs(np.float64(loss(place)) / np.float64(loss(trained)) - 1)
    assert np.all(relative > 0)
    assert np.all(relative < 4 * 2.0**-8)  # of logits of two products, in bfloat16


def test_list_names_everything(capsys):
    run("list")
    printed = capsys.readouterr().out
    others = "fashion_mnist emnist_cnn resnet18 vit_tiny"
    missing = [name for name in (*ALL, *others.split()) if name not in printed]
    assert missing + [name for name in MINIMAX if name not in printed.split()] == []


def test_partition_draws_and_counts(tmp_path, capsys):
    figure = tmp_path / "parts.png"
    run("partition", "--num-clients", 5, "--partition", "iid", "--output", figure)
    assert "5 clients with 287 to 288 examples" in capsys.readouterr().out
    assert figure.stat().st_size > 10_000


def test_used_and_unwritable_directories_are_left_alone(copy, tmp_path, capsys):
    before = sorted(p.name for p in copy.iterdir())
    message = refused(capsys, "train", *TINY, "--output", copy)
    assert f"{copy} is already used" in message
    assert f"fedjax-muon resume {copy}" in message
    assert sorted(p.name for p in copy.iterdir()) == before
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "run"
    assert str(place) in refused(capsys, "train", *TINY, "--output", place)


def test_another_config_and_a_damaged_one_are_refused(copy, capsys):
    config = copy / "config.json"
    config.write_text(config.read_text().replace('"lr": 0.1', '"lr": 0.2'))
    before = (copy / "metrics.csv").read_text()
    assert "another configuration" in refused(capsys, "resume", copy)
    assert (copy / "metrics.csv").read_text() == before
    config.write_text(config.read_text()[:40])
    assert "config.json: not JSON: " in refused(capsys, "resume", copy)


@pytest.mark.slow
def test_the_readme_has_the_accuracies_of_two_methods(tmp_path):
    """Other processors round differently: half a point is five of 1,080 examples."""
    table = (Path(__file__).parents[2] / "README.md").read_text()
    run("compare", "fedavg", "scaffold", "--output", tmp_path / "run")
    with (tmp_path / "run" / "summary.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            cells = rf"\| {re.escape(row['method'])} \| {row['lr']} \| ([0-9.]+) ±"
            printed = re.search(cells, table)
            assert printed, row["method"]
            found = 100 * float(row["score_mean"])
            assert found == pytest.approx(float(printed[1]), abs=0.5)


@pytest.mark.slow
def test_a_schedule_for_all_replaces_the_tuned_ones(planned):
    names = ("fedavg", "scaffold")
    words = ("compare", *names, "fedcm")
    tuned = planned(*words)
    schedule = lambda what, name: what.cell(name, 0).config.lr_schedule
    for name in names:
        assert schedule(tuned, name) == TUNED["classification"][name].schedule
    assert schedule(tuned, "fedcm") is None
    for given in ("constant", "cosine"):
        what = planned(*words, "--lr-schedule", given)
        assert {schedule(what, name) for name in (*names, "fedcm")} == {given}
        assert what.lr == tuned.lr


def test_curves_of_runs_that_differ_in_options_have_labels_of_their_own():
    usual = config.Config()
    other = dataclasses.replace(usual, rounds=7, data_dir=Path("a"))
    given = [({"lr": lr}, seed, usual) for lr in (0.1, 0.3) for seed in (0, 1)]
    runs = [config.Run("fedavg", *each) for each in [*given, ({}, 0, other)]]
    runs += [config.Run("fedmuon", {}, seed, usual) for seed in (0, 1)]
    labels = commands.distinct_labels(runs)
    assert labels[0] == labels[1] == "FedAvg, rounds=100, lr=0.1"
    assert labels[2] == labels[3] == "FedAvg, rounds=100, lr=0.3"
    assert labels[4:] == ["FedAvg, rounds=7, lr=0.1", "FedMuon", "FedMuon"]
