"""Quadratic minimax problems against NumPy, solves and numerical optimisation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from fedjax_muon.core.pair import Pair
from fedjax_muon.tasks import quadratic
from fedjax_muon.tasks.quadratic import draw_quadratic

KEY = jax.random.key(3)
N, CURVATURE = 3, 0.5
close = np.testing.assert_allclose

# by coupling and rank of D [4, 4]
CASES = {
    "nonconvex": {},
    "strongly concave": {"rank": 4},
    "one direction": {"rank": 1},
    "convex": {"coupling": 0.2, "rank": 4},
    "convex, singular": {"coupling": 0.2, "rank": 2},
}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@functools.cache
def draw(name, **more):
    """The data of a case in JAX and in NumPy."""
    problem = draw_quadratic(KEY, N, curvature=CURVATURE, **CASES[name] | more)
    return problem, quadratic.Quadratic(*map(np.asarray, problem))


def draw_point(seed=0):
    rng = np.random.default_rng(seed)
    return Pair(rng.normal(size=(6, 3)), rng.normal(size=(4, 3)))


def value(data, X, Y, B, C):
    """f_i by traces."""
    squares = np.trace(X.T @ data.Q @ X) - np.trace(Y.T @ data.D @ Y)
    return squares / 2 + np.trace(B.T @ X) + np.trace(Y.T @ (data.A @ X + C))


def mean_value(data, X, Y):
    return np.mean([value(data, X, Y, data.B[i], data.C[i]) for i in range(N)])


def best_response(data, X):
    right = data.A @ X + data.C.mean(0)
    found, *_ = np.linalg.lstsq(data.D, right, rcond=1e-9)
    close(data.D @ found, right, atol=1e-9)  # in the range: the maximum is attained
    return found


def curvatures(data):
    inverse = np.linalg.pinv(data.D, rcond=1e-9)
    return np.linalg.eigvalsh(data.Q + data.A.T @ inverse @ data.A)


def differences(f, X, step=1e-3):
    """Central differences, exact for quadratics."""
    found = np.zeros_like(X)
    for at in np.ndindex(X.shape):
        e = np.zeros_like(X)
        e[at] = step
        found[at] = (f(X + e) - f(X - e)) / (2 * step)
    return found


def least(f, slope, start):
    """The minimum of f over matrices."""
    found = scipy.optimize.minimize(
        lambda flat: f(flat.reshape(start.shape)),
        start.ravel(),
        jac=lambda flat: slope(flat.reshape(start.shape)).ravel(),
    )
    return found.fun


def test_gradient_by_finite_differences():
    problem, data = draw("nonconvex")
    X, Y = draw_point()
    grad = jax.jit(quadratic.gradient(problem))
    for i in range(N):
        found = grad(Pair(X, Y), jnp.int32(i), KEY)
        f = lambda X, Y, i=i: value(data, X, Y, data.B[i], data.C[i])
        close(found.x, differences(lambda X, f=f: f(X, Y), X), atol=1e-8)
        close(-found.y, differences(lambda Y, f=f: f(X, Y), Y), atol=1e-8)
        same = quadratic.value(problem, Pair(X, Y), data.B[i], data.C[i])
        close(same, f(X, Y), rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_spectra_are_those_promised(name):
    _, data = draw(name)
    rank = CASES[name].get("rank", 3)
    close(data.Q, data.Q.T, atol=1e-14)
    found = curvatures(data)
    assert CURVATURE - 1e-12 <= found[0] < found[-1] <= CURVATURE + 1 + 1e-12
    stretches = np.linalg.eigvalsh(data.D)
    close(stretches[: 4 - rank], 0, atol=1e-13)
    assert np.all((stretches[4 - rank :] >= 1) & (stretches[4 - rank :] <= 2))
    coupling = CASES[name].get("coupling", 2.0)
    coupled = data.A.T @ np.linalg.pinv(data.D, rcond=1e-9) @ data.A
    close(np.linalg.eigvalsh(coupled)[-1], coupling * 1.5, rtol=1e-10)
    smallest = np.linalg.eigvalsh(data.Q)[0]
    assert smallest < 0 if coupling == 2 else smallest > 0


@pytest.mark.parametrize("name", CASES)
def test_response_solution_and_hessian(name):
    problem, data = draw(name)
    X, Y = draw_point(1)
    best = best_response(data, X)
    close(quadratic.response(problem, X), best, atol=1e-10)
    below = lambda Y: -mean_value(data, X, Y)
    slope = lambda Y: data.D @ Y - data.A @ X - data.C.mean(0)
    close(mean_value(data, X, best), -least(below, slope, Y), rtol=1e-8)
    solution = quadratic.solution(problem)
    close(data.Q @ solution.x + data.B.mean(0) + data.A.T @ solution.y, 0, atol=1e-10)
    close(data.A @ solution.x + data.C.mean(0) - data.D @ solution.y, 0, atol=1e-10)
    primal = lambda X: mean_value(data, X, best_response(data, X))
    slope_at_x = quadratic.hessian(problem) @ (X - solution.x)
    close(slope_at_x, differences(primal, X), atol=1e-7)


@pytest.mark.slow
def test_heterogeneity_is_the_spread_of_clients_about_the_same_mean():
    same, one, two = (draw("nonconvex", heterogeneity=h)[1] for h in (0, 1, 2))
    for name in ("B", "C"):
        a, b, c = (getattr(data, name) for data in (same, one, two))
        close(a, np.broadcast_to(b.mean(0), a.shape), atol=1e-12)
        close(c - c.mean(0), 2 * (b - b.mean(0)), atol=1e-12)
        close(c.mean(0), b.mean(0), atol=1e-12)
        assert np.std(b, axis=0).mean() > 0.3
    many = draw_quadratic(KEY, 4000, rank=4)
    close(np.std(many.B), 1, atol=0.02)
    close(np.std(many.C), 1, atol=0.02)


def test_shapes_start_and_keys():
    small = functools.partial(draw_quadratic, KEY, 5, shape=(2, 3, 1), rank=2)
    shapes = [leaf.shape for leaf in jax.eval_shape(small)]
    assert shapes == [(2, 2), (3, 2), (3, 3), (5, 2, 1), (5, 3, 1)]
    X, Y = quadratic.start(draw("nonconvex")[0])
    assert (X.shape, Y.shape) == ((6, 3), (4, 3))
    assert not X.any()
    assert not Y.any()
    seeded = lambda seed: draw_quadratic(jax.random.key(seed), N, rank=4)
    one, again, other = map(seeded, (3, 3, 4))
    for a, b, c in zip(one, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.abs(np.asarray(a) - np.asarray(c)).max() > 1e-3
