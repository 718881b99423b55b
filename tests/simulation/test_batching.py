"""Batches: whose examples, in what order, how often, and what reaches the gradient."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import RARE, assert_uniform, draw_many, frequencies
from scipy import stats

from fedjax_muon.simulation import batching

SIZES = np.array([1, 2, 3, 7, 59, 60, 61, 119, 120, 121, 500, 999, 1000], np.int32)
STEPS, BATCH = 12, 10  # 120 examples: less than, as many as and more than a client's


# ------------------------------------------------------------- shuffled epochs


def test_every_epoch_of_every_client_is_a_permutation():
    rows = draw_many(batching.shuffled_epochs, SIZES, STEPS, BATCH, 1024)
    assert rows.shape == (len(SIZES), STEPS, BATCH)
    for size, drawn in zip(SIZES, rows.reshape(len(SIZES), -1), strict=True):
        for first in range(0, len(drawn), size):
            epoch = np.sort(drawn[first : first + size])
            if len(epoch) == size:
                np.testing.assert_array_equal(epoch, np.arange(size))
            else:  # cut off by the last batch: no example twice
                assert len(set(epoch)) == len(epoch)
                assert epoch[0] >= 0
                assert epoch[-1] < size


@pytest.mark.slow
def test_epochs_are_shuffled_apart():
    rows = draw_many(batching.shuffled_epochs, np.array([30]), 9, 10, 32)
    epochs = rows.reshape(3, 30)
    # Two orders of 30 agree in as many places as a Poisson variable of mean 1 counts.
    for one, other in [*itertools.combinations(epochs, 2), (epochs[0], range(30))]:
        assert np.sum(one == np.array(other)) < stats.poisson.isf(RARE, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "count", "max_client_size"),
    [
        (4, 6, 4),  # one epoch, and a half that is not looked at
        (5, 5, 8),  # size equal to the examples asked for
        (6, 3, 8),  # the first places of one epoch only
        (6, 3, 200),
    ],
)
def test_all_orders_of_a_client_are_equally_likely(size, count, max_client_size):
    draws = draw_many(
        batching.shuffled_epochs,
        np.full(20_000, size, np.int32),
        count,
        1,
        max_client_size,
    )
    length = min(size, count)
    counts = frequencies(draws[:, :length, 0])
    assert_uniform(list(counts.values()), math.perm(size, length))


@pytest.mark.slow
def test_two_epochs_are_independent_of_each_other():
    sizes = np.full(20_000, 3, np.int32)
    draws = draw_many(batching.shuffled_epochs, sizes, 3, 2, 4).reshape(-1, 6)
    assert_uniform(list(frequencies(draws).values()), math.factorial(3) ** 2)


@pytest.mark.slow
def test_batches_do_not_depend_on_the_longest_client():
    small = SIZES[SIZES <= 61]
    draw = functools.partial(
        draw_many, batching.shuffled_epochs, steps=STEPS, batch=BATCH
    )
    expected = draw(small, max_client_size=61)  # too short for the path by `top_k`
    for max_client_size in (120, 5000):
        np.testing.assert_array_equal(
            draw(small, max_client_size=max_client_size), expected
        )
    np.testing.assert_array_equal(
        draw(SIZES, max_client_size=1000), draw(SIZES, max_client_size=5000)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler", [batching.shuffled_epochs, batching.with_replacement]
)
def test_one_client_after_the_other_draws_the_same(sampler):
    keys = jax.random.split(jax.random.key(2), len(SIZES))
    draw = lambda key, size: sampler(key, size, STEPS, BATCH, 1024)
    vmapped = jax.jit(jax.vmap(draw))
    vectorized = vmapped(keys, SIZES)
    in_turn = jax.jit(lambda *rows: jax.lax.map(lambda row: draw(*row), rows))
    np.testing.assert_array_equal(in_turn(keys, SIZES), vectorized)
    turned = np.roll(np.arange(len(SIZES)), 5)  # those beside a client change nothing
    again = vmapped(keys[turned], SIZES[turned])
    np.testing.assert_array_equal(again, vectorized[turned])


# ------------------------------------------------------------- other samplers


@pytest.mark.slow
def test_with_replacement_is_uniform_and_independent():
    draws = draw_many(batching.with_replacement, np.full(20_000, 6, np.int32), 2, 2, 8)
    assert draws.shape == (20_000, 2, 2)
    assert_uniform(list(frequencies(draws.reshape(-1, 4)).values()), 6**4)


def test_full_batch_covers_everything_in_every_step():
    rows = draw_many(batching.full_batch, np.array([1, 5, 8]), 3, 2, 8)
    assert rows.shape == (3, 3, 8)
    for size, client in zip((1, 5, 8), rows, strict=True):
        expected = [*range(size), *[-1] * (8 - size)]
        np.testing.assert_array_equal(client, [expected] * 3)


# ---------------------------------------------------------------- the clients

PARTS = [np.array([7, 1, 4]), np.array([0]), np.array([2, 7, 3, 9, 5])]
X = np.arange(40, dtype=np.float32).reshape(10, 4)
Y = np.arange(10) % 3


def test_clients_are_segments_of_one_order():
    clients = batching.clients_of(X, Y, PARTS)
    np.testing.assert_array_equal(clients.x, X)
    np.testing.assert_array_equal(clients.y, Y)
    assert clients.order.dtype == clients.start.dtype == clients.size.dtype == jnp.int32
    for part, start, size in zip(PARTS, clients.start, clients.size, strict=True):
        np.testing.assert_array_equal(clients.order[start : start + size], part)
    assert len(clients.order) == 9
    shares = [[np.mean(Y[part] == c) for c in range(3)] for part in PARTS]
    np.testing.assert_allclose(clients.shares, shares)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "at least one client, got none"),
        ([PARTS[0], PARTS[1][:0]], "client 1 has no examples; use fewer clients"),
        ([PARTS[0], np.array([3, 10, 11])], "names example 10, but .* only 0 to 9"),
        ([PARTS[0], np.array([3, -2])], "names example -2, but .* only 0 to 9"),
        ([np.array([0.0, 1.0])], "holds ids of examples, got float64"),
        ([np.array([True, False])], "holds ids of examples, got bool"),
    ],
)
def test_clients_of_refuses(parts, message):
    with pytest.raises(ValueError, match=message):
        batching.clients_of(X, Y, parts)


@pytest.mark.parametrize(
    "sampler",
    [batching.shuffled_epochs, batching.with_replacement, batching.full_batch],
)
def test_rows_are_the_clients_own_examples(sampler):
    clients = batching.clients_of(X, Y, PARTS)
    draw = batching.draw_rows(
        clients, sampler, steps=4, batch_size=5, max_client_size=8
    )
    for client, part in enumerate(PARTS):
        rows, owners = map(np.asarray, jax.jit(draw)(client, jax.random.key(client)))
        np.testing.assert_array_equal(owners, [client] * 4)
        gaps = {-1} if sampler is batching.full_batch else set()
        assert set(rows.ravel().tolist()) == set(part.tolist()) | gaps
        place = np.asarray(
            sampler(jax.random.key(client), clients.size[client], 4, 5, 8)
        )
        np.testing.assert_array_equal(rows, np.where(place < 0, -1, part[place]))


# --------------------------------------------------------------- the gradient


def test_the_gradient_sees_the_rows_and_no_padding():
    clients = batching.clients_of(X, Y, PARTS)
    seen = lambda params, batch, key: (params, batch, key)
    rows = batching.ExampleIndices(jnp.array([7, -1, 0, -1]), jnp.int32(2))
    params, batch, key = batching.gradient_of_indices(clients, seen)(
        "params", rows, "key"
    )
    assert batch.client == 2
    np.testing.assert_allclose(batch.shares, [2 / 5, 1 / 5, 2 / 5])  # 2 7 3 9 5 mod 3
    assert (params, key) == ("params", "key")
    np.testing.assert_array_equal(batch.weight, [1, 0, 1, 0])
    assert batch.weight.dtype == jnp.float32
    np.testing.assert_array_equal(batch.x[::2], X[[7, 0]])
    np.testing.assert_array_equal(batch.y[::2], Y[[7, 0]])
    assert np.isfinite(batch.x).all()  # what padding promises
    assert set(batch.y.tolist()) <= set(Y.tolist())
