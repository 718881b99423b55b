"""Simulation: one program, cohorts, dropouts, the prologue, bytes, errors."""

import re
from typing import Any, NamedTuple

import federation
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federation import DATA, PARTS, TASK, assert_same_bits, cut, trained

from fedjax_muon import simulation
from fedjax_muon.algorithms import fedavg, fedmuon_correct
from fedjax_muon.core import Algorithm, Exchange, mean_gradient, no_client_state, tree
from fedjax_muon.simulation import training

CORRECT = fedmuon_correct(lr=0.2, rule=optax.identity())  # has client states


@pytest.fixture(scope="module")
def plain():
    """FedAvg on the small federation; whoever trains it starts from its own state."""
    return federation.federation()


# ----------------------------------------------------------------- one program


def test_one_program_for_any_number_of_rounds():
    prepared = federation.federation()
    state = prepared.init(jax.random.key(0))
    state, _ = prepared.train_round(state)
    state, _ = prepared.train_rounds(state, 7)
    for every in (3, 10):
        state, _ = training.train(prepared, state, rounds=17, evaluate_every=every)
    assert state.round == 42
    scored = prepared.programs.score._cache_size()  # other tests' too
    others = cut([17, 4, 25, 9, 10, 10])  # the longest has 17 to 32 in both
    other = prepared.vary(parts=others)
    trained(other, 0, 3)
    assert prepared.programs.rounds._cache_size() == 1
    assert other.programs.score is prepared.programs.score
    other.evaluate(other.init(jax.random.key(1)))
    assert prepared.programs.score._cache_size() == scored


@pytest.mark.slow
def test_repartition_is_the_simulation_of_these_parts(plain):
    parts = cut([5, 5, 30, 5, 15, 15], seed=3)
    expected = trained(federation.federation(parts=parts), 3, 4)
    assert_same_bits(trained(plain.vary(parts=parts), 3, 4), expected)
    assert plain.vary(parts=cut([1, 1, 1, 1, 1, 33])).max_client_size >= 33


def test_seven_rounds_at_once_are_seven_rounds(plain):
    vectorized = trained(plain, 4, 7)
    state = plain.init(jax.random.key(4))
    for _ in range(7):
        state, _ = plain.train_round(state)
    assert state.round == vectorized.round == 7
    assert_same_bits(state, vectorized)


def test_the_seed_decides_everything(plain):
    first = trained(plain, 5, 3)
    assert_same_bits(trained(plain, 5, 3), first)
    kernels = [trained(plain, seed, 3).params["Dense_0"]["kernel"] for seed in (5, 6)]
    assert np.abs(np.subtract(*kernels)).min() > 0


def test_the_state_is_donated(plain):
    state = plain.init(jax.random.key(0))
    before = jax.tree.leaves(state)
    state, _ = plain.train_round(state)
    assert all(leaf.is_deleted() for leaf in before)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


@pytest.mark.slow
def test_examples_are_no_part_of_the_program():
    def text(count):
        prepared = federation.federation(data=federation.blobs(count))
        state = prepared.init(jax.random.key(0))
        args = prepared.inputs, state, prepared.clients, 1, prepared.max_client_size
        return prepared.programs.rounds.lower(*args).as_text()

    small, large = text(100), text(3000)
    assert "3000x5" in large
    assert re.sub(r"\d+", "#", small) == re.sub(r"\d+", "#", large)
    assert abs(len(large) - len(small)) < 100 * 3  # digits of shapes


# -------------------------------------------------------- cohorts and dropouts


class Held(NamedTuple):
    """What the servers below hold."""

    params: Any


# -------------------------------------------------------- prologue, bytes, scores


def with_prologue():
    """The server adds the mean first gradient to its parameters; nothing else."""

    def measure(objective, x, client_state, batches, round):
        return mean_gradient(objective, x, batches, round), client_state

    params = lambda state, round: state.params
    add = lambda state, mean, round: Held(tree.add(state.params, mean))
    first = Exchange(params, measure, add)
    rest = Exchange(
        params,
        lambda objective, x, client_state, *_: (x, client_state),
        lambda state, *_: state,
    )
    return Algorithm(Held, no_client_state, (rest,), (first,))


def test_the_prologue_is_run_by_all_clients():
    prepared = federation.federation(with_prologue(), weighting=simulation.by_examples)
    start = jax.random.key(3)
    x = start_x = federation.as_float64(TASK.init(jax.random.split(start)[0]))
    state = prepared.init(start)
    assert state.round == 0
    rows = federation.rows(prepared, state.key, 0, np.arange(6), steps=1)[:, 0]
    for part, ids in zip(PARTS, rows, strict=True):
        assert np.isin(ids, part).all()
        images = DATA.x_train[ids].astype(np.float64)
        grad = federation.gradient(start_x, images, DATA.y_train[ids])
        share = len(part) / sum(map(len, PARTS))
        x = [p + share * g for p, g in zip(x, grad, strict=True)]
    for a, b in zip(federation.as_float64(state.params), x, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_prologue_that_is_not_finite_is_refused():
    x = DATA.x_train.copy()
    x[PARTS[4]] = 3e38
    x[PARTS[1]] = -3e38

    def grad(params, batch, key):
        huge = jnp.any(jnp.abs(batch.x) > 1e38)
        spoil = lambda g: jnp.where(huge, jnp.nan, g)
        return jax.tree.map(spoil, TASK.grad(params, batch, key))

    task = TASK._replace(grad=grad)
    data = DATA._replace(x_train=x)
    poisoned = federation.federation(with_prologue(), data=data, task=task)
    with pytest.raises(simulation.NonFiniteError, match=r"round 0: .* client 1, 4;"):
        poisoned.init(jax.random.key(0))


def test_the_error_names_at_most_five_clients():
    error = simulation.NonFiniteError(8, [3, 1, 4, 15, 9, 2])
    assert str(error).startswith("round 8: not a finite message from client 3, 1, ")
    assert "15, 9, ...; lower" in str(error)


def test_bytes_by_hand():
    x = 4 * (5 * 3 + 3)  # W and b in float32
    expected = [  # down, up, both in the prologue
        (fedavg(), x, x, 0),
        (CORRECT, 2 * x, 2 * x, 0),
        (with_prologue(), x, x, x),
    ]
    for algorithm, down, up, first in expected:
        prepared = federation.federation(algorithm)
        for rounds in (0, 1, 10):
            total = prepared.bytes_after(rounds)
            assert total.down == 6 * first + rounds * 3 * down
            assert total.up == 6 * first + rounds * 3 * up


# --------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cohort_size": 0}, "cohort_size must be at least 1, got 0"),
        ({"cohort_size": 7}, "between 1 and the 6 clients there are, got 7"),
        ({"local_steps": 0}, "local_steps must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1"),
        ({"dropout": -0.1}, r"dropout must lie in \[0, 1\), got -0.1"),
        ({"dropout": np.nan}, r"dropout must lie in \[0, 1\), got nan"),
        (
            {"algorithm": CORRECT, "weighting": simulation.by_examples},
            "control variates, whose mean only uniform weights keep",
        ),
        ({"parts": []}, "at least one client"),
        ({"parts": [PARTS[0], PARTS[1][:0]]}, "client 1 has no examples"),
    ],
)
def test_simulate_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        federation.federation(**changes)


def test_repartition_refuses(plain):
    with pytest.raises(ValueError, match="has 6 clients, got 5 parts"):
        plain.vary(parts=PARTS[:5])
    with pytest.raises(ValueError, match="names example 80"):
        plain.vary(parts=[*PARTS[:5], np.array([80])])
