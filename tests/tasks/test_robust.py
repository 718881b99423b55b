"""Robust logistic regression against its formula, written out in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon.core.pair import Pair
from fedjax_muon.tasks.robust import (
    agents,
    data_gradient,
    public_gradient,
    robust_logistic,
)
from fedjax_muon.tasks.simplex import nearest_in_simplex, project_weights
from fedjax_muon.tasks.task import Batch

RNG = np.random.default_rng(0)
EXAMPLES, FEATURES, AGENTS = 12, 4, 3
A = RNG.normal(size=(EXAMPLES, FEATURES))
LABELS = RNG.integers(0, 2, EXAMPLES)
X, Y = RNG.normal(size=FEATURES), RNG.dirichlet(np.ones(EXAMPLES))
PARAMS = Pair(jnp.float32(X), jnp.float32(Y))
KEY = jax.random.key(0)


def objective(x, y, strength=0.001, bend=10.0):
    """Equation (22), with n for its m."""
    b = 2 * LABELS - 1
    losses = [np.log1p(np.exp(-b[j] * (A[j] @ x))) for j in range(EXAMPLES)]
    divergence = sum((EXAMPLES * y_j - 1) ** 2 for y_j in y) / (2 * EXAMPLES**2)
    bent = sum(bend * x_i**2 / (1 + bend * x_i**2) for x_i in x)
    return y @ losses - divergence + strength * bent


def differences(f, at, step=1e-6):
    """The gradient of f by central differences."""
    units = step * np.eye(len(at))
    return np.array([(f(at + u) - f(at - u)) / (2 * step) for u in units])


def batch_of(ids, weight=None):
    ids = np.asarray(ids)
    weight = np.ones(len(ids)) if weight is None else np.asarray(weight)
    x, y = np.float32(A[ids]), np.int32(LABELS[ids])
    return Batch(x, y, np.float32(weight), ids=np.int32(ids))


def test_the_mean_over_agents_is_the_gradient_of_the_formula():
    task = robust_logistic(FEATURES, EXAMPLES, regularization=0.3, bend=2.0)
    found = [
        task.grad(PARAMS, batch_of(ids), KEY)
        for ids in np.split(RNG.permutation(EXAMPLES), AGENTS)
    ]
    gx, gy = (np.mean(leaves, axis=0) for leaves in zip(*found, strict=True))
    np.testing.assert_allclose(
        gx, differences(lambda x: objective(x, Y, 0.3, 2.0), X), atol=1e-5
    )
    # descent in both: the second is negated
    np.testing.assert_allclose(
        -gy, differences(lambda y: objective(X, y, 0.3, 2.0), Y), atol=1e-5
    )


@pytest.mark.slow
def test_weights_of_agents():
    """The formula with the agents' mean losses, of unequally many examples each."""
    cut = np.split(RNG.permutation(EXAMPLES), [2, 7])
    y = RNG.dirichlet(np.ones(AGENTS))

    def mean_losses(x, y):
        b, terms = 2 * LABELS - 1, []
        for i, ids in enumerate(cut):
            losses = [np.log1p(np.exp(-b[j] * (A[j] @ x))) for j in ids]
            terms.append(y[i] * np.mean(losses))
        divergence = sum((AGENTS * y_i - 1) ** 2 for y_i in y) / (2 * AGENTS**2)
        bent = sum(10 * x_i**2 / (1 + 10 * x_i**2) for x_i in x)
        return sum(terms) - divergence + 0.001 * bent

    task = robust_logistic(FEATURES, AGENTS, agents)
    params = Pair(jnp.float32(X), jnp.float32(y))
    found = [
        task.grad(params, batch_of(ids)._replace(client=jnp.int32(i)), KEY)
        for i, ids in enumerate(cut)
    ]
    gx, gy = (np.mean(leaves, axis=0) for leaves in zip(*found, strict=True))
    np.testing.assert_allclose(
        gx, differences(lambda x: mean_losses(x, y), X), atol=1e-5
    )
    np.testing.assert_allclose(
        -gy, differences(lambda y: mean_losses(X, y), y), atol=1e-5
    )


def test_public_terms_are_the_rest():
    ids = [3, 1, 7, 7]
    task = robust_logistic(FEATURES, EXAMPLES)
    data = data_gradient(EXAMPLES)(PARAMS, batch_of(ids), KEY)
    public = public_gradient()(PARAMS)
    whole = task.grad(PARAMS, batch_of(ids), KEY)
    for a, b, c in zip(data, public, whole, strict=True):
        np.testing.assert_allclose(a + b, c, atol=1e-6)
    assert np.count_nonzero(data.y) == 3  # of the examples in the batch alone
    assert np.count_nonzero(public.y) == EXAMPLES


def test_the_task_has_gradients_of_examples_and_its_projection():
    ids, weight = [3, 1, 7, 0], [1, 1, 1, 0]
    task = robust_logistic(FEATURES, EXAMPLES)
    assert task.project is project_weights
    one = task.example_grad(PARAMS, batch_of(ids, weight), KEY)
    whole = task.grad(PARAMS, batch_of(ids, weight), KEY)
    for a, b, c in zip(one, task.public_grad(PARAMS), whole, strict=True):
        assert len(a) == len(ids)
        assert not np.any(a[-1])  # padding
        np.testing.assert_allclose(a.sum(0) / 3 + b, c, atol=1e-6)


def test_padding_does_not_count():
    grad = data_gradient(EXAMPLES)
    padded = grad(PARAMS, batch_of([2, 5, 9, 0], [1, 1, 0, 0]), KEY)
    for a, b in zip(padded, grad(PARAMS, batch_of([2, 5]), KEY), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_it_begins_in_the_middle_of_the_simplex_and_stays_there():
    start = robust_logistic(FEATURES, EXAMPLES).init(KEY)
    np.testing.assert_array_equal(start.x, np.zeros(FEATURES))
    np.testing.assert_allclose(start.y, np.full(EXAMPLES, 1 / EXAMPLES))
    away = Pair(start.x, jnp.float32(RNG.normal(size=EXAMPLES)))
    back = project_weights(away)
    np.testing.assert_allclose(back.y.sum(), 1, rtol=1e-5)
    assert (back.y >= 0).all()


def test_evaluation():
    scores = robust_logistic(FEATURES, EXAMPLES).evaluate(PARAMS, np.float32(A), LABELS)
    margin = (2 * LABELS - 1) * (A @ X)
    np.testing.assert_allclose(scores["loss"], np.log1p(np.exp(-margin)), rtol=1e-5)
    np.testing.assert_array_equal(scores["correct"], margin > 0)
    np.testing.assert_allclose(scores["score"], A @ X, rtol=1e-4, atol=1e-5)


def test_refusals():
    with pytest.raises(ValueError, match="features and weights must be at least 1"):
        robust_logistic(0, 5)
    for name in ("regularization", "bend"):
        with pytest.raises(ValueError, match=f"{name} must lie in"):
            robust_logistic(3, 5, **{name: -1.0})
    with pytest.raises(ValueError, match="must have its examples' numbers"):
        data_gradient(EXAMPLES)(PARAMS, batch_of([1])._replace(ids=None), KEY)
    with pytest.raises(ValueError, match="must have its agent's number"):
        data_gradient(AGENTS, agents)(PARAMS, batch_of([1]), KEY)


# ---------------------------------------------- the projection onto the simplex


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


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_in_single_precision(name):
    y = np.float32(CASES[name])
    found = np.asarray(nearest_in_simplex(jnp.asarray(y)), np.float64)
    with jax.enable_x64(True):
        exact = optax.projections.projection_simplex(jnp.asarray(y, jnp.float64))
    np.testing.assert_allclose(found, exact, atol=3e-7 * max(1, np.abs(y).max()))
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-5)


@pytest.mark.slow
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
