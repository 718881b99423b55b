"""Batches: whose examples, in what order, how often, and what reaches the gradient."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_muon.simulation import batching

# One test in a million would fail for another key, if all is as it should be.
RARE = 1e-6


def draw_many(sampler, sizes, steps, batch, max_client_size):
    """One draw for every size, each with its own key: [n, steps, batch]."""
    keys = jax.random.split(jax.random.key(5), len(sizes))
    draw = lambda key, size: sampler(key, size, steps, batch, max_client_size)
    return np.asarray(jax.jit(jax.vmap(draw))(keys, jnp.asarray(sizes)))


def frequencies(draws):
    """How often each row of `draws` [n, length] occurs, by its values."""
    seen, counts = np.unique(draws, axis=0, return_counts=True)
    return {tuple(row): int(n) for row, n in zip(seen.tolist(), counts, strict=True)}


def assert_uniform(counts, outcomes):
    """Chi-square: `counts` are of equally likely outcomes, `outcomes` of them."""
    observed = np.zeros(outcomes)
    observed[: len(counts)] = counts
    expected = observed.sum() / outcomes
    assert expected >= 5  # below, the statistic is not chi-square
    chi2 = np.sum((observed - expected) ** 2) / expected
    assert chi2 < stats.chi2.isf(RARE, outcomes - 1)


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


# ------------------------------------------------ samplers that accounting counts on


def joined(draws, size):
    """Whether each example is in each batch [n, size], from places [n, room]."""
    drawn = np.asarray(draws).reshape(-1, draws.shape[-1])
    found = np.zeros((len(drawn), size), bool)
    for row, places in zip(found, drawn, strict=True):
        places = places[places >= 0]
        assert len(set(places)) == len(places)  # nobody twice
        row[places] = True
    return found


def test_poisson_is_one_coin_for_every_example_and_batch():
    size, batch = 6, 2
    sampler = batching.poisson(longest_batch=8)
    draws = draw_many(sampler, np.full(300, size, np.int32), 10, batch, 16)
    found = joined(draws, size)
    chance, count = batch / size, len(found)
    # each of the 64 subsets has the probability of its coins: marginals, pairs and all
    codes = found @ (1 << np.arange(size))
    observed = np.bincount(codes, minlength=2**size)
    sizes = np.array([bin(code).count("1") for code in range(2**size)])
    expected = count * chance**sizes * (1 - chance) ** (size - sizes)
    rare = expected < 5
    pool = lambda v: np.append(v[~rare], v[rare].sum())
    chi2 = np.sum((pool(observed) - pool(expected)) ** 2 / pool(expected))
    assert chi2 < stats.chi2.isf(RARE, (~rare).sum())
    # and batches of one client have nothing to do with each other
    same = found.reshape(300, 10, size)
    both = (same[:, :-1] & same[:, 1:]).mean()
    assert abs(both - chance**2) < 5 * chance / np.sqrt(300 * 9 * size)


@pytest.mark.slow
def test_of_more_than_there_is_room_for_a_uniform_part_is_kept():
    sampler = batching.poisson(longest_batch=2)
    draws = draw_many(sampler, np.full(600, 4, np.int32), 5, 2, 4)
    assert draws.shape == (600, 5, 2)
    full = draws.reshape(-1, 2)[(draws.reshape(-1, 2) >= 0).all(1)]
    counts = frequencies(np.sort(full, axis=1))
    assert_uniform(list(counts.values()), 6)
    # two or more of four coins of one half: 11 of 16
    share = len(full) / draws[..., 0].size
    assert abs(share - 11 / 16) < 5 * np.sqrt(11 / 16 * 5 / 16 / 3000)


def test_a_small_client_joins_whole():
    draws = draw_many(batching.poisson(4), np.int32([2, 3]), 3, 4, 8)
    assert joined(draws[0], 2).all()
    assert joined(draws[1], 3).all()


def test_room_for_less_than_the_expected_batch_is_refused():
    with pytest.raises(ValueError, match="longest_batch must be at least the batch"):
        batching.poisson(3)(jax.random.key(0), jnp.int32(9), 1, 4, 16)


@pytest.mark.slow
def test_subsets_are_uniform_and_fresh():
    draws = draw_many(batching.without_replacement, np.full(400, 5, np.int32), 4, 3, 8)
    found = joined(draws, 5)
    assert (found.sum(1) == 3).all()
    subsets = list(itertools.combinations(range(5), 3))
    counts = frequencies(found)
    assert len(counts) == len(subsets)
    assert_uniform(list(counts.values()), len(subsets))
    assert len(np.unique(draws[0], axis=0)) > 1


def test_subsets_of_a_small_client_are_all_of_it():
    draws = draw_many(batching.without_replacement, np.int32([2, 4]), 3, 4, 8)
    assert draws.shape == (2, 3, 4)
    assert joined(draws[0], 2).all()
    assert joined(draws[1], 4).all()
