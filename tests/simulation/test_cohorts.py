"""Who takes part: fixed and Poisson cohorts, alone and in a simulation."""

import jax
import numpy as np
import pytest
from federation import PARTS, federation
from scipy import stats

from fedjax_muon.algorithms import ALL, fedavg, scaffold
from fedjax_muon.privacy.client_mechanism import private_clients
from fedjax_muon.simulation.cohorts import poisson_cohorts
from fedjax_muon.simulation.participation import by_examples

N = len(PARTS)
KEY = jax.random.key(5)


def drawn(cohorts, clients, size, count=4000):
    """Who takes part, bool [count, clients]."""
    keys = jax.random.split(KEY, count)
    ids, joins = jax.vmap(lambda key: cohorts(key, clients, size))(keys)
    ids, joins = np.asarray(ids), np.asarray(joins)
    assert ids.dtype == np.int32
    assert all(len({*row}) == len(row) for row in ids)
    assert ids.min() >= 0
    assert ids.max() < clients
    present = np.zeros((count, clients), bool)
    np.put_along_axis(present, ids, joins, 1)
    return present


def test_poisson_coins_are_fair_and_independent():
    present = drawn(poisson_cohorts(), 8, 3)
    count = len(present)
    for column in present.T:
        assert stats.binomtest(int(column.sum()), count, 3 / 8).pvalue > 1e-3
    sizes = np.bincount(present.sum(1), minlength=9)
    wanted = count * stats.binom.pmf(np.arange(9), 8, 3 / 8)
    assert stats.chisquare(sizes, wanted).pvalue > 1e-3
    apart = np.corrcoef(present, rowvar=False) - np.eye(8)
    assert np.abs(apart).max() < 4 / np.sqrt(count)
    assert drawn(poisson_cohorts(), 4, 4, 50).all()


@pytest.mark.slow
def test_of_too_many_a_uniform_part_is_kept():
    free, held = drawn(poisson_cohorts(), 8, 3), drawn(poisson_cohorts(4), 8, 3)
    assert not (held & ~free).any()  # the same coins
    np.testing.assert_array_equal(held.sum(1), np.minimum(free.sum(1), 4))
    full = free.sum(1) > 4
    kept, joined = held[full].sum(0), free[full].sum(0)
    share = kept.sum() / joined.sum()
    for k, j in zip(kept, joined, strict=True):
        assert stats.binomtest(int(k), int(j), share).pvalue > 1e-3


def cohort(key, index, size=2, room=None):
    """The members of a round of a simulation: stream 1 of its key."""
    key = jax.random.fold_in(jax.random.fold_in(key, 1), index)
    ids, joins = poisson_cohorts(room)(key, N, size)
    return {*np.asarray(ids)[np.asarray(joins)].tolist()}


def private(algorithm, size=2):
    return private_clients(
        algorithm, clip_norm=1.0, noise_multiplier=1.0, clients=N, cohort=size
    )


@pytest.fixture(scope="module")
def simulation():
    return federation(private(scaffold()), cohort_size=2, cohorts=poisson_cohorts())


def test_a_simulation_with_poisson_cohorts(simulation):
    """Members alone change their states, no one is lost, empty cohorts tell nothing."""
    state, sizes = simulation.init(KEY), set()
    for index in range(6):
        members = cohort(state.key, index)
        sizes.add(len(members))
        before = state.training.client_states, state.params
        kept, params = jax.tree.map(np.asarray, before)
        state, metrics = simulation.train_round(state)
        now = state.training.client_states
        pairs = zip(*map(jax.tree.leaves, (now, kept)), strict=True)
        moved = [(np.asarray(a) != b).reshape(N, -1).any(1) for a, b in pairs]
        assert {*np.flatnonzero(np.any(moved, axis=0)).tolist()} == members
        assert not metrics.lost.any()
        assert (np.asarray(metrics.lost_round) == -1).all()
        for a, b in zip(*map(jax.tree.leaves, (state.params, params)), strict=True):
            assert not np.any(np.asarray(a) == b)  # the noise
    assert 0 in sizes
    assert len(sizes) > 2
    # two clients are expected, and send two parts of 5 x 3 + 3 numbers
    assert simulation.bytes_after(5).up == 5 * 2 * 2 * 4 * (5 * 3 + 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"cohorts": poisson_cohorts(1)},
            "room must lie between the cohort_size 2 and",
        ),
        ({"cohorts": poisson_cohorts(7)}, "the 6 clients, got 7"),
        (
            {"cohort_size": 3},
            r"made for \(clients, cohort_size\) \(6, 2\), got \(6, 3\)",
        ),
        ({"parts": PARTS[:5]}, r"made for .* \(6, 2\), got \(5, 2\)"),
        ({"weighting": by_examples}, "or bounds every client's part"),
        (
            {"algorithm": private(ALL["stem"].function())},
            "this algorithm is defined for full participation only",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changes, message):
    given = {"algorithm": private(fedavg()), "cohort_size": 2, **changes}
    with pytest.raises(ValueError, match=message):
        federation(**given)
