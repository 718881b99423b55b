"""Dropout of the models: what is kept, how it is scaled, and where it acts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon.models.dropout import Dropout

KEY = jax.random.key(0)


def run(rate, x, key=KEY):
    return np.asarray(Dropout(rate).apply({}, x, rngs={"dropout": key}))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_entries_are_kept_at_the_rate_and_scaled(rate):
    y = run(rate, jnp.full((301, 333), 2.0))
    kept = y != 0
    share = round((1 - rate) * 2**16) / 2**16
    np.testing.assert_allclose(y[kept], 2 / share, rtol=1e-6)
    deviation = np.sqrt(rate * (1 - rate) / y.size)
    assert abs(kept.mean() - (1 - rate)) < 4 * deviation
    for a in (kept[:, :-1] * kept[:, 1:], kept[:-1] * kept[1:]):  # neighbors
        assert abs(a.mean() - (1 - rate) ** 2) < 6 * deviation
    for axis in (0, 1):  # no row and no column has more than others
        n = y.shape[axis]
        assert abs(kept.mean(axis) - (1 - rate)).max() < 5 * np.sqrt(0.25 / n)


def test_masks_differ_by_key_and_agree_under_vmap():
    keys, x = jax.random.split(KEY, 3), jnp.ones((5, 7))
    alone = np.stack([run(0.5, x, key) for key in keys])
    one = lambda key: Dropout(0.5).apply({}, x, rngs={"dropout": key})
    np.testing.assert_array_equal(alone, jax.vmap(one)(keys))
    assert len(np.unique(alone.reshape(3, -1), axis=0)) == 3


@pytest.mark.parametrize("rate", [0.0, 1e-6])
def test_nothing_is_dropped_at_a_rate_that_rounds_to_none(rate):
    x = jnp.arange(6.0)
    np.testing.assert_array_equal(run(rate, x), x)


def test_it_acts_only_with_its_stream_and_keeps_the_dtype():
    x = jnp.ones((9, 9), jnp.bfloat16)
    np.testing.assert_array_equal(Dropout(0.5).apply({}, x), x)
    assert run(0.5, x).dtype == x.dtype
    assert (run(0.5, x) == 0).any()


def test_gradients_are_those_of_the_kept_entries():
    x = jnp.linspace(1, 2, 40)
    call = lambda x: Dropout(0.25).apply({}, x, rngs={"dropout": KEY})
    gradient = jax.grad(lambda x: call(x).sum())(x)
    np.testing.assert_allclose(gradient, call(x) / x, rtol=1e-6)
