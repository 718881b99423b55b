"""Metrics against scikit-learn, tail indices, and the noise that has them."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import matthews_corrcoef, roc_auc_score

from fedjax_muon.tasks.heavy_tails import alpha_stable, gaussian, noisy, pareto
from fedjax_muon.tasks.metrics import hill, matthews, roc_auc

AUC = jax.jit(roc_auc)
MANY = jax.jit(jax.vmap(roc_auc))


def cases(count, size, seed):
    """Scores and labels, from smooth to nearly all tied, from even to one positive."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        positives = [1, size - 1, size // 2, rng.integers(1, size)][number % 4]
        y = rng.permutation(np.arange(size) < positives).astype(np.int32)
        scores = rng.normal(size=size) + rng.normal() * y
        if number % 3:
            scores = np.round(scores * rng.integers(1, 5))  # ties
        yield np.float32(scores), y


@pytest.mark.parametrize("size", [7, 60])
def test_auc_of_many_cases_at_once(size):
    scores, labels = map(np.stack, zip(*cases(120, size, seed=size), strict=True))
    expected = [roc_auc_score(y, s) for s, y in zip(scores, labels, strict=True)]
    assert {len(np.unique(s)) < size for s in scores} == {True, False}
    np.testing.assert_allclose(MANY(scores, labels), expected, atol=1e-6)


def test_matthews_correlation():
    many = jax.jit(jax.vmap(matthews))
    for size in (7, 60):
        scores, labels = map(np.stack, zip(*cases(60, size, seed=size), strict=True))
        predicted = np.int32(scores > 0.5)
        predicted[0], labels[0, :2] = 1, (0, 1)  # one of them has one value only
        predicted[1, :2], labels[1] = (0, 1), 0
        pairs = zip(labels, predicted, strict=True)
        expected = [matthews_corrcoef(y, p) for y, p in pairs]
        np.testing.assert_allclose(many(predicted, labels), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("positives", [1, 3, 49_000])
def test_extreme_imbalance(positives):
    rng = np.random.default_rng(positives)
    y = (np.arange(50_000) < positives).astype(np.int32)
    scores = np.float32(rng.normal(size=50_000) + 0.5 * y)
    np.testing.assert_allclose(AUC(scores, y), roc_auc_score(y, scores), atol=1e-5)


@pytest.mark.slow
def test_many_ties_of_a_large_sample():
    """Counts of pairs are far beyond 2^31."""
    y = np.tile(np.int32([0, 1, 1, 0, 0]), 40_000)
    scores = np.float32(np.random.default_rng(0).integers(0, 3, len(y)) + y)
    np.testing.assert_allclose(AUC(scores, y), roc_auc_score(y, scores), atol=2e-5)


def test_constant_perfect_and_reversed_scores():
    y = np.int32([0, 1, 1, 0, 0, 1])
    assert AUC(jnp.full(6, 0.3), y) == 0.5
    assert AUC(jnp.float32(y), y) == 1
    assert AUC(-jnp.float32(y), y) == 0


def test_nan_where_there_is_no_auc_and_in_no_other_row_of_a_vmap():
    scores = jnp.float32([0.1, 0.5, 0.3])
    assert np.isnan(AUC(scores, jnp.int32([0, 0, 0])))
    assert np.isnan(AUC(scores, jnp.int32([1, 1, 1])))
    for place in range(3):
        broken = scores.at[place].set(jnp.nan)
        assert np.isnan(AUC(broken, jnp.int32([0, 1, 0])))
        assert np.isnan(AUC(-broken, jnp.int32([0, 1, 1])))
    scores, labels = map(np.stack, zip(*cases(3, 7, seed=1), strict=True))
    scores[1, 4] = np.nan
    found = MANY(scores, labels)
    assert np.isnan(found).tolist() == [False, True, False]
    expected = roc_auc_score(labels[2], scores[2])
    np.testing.assert_allclose(found[2], expected, atol=1e-6)


HILL = jax.jit(hill, static_argnums=1)


def test_hill_by_its_formula_on_signed_values_of_any_shape():
    values = np.random.default_rng(0).standard_t(2, size=(7, 8)).astype(np.float32)
    largest = np.sort(np.abs(np.float64(values)).ravel())[::-1]
    for tail in (1, 9, 55):
        expected = 1 / np.mean(np.log(largest[:tail]) - np.log(largest[tail]))
        np.testing.assert_allclose(HILL(values, tail), expected, rtol=2e-5)
        np.testing.assert_allclose(HILL(-values.T, tail), expected, rtol=2e-5)


COUNT = 20_000


@partial(jax.jit, static_argnums=(0, 3, 4))
def _draw(factory, numbers, key, shape, dtype):
    return factory(*numbers)(key, shape, dtype)


def sample(factory, *numbers, seed=0, shape=(COUNT,), dtype=jnp.float32):
    """Draws of `factory(*numbers)`; one program serves all numbers."""
    traced = tuple(map(jnp.float32, numbers))
    x = _draw(factory, traced, jax.random.key(seed), shape, jnp.dtype(dtype))
    return np.asarray(x, np.float64)


def test_gaussian_is_normal():
    assert stats.kstest(sample(gaussian, 0.3), stats.norm(0, 0.3).cdf).pvalue > 0.01


@pytest.mark.parametrize("tail", [1.2, 2.0, 3.5])
def test_pareto_has_a_pareto_size_and_a_fair_sign(tail):
    x = sample(pareto, tail, 0.5, seed=1)
    law = stats.pareto(tail, scale=0.5)
    assert stats.kstest(np.abs(x), law.cdf).pvalue > 0.01
    positive = int((x > 0).sum())
    assert stats.binomtest(positive, COUNT).pvalue > 0.01
    # neither sign has other sizes than the other
    assert stats.ks_2samp(x[x > 0], -x[x < 0]).pvalue > 0.01


@pytest.mark.parametrize("alpha", [1.05, 1.2, 1.5, 1.8, 2.0])
def test_the_characteristic_function_of_stable_noise(alpha):
    scale = 0.7
    x = sample(alpha_stable, alpha, scale, seed=2)
    for t in (0.1, 0.5, 1.0, 2.0, 5.0):
        expected = np.exp(-((scale * t) ** alpha))
        # Var cos(tx) = (1 + phi(2t)) / 2 - phi(t)^2, as for any symmetric law
        variance = (1 + np.exp(-((2 * scale * t) ** alpha))) / 2 - expected**2
        error = np.cos(t * x).mean() - expected
        assert abs(error) < 4 * math.sqrt(variance / COUNT)
        assert abs(np.sin(t * x).mean()) < 4 / math.sqrt(COUNT)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_the_longest_tails_stay_in_the_range_of_short_types(dtype):
    largest = float(jnp.finfo(dtype).max)
    for factory in (pareto, alpha_stable):
        x = sample(factory, 1.0001, 1000.0, seed=7, dtype=dtype)
        assert np.abs(x).max() <= largest  # in the range of float16 it is cut off
        assert np.abs(x).max() > 60_000


def half_square(params, batch, key):
    """The gradient of a quadratic; it does not need its key."""
    del key
    return jax.tree.map(lambda x: (batch * x).astype(x.dtype), params)


PARAMS = {
    "kernel": jnp.linspace(-1, 1, 6).reshape(3, 2),
    "other": jnp.linspace(-1, 1, 6).reshape(3, 2),
    "bias": jnp.ones(4, jnp.bfloat16),
}


def difference(a, b):
    return jax.tree.map(lambda x, y: np.asarray(x - y, np.float64), a, b)


def test_leaves_and_keys_are_uncorrelated():
    grad = noisy(lambda *_: {"a": jnp.zeros(()), "b": jnp.zeros(())}, gaussian())
    keys = jax.random.split(jax.random.key(2), COUNT)
    x = jax.vmap(lambda key: grad(None, None, key))(keys)
    a, b = (np.asarray(v, np.float64) for v in (x["a"], x["b"]))
    for one, other in ((a, b), (a[:-1], a[1:])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / math.sqrt(COUNT)
    assert stats.kstest(np.concatenate([a, b]), stats.norm.cdf).pvalue > 0.01


def test_two_points_with_one_key_meet_the_same_noise():
    grad = noisy(half_square, pareto(1.5))
    key, moved = jax.random.key(3), jax.tree.map(lambda x: x + 1, PARAMS)
    one = difference(grad(PARAMS, 2.0, key), half_square(PARAMS, 2.0, key))
    other = difference(grad(moved, 2.0, key), half_square(moved, 2.0, key))
    for name in ("kernel", "other"):
        np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-5)


def test_noise_is_not_what_the_gradient_draws_from_its_own_key():
    def own(params, batch, key):
        drawn = [jax.random.normal(jax.random.fold_in(key, i), (4,)) for i in range(4)]
        split = [jax.random.normal(k, (4,)) for k in jax.random.split(key, 4)]
        return jnp.stack([*drawn, *split, jax.random.normal(key, (4,))])

    key, shape = jax.random.key(4), (9, 4)
    noise = noisy(lambda *_: jnp.zeros(shape), gaussian())(None, None, key)
    drawn = np.asarray(own(None, None, key))
    assert not np.isin(np.asarray(noise), drawn).any()


@pytest.mark.parametrize(
    "factory", [gaussian, partial(pareto, 1.5), partial(alpha_stable, 1.5)]
)
def test_noise_of_scale_zero_changes_nothing(factory):
    key = jax.random.key(5)
    found = noisy(half_square, factory(0.0))(PARAMS, 2.0, key)
    expected = half_square(PARAMS, 2.0, key)
    same = partial(np.testing.assert_array_equal, strict=True)  # types too
    jax.tree.map(same, found, expected)
