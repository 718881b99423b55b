"""The study of privacy with natural clients, on a problem of three clients."""

import csv
import math

import jax
import numpy as np
import pytest

import fedjax_muon as fm
from experiments.studies import natural_federations, natural_privacy
from experiments.studies.natural import start_key
from experiments.studies.natural_federations import METHODS, Federation
from experiments.studies.natural_problems import Logistic, Problem

pytestmark = pytest.mark.slow

ROUNDS, DELTA = 3, 1e-3


def federation():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    x = (rng.normal(size=(60, 3)) + y[:, None]).astype(np.float32)
    owners = np.repeat([0, 1, 2], [30, 20, 10])
    dataset = fm.data.Dataset(x, y, x, y, ("a", "b"), owners=owners)
    problem = Problem(
        fm.data.check(dataset),
        Logistic(),
        cohort_size=3,
        local_steps=2,
        batch_size=4,
        rounds=ROUNDS,
        weightings=("uniform",),
        exponents={},
        tuning_seeds=(5, 6),
        seeds=(0, 1),
        scores=lambda logits: {"hospitals": float((logits(x).argmax(1) == y).mean())},
    )
    rates = {"dp_fedavg": range(-4, -1)}
    return Federation("Three", problem, DELTA, (0.05,), 3, rates)


def delta_of(z, epsilon, releases):
    """Delta of Gaussian mechanisms together: Balle and Wang 2018, Theorem 8."""
    mu = math.sqrt(releases) / z
    below = lambda t: 0.5 * math.erfc(-t / math.sqrt(2))
    other = math.exp(epsilon) * below(-epsilon / mu - mu / 2)
    return below(mu / 2 - epsilon / mu) - other


@pytest.mark.parametrize(("method", "prologue"), [("dp_fedavg", 0), ("dp_fedmuon", 1)])
def test_noise_is_that_of_the_level(method, prologue):
    made = federation()
    for level in ("10", "1"):
        simulation = natural_federations.simulation_of(
            made, METHODS[method], level, 0.05, made.problem.dataset
        )
        z = natural_federations.noise_of(simulation)
        found = delta_of(z, float(level), ROUNDS + prologue)
        assert found == pytest.approx(DELTA, rel=1e-2)


def test_the_tables_are_those_of_the_runs_and_a_study_resumes(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(natural_privacy, "FEDERATIONS", {"three": federation})
    monkeypatch.setattr(natural_privacy, "LEVELS", {"clipped": "clip", "1": "one"})
    monkeypatch.setattr(natural_privacy, "EXTENSIONS", 0)
    natural_privacy.main(("three",), tmp_path)
    path = tmp_path / "privacy.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    # 2 levels, 3 rates; 2 seeds for tuning, 2 for the test
    assert len(rows) == 2 * (3 * 2 + 2)
    page = (tmp_path / "privacy.md").read_text()
    ours = [r for r in rows if (r["level"], r["split"]) == ("1", "test")]
    found = [100 * float(r["accuracy"]) for r in ours]
    shown = f"{np.mean(found):.1f} ± {np.std(found, ddof=1):.1f} |"
    line = next(one for one in page.splitlines() if one.startswith("| DP-FedAvg |"))
    assert line.endswith(shown)
    # 4 parameters, 3 clients
    z = float(ours[0]["noise"])
    assert f"| {z:.3g} | {z * 2 / 3:.2g} |" in page

    def trained_again(*args):
        raise AssertionError("trained again")

    monkeypatch.setattr(natural_privacy, "simulation_of", trained_again)
    before = path.read_bytes()
    natural_privacy.main(("three",), tmp_path)
    assert path.read_bytes() == before
    tables = lambda text: [one for one in text.splitlines() if one.startswith("|")]
    assert tables((tmp_path / "privacy.md").read_text()) == tables(page)
    capsys.readouterr()


def test_clipped_messages_bound_the_way():
    made = federation()
    for level, bounded in (("none", False), ("clipped", True), ("1", False)):
        simulation = natural_federations.simulation_of(
            made, METHODS["dp_fedavg"], level, 0.05, made.problem.dataset
        )
        start = simulation.init(start_key(0)).params
        arguments = METHODS["dp_fedavg"], 3.0, 0, ROUNDS
        end = natural_federations.params_of(simulation, *arguments)
        moved = jax.tree.map(lambda a, b: np.sum((a - b) ** 2), end, start)
        way = math.sqrt(sum(jax.tree.leaves(moved)))
        assert (way <= ROUNDS * 0.05 * (1 + 1e-5)) == bounded


def test_a_grid_is_extended_twice_at_most(tmp_path, monkeypatch):
    asked = []

    def accuracy(self, split, clip, lr, seed):
        asked.append(lr)
        return lr

    monkeypatch.setattr(natural_privacy.Study, "accuracy", accuracy)
    runs = natural_privacy.Runs(tmp_path / "privacy.csv")
    study = natural_privacy.Study(runs, "three", federation(), "dp_fedavg", "1")
    assert study.best() == (0.05, 1.0)
    assert sorted(set(asked)) == [0.01, 0.03, 0.1, 0.3, 1.0]
