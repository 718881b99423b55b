"""The scores of single clients in a run directory."""

import shutil

import numpy as np
import pytest
from command import SMALL, run

from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs.load import load_run

TINY = (*SMALL, "--hidden", 4, "--rounds", 3, "--client-tests")
TRAIN = ("train", "--algorithm", "fedavg", *TINY)


def clients_of(place):
    return np.genfromtxt(place / "clients.csv", delimiter=",", names=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("trained") / "run"
    run(*TRAIN, "--output", place)
    return place


def test_clients_add_up_to_the_last_evaluation(trained):
    rows, columns = clients_of(trained), metrics_csv.read(trained / "metrics.csv")
    last = {name: column[-1] for name, column in columns.items()}
    assert rows["client"].tolist() == [0, 1, 2, 3, 4, 5]
    assert rows["round"].tolist() == [3] * 6
    loaded = load_run(trained)
    assert rows["train_examples"].tolist() == loaded.simulation.clients.size.tolist()
    tested = rows["test_examples"]
    assert tested.sum() == len(loaded.dataset.y_test)
    for name in ("test_accuracy", "test_loss"):
        mean = np.nansum(rows[name] * tested) / tested.sum()
        np.testing.assert_allclose(mean, last[name], rtol=1e-5)
    worst = np.nanmin(rows["test_accuracy"])
    np.testing.assert_allclose(worst, last["client_test_accuracy_min"], rtol=1e-6)
    each = loaded.simulation.client_accuracies(loaded.state)
    np.testing.assert_allclose(rows["test_accuracy"], each, rtol=1e-6)


@pytest.mark.parametrize("damage", ["", pytest.param("x", marks=pytest.mark.slow)])
def test_they_are_restored_on_resume(trained, tmp_path, damage):
    place = shutil.copytree(trained, tmp_path / "run")
    (place / "clients.csv").unlink()
    if damage:
        (place / "clients.csv").write_text(damage)
    run("resume", place)
    whole = (trained / "clients.csv").read_bytes()
    assert (place / "clients.csv").read_bytes() == whole


@pytest.mark.slow
def test_runs_of_a_comparison_have_their_own(tmp_path):
    words = ("compare", "fedavg", "--own-leaves", "Dense_1", "--seeds", 0, "--quick")
    place = tmp_path / "fedavg/seed0"
    run(*words, *TINY, "--output", tmp_path)
    before = (place / "clients.csv").read_bytes()
    (place / "clients.csv").unlink()
    run("resume", tmp_path)
    assert (place / "clients.csv").read_bytes() == before
    last = metrics_csv.read(place / "metrics.csv")["own_accuracy_mean"][-1]
    mean = np.nanmean(clients_of(place)["own_accuracy"])
    np.testing.assert_allclose(mean, last, rtol=1e-6)
