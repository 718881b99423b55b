"""What is drawn: batches, cohorts, and examples that are held out."""

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_muon import data
from fedjax_muon.algorithms import scaffold
from fedjax_muon.core import (
    Algorithm,
    Exchange,
    broadcast_params,
    no_client_state,
    tree,
)
from fedjax_muon.privacy.client_mechanism import private_clients
from fedjax_muon.simulation import batching
from fedjax_muon.simulation.cohorts import PoissonDraw, poisson
from tests.support.federation import PARTS, federation

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


EPOCHS, REPLACED = batching.shuffled_epochs, batching.with_replacement


# one epoch, and a half that is not looked at; all examples; the first of one epoch
# only; two epochs; and with replacement
@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "size", "steps", "batch", "max_client_size", "length", "outcomes"),
    [
        (EPOCHS, 4, 6, 1, 4, 4, math.perm(4)),
        (EPOCHS, 5, 5, 1, 8, 5, math.perm(5)),
        (EPOCHS, 6, 3, 1, 8, 3, math.perm(6, 3)),
        (EPOCHS, 6, 3, 1, 200, 3, math.perm(6, 3)),
        (EPOCHS, 3, 3, 2, 4, 6, math.factorial(3) ** 2),
        (REPLACED, 6, 2, 2, 8, 4, 6**4),
    ],
)
def test_all_orders_of_a_client_are_equally_likely(
    sampler, size, steps, batch, max_client_size, length, outcomes
):
    sizes = np.full(20_000, size, np.int32)
    draws = draw_many(sampler, sizes, steps, batch, max_client_size)
    assert draws.shape == (20_000, steps, batch)
    counts = frequencies(draws.reshape(20_000, -1)[:, :length])
    assert_uniform(list(counts.values()), outcomes)


@pytest.mark.slow
def test_batches_do_not_depend_on_the_longest_client():
    def draw(sizes, longest):
        return draw_many(batching.shuffled_epochs, sizes, STEPS, BATCH, longest)

    small = SIZES[SIZES <= 61]
    expected = draw(small, 61)  # too short for the path by `top_k`
    for longest in (120, 5000):
        np.testing.assert_array_equal(draw(small, longest), expected)
    np.testing.assert_array_equal(draw(SIZES, 1000), draw(SIZES, 5000))


SEGMENTS = [np.array([7, 1, 4]), np.array([0]), np.array([2, 7, 3, 9, 5])]
X = np.arange(40, dtype=np.float32).reshape(10, 4)
Y = np.arange(10) % 3


def test_clients_are_segments_of_one_order():
    clients = batching.clients_of(X, Y, SEGMENTS)
    np.testing.assert_array_equal(clients.x, X)
    np.testing.assert_array_equal(clients.y, Y)
    at = clients.partition
    assert at.order.dtype == at.start.dtype == at.size.dtype == jnp.int32
    for part, start, size in zip(SEGMENTS, at.start, at.size, strict=True):
        np.testing.assert_array_equal(at.order[start : start + size], part)
    assert len(at.order) == 9
    shares = [[np.mean(Y[part] == c) for c in range(3)] for part in SEGMENTS]
    np.testing.assert_allclose(at.shares, shares)


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


@pytest.mark.parametrize("sampler", [batching.poisson(4), batching.without_replacement])
def test_a_small_client_joins_whole(sampler):
    draws = draw_many(sampler, np.int32([2, 4]), 3, 4, 8)
    assert draws.shape == (2, 3, 4)
    assert joined(draws[0], 2).all()
    assert joined(draws[1], 4).all()


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


# -------------------------------------------- cohorts, alone and in a simulation

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
    present = drawn(PoissonDraw(), 8, 3)
    count = len(present)
    for column in present.T:
        assert stats.binomtest(int(column.sum()), count, 3 / 8).pvalue > 1e-3
    sizes = np.bincount(present.sum(1), minlength=9)
    wanted = count * stats.binom.pmf(np.arange(9), 8, 3 / 8)
    assert stats.chisquare(sizes, wanted).pvalue > 1e-3
    apart = np.corrcoef(present, rowvar=False) - np.eye(8)
    assert np.abs(apart).max() < 4 / np.sqrt(count)
    assert drawn(PoissonDraw(), 4, 4, 50).all()


@pytest.mark.slow
def test_of_too_many_a_uniform_part_is_kept():
    free, held = drawn(PoissonDraw(), 8, 3), drawn(PoissonDraw(4), 8, 3)
    assert not (held & ~free).any()  # the same coins
    np.testing.assert_array_equal(held.sum(1), np.minimum(free.sum(1), 4))
    full = free.sum(1) > 4
    kept, joined = held[full].sum(0), free[full].sum(0)
    share = kept.sum() / joined.sum()
    for k, j in zip(kept, joined, strict=True):
        assert stats.binomtest(int(k), int(j), share).pvalue > 1e-3


def cohort(key, index):
    """The members of a round of a simulation: stream 1 of its key."""
    key = jax.random.fold_in(jax.random.fold_in(key, 1), index)
    ids, joins = PoissonDraw()(key, N, 2)
    return {*np.asarray(ids)[np.asarray(joins)].tolist()}


def private(algorithm):
    noise = {"clip_norm": 1.0, "noise_multiplier": 1.0}
    return private_clients(algorithm, **noise, clients=N, cohort=2)


@pytest.fixture(scope="module")
def simulation():
    return federation(private(scaffold()), cohort=poisson(2))


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
    assert simulation.meter.bytes_after(5).up == 5 * 2 * 2 * 4 * (5 * 3 + 3)


# ------------------------------------- examples that are held out for validation

OF_CLASSES = np.array([400, 37, 11, 252])
NUMBER = OF_CLASSES.sum()
LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(4), OF_CLASSES))
IDS, TEST = np.arange(NUMBER, dtype=np.float32)[:, None], np.zeros((3, 1), np.float32)
OF_TEST = np.arange(3, dtype=np.int32)
LABELLED = data.Dataset(IDS, LABELS.astype(np.int32), TEST, OF_TEST, tuple("abcd"))


@pytest.mark.parametrize("share", [0.1, 0.25, 0.9])
def test_held_out_examples_are_some_of_all_classes_and_nowhere_else(share):
    rest, (x, y) = data.hold_out(LABELLED, share)
    together = np.concatenate([rest.x_train, x])[:, 0]
    assert sorted(together) == list(range(NUMBER))  # every example once
    labels = np.concatenate([rest.y_train, y])
    np.testing.assert_array_equal(labels, LABELS[together.astype(int)])
    assert abs(len(y) - share * NUMBER) < 1
    assert np.all(abs(np.bincount(y) - share * OF_CLASSES) < 1)
    assert x.dtype == rest.x_train.dtype == np.float32
    assert y.dtype == rest.y_train.dtype == np.int32
    for name in ("x_test", "y_test", "classes"):
        assert getattr(rest, name) is getattr(LABELLED, name)
    assert not np.array_equal(x[:, 0], np.sort(x[:, 0]))  # not the first, or in order
    again, (others, _) = data.hold_out(LABELLED, share)
    np.testing.assert_array_equal(x, others)
    np.testing.assert_array_equal(rest.x_train, again.x_train)


class Weighed(NamedTuple):
    params: Any
    loss: Any


def test_a_method_that_weighs_clients_by_their_losses():
    """q-FedAvg's step, whose clients need the value beside the gradient."""

    def client(objective, shared, before, batches, round):
        first = jax.tree.map(lambda x: x[0], batches)
        loss, g = objective.value_and_grad(shared.params, first, round.key)
        plain = objective.grad(shared.params, first, round.key)
        jax.tree.map(lambda a, b: None, g, plain)
        return Weighed(tree.scale(g, loss), loss), before

    def server(state, mean, round):
        return Weighed(
            tree.sub_scaled(state.params, 0.1 / mean.loss, mean.params), jnp.zeros(())
        )

    main = Exchange(broadcast_params, client, server)
    start = lambda params: Weighed(params, jnp.zeros(()))
    method = Algorithm(start, no_client_state, (main,))
    sizes = {"local_steps": 1, "batch_size": 25, "sampler": batching.full_batch}
    simulation = federation(method, cohort=6, **sizes)
    state = simulation.init(jax.random.key(0))
    x, y, parts = simulation.data.x, simulation.data.y, PARTS
    task, params = simulation.data.task, state.params
    parts_of_loss, steps = [], []
    for part in parts:  # a batch is all examples of a client
        of = lambda p, part=part: task.evaluate(p, x[part], y[part])["loss"].mean()
        loss, g = jax.value_and_grad(of)(params)
        parts_of_loss.append(loss)
        steps.append(tree.scale(g, loss))
    mean = jax.tree.map(lambda *g: sum(g) / 6, *steps)
    share = 0.1 / (sum(parts_of_loss) / 6)
    want = tree.sub_scaled(params, share, mean)
    found, _ = simulation.train_round(state)
    for a, b in zip(jax.tree.leaves(found.params), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
