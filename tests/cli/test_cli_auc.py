"""`--problem auc` as a user meets it: its methods, its defaults, its refusals."""

import contextlib
import csv
import io
from pathlib import Path

import numpy as np
import pytest
from command import run

from fedjax_muon import minimax
from fedjax_muon.core import numbers_of
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import build as building, compare, config, sweep
from fedjax_muon.runs.tuned import TUNED

AUC = ("--problem", "auc")
TINY = (
    *("--hidden", 8, "--num-clients", 4, "--cohort-size", 4, "--local-steps", 2),
    *("--rounds", 3, "--evaluate-every", 2),
)
METHODS = ("local_sgda", "fed_nsgda_m")
LABELS = [minimax.ALL[name].label for name in METHODS]


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> tuple[Path, str]:
    """A finished comparison, and what it printed."""
    place, printed = tmp_path_factory.mktemp("runs") / "comparison", io.StringIO()
    with contextlib.redirect_stdout(printed):
        seeds = ("--seeds", 3, 4, "--quick")
        run("compare", *METHODS, *AUC, *TINY, *seeds, "--output", place)
    return place, printed.getvalue()


def curves(place, name):
    """Of both seeds."""
    return [metrics_csv.read(place / name / f"seed{s}/metrics.csv") for s in (3, 4)]


@pytest.mark.slow
def test_methods_are_compared_by_the_area_under_the_curve(compared):
    place, printed = compared
    with (place / "summary.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert list(rows) == LABELS
    for name, label in zip(METHODS, LABELS, strict=True):
        for columns in curves(place, name):
            assert columns["round"].tolist() == [0, 2, 3]
            for column in ("train_auc", "test_auc"):
                assert ((columns[column] >= 0) & (columns[column] <= 1)).all()
                assert len(set(columns[column])) > 1  # something is learnt
        ends = [columns["test_auc"][-1] for columns in curves(place, name)]
        others = [columns["test_accuracy"][-1] for columns in curves(place, name)]
        assert float(rows[label]["score_mean"]) == pytest.approx(np.mean(ends))
        assert float(rows[label]["score_std"]) == pytest.approx(np.std(ends, ddof=1))
        assert np.mean(ends) != pytest.approx(np.mean(others), abs=1e-3)
    assert "AUC on the test set" in " ".join(printed.split())
    assert "accuracy" not in printed


def test_by_default_all_minimax_methods_meet_with_their_grids(planned, monkeypatch):
    checked = {compare: compare.Checked(None, "", []), sweep: ""}
    for module, result in checked.items():  # whose checks compile every method
        monkeypatch.setattr(module, "check", lambda *_, result=result: result)
    what = planned("compare", "--problem=auc")
    assert what.algorithms == tuple(minimax.ALL)
    given = what.config
    assert given == config.DEFAULTS["auc"]
    assert (given.dataset, given.positives) == ("breast_cancer", 0.1)
    assert given.num_clients == given.cohort_size == 8
    assert set(what.lr) == set(minimax.ALL)
    for name in what.algorithms:
        algorithm = building.algorithm_of(what.cell(name, 0))
        assert numbers_of(algorithm)["lr"] == what.lr[name]
    swept = planned("sweep", *AUC, "--seeds", 1)
    assert swept.algorithms == what.algorithms
    for name, method in minimax.ALL.items():
        assert swept.points(name) == [{"lr": lr} for lr in method.grid["lr"]]
        assert len(swept.points(name)) > 1


@pytest.mark.slow
def test_defaults_give_way(planned):
    words = ("--lr", "fsgda", 0.5, "--num-clients", 9)
    what = planned("compare", "fsgda", "sagda", *AUC, *words)
    assert what.algorithms == ("fsgda", "sagda")
    assert what.lr == {"fsgda": 0.5, "sagda": TUNED["auc"]["sagda"].lr}
    assert what.config.num_clients == 9
    hyper = planned("train", *AUC, "--algorithm", "fess_gda").hyper
    assert hyper == {"lr": 0.1, "server_lr": 1.0, "pull": 0.1, "follow": 0.5}


def test_a_run_is_of_fed_nsgda_m(planned):
    what = planned("train", *AUC)
    assert what.algorithm == "fed_nsgda_m"
    assert what.hyper == config.hyper_parameters(minimax.ALL["fed_nsgda_m"])
    assert what.config == config.DEFAULTS["auc"]
    # methods that minimize serve minimax problems too
    assert planned("train", *AUC, "--algorithm", "fedprox").algorithm == "fedprox"
