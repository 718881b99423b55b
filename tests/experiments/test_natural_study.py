"""Studies of natural clients, without and with privacy, on tiny problems."""

import csv
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_muon as fm
from experiments.studies import natural, natural_federations, natural_privacy
from experiments.studies.natural import Record, Variant, start_key
from experiments.studies.natural_federations import METHODS, Federation
from experiments.studies.natural_problems import Logistic, Problem
from fedjax_muon.reporting.comparison import Point

pytestmark = pytest.mark.slow

FEDAVG = Variant("fedavg", "examples")


def problem():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    x = (rng.normal(size=(60, 3)) + y[:, None]).astype(np.float32)
    owners = np.repeat([0, 1], [40, 20])
    dataset = fm.data.Dataset(x, y, x, y, ("a", "b"), owners=owners)
    return Problem(
        fm.data.check(dataset),
        Logistic(),
        cohort_size=2,
        local_steps=2,
        batch_size=4,
        rounds=3,
        weightings=("examples",),
        exponents={"lr": range(-4, -2)},
        tuning_seeds=(5, 6),
        seeds=(0, 1),
        scores=lambda logits: {"own": float((logits(x).argmax(1) == y).mean())},
    )


def test_the_model_is_logistic_regression_of_one_logit():
    x, y = np.float32([[1, 2], [0, -1]]), np.array([1, 0])
    params = Logistic().init(jax.random.key(0), x)["params"]
    (dense,) = params.values()
    assert abs(dense["kernel"]).max() <= 1 / np.sqrt(2)

    def loss(params):
        logits = Logistic().apply({"params": params}, x)
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(2), y])

    gradient = jax.grad(loss)(params)["Dense_0"]
    z = x @ dense["kernel"][:, 0] + dense["bias"][0]
    residual = 1 / (1 + np.exp(-z)) - y
    expected = (x * residual[:, None]).mean(0)
    np.testing.assert_allclose(gradient["kernel"][:, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(gradient["bias"][0], residual.mean(), rtol=1e-5)


def test_every_client_gives_a_fifth_to_validation():
    dataset = problem().dataset
    rest, (x, y) = natural.divided(dataset)
    assert np.bincount(rest.owners).tolist() == [32, 16]
    assert len(y) == 12
    rows = {tuple(row) for row in [*rest.x_train.tolist(), *x.tolist()]}
    assert rows == {tuple(row) for row in dataset.x_train.tolist()}


def test_a_grid_is_extended_until_the_best_point_is_inside(tmp_path, monkeypatch):
    asked = []

    def points(problem, variant, hypers):
        asked.append([hyper["lr"] for hyper in hypers])
        for hyper in hypers:
            score = -abs(np.log10(hyper["lr"] / 0.1))
            run = {"validation_accuracy": [score], "validation_loss": [1.0]}
            yield Point(hyper, [{k: np.array(v) for k, v in run.items()}], 0)

    monkeypatch.setattr(natural, "points_of", points)
    path = tmp_path / "points.jsonl"
    chosen = natural.tuned(problem(), FEDAVG, Record(path))
    assert chosen.hyper == {"lr": 0.1}
    assert asked == [[0.01, 0.03], [0.1], [0.3]]
    # what is in the file is not trained again
    asked.clear()
    assert natural.tuned(problem(), FEDAVG, Record(path)).hyper == {"lr": 0.1}
    assert asked == []
    assert len(path.read_text().splitlines()) == 4


def test_points_and_tests_are_those_of_single_runs(tmp_path):
    small = problem()
    record = Record(tmp_path / "points.jsonl")
    for point in natural.points_of(small, FEDAVG, [{"lr": 0.1}]):
        record.add(FEDAVG, point)
    (row,) = map(json.loads, record.path.read_text().splitlines())
    rest, (x, y) = natural.divided(small.dataset)
    simulation = natural.simulation_of(small, FEDAVG, {"lr": 0.1}, rest)
    for seed, run in zip(small.tuning_seeds, row["runs"], strict=True):
        state = simulation.init(natural.start_key(seed))
        state, _ = simulation.train_rounds(state, 3)
        logits = natural.logits_of(small.model, state.params, x)
        expected = (logits.argmax(1) == y).mean()
        assert run["validation_accuracy"] == pytest.approx(expected, abs=1e-5)
    for found in natural.tested(small, FEDAVG, {"lr": 0.1}):
        assert found["own"] == pytest.approx(found["test"])  # of the same examples


def test_the_table_has_means_and_published_numbers():
    rows = [
        {"method": "fedavg", "weighting": "examples", "lr": lr, "server_lr": None}
        | {"seed": seed, "test": 0.7 + 0.1 * seed, "hospitals": 0.5}
        for lr in (0.001, 0.01)
        for seed in (0, 1)
    ]
    last = natural.table(rows).splitlines()[-2:]
    assert last[0] == (
        "| FedAvg | examples | 0.001 | 0.750 ± 0.071 | 0.500 ± 0.000 | 0.748 |"
    )
    assert "| 0.01 |" in last[1]


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
