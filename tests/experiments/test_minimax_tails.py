"""The study of heavy tails: one cell by hand, and what is said of known numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.studies import minimax_tails
from fedjax_muon.tasks import quadratic
from fedjax_muon.tasks.heavy_tails import gaussian

pytestmark = pytest.mark.slow


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
    results = {
        "fed_nsgda_m": flat(4.0, 1.0, 3.0),
        "fedmuon_da": flat(0.5, 2.0, 3.0),
        "local_sgdam": spoilt,
        "fedsgda_m": flat(5.0, 4.0, 8.0),
    }
    assert [minimax_tails.best(found) for found in results.values()] == [1, 0, 1, 1]
    assert minimax_tails.ratio(results) == pytest.approx(1 / 4)
    lines = minimax_tails.rows("some noise", results)
    assert "3e-05 | 1.000 | 1.000 | 1.000" in lines[0]
    assert "1e-05 (edge)" in lines[1]


def test_last_is_the_mean_of_a_tenth():
    found = jnp.arange(20.0)[None, None]
    assert minimax_tails.last(np.asarray(found)) == 18.5
