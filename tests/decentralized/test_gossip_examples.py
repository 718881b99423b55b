"""Gradients example by example: clipped, and none at all for padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bounded_examples import (
    CLIPS,
    OBJECTIVE,
    POINTS,
    RAW,
    as_batch,
    assert_close,
    descending,
    estimates,
    quick,
)
from federation import assert_same_bits
from gossip_cases import pair
from oracles.saddle import saddle_grad

from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized.private_storm import private_storm
from fedjax_muon.privacy.clipping import clipped
from fedjax_muon.tasks.task import Batch, per_example

# ---------------------------------------------------------------------- clipping


def test_clipped_by_hand():
    g = Pair({"a": jnp.array([3.0, 4.0])}, {"a": jnp.array([0.3])})
    found = clipped(Pair(2.5, 1.0), g)
    np.testing.assert_allclose(found.x["a"], [1.5, 2.0], rtol=1e-6)
    assert_same_bits(found.y, g.y)
    together = clipped(2.5, g)
    norm_of_all = np.sqrt(25 + 0.09)
    np.testing.assert_allclose(together.y["a"], 0.3 * 2.5 / norm_of_all, rtol=1e-6)


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-15, 1.0, 1e15, 8e37, 1e38, 3e38])
def test_clipped_stands_any_scale(size):
    g = {"a": jnp.array([size, -size])}
    found = np.asarray(clipped(1e-3, g)["a"], np.float64)
    want = np.array([size, -size]) * min(1, 1e-3 / max(np.sqrt(2) * size, 1e-300))
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_what_is_not_finite_counts_as_zero_in_its_part_alone():
    g = Pair({"a": jnp.array([1.0, np.nan])}, {"a": jnp.array([0.5])})
    found = clipped(Pair(1.0, 1.0), g)
    assert not np.asarray(found.x["a"]).any()
    assert found.y["a"] == 0.5
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(clipped(1.0, g)))


# ------------------------------------------------------------------- per example


def test_examples_gradients_are_the_oracles_and_padding_has_none():
    a, y, _ = RAW[1]
    weight = np.array([1.0, 0.0, 2.0, 1.0, 0.0, 1.0])
    a = a.copy()
    a[1] = np.nan
    with jax.enable_x64(True):
        rows = quick(OBJECTIVE.example_grad)(
            pair(POINTS[0]), as_batch((a, y, weight)), jax.random.key(0)
        )
    for i, w in enumerate(weight):
        found = jax.tree.map(lambda g: np.asarray(g)[i], rows)  # noqa: B023 - called here
        if w == 0:
            assert not any(leaf.any() for leaf in jax.tree.leaves(found))
            continue
        g = saddle_grad(POINTS[0], (a[i : i + 1], y[i : i + 1], np.ones(1)))
        want = jax.tree.map(lambda v: w * v, descending(g))  # noqa: B023 - called here
        assert_close([found], [want], 1e-12)


@pytest.mark.slow
def test_examples_see_their_client_and_have_keys_of_their_own():
    seen = {}

    def grad(params, batch, key):
        assert batch.x.shape == (1, 2)
        assert batch.weight.shape == batch.y.shape == (1,)
        assert batch.client.shape == ()
        assert batch.shares.shape == (3,)
        seen["shapes"] = True
        return params * batch.shares.sum() + jax.random.normal(key)

    batch = Batch(
        jnp.ones((4, 2)), jnp.arange(4), jnp.ones(4), jnp.int32(1), jnp.full(3, 1 / 3)
    )
    key = jax.random.key(0)
    rows = per_example(grad)(jnp.ones(()), batch, key)
    assert seen
    assert len(np.unique(rows)) == 4
    again = per_example(grad)(jnp.ones(()), batch, key)
    assert_same_bits(rows, again)


@pytest.mark.slow
def test_padding_holds_anything_without_a_bit_of_change():
    estimator = private_storm(CLIPS["split"][0], batch_size=4)
    junk = [(a.copy(), y, w) for a, y, w in RAW[:3]]
    for a, _, w in junk:
        a[w == 0] = np.nan
    found = estimates(estimator, POINTS[:3], junk, jnp.float32)
    want = estimates(estimator, POINTS[:3], RAW[:3], jnp.float32)
    assert_same_bits(found, want)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))
