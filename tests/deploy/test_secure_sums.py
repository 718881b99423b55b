"""Secure sums: a simulation with the rounding of a deployed run, to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon.algorithms import ALL
from fedjax_muon.deploy import MessageError, Sum
from fedjax_muon.wrappers.secure_sums import MOST
from tests.deploy.small_federation import (
    CLIENTS,
    adding,
    assert_same,
    described,
    nodes_of,
    refusal,
    served,
    simulated,
)


# with states of clients, with a prologue, with messages that the server decodes
@pytest.mark.parametrize("name", ["fedmuon_correct", "fedmuon", "fedmuon_svd"])
def test_a_simulation_has_the_bits_of_secure_sums(name):
    algorithm = fm.secure_sums(ALL[name].function(lr=0.1))
    shared = described(algorithm)
    ended, missing = served(shared, adding(nodes_of(shared)))
    assert not missing
    assert_same(simulated(algorithm), ended)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_the_mean_is_that_of_the_algorithm_up_to_rounding(name):
    algorithm = ALL[name].function(lr=0.1)
    plain, rounded = simulated(algorithm, 1), simulated(fm.secure_sums(algorithm), 1)
    pairs = zip(*map(jax.tree.leaves, (plain.params, rounded.params)), strict=True)
    apart = max(np.abs(np.asarray(a) - np.asarray(b)).max() for a, b in pairs)
    assert 0 < apart < 8 / 2**21


def test_rounds_are_those_of_whole_numbers_by_hand():
    """In numbers that float32 holds exactly, with other clients in every round."""
    step, places = 8 / 2**21, np.array([[0.75, -1.5], [0.25, 3.0], [-2.0, 1.0], [5, 0]])
    objective = fm.Objective(lambda params, batch, key: params - batch)
    train = fm.engine.make_round(
        fm.secure_sums(fm.fedavg(lr=0.5)), objective, 4, fm.engine.plans.vmapped
    )
    start = jnp.array([1.0, 2.0]) / 3  # is rounded by the first message
    state = fm.engine.init(fm.secure_sums(fm.fedavg(lr=0.5)), start, 4)
    x = [float(entry) for entry in start]
    for cohort in ([0, 1, 2, 3], [3, 1], [2, 0], [1, 2, 3, 0]):
        ids = jnp.array(cohort)
        batches = jnp.asarray(places[cohort], jnp.float32)[:, None]
        given = ids, batches, jnp.ones(len(cohort)), jax.random.key(0)
        state, _ = train(state, *given)
        totals = [0, 0]
        for client in cohort:
            for entry in range(2):
                change = x[entry] - (
                    x[entry] - 0.5 * (x[entry] - places[client, entry])
                )
                totals[entry] += round(change / step)
        x = [
            value - total * step / len(cohort)
            for value, total in zip(x, totals, strict=True)
        ]
        np.testing.assert_allclose(state.server.params, x, rtol=0, atol=step / 4)


def test_a_client_that_is_silent_is_left_out():
    algorithm = fm.secure_sums(fm.scaffold(lr=0.1))
    shared = described(algorithm, cohort=CLIENTS)
    ended, missing = served(shared, adding(nodes_of(shared), silent=[2]))
    assert {(lost.client, lost.reason) for lost in missing} == {(2, "it was silent")}
    assert len(missing) == 3
    assert np.isfinite(jax.tree.leaves(ended.params)[0]).all()


def test_nobody_in_a_sum_changes_nothing():
    shared = described(fm.secure_sums(fm.fedmuon(lr=0.1)))
    nothing = lambda requests, deadline: Sum((), np.zeros(0, np.int64), "all are away")
    start, _ = served(shared, nothing, rounds=0)
    ended, missing = served(shared, nothing)
    assert {lost.reason for lost in missing} == {"all are away"}
    for a, b in zip(*map(jax.tree.leaves, (start.params, ended.params)), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_a_sum_of_another_shape_counts_nobody():
    shared = described(fm.secure_sums(fm.fedavg(lr=0.1)))
    short = lambda requests, deadline: Sum([*requests], np.zeros(3, np.int64))
    _, missing = served(shared, short)
    assert {lost.reason for lost in missing} == {"a sum of another shape"}


def test_a_node_sends_no_single_message():
    shared, asked = described(fm.secure_sums(fm.fedavg(lr=0.1))), {}
    nodes = nodes_of(shared)
    served(shared, adding(nodes, asked=asked), rounds=1)
    client, request = next(iter(asked.items()))
    assert "only as a sum" in refusal(nodes[client].answer(request))
    usual = nodes_of(described(fm.fedavg(lr=0.1)))[client]
    with pytest.raises(MessageError, match="has no secure sums"):
        usual.summand(request)


def test_an_entry_that_is_too_large_leaves_the_message_out():
    algorithm = fm.secure_sums(fm.fedavg(lr=1e3), 0.25)
    state = simulated(algorithm, 1)
    start = simulated(algorithm, 0)
    for a, b in zip(*map(jax.tree.leaves, (state.params, start.params)), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    shared, asked = described(algorithm), {}
    nodes = nodes_of(shared)
    take = lambda requests, deadline: (asked.update(requests), Sum((), np.zeros(0)))[1]
    served(shared, take, rounds=1)
    client, request = next(iter(asked.items()))
    with pytest.raises(MessageError, match="an entry is too large"):
        nodes[client].summand(request)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fm.secure_sums(fm.flora(lr=0.1)), "needs single messages"),
        (
            lambda: fm.secure_sums(fm.robust(fm.fedavg(0.1), fm.aggregators.median())),
            "needs single messages",
        ),
        (
            lambda: fm.robust(fm.secure_sums(fm.fedavg(0.1)), fm.aggregators.median()),
            "add messages up",
        ),
        (
            lambda: fm.compress(fm.secure_sums(fm.fedavg(0.1)), fm.quantize(8)),
            "compressed ones can't be added",
        ),
        (lambda: fm.secure_sums(fm.fedavg(0.1), 3.0), "a power of two, such as 8"),
        (lambda: described(fm.secure_sums(fm.fedavg(0.1)), cohort=2), "3 to 1023"),
        (
            lambda: described(
                fm.secure_sums(fm.fedmuon(0.1)), cohort=3, num_clients=MOST + 1
            ),
            "at most 1024",
        ),
        (
            lambda: described(
                fm.secure_sums(fm.fedavg(0.1)), weighting=fm.simulation.by_examples
            ),
            "uniform weights",
        ),
        (
            lambda: described(fm.secure_sums(fm.fedavg(0.1)), cohort=fm.buffered(3, 2)),
            "asynchronous rounds need",
        ),
        (
            lambda: served(described(fm.secure_sums(fm.fedavg(0.1)))),
            "sends single messages",
        ),
    ],
)
def test_what_a_sum_hides_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_privacy_of_clients_is_refused():
    private = fm.privacy.ClientPrivacy(
        clip_norm=1.0, cohort=3, rounds=3, delta=0.01, noise_multiplier=1.0
    )
    with pytest.raises(ValueError, match="leave out one of them"):
        described(fm.secure_sums(fm.fedavg(0.1)), cohort=None, privacy=private)
