"""The study of private images on the smallest data set."""

import csv

import numpy as np
import pytest
from packages import needs

from experiments.studies import private_images as study
from fedjax_muon import data

pytestmark = pytest.mark.slow
needs("skimage")  # for features


@pytest.fixture
def small(monkeypatch):
    """Two runs of DP-SGD on digits, whose accuracies are made up; returns them."""
    trained = []

    def accuracy(method, dataset, epsilon, lr, seed, size, rounds):
        trained.append((len(dataset.y_train), lr, seed))
        return (lr if lr <= 100 else 1) / 200 + seed / 10

    monkeypatch.setattr(study, "SEEDS", 2)
    monkeypatch.setattr(study, "accuracy", accuracy)
    few = study.Study("examples", (3.0,), 12, {"digits": 200})
    monkeypatch.setattr(study, "EXAMPLES", few)
    rates = study.OF_EXAMPLES[0]._replace(rates=(0.001, 100.0))
    monkeypatch.setattr(study, "METHODS", {"examples": (rates,)})
    monkeypatch.setattr(study, "PUBLISHED", {"digits": (90.0, 3.0, 1e-5, "A, B")})
    return trained


def test_the_best_rate_is_trained_on_all_examples_and_runs_are_reused(small, tmp_path):
    study.main(units=("examples",), output=tmp_path)
    examples = len(data.load("digits").y_train)
    held = len(study.features("digits", None, True).y_train)
    assert held < examples
    tuning = [(held, 0.001, 0), (held, 100.0, 0), (held, 300.0, 0)]
    assert small == [*tuning, (examples, 100.0, 0), (examples, 100.0, 1)]
    with (tmp_path / "images.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    scores = [100 * float(row["accuracy"]) for row in rows]
    assert scores == [50, 60]
    del small[:]
    study.main(units=("examples",), output=tmp_path)
    assert not small
    text = (tmp_path / "images.md").read_text()
    mean, std = np.mean(scores), np.std(scores, ddof=1)
    assert f"| DP-SGD | {mean:.1f} ± {std:.1f} |" in text
    assert "Published: 90.0 at (3.0, 1e-05), A, B." in text
    assert (tmp_path / "images_examples_digits.png").stat().st_size > 5000


def test_a_grid_is_extended_while_its_best_rate_is_at_an_edge():
    peak = lambda at: lambda lr: float("nan") if lr > at else lr
    assert study.best_rate(peak(30.0), (1.0, 3.0)) == (30.0, False)
    assert study.best_rate(peak(3000.0), (1.0, 3.0)) == (100.0, True)
    falling = lambda lr: -abs(np.log(lr) - np.log(0.03))
    assert study.best_rate(falling, (1.0, 0.3, 0.1)) == (0.03, False)
    assert study.best_rate(lambda lr: -lr, (3.0, 1.0)) == (0.03, True)


def test_features_have_norm_one_and_know_nothing_of_labels():
    found = study.features("digits", None, False)
    np.testing.assert_allclose(np.linalg.norm(found.x_train, axis=1), 1, rtol=1e-5)
    assert found.x_train.shape[1:] == (4 * 4 * 9,)
    np.testing.assert_array_equal(found.y_train, data.load("digits").y_train)
