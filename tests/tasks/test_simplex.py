"""The projection onto the simplex against optax's and its conditions of optimality."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon.core.pair import Pair
from fedjax_muon.tasks.simplex import nearest_in_simplex, project_weights

RNG = np.random.default_rng(0)
CASES = {
    "normal": RNG.normal(size=500),
    "few above": RNG.normal(size=500) * 100,
    "all above": 1e-4 * RNG.normal(size=500),
    "inside": RNG.dirichlet(np.ones(500)),
    "ties": np.repeat([0.5, 0.2, -1.0], 5),
    "one": np.array([-3.0]),
    "vertex": np.eye(7)[3] * 1e4,
    "far below": RNG.normal(size=50) - 1e3,
    "within one": -np.linspace(0, 0.9, 10),  # all count at first, and not in the end
    "staircase": -np.arange(300) / 150,  # falls out of the set one after the other
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_nearest_point(name):
    y = CASES[name]
    with jax.enable_x64(True):
        found = np.asarray(nearest_in_simplex(jnp.asarray(y)))
        sorting = optax.projections.projection_simplex(jnp.asarray(y))
        np.testing.assert_allclose(found, sorting, atol=1e-12 * max(1, np.ptp(y)))
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-12)
    # what is kept is lowered by one number, and the rest would fall below zero by it
    kept = found > 0
    t = (y - found)[kept]
    np.testing.assert_allclose(t, t[0], rtol=1e-9, atol=1e-12)
    assert (y[~kept] <= t[0] + 1e-9).all()


@pytest.mark.parametrize("name", CASES)
def test_in_single_precision(name):
    y = np.float32(CASES[name])
    found = np.asarray(nearest_in_simplex(jnp.asarray(y)), np.float64)
    with jax.enable_x64(True):
        exact = optax.projections.projection_simplex(jnp.asarray(y, jnp.float64))
    np.testing.assert_allclose(found, exact, atol=3e-7 * max(1, np.abs(y).max()))
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-5)


def test_many_at_once_are_as_one_by_one():
    rows = np.float32(RNG.normal(size=(6, 400)) * RNG.uniform(0.01, 10, size=(6, 1)))
    together = jax.jit(jax.vmap(nearest_in_simplex))(rows)
    apart = np.stack([nearest_in_simplex(jnp.asarray(row)) for row in rows])
    np.testing.assert_allclose(together, apart, atol=1e-6)


def test_what_is_not_a_number_stays_so():
    assert np.isnan(nearest_in_simplex(jnp.array([0.2, np.nan, 0.1]))).any()


def test_only_the_weights_are_projected():
    away = Pair(jnp.full(3, 7.0), jnp.array([2.0, 0.5]))
    back = project_weights(away)
    np.testing.assert_array_equal(back.x, away.x)
    np.testing.assert_allclose(back.y, [1.0, 0.0])
