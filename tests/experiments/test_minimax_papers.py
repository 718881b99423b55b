"""The tables of DPMixSGD and figures of minimax_000, as printed and run small."""

import csv
import dataclasses
import math
import sys

import jax
import numpy as np
import pytest

from experiments.arguments import call
from experiments.papers import dpmixsgd_002, dpmixsgd_jobs, frame, minimax_000
from experiments.papers.dpmixsgd_002 import PANELS, PRINTED, Cell, Runner
from fedjax_muon import minimax, problems
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized import ALL
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.runs import metrics_csv
from fedjax_muon.simulation import training
from fedjax_muon.tasks import robust
from tests.support.published import allow_small

pytestmark = pytest.mark.slow

JOB = dataclasses.replace(dpmixsgd_jobs.logistic("a8a", "agents"), iterations=3)


@pytest.fixture(scope="module")
def adult(tmp_path_factory):
    """Files like a8a's: 123 binary features, of which the first decides."""
    rng, place = np.random.default_rng(0), tmp_path_factory.mktemp("data")
    for name, count in (("a8a", 400), ("a8a.t", 100)):
        rows = rng.random((count, 123)) < 0.1
        labels = np.where(rows[:, 0] | (rng.random(count) < 0.2), "+1", "-1")
        lines = [
            " ".join([label, *(f"{i + 1}:1" for i in np.flatnonzero(row))])
            for label, row in zip(labels, rows, strict=True)
        ]
        (place / name).write_text("\n".join([*lines, ""]))
    with pytest.MonkeyPatch.context() as patch:
        allow_small(patch, "a8a")
        yield place


def test_published_numbers_have_a_cell_each():
    rows = list(csv.DictReader(dpmixsgd_002.PUBLISHED.read_text().splitlines()))
    for table in ("table_2", "table_4"):
        ours = [row for row in rows if row["table"] == table]
        assert {(row["panel"], row["value"], row["method"]) for row in ours} == {
            (panel, value, PRINTED.get(name, name))
            for panel, value, name, _ in dpmixsgd_002.panels(table)
        }
    keys = ("table", "panel", "dataset", "method", "value")
    auc = {tuple(row[key] for key in keys): row["auc"] for row in rows}
    assert len(auc) == len(rows) == 4 * 16 * 3 + 4 * 16 + 3 * 5
    printed = {  # one of every block
        ("table_2", "agents", "a8a", "dpmixsgd", "5"): "0.8094",
        ("table_2", "connectivity", "a9a", "dpmixsgd", "0.2"): "0.5971",
        ("table_2", "theta", "a9a", "dp_sgda", "0.05"): "0.6778",
        ("table_2", "gamma", "a8a", "dpmixsgd", "1/30000"): "0.7979",
        ("table_3", "sigma", "ijcnn1", "dpmixsgd_clip", "1"): "0.9711",
        ("table_4", "theta", "fashion_mnist", "dp_sgda", "0.01"): "0.5773",
    }
    assert {key: auc[key] for key in printed} == printed


def test_noise_scales_as_the_theorems_say():
    def level(name="dpmixsgd_unclipped", **cell):
        return dpmixsgd_002.sigma(name, JOB, Cell(**cell), 80)

    assert level() == pytest.approx(1)
    assert level(theta=0.05) == pytest.approx(1 / 5)
    assert level(agents=20) == pytest.approx(1 / 2)
    logs = math.log(1000) / math.log(30000)
    assert level(gamma=1 / 1000) == pytest.approx(math.sqrt(logs))
    assert level("dsgda") == level("dm_hsgd") == 0
    expected = math.sqrt(JOB.iterations * math.log(30000)) / (80 * 0.01)
    assert level("dp_sgda_unclipped") == pytest.approx(expected)


def test_a_cell_is_the_method_with_its_noise(adult):
    """Against the library's method without the experiment's machinery."""
    rates, cell = {"lr_x": 0.1, "lr_y": 0.01, "beta": 0.5}, Cell(connectivity=0.8)
    runner = Runner(adult)
    _, _, found = runner.trained(JOB, "dpmixsgd_unclipped", cell, 3, rates)
    problem = runner.problem(JOB, 5, False)
    sizes = {"weights": problem.weights(3, 0.8), "batch_size": 20, "first_size": 80}
    alone = decentralize(
        ALL["dpmixsgd_unclipped"].function(Pair(0.1, 0.01), beta=0.5, sigma=1.0),
        robust.robust_logistic(123, 5, robust.agents),
        *(problem.dataset, problem.parts(3)),
        **sizes,
    )
    _, rows = training.run(alone, alone.init(jax.random.key(3)), rounds=3)
    assert found == pytest.approx(rows[-1]["test_auc"], abs=1e-6)


def run(monkeypatch, module, *words):
    monkeypatch.setattr(sys, "argv", ["dpmixsgd_002", *map(str, words)])
    call(module.main, module.__doc__)


def test_a_table_is_run_once_and_printed(adult, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dpmixsgd_002, "METHODS", ("dpmixsgd_unclipped",))
    monkeypatch.setattr(dpmixsgd_002, "PANELS", {"theta": PANELS["theta"]})
    small = dataclasses.replace(JOB, rates=(1.0, 0.1), betas=(0.5,))
    monkeypatch.setattr(dpmixsgd_002, "JOBS", {"table_2": lambda name: small})
    words = ("table_2", "--kind", "agents", "--datasets", "a8a", "--data-dir", adult)
    words += ("--seeds", 2, "--output", tmp_path)
    run(monkeypatch, dpmixsgd_002, *words)
    rows = dpmixsgd_002.read_rows(tmp_path / "runs.csv")
    assert len({(row["value"], row["auc"]) for row in rows}) == len(rows) == 4 * 2
    text = (tmp_path / "table_2.md").read_text()
    scores = [float(row["auc"]) for row in rows[:2]]
    mean = f"{np.mean(scores):.3f} ± {np.std(scores, ddof=1):.3f} (0.6653)"
    assert text in capsys.readouterr().out
    assert f"| DPMixSGD (unclipped, no privacy) | {mean} |" in text
    before = (tmp_path / "runs.csv").read_bytes()
    monkeypatch.setattr(Runner, "trained", None)  # nothing is left to run
    run(monkeypatch, dpmixsgd_002, *words)
    assert (tmp_path / "runs.csv").read_bytes() == before


@pytest.mark.parametrize("figure", minimax_000.ITEMS)
def test_figures_are_the_papers(figure):
    panels = minimax_000.ITEMS[figure].panels("full")
    assert list(panels) == ["sst2", "sentiment140", "yelp_polarity_reviews"]
    for panel in panels.values():
        given, names = panel.settings, ("clients", "cohort", "batch_size")
        assert [given[name] for name in names] == [8, 8, 64]
        network = {"embedding": 300, "hidden": 4096, "layers": 2}
        assert (given["model"].func, given["model"].keywords) == (problems.rnn, network)
        assert panel.make is problems.auc
        assert given["local_steps"] == {"2": 16, "6": 16}.get(figure[-1], 4)
        if figure.startswith("figure_3"):
            assert (given["divide"], given["positives"]) == (problems.ratios, None)
        else:
            assert (given["divide"], given["positives"]) == (None, 0.1)
        assert set(panel.methods) == set(minimax.ALL)
        for _, grid in panel.methods.values():
            assert (min(grid["lr"]), max(grid["lr"])) == (1e-3, 1e-1)


def test_a_small_one_from_local_files(tmp_path, monkeypatch, capsys):
    """Files like SST-2's, of a language in which one word decides."""
    allow_small(monkeypatch, "sst2")
    folder = tmp_path / "data" / "glue" / "SST-2"
    folder.mkdir(parents=True)
    words = ("dull", "tedious", "bland"), ("warm", "bright", "lovely")  # of both labels
    rng = np.random.default_rng(0)
    for name, count in (("train", 900), ("dev", 120)):
        labels = rng.integers(0, 2, count)
        lines = [f"a {rng.choice(words[k])} film\t{k}" for k in labels]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines, ""]))
    monkeypatch.setattr(minimax_000, "FEWER", {"local_sgda": {"lr": (0.3,)}})
    monkeypatch.setattr(minimax_000, "SEEDS", (0,))
    real = frame.sized
    tiny = lambda given, scale, **cpu: real(given, scale, **cpu, rounds=2)
    monkeypatch.setattr(minimax_000, "sized", tiny)
    run_dir = tmp_path / "run"
    given = minimax_000.ITEMS, "figure_3", "cpu", tmp_path / "data"
    frame.run("minimax_000", *given, output=run_dir)
    rows = metrics_csv.read(run_dir / "sst2" / "local_sgda" / "cells.csv")
    assert rows["round"].tolist() == [0, 2]
    assert ((rows["test_auc"] > 0) & (rows["test_auc"] <= 1)).all()
    row = "| sst2, 4 steps, unequal shares | LocalSGDA"
    assert row in (run_dir / "result.md").read_text()
    assert "result.md, .csv" in capsys.readouterr().out
