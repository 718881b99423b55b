"""`fedjax-muon sweep` as a user meets it: files, numbers, resuming, refusals."""

import json
import os
import shutil
import signal
from pathlib import Path

import jax
import matplotlib.image
import numpy as np
import optax
import pytest
from command import refused, run
from grids import (
    assert_reported,
    chosen,
    last,
    rows_by_cell,
)

from fedjax_muon import algorithms, compression, data, models, simulation
from fedjax_muon.reporting import plots
from fedjax_muon.runs import build as building, directory, sweep as sweeps
from fedjax_muon.runs.config import Config
from fedjax_muon.simulation import training
from fedjax_muon.simulation.sweeps import Outcome
from fedjax_muon.tasks.classification import classification
from fedjax_muon.wrappers.compression import compress

TINY = [
    *("--num-clients", 6, "--cohort-size", 3, "--local-steps", 2, "--batch-size", 8),
    *("--hidden", 8, "--rounds", 5, "--evaluate-every", 2),
]
CONFIG = Config(
    num_clients=6,
    cohort_size=3,
    local_steps=2,
    batch_size=8,
    hidden=(8,),
    rounds=5,
    evaluate_every=2,
)
ARRAYS = (64 * 8, 8, 8 * 10, 10)  # of the model
LABELS = {"fedavg": "FedAvg", "stem": "STEM (all clients)"}


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    """A finished sweep; copy it before changing it."""
    place = tmp_path_factory.mktemp("runs") / "sweep"
    run(
        *("sweep", "--algorithms", "fedavg,stem", "--grid", "lr=0.01,0.1"),
        *("--seeds", 3, 4, *TINY, "--output", place),
    )
    return place


@pytest.fixture
def copy(swept, tmp_path) -> Path:
    return Path(shutil.copytree(swept, tmp_path / "copy"))


# Its files.


def test_a_sweep_leaves_its_config_versions_cells_figures_and_report(swept):
    what = json.loads((swept / "config.json").read_text())
    assert what["algorithms"] == ["fedavg", "stem"]
    assert what["grids"] == {name: {"lr": [0.01, 0.1]} for name in LABELS}
    assert (what["seeds"], what["validation"]) == ([3, 4], 0.1)
    assert {"jax", "device"} <= set(json.loads((swept / "versions.json").read_text()))
    for name in LABELS:
        cells = rows_by_cell(swept, name)
        assert list(cells) == ["lr=0.01", "lr=0.1"]
        for seeds in cells.values():
            assert list(seeds) == ["3", "4"]
            for rows in seeds.values():
                assert [int(row["round"]) for row in rows] == [0, 2, 4, 5]
                assert {row["diverged"] for row in rows} == {"-1"}
    for name in ("curves.png", "grids.png", "ranking.png"):
        image = matplotlib.image.imread(swept / name)
        assert min(image.shape[:2]) > 200
        assert len(np.unique(image.reshape(-1, image.shape[-1]), axis=0)) > 50
    names = "fedavg.csv fedavg.json stem.csv stem.json"
    assert sorted(os.listdir(swept / "cells")) == names.split()
    assert_reported(swept, LABELS)


# Its numbers.


@pytest.mark.slow
def test_cells_are_the_runs_that_their_options_say(tmp_path):
    """Against a simulation made by hand: a cosine, sparse messages, held-out data."""
    place = tmp_path / "sweep"
    run(
        *("sweep", "--algorithms", "fedavg", "--grid", "lr=0.3", "--seeds", "3,4"),
        *("--lr-schedule", "cosine", "--compressor", "top_k", "--validation", 0.2),
        *("--compressor-share", 0.1, "--error-feedback", 1, "--cells-at-once", 1),
        *(*TINY, "--output", place),
    )
    rest, (x, y) = data.hold_out(data.load("digits"), 0.2)
    averaging = algorithms.fedavg(lr=optax.cosine_decay_schedule(0.3, 5))
    sparse = compress(averaging, compression.top_k(0.1), feedback=1.0)
    task = classification(models.MLP(10, (8,)), rest.x_train.shape[1:])
    rest = rest._replace(x_test=x, y_test=y)
    parts = building.parts_of(CONFIG, rest, 4)
    sizes = {"cohort_size": 3, "local_steps": 2, "batch_size": 8}
    prepared = simulation.federate(sparse, task, rest, parts, **sizes)
    begin = prepared.init(building.start_key(4))
    _, alone = training.run(prepared, begin, rounds=5, evaluate_every=2)
    rows = rows_by_cell(place, "fedavg")["lr=0.3"]["4"]
    for row, expected in zip(rows, alone, strict=True):
        assert int(row["round"]) == expected["round"]
        sent = sum(round(0.1 * size) for size in ARRAYS)  # four bytes and a place each
        assert int(row["bytes_up"]) == 3 * 8 * sent * int(row["round"])
        for name, other in (("train_loss",) * 2, ("validation_loss", "test_loss")):
            assert float(row[name]) == pytest.approx(expected[other], rel=1e-5)
        accuracy = float(row["validation_accuracy"])
        assert accuracy == pytest.approx(expected["test_accuracy"])


@pytest.mark.slow
def test_agents_have_the_random_graph_of_their_seed(tmp_path):
    """Their cells are runs of `train` on the examples that are left to train on."""
    place, seeds = tmp_path / "sweep", (3, 4)
    given = ("--num-clients", 6, "--batch-size", 8, "--rounds", 5, "--hidden", 8)
    given = (*given, "--evaluate-every", 2, "--graph", "erdos_renyi")
    run(
        *("sweep", "--algorithms", "dsgd", "--grid", "lr=0.1,0.3", "--seeds", "3,4"),
        *("--validation", 0.2, *given, "--output", place),
    )
    job = directory.read(place)
    rest, _ = data.hold_out(data.load("digits"), 0.2)
    sent = set()
    for seed in seeds:
        one = building.simulation_of(job.cell("dsgd", {"lr": 0.3}, seed), rest)
        begin = one.init(building.start_key(seed))
        _, alone = training.run(one, begin, rounds=5, evaluate_every=2)
        rows = rows_by_cell(place, "dsgd")["lr=0.3"][str(seed)]
        for row, expected in zip(rows, alone, strict=True):
            for name in ("bytes_up", "train_loss", "consensus", "test_accuracy"):
                assert float(row[name]) == pytest.approx(expected[name], rel=1e-5)
        sent.add(rows[-1]["bytes_up"])
    assert len(sent) == 2  # other graphs have other links


# Resuming.


@pytest.fixture
def heard(swept, monkeypatch):
    """The cells that run: not trained, but taken from `swept`."""
    asked: list[tuple[str, float, int]] = []
    words = lambda key: str(jax.random.key_data(key))
    seeds = {words(building.start_key(seed)): seed for seed in (3, 4)}
    train, held_out = data.hold_out(data.load("digits"), 0.1)

    def trace(simulation, cells, *, validation, rounds, evaluate_every, tick, **how):
        assert (rounds, evaluate_every) == (5, 2)
        pause = how.pop("pause")
        expected = {"cells_at_once": None, "drop_nonfinite": False, "devices": ()}
        assert how == expected
        np.testing.assert_array_equal(validation[0], held_out[0])
        name = "stem" if simulation.settings.cohort_size == 6 else "fedavg"
        for hyper, key, parts, weights in cells:
            assert weights is None
            seed = seeds[words(key)]
            expected = building.parts_of(CONFIG, train, seed)
            assert list(map(list, parts)) == list(map(list, expected))
            asked.append((name, hyper["lr"], seed))
            tick(rounds)
            if pause.asked():
                raise KeyboardInterrupt
            rows = rows_by_cell(swept, name)[f"lr={hyper['lr']:g}"][str(seed)]
            mine = [dict(list(row.items())[3:]) for row in rows]
            yield [Outcome(mine, None)]

    monkeypatch.setattr(sweeps, "run_cells", trace)
    for figure in ("curves", "grids", "ranking"):
        monkeypatch.setattr(plots, figure, lambda *_, **how: None)
    return asked


def assert_same_files(place: Path, other: Path) -> None:
    for name in ("cells/fedavg.csv", "cells/stem.csv", "points.csv", "summary.csv"):
        assert (place / name).read_bytes() == (other / name).read_bytes(), name
    assert (place / "summary.md").read_text() == (other / "summary.md").read_text()


CELLS = [("fedavg", lr, seed) for lr in (0.01, 0.1) for seed in (3, 4)]
DAMAGE = {  # what becomes of the lines of fedavg.csv
    "two cells": lambda lines: lines[:9],
    "all cells": lambda lines: lines[:1],
    "a first line": lambda lines: [*lines[:13], lines[13][:30]],
    "a last line": lambda lines: lines[:16],
    "the end of a line": lambda lines: [*lines[:16], lines[16][:-5]],
    "a number": lambda lines: [*lines[:16], lines[16].replace(b"0.1", b"0.2", 1)],
    "a line twice": lambda lines: [*lines, lines[-1]],
    "the header": lambda lines: [lines[0].replace(b"seed", b"seeds"), *lines[1:]],
}


@pytest.mark.slow
def test_damaged_cells_and_those_of_another_config_are_refused(copy, heard, capsys):
    settings, path = copy / "config.json", copy / "cells" / "fedavg.csv"
    before = settings.read_text()
    settings.write_text(before.replace('"batch_size": 8', '"batch_size": 9'))
    said = refused(capsys, "resume", copy)
    assert "fedavg.csv were computed with batch_size 8, not with 9" in said
    settings.write_text(before)
    lines = path.read_bytes().splitlines(True)
    for name, damage in DAMAGE.items():
        path.write_bytes(b"".join(damage(lines)))
        said = refused(capsys, "resume", copy)
        assert f"{path} is not what fedavg.json says of it; delete both" in said, name
    assert heard == []
    path.unlink()
    run("resume", copy)
    assert heard == CELLS


def test_resuming_a_finished_sweep_runs_nothing(copy, swept, heard):
    run("resume", copy)
    assert heard == []
    assert_same_files(copy, swept)


def test_an_interrupted_sweep_goes_on(tmp_path, swept, heard, monkeypatch, capsys):
    place, whole = tmp_path / "sweep", sweeps.run_cells

    def interrupted(*cells, **how):
        for number, group in enumerate(whole(*cells, **how)):
            yield group
            if number == 1:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(sweeps, "run_cells", interrupted)
    command = ("sweep", "--algorithms", "fedavg", "stem", "--grid", "lr=0.01,0.1")
    with pytest.raises(SystemExit) as stop:
        run(*command, "--seeds", "3,4", *TINY, "--output", place)
    assert stop.value.code == 130
    assert f"fedjax-muon resume {place}" in capsys.readouterr().out.replace("\n", "")
    files = ["cells", "config.json", "data.sha256", "versions.json"]
    assert sorted(os.listdir(place)) == files
    finished = (place / "cells" / "fedavg.csv").read_bytes()
    assert finished.count(b"\n") == 1 + 2 * 4
    said = refused(capsys, "plot", place, "--output", tmp_path / "a.png")
    what = f"{place} is not finished; continue with: fedjax-muon resume {place}"
    assert what in said
    monkeypatch.setattr(sweeps, "run_cells", whole)
    del heard[2:]
    run("resume", place)
    assert heard == [*CELLS, *(("stem", lr, seed) for _, lr, seed in CELLS)]
    assert (place / "cells" / "fedavg.csv").read_bytes().startswith(finished)
    assert_same_files(place, swept)


PARTS = ("--algorithms", "fedavg,stem", "--grid", "lr=0.01,0.1", "--seeds", "3,4")


@pytest.mark.parametrize(
    "trained", ["3/3 1/3", pytest.param("2/3 1/3 3/3", marks=pytest.mark.slow)]
)
def test_parts_make_the_tables_of_the_whole(trained, tmp_path, swept, heard, capsys):
    place = tmp_path / "sweep"
    for part in trained.split():
        run("sweep", *PARTS, *TINY, "--output", place, "--part", part)
    assert f"merge them with: fedjax-muon resume {place}" in capsys.readouterr().out
    stem = [("stem", lr, seed) for _, lr, seed in CELLS]
    assert len(heard) == (8 if "2/3" in trained else 5)
    run("resume", place, "--part", "1/3")  # which is finished
    run("resume", place)
    assert sorted(heard) == sorted([*CELLS, *stem])
    for name in ("points.csv", "summary.csv"):
        assert (place / name).read_bytes() == (swept / name).read_bytes()


def test_parts_of_another_sweep_are_refused(copy, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweeps, "check", lambda job: "")  # which compiles
    for part in ("0/3", "4/3", "3", "x/3"):
        said = refused(capsys, "sweep", *PARTS, *TINY, "--part", part)
        assert f"--part is one of 1/8 to 8/8, if there are 8; got '{part}'" in said
    said = refused(capsys, "sweep", *PARTS, *TINY, "--part", "1/2")
    assert "--part needs a common run directory; name it by --output" in said
    other = ("--output", copy, "--part", "1/2", "--validation", 0.2)
    said = refused(capsys, "sweep", *PARTS, *TINY, *other)
    assert f"{copy} was not made by a part of this sweep" in said
    part = copy / "parts" / "1-of-2"
    part.mkdir(parents=True)
    with directory.held(part):
        said = refused(capsys, "resume", copy)
    assert "another process is using" in said


def test_a_sweep_copies_its_examples_to_known_devices(tmp_path, capsys):
    place = ("--output", tmp_path / "sweep")
    said = refused(capsys, "sweep", *PARTS, *TINY, *place, "--split-examples")
    assert "copies the examples to each device; leave out" in said
    said = refused(capsys, "sweep", *PARTS, *TINY, *place, "--devices", 99)
    assert "devices must be at most the 8 that this host has" in said
    assert not (tmp_path / "sweep").exists()


def test_plot_draws_the_best_of_a_sweep(swept, tmp_path, monkeypatch):
    drawn: dict = {}
    monkeypatch.setattr(plots, "curves", lambda runs, path, **how: drawn.update(runs))
    run("plot", swept, "--output", tmp_path / "curves.png")
    assert list(drawn) == list(LABELS.values())
    for name, label in LABELS.items():
        best = rows_by_cell(swept, name)[chosen(rows_by_cell(swept, name))]
        ends = [float(some["test_accuracy"][-1]) for some in drawn[label]]
        assert ends == last(best, "test_accuracy")


# What is asked for.


@pytest.fixture
def planned(planned):
    """A small job that would run."""
    return lambda *words: planned(*words, *TINY)


def test_all_algorithms_have_their_published_grids(planned, monkeypatch):
    monkeypatch.setattr(sweeps, "check", lambda what: None)  # which compiles
    what = planned("sweep", "--algorithms", "all", "--grid", "paper", "--seeds", 1)
    assert what == planned("sweep", "--seeds", 1)
    assert what.algorithms == tuple(algorithms.ALL)
    for name, method in algorithms.ALL.items():
        assert len(what.points(name)) == np.prod([len(v) for v in method.grid.values()])
    assert what.points("fedmuon_unsynced") == [{}]
    assert what.points("fedmuon_align") == [
        {"lr": lr, "align": align}
        for lr in (0.03, 0.02, 0.003)
        for align in (0, 0.25, 0.5, 0.75, 0.9)
    ]


@pytest.mark.slow
def test_all_published_grids_pass_the_checks_of_a_sweep(planned, monkeypatch):
    monkeypatch.setattr(sweeps, "check_memory", lambda common: None)  # which compiles
    assert planned("sweep", "--seeds", 1).algorithms == tuple(algorithms.ALL)


def test_sizes_of_groups_and_what_is_dropped_are_passed_on(tmp_path, monkeypatch):
    seen: dict = {}

    def stop(*_, **how):
        seen.update(how)
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeps, "run_cells", stop)
    options = ("--cells-at-once", 2, "--drop-nonfinite", "--output", tmp_path / "sweep")
    with pytest.raises(SystemExit):
        run("sweep", "--algorithms", "fedavg", *TINY, *options)
    assert (seen["cells_at_once"], seen["drop_nonfinite"]) == (2, True)


@pytest.mark.slow
def test_seeds_are_apart_by_commas_or_spaces(planned):
    sweep = ("sweep", "--algorithms", "fedavg")
    for seeds in (["7,8,9"], [7, 8, 9], ["7,8", 9]):
        for words in (sweep, ("compare", "fedavg")):
            assert planned(*words, "--seeds", *seeds).seeds == (7, 8, 9), (words, seeds)
    assert planned(*sweep).seeds == (42, 43, 44, 45, 46)
