"""The AUC against scikit-learn, the tail index against distributions that have one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import matthews_corrcoef, roc_auc_score

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


def test_auc_by_counting_pairs():
    for scores, y in cases(8, 20, seed=5):
        above = scores[y == 1][:, None] - scores[y == 0]
        pairs = np.mean((above > 0) + (above == 0) / 2)
        np.testing.assert_allclose(AUC(scores, y), pairs, atol=1e-6)


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


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int32, np.float32])
def test_labels_of_any_kind(dtype):
    ((scores, y),) = cases(1, 30, seed=9)
    y[:12] = 1  # not one positive alone
    found = AUC(scores, y.astype(dtype))
    np.testing.assert_allclose(found, roc_auc_score(y, scores), atol=1e-6)


def test_infinite_scores_and_both_zeros_rank():
    scores = np.float32([-np.inf, 0.0, -0.0, 1, np.inf, np.inf, -0.0])
    y = np.int32([0, 1, 0, 0, 1, 0, 1])
    ranks = scipy.stats.rankdata(scores)  # -inf < 0 = -0 = -0 < 1 < inf = inf
    expected = (ranks[y == 1].sum() - 3 * 4 / 2) / (3 * 4)
    np.testing.assert_allclose(AUC(scores, y), expected, atol=1e-6)


@pytest.mark.slow
def test_auc_does_not_depend_on_the_scale_or_the_order():
    ((scores, y),) = cases(1, 60, seed=2)
    order = np.random.default_rng(0).permutation(60)
    found = AUC(scores, y)
    np.testing.assert_allclose(AUC(scores[order], y[order]), found, rtol=1e-6)
    np.testing.assert_allclose(AUC(8 * scores, y), found, rtol=1e-6)
    np.testing.assert_allclose(AUC(scores, 1 - y), 1 - found, atol=1e-6)


def test_nan_where_there_is_no_auc():
    scores = jnp.float32([0.1, 0.5, 0.3])
    assert np.isnan(AUC(scores, jnp.int32([0, 0, 0])))
    assert np.isnan(AUC(scores, jnp.int32([1, 1, 1])))
    for place in range(3):
        broken = scores.at[place].set(jnp.nan)
        assert np.isnan(AUC(broken, jnp.int32([0, 1, 0])))
        assert np.isnan(AUC(-broken, jnp.int32([0, 1, 1])))


def test_one_nan_leaves_the_other_rows_of_a_vmap():
    scores, labels = map(np.stack, zip(*cases(3, 7, seed=1), strict=True))
    scores[1, 4] = np.nan
    found = MANY(scores, labels)
    assert np.isnan(found).tolist() == [False, True, False]
    expected = roc_auc_score(labels[2], scores[2])
    np.testing.assert_allclose(found[2], expected, atol=1e-6)


HILL = jax.jit(hill, static_argnums=1)

TAILS = {
    "pareto 0.8": (scipy.stats.pareto(0.8), 0.8),
    "pareto 3": (scipy.stats.pareto(3), 3),
    "stable 1.2": (scipy.stats.levy_stable(1.2, 0), 1.2),
    "stable 1.5": (scipy.stats.levy_stable(1.5, 0), 1.5),
    "student 1": (scipy.stats.t(1), 1),
    "student 2.5": (scipy.stats.t(2.5), 2.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TAILS)
def test_known_tails(name):
    law, index = TAILS[name]
    values = law.rvs(100_000, random_state=np.random.default_rng(7))
    # far enough out for laws that are powers in the tail only
    tail = 10_000 if name.startswith("pareto") else 300
    found = HILL(np.float32(values), tail)
    np.testing.assert_allclose(found, index, atol=4 * index / np.sqrt(tail))


def test_hill_by_its_formula_on_signed_values_of_any_shape():
    values = np.random.default_rng(0).standard_t(2, size=(7, 8)).astype(np.float32)
    largest = np.sort(np.abs(np.float64(values)).ravel())[::-1]
    for tail in (1, 9, 55):
        expected = 1 / np.mean(np.log(largest[:tail]) - np.log(largest[tail]))
        np.testing.assert_allclose(HILL(values, tail), expected, rtol=2e-5)
        np.testing.assert_allclose(HILL(-values.T, tail), expected, rtol=2e-5)


def test_the_tail_index_does_not_depend_on_units():
    values = np.random.default_rng(1).standard_t(2, size=200).astype(np.float32)
    found = HILL(values, 40)
    for unit in (1e-3, 2.0, 1e4):
        np.testing.assert_allclose(
            HILL(np.float32(unit) * values, 40), found, rtol=1e-5
        )
    cubed = HILL(values**3, 40)  # P(|v|^3 > t) = P(|v| > t^(1/3))
    np.testing.assert_allclose(cubed, found / 3, rtol=1e-5)


@pytest.mark.parametrize("tail", [0, -1, 6, 7])
def test_tails_longer_than_the_sample_are_refused(tail):
    with pytest.raises(ValueError, match=f"between 1 and 5, got {tail}"):
        hill(jnp.ones((2, 3)), tail)
