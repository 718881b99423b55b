"""The study of private clients: its methods by hand, and what is said of results."""

import csv
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.studies import client_privacy as study
from fedjax_muon import engine
from fedjax_muon.core import Objective, tree
from fedjax_muon.engine import plans

pytestmark = pytest.mark.slow

LABELS = {entry.label: entry for entry in study.METHODS}


PARAMS = study.TASK.init(jax.random.key(0))


@functools.cache
def compiled(label, size):
    """How far a round of a client with given gradients moves the parameters."""
    echo = Objective(lambda x, batch, key: batch)

    @jax.jit
    def move(gradients, hyper):
        algorithm = LABELS[label].make(cohort=size, **hyper)
        state = engine.init(algorithm, PARAMS, study.CLIENTS)
        step = engine.make_round(algorithm, echo, study.CLIENTS, plans.mapped)
        given = jnp.array([7]), gradients, jnp.ones(1), jax.random.key(2)
        return tree.sub(step(state, *given)[0].server.params, PARAMS)

    return move


def one_round(label, size=1, **hyper):
    """That, and the gradients."""
    draw = lambda key, x: jax.random.normal(key, (1, study.STEPS, *x.shape))
    leaves, structure = jax.tree.flatten(PARAMS)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    g = jax.tree.unflatten(structure, list(map(draw, keys, leaves)))
    move = compiled(label, size)(g, hyper)
    return tuple(list(map(np.asarray, jax.tree.leaves(t))) for t in (move, g))


def length(arrays):
    return np.sqrt(sum(np.sum(a**2) for a in arrays))


def test_clipped_updates():
    move, g = one_round("FedAvg, clipped", lr=0.01, limit=1000.0)
    for m, one in zip(move, g, strict=True):
        np.testing.assert_allclose(m, -0.01 * one[0].sum(0), rtol=1e-4, atol=1e-6)
    assert length(move) > 0.3
    move, _ = one_round("FedAvg, clipped", lr=0.01, limit=0.3)
    assert length(move) == pytest.approx(0.3, rel=1e-5)


def test_updates_of_one_length():
    move, _ = one_round("FedAvg, of one length", 4, lr=0.01, length=2.0)
    assert length(move) == pytest.approx(2.0 / 4, rel=1e-4)


def test_muon_at_its_bound_is_not_clipped():
    reach = 1.2023687 * study.STEPS * np.sqrt(32 + 10)
    assert study.unit_bound() == pytest.approx(reach)
    free, _ = one_round("Local Muon, at its bound", lr=0.1, share=1.0)
    roomy, _ = one_round("Local Muon, at its bound", lr=0.1, share=9.0)
    for a, b in zip(free, roomy, strict=True):
        np.testing.assert_array_equal(a, b)
    assert 0.3 * reach < length(free) / 0.1 < reach
    cut, _ = one_round("Local Muon, at its bound", lr=0.1, share=0.125)
    assert length(cut) == pytest.approx(0.0125 * reach, rel=1e-4)


def result(entry, cohorts, noise, hyper, seed, validation, test):
    return study.Result(
        entry.label, cohorts.label, noise, hyper, seed, validation, test
    )


def test_the_tables_by_hand(tmp_path):
    found = []
    for entry in study.METHODS:
        tried = [
            {name: grid[at] for name, grid in entry.grid.items()} for at in (0, -1)
        ]
        for cohorts in study.COHORTS:
            for noise in study.NOISES:
                for hyper, scores in zip(tried, [(0.5, 0.9), (0.6, 0.4)], strict=True):
                    for seed in (0, 1):
                        spread = 0.1 * seed
                        one = hyper, seed, scores[0], scores[1] + spread
                        found.append(result(entry, cohorts, noise, *one))
    chosen = study.best(found)
    assert len(chosen) == len(study.METHODS) * len(study.COHORTS) * len(study.NOISES)
    for one in chosen:  # the better in validation, which is worse in the test
        np.testing.assert_allclose(one.accuracy, [0.4, 0.5])
    assert study.marked(chosen[0]) == ["lr 1 (edge)", "limit 3 (edge)"]
    all_clients = study.COHORTS[1]
    lines = study.table(chosen, all_clients, 30)
    assert "z = 0, epsilon inf | z = 0.3" in lines[2]
    assert "| FedAvg, clipped | 45.0 ± 5.0 |" in lines[4]
    study.write(found, tmp_path / "runs.csv")
    rows = list(csv.DictReader((tmp_path / "runs.csv").read_text().splitlines()))
    assert len(rows) == len(found)
    assert rows[-1]["test"] == "0.5000"
    study.draw(chosen, tmp_path / "runs.png")
    assert (tmp_path / "runs.png").read_bytes()[:4] == b"\x89PNG"
