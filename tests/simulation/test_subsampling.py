"""The samplers that privacy accounting counts on: who joins, how often, together."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import RARE, assert_uniform, draw_many, frequencies
from scipy import stats

from fedjax_muon.simulation import batching


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
