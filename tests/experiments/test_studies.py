"""The studies: their methods by hand, their tables, and what is said of results."""

import csv
import functools
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packages import needs

import fedjax_muon as fm
from experiments.papers import results
from experiments.studies import (
    client_privacy,
    condition_numbers,
    minimax_tails,
    natural,
    natural_federations,
    natural_privacy,
    private_images,
)
from experiments.studies.natural import Record, Variant
from experiments.studies.natural_federations import METHODS, Federation
from experiments.studies.natural_problems import Logistic, Problem
from fedjax_muon import data, engine
from fedjax_muon.core import Objective, tree
from fedjax_muon.engine import plans
from fedjax_muon.tasks import quadratic
from fedjax_muon.tasks.heavy_tails import gaussian

pytestmark = pytest.mark.slow


# --------------------------------------------------------------------- private clients

LABELS = {entry.label: entry for entry in client_privacy.METHODS}
PARAMS = client_privacy.TASK.init(jax.random.key(0))


@functools.cache
def compiled(label, size):
    """How far a round of a client with given gradients moves the parameters."""
    echo = Objective(lambda x, batch, key: batch)

    @jax.jit
    def move(gradients, hyper):
        algorithm = LABELS[label].make(cohort=size, **hyper)
        state = engine.init(algorithm, PARAMS, client_privacy.CLIENTS)
        step = engine.make_round(algorithm, echo, client_privacy.CLIENTS, plans.mapped)
        given = jnp.array([7]), gradients, jnp.ones(1), jax.random.key(2)
        return tree.sub(step(state, *given)[0].server.params, PARAMS)

    return move


def one_round(label, size=1, **hyper):
    """That, and the gradients."""
    draw = lambda key, x: jax.random.normal(key, (1, client_privacy.STEPS, *x.shape))
    leaves, structure = jax.tree.flatten(PARAMS)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    g = jax.tree.unflatten(structure, list(map(draw, keys, leaves)))
    move = compiled(label, size)(g, hyper)
    return tuple(list(map(np.asarray, jax.tree.leaves(t))) for t in (move, g))


def length(arrays):
    return np.sqrt(sum(np.sum(a**2) for a in arrays))


def test_clipped_updates_and_updates_of_one_length():
    move, g = one_round("FedAvg, clipped", lr=0.01, limit=1000.0)
    for m, one in zip(move, g, strict=True):
        np.testing.assert_allclose(m, -0.01 * one[0].sum(0), rtol=1e-4, atol=1e-6)
    assert length(move) > 0.3
    move, _ = one_round("FedAvg, clipped", lr=0.01, limit=0.3)
    assert length(move) == pytest.approx(0.3, rel=1e-5)
    move, _ = one_round("FedAvg, of one length", 4, lr=0.01, length=2.0)
    assert length(move) == pytest.approx(2.0 / 4, rel=1e-4)


def test_muon_at_its_bound_is_not_clipped():
    reach = 1.2023687 * client_privacy.STEPS * np.sqrt(32 + 10)
    assert client_privacy.unit_bound() == pytest.approx(reach)
    free, _ = one_round("Local Muon, at its bound", lr=0.1, share=1.0)
    roomy, _ = one_round("Local Muon, at its bound", lr=0.1, share=9.0)
    for a, b in zip(free, roomy, strict=True):
        np.testing.assert_array_equal(a, b)
    assert 0.3 * reach < length(free) / 0.1 < reach
    cut, _ = one_round("Local Muon, at its bound", lr=0.1, share=0.125)
    assert length(cut) == pytest.approx(0.0125 * reach, rel=1e-4)


def test_the_tables_by_hand(tmp_path):
    study, found = client_privacy, []
    scores = (0, 0.5, 0.9), (-1, 0.6, 0.4)  # of both ends of a grid
    cells = [*itertools.product(study.METHODS, study.COHORTS, study.NOISES)]
    for (entry, cohorts, noise), (at, validation, test), seed in itertools.product(
        cells, scores, (0, 1)
    ):
        hyper = {name: grid[at] for name, grid in entry.grid.items()}
        about = entry.label, cohorts.label, noise, hyper, seed
        found.append(study.Result(*about, validation, test + 0.1 * seed))
    chosen = study.best(found)
    assert len(chosen) == len(cells)
    for one in chosen:  # the better in validation, which is worse in the test
        np.testing.assert_allclose(one.accuracy, [0.4, 0.5])
    assert study.marked(chosen[0]) == ["lr 1 (edge)", "limit 3 (edge)"]
    lines = study.table(chosen, study.COHORTS[1], 30)
    assert "z = 0, epsilon inf | z = 0.3" in lines[2]
    assert "| FedAvg, clipped | 45.0 ± 5.0 |" in lines[4]
    study.write(found, tmp_path / "runs.csv")
    rows = list(csv.DictReader((tmp_path / "runs.csv").read_text().splitlines()))
    assert len(rows) == len(found)
    assert rows[-1]["test"] == "0.5000"
    study.draw(chosen, tmp_path / "runs.png")
    assert (tmp_path / "runs.png").read_bytes()[:4] == b"\x89PNG"


# ---------------------------------------------------------------------- private images
@pytest.fixture
def small(monkeypatch):
    """Two runs of DP-SGD on digits, whose accuracies are made up; returns them."""
    needs("skimage")  # for features
    study, trained = private_images, []

    def accuracy(method, dataset, epsilon, lr, seed, size, rounds):
        trained.append((len(dataset.y_train), lr, seed))
        return (lr if lr <= 100 else 1) / 200 + seed / 10

    few = study.Study("examples", (3.0,), 12, {"digits": 200})
    rates = study.OF_EXAMPLES[0]._replace(rates=(0.001, 100.0))
    made = {"SEEDS": 2, "accuracy": accuracy, "EXAMPLES": few}
    made |= {"METHODS": {"examples": (rates,)}}
    made |= {"PUBLISHED": {"digits": (90.0, 3.0, 1e-5, "A, B")}}
    for name, value in made.items():
        monkeypatch.setattr(study, name, value)
    return trained


def test_the_best_rate_is_trained_on_all_examples_and_runs_are_reused(small, tmp_path):
    private_images.main(units=("examples",), output=tmp_path)
    examples = len(data.load("digits").y_train)
    held = len(private_images.features("digits", None, True).y_train)
    assert held < examples
    tuning = [(held, 0.001, 0), (held, 100.0, 0), (held, 300.0, 0)]
    assert small == [*tuning, (examples, 100.0, 0), (examples, 100.0, 1)]
    with (tmp_path / "images.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    scores = [100 * float(row["accuracy"]) for row in rows]
    assert scores == [50, 60]
    del small[:]
    private_images.main(units=("examples",), output=tmp_path)
    assert not small
    text = (tmp_path / "images.md").read_text()
    mean, std = np.mean(scores), np.std(scores, ddof=1)
    assert f"| DP-SGD | {mean:.1f} ± {std:.1f} |" in text
    assert "Published: 90.0 at (3.0, 1e-05), A, B." in text
    assert (tmp_path / "images_examples_digits.png").stat().st_size > 5000


def test_a_grid_is_extended_while_its_best_rate_is_at_an_edge():
    peak = lambda at: lambda lr: float("nan") if lr > at else lr
    assert private_images.best_rate(peak(30.0), (1.0, 3.0)) == (30.0, False)
    assert private_images.best_rate(peak(3000.0), (1.0, 3.0)) == (100.0, True)
    falling = lambda lr: -abs(np.log(lr) - np.log(0.03))
    assert private_images.best_rate(falling, (1.0, 0.3, 0.1)) == (0.03, False)
    assert private_images.best_rate(lambda lr: -lr, (3.0, 1.0)) == (0.03, True)


# --------------------------------------------------------------------- natural clients

FEDAVG = Variant("fedavg", "examples")


def problem(*sizes):
    """Of clients with these numbers of examples."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    x = (rng.normal(size=(60, 3)) + y[:, None]).astype(np.float32)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    dataset = fm.data.check(fm.data.Dataset(x, y, x, y, ("a", "b"), owners=owners))
    how = {"cohort_size": len(sizes), "local_steps": 2, "batch_size": 4, "rounds": 3}
    how |= {"weightings": ("examples",), "exponents": {"lr": range(-4, -2)}}
    correct = lambda logits: float((logits(x).argmax(1) == y).mean())
    scores = lambda logits: {"hospitals": correct(logits)}
    seeds = {"tuning_seeds": (5, 6), "seeds": (0, 1)}
    return Problem(dataset, Logistic(), **how, **seeds, scores=scores)


def test_points_and_tests_are_those_of_single_runs(tmp_path):
    small = problem(40, 20)
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
        # of the same examples
        assert found["hospitals"] == pytest.approx(found["test"])


# --------------------------------------------------------- natural clients, in private

ROUNDS, DELTA = 3, 1e-3


def federation():
    rates = {"dp_fedavg": range(-4, -1)}
    return Federation("Three", problem(30, 20, 10), DELTA, (0.05,), 3, rates)


def private_simulation(method, level):
    made = federation()
    about = METHODS[method], level, 0.05, made.problem.dataset
    return natural_federations.simulation_of(made, *about)


def delta_of(z, epsilon, releases):
    """Delta of Gaussian mechanisms together: Balle and Wang 2018, Theorem 8."""
    mu = math.sqrt(releases) / z
    below = lambda t: 0.5 * math.erfc(-t / math.sqrt(2))
    other = math.exp(epsilon) * below(-epsilon / mu - mu / 2)
    return below(mu / 2 - epsilon / mu) - other


@pytest.mark.filterwarnings("ignore:messages have params", "ignore:the noise in the")
def test_noise_is_that_of_the_level():
    exchanges = {"dp_fedavg": ROUNDS, "fedmuon": ROUNDS + 1}  # of a prologue
    for method, level in itertools.product(exchanges, ("10", "1")):
        simulation = private_simulation(method, level)
        z = natural_federations.noise_of(simulation)
        found = delta_of(z, float(level), exchanges[method])
        assert found == pytest.approx(DELTA, rel=1e-2), (method, level)


def test_tables_are_those_of_the_runs_and_a_study_resumes(tmp_path, monkeypatch):
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

    monkeypatch.setattr(natural_privacy, "simulation_of", None)  # nothing is trained
    before = path.read_bytes()
    natural_privacy.main(("three",), tmp_path)
    assert path.read_bytes() == before
    tables = lambda text: [one for one in text.splitlines() if one.startswith("|")]
    assert tables((tmp_path / "privacy.md").read_text()) == tables(page)


# ------------------------------------------------------------------------- heavy tails
def test_one_cell_by_hand():
    """Without noise LocalSGDA is plain descent and ascent on every client."""
    found = minimax_tails.curves("local_sgda", gaussian(0.0), (0.01, 0.02), 2, 3)
    assert found.shape == (2, 2, 3)
    for seed, key in enumerate(jax.random.split(jax.random.key(0), 2)):
        problem = quadratic.draw_quadratic(jax.random.split(key)[0], 8)
        Q, A, D, B, C = (np.float64(leaf) for leaf in problem)
        X, Y = np.zeros(B.shape[1:]), np.zeros(C.shape[1:])
        for round in range(3):
            ends = []
            for b, c in zip(B, C, strict=True):
                x, y = X, Y
                for _ in range(4):
                    gx, gy = Q @ x + b + A.T @ y, A @ x + c - D @ y
                    x, y = x - 0.02 * gx, y + 0.2 * gy
                ends.append((x, y))
            X, Y = (np.mean(values, axis=0) for values in zip(*ends, strict=True))
            response = np.linalg.pinv(D) @ (A @ X + C.mean(0))
            norm = np.linalg.norm(Q @ X + B.mean(0) + A.T @ response)
            np.testing.assert_allclose(found[1, seed, round], norm, rtol=1e-4)


def test_the_verdict_by_hand():
    flat = lambda *ends: np.broadcast_to(np.float64(ends)[:, None, None], (3, 2, 20))
    spoilt = flat(1.0, 9.0, 9.0).copy()
    spoilt[0, 1, -1] = np.nan  # one seed of the best rate
    found = {"fed_nsgda_m": flat(4.0, 1.0, 3.0), "fedmuon_da": flat(0.5, 2.0, 3.0)}
    found |= {"local_sgdam": spoilt, "fedsgda_m": flat(5.0, 4.0, 8.0)}
    assert [minimax_tails.best(one) for one in found.values()] == [1, 0, 1, 1]
    assert minimax_tails.ratio(found) == pytest.approx(1 / 4)
    lines = minimax_tails.rows("some noise", found)
    assert "3e-05 | 1.000 | 1.000 | 1.000" in lines[0]
    assert "1e-05 (edge)" in lines[1]
    # the mean of the last tenth
    assert minimax_tails.last(np.arange(20.0)[None, None]) == 18.5


# -------------------------------------- condition numbers (Figure 4 (a) of Liu et al.)


def test_it_runs_and_its_claims_are_judged(tmp_path):
    run_dir = tmp_path / "runs" / "fedmuon_004" / "figure_4-smoke"
    condition_numbers.main(scale="smoke", output=run_dir)
    with (run_dir / "result.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(condition_numbers.RATES) * len(condition_numbers.MEASURES)
    assert all(np.isfinite(float(line["score"])) for line in lines)
    command = "python -m experiments.studies.condition_numbers"
    assert command in (run_dir / "result.md").read_text()
    assert (run_dir / "result.png").exists()
    results.collect(tmp_path / "runs", tmp_path / "results")
    found = {claim.claim: f.ours for claim, f in results.judged(tmp_path / "results")}
    assert set(found) == {
        "matrices are better conditioned under Muon than under SGD and AdamW: weights",
        "matrices are better conditioned under Muon than under SGD and AdamW: updates",
        "Muon's state takes less memory than AdamW's",
        "Muon takes about 5 % more time than AdamW (criterion: at most 10 %)",
    }
    assert "Local AdamW, 4.9" in found["Muon's state takes less memory than AdamW's"]
