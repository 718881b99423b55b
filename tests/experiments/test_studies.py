"""The studies: their methods by hand, their tables, and what is said of results."""

import csv
import functools
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.studies import batch_norm, client_privacy
from experiments.studies.learning_rates import EXPONENTS, SCHEDULES, rate
from fedjax_muon import engine
from fedjax_muon.core import Objective, tree
from fedjax_muon.engine import plans
from fedjax_muon.runs.rates import RATES as TUNED

pytestmark = pytest.mark.slow


# ---------------------------------------------------------------------- learning rates


@pytest.mark.parametrize("problem", TUNED)
def test_tuned_learning_rates_are_the_best_of_their_grid(problem):
    """As experiments.studies.learning_rates printed it."""
    place = Path(__file__).parents[2] / "results"
    text = (place / f"learning_rates_{problem}.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    score = {"classification": "validation_accuracy", "auc": "validation_auc"}[problem]
    assert {row["algorithm"] for row in rows} == set(TUNED[problem])
    least = {(rate(e), schedule) for e in EXPONENTS for schedule in SCHEDULES}
    for name, tuned in TUNED[problem].items():
        own = [row for row in rows if row["algorithm"] == name]
        mine = {(row["lr"], row["lr_schedule"]): row for row in own}
        assert least <= mine.keys()  # the same budget for every method
        chosen = mine[tuned]
        assert chosen["best"]
        ended = [row for row in mine.values() if not row["diverged"]]
        assert chosen[score] == max(row[score] for row in ended)
        rates = [lr for lr, _ in mine]
        assert min(rates) < tuned.lr < max(rates)


# ---------------------------------------------------------------------- normalization


def test_the_page_of_batch_norm_has_the_table_of_its_rows():
    place = Path(__file__).parents[2] / batch_norm.PLACE
    text = (place / "rows.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    kinds = [*batch_norm.norms(train=False)]
    asked = itertools.product(batch_norm.GRIDS, kinds, batch_norm.SEEDS)
    found = [(row["method"], row["norm"], row["seed"]) for row in rows]
    assert sorted(found) == sorted(asked)
    assert batch_norm.table(rows) in (place / "README.md").read_text()


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
