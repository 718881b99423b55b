"""Simulation: against a loop in NumPy, one program, dropouts, scores, bytes, errors."""

import re
from functools import partial

import federation
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federation import DATA, PARTS, TASK, Linear, assert_same_bits, cut
from sklearn.metrics import accuracy_score, log_loss

from fedjax_muon import (
    batching,
    data,
    engine,
    orthogonalize,
    partition,
    simulation,
    tasks,
    training,
    tree,
)
from fedjax_muon.algorithms import fedavg, fedmuon_correct
from fedjax_muon.core import Algorithm, Exchange, mean_gradient, stateless
from fedjax_muon.transforms import by_rank
from fedjax_muon.transforms import orthogonalize as matrices

EXACT = by_rank(matrices(orthogonalize.polar), optax.scale(10.0))
CORRECT = partial(fedmuon_correct, lr=0.02, fresh=0.3, rule=EXACT)


@pytest.fixture(scope="module")
def plain():
    """FedAvg on the small federation; whoever trains it starts from its own state."""
    return federation.federation()


def played(prepared, seed, rounds):
    return prepared.train_rounds(prepared.init(jax.random.key(seed)), rounds)[0]


# ------------------------------------------------------------ NumPy, end to end


def polar(d):
    """U V^T over singular values that are not rounding errors of float32."""
    u, s, vt = np.linalg.svd(d, full_matrices=False)
    share = s / s[0]
    assert not np.any((share > 1e-6) & (share < 1e-4))  # it is clear which these are
    return (u * (share > 1e-5)) @ vt


def numpy_fedavg(x, ids, batches, weights, memory, lr):
    del ids, memory
    mean = [0, 0]
    for batch, weight in zip(batches, weights / weights.sum(), strict=True):
        local = x
        for step in batch:
            grad = federation.gradient(local, *step)
            local = [p - lr * g for p, g in zip(local, grad, strict=True)]
        mean = [m + weight * p for m, p in zip(mean, local, strict=True)]
    return mean


def numpy_fedmuon_correct(x, ids, batches, weights, memory, lr, fresh):
    """Takezawa et al. 2025, arXiv:2509.26337, Algorithm 1, lines 5 to 18."""
    total = len(memory["m"])
    c, moved, control = memory["c"], [0, 0], [0, 0]
    for i, batch in zip(ids, batches, strict=True):
        local, m, ci = x, memory["m"][i], memory["m"][i]
        for step in batch:
            grad = federation.gradient(local, *step)
            m = [(1 - fresh) * a + fresh * g for a, g in zip(m, grad, strict=True)]
            kernel, bias = (a - b + s for a, b, s in zip(m, ci, c, strict=True))
            local = [local[0] - lr * polar(kernel), local[1] - lr * 10 * bias]
        memory["m"][i] = m
        moved = [s + (p - q) / total for s, p, q in zip(moved, local, x, strict=True)]
        control = [s + (p - q) / total for s, p, q in zip(control, m, ci, strict=True)]
    memory["c"] = [s + d for s, d in zip(c, control, strict=True)]
    return [p + d for p, d in zip(x, moved, strict=True)]


@pytest.mark.parametrize(
    ("algorithm", "weighting", "play"),
    [
        (partial(fedavg, lr=0.1), simulation.uniform, partial(numpy_fedavg, lr=0.1)),
        (
            partial(fedavg, lr=0.1),
            simulation.by_examples,
            partial(numpy_fedavg, lr=0.1),
        ),
        (
            CORRECT,
            simulation.uniform,
            partial(numpy_fedmuon_correct, lr=0.02, fresh=0.3),
        ),
    ],
    ids=["fedavg", "fedavg by examples", "fedmuon_correct"],
)
def test_five_rounds_equal_a_loop_in_numpy(algorithm, weighting, play):
    digits = data.load("digits")
    parts = partition.dirichlet(digits.y_train[:400], 7, 0.3, key=jax.random.key(0))
    sizes = np.array([len(part) for part in parts])
    assert sizes.min() < 24 < sizes.max()  # some repeat examples, some don't see all
    prepared = simulation.simulate(
        algorithm,
        tasks.classification(Linear(10), (8, 8, 1)),
        digits,
        parts,
        cohort_size=4,
        local_steps=3,
        batch_size=8,
        weighting=weighting,
    )
    state = prepared.init(jax.random.key(7))
    x, key = federation.as_float64(state.params), jax.random.clone(state.key)
    memory = {"c": [0 * p for p in x], "m": [[0 * p for p in x] for _ in parts]}
    images = digits.x_train.reshape(-1, 64).astype(np.float64)
    start = x
    for index in range(5):
        ids = federation.cohort(prepared, key, index)
        rows = federation.rows(prepared, key, index, ids)
        assert all(np.isin(r, parts[i]).all() for r, i in zip(rows, ids, strict=True))
        batches = [[(images[b], digits.y_train[b]) for b in each] for each in rows]
        weights = sizes[ids] if weighting is simulation.by_examples else np.ones(4)
        x = play(x, ids, batches, weights, memory)
        state, metrics = prepared.train_round(state)
        assert not metrics.lost.any()
        for got, expected in zip(federation.as_float64(state.params), x, strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    assert max(np.abs(p - q).max() for p, q in zip(x, start, strict=True)) > 0.02


# ----------------------------------------------------------------- one program


def test_one_program_for_any_number_of_rounds():
    prepared = federation.federation()
    state = prepared.init(jax.random.key(0))
    state, _ = prepared.train_round(state)
    state, _ = prepared.train_rounds(state, 7)
    for every in (3, 10):
        state, _ = training.run(
            prepared, state, rounds=state.round + 17, evaluate_every=every
        )
    assert state.round == 42
    others = cut([17, 4, 25, 9, 10, 10])  # the longest has 17 to 32 in both
    other = prepared.repartition(others)
    played(other, 0, 3)
    assert prepared.programs.rounds._cache_size() == 1
    assert other.programs.score is prepared.programs.score
    other.evaluate(other.init(jax.random.key(1)))
    assert prepared.programs.score._cache_size() == 1


def test_repartition_is_the_simulation_of_these_parts(plain):
    parts = cut([5, 5, 40, 5, 15, 5], seed=3)
    expected = played(federation.federation(parts=parts), 3, 4)
    assert_same_bits(played(plain.repartition(parts), 3, 4), expected)


def test_seven_rounds_at_once_are_seven_rounds(plain):
    at_once = played(plain, 4, 7)
    state = plain.init(jax.random.key(4))
    for _ in range(7):
        state, _ = plain.train_round(state)
    assert state.round == at_once.round == 7
    assert_same_bits(state, at_once)


def test_the_seed_decides_everything(plain):
    first = played(plain, 5, 3)
    assert_same_bits(played(plain, 5, 3), first)
    kernels = [played(plain, seed, 3).params["Dense_0"]["kernel"] for seed in (5, 6)]
    assert np.abs(np.subtract(*kernels)).min() > 0


@pytest.mark.parametrize(
    "plan",
    [engine.vmapped, engine.chunked(2), engine.loop],
    ids=["vmapped", "chunked", "loop"],
)
def test_plans_give_the_same_numbers(plan):
    expected = played(federation.federation(CORRECT, plan=engine.mapped), 1, 4)
    got = played(federation.federation(CORRECT, plan=plan), 1, 4)
    for a, b in zip(
        *map(jax.tree.leaves, (got.training, expected.training)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_the_state_is_donated(plain):
    state = plain.init(jax.random.key(0))
    before = jax.tree.leaves(state)
    state, _ = plain.train_round(state)
    assert all(leaf.is_deleted() for leaf in before)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_examples_are_no_part_of_the_program():
    def text(count):
        prepared = federation.federation(data=federation.blobs(count))
        state = prepared.init(jax.random.key(0))
        args = state, prepared.clients, 1, prepared.longest
        return prepared.programs.rounds.lower(*args).as_text()

    small, large = text(100), text(3000)
    assert "3000x5" in large
    assert re.sub(r"\d+", "#", small) == re.sub(r"\d+", "#", large)
    assert abs(len(large) - len(small)) < 100 * 3  # digits of shapes


# -------------------------------------------------------- cohorts and dropouts


def attendance(grad_fn):
    """Counts how often clients take part (pool), and sums S and S^2 (server)."""
    del grad_fn

    def server(state, mean, round):
        del mean
        here = jnp.stack([round.clients, round.clients**2]).astype(jnp.float32)
        return state | {"sums": state["sums"] + here}

    client = lambda shared, mine, batches, round: (jnp.float32(0), mine + 1)
    exchange = Exchange(lambda state, round: (), client, server)
    init = lambda params: {"sums": jnp.zeros(2)}
    return Algorithm(init, lambda params: jnp.int32(0), (exchange,))


def test_cohorts_are_uniform_and_clients_drop_out_independently():
    rounds, drop = 3000, 0.3
    for dropout in (0.0, drop):
        prepared = federation.federation(attendance, dropout=dropout)
        state = prepared.init(jax.random.key(11))
        state, metrics = prepared.train_rounds(state, rounds)
        # In a round each client answers with probability q = (1 - dropout) S/N, and
        # the number who answer is binomial (S, 1 - dropout): S itself without dropout.
        q, keep = (1 - dropout) / 2, 1 - dropout
        bound = 5 * np.sqrt(rounds * q * (1 - q))
        assert np.all(np.abs(np.asarray(state.training.pool) - rounds * q) < bound)
        size, square = np.asarray(state.training.server["sums"]) / rounds
        moments = np.array(
            [
                sum(
                    p * k**n
                    for k, p in enumerate(
                        [
                            (1 - keep) ** 3,
                            3 * keep * (1 - keep) ** 2,
                            3 * keep**2 * (1 - keep),
                            keep**3,
                        ]
                    )
                )
                for n in (1, 2, 4)
            ]
        )
        assert abs(size - moments[0]) <= 5 * np.sqrt(3 * keep * dropout / rounds)
        spread = max(moments[2] - moments[1] ** 2, 0)
        assert abs(square - moments[1]) <= 5 * np.sqrt(spread / rounds) + 1e-6
        assert int(np.sum(state.training.pool)) == round(size * rounds)
        assert not metrics.lost.any()  # silence is not a loss


def test_a_client_that_drops_out_is_as_if_never_sampled():
    prepared = federation.federation(CORRECT, dropout=0.4)
    algorithm = CORRECT(batching.on(prepared.clients, TASK.grad))
    draw = batching.draw_rows(
        prepared.clients, batching.shuffled_epochs, 2, 4, prepared.longest
    )
    play = jax.jit(engine.make_round(algorithm, 6, engine.mapped, draw))
    state = prepared.init(jax.random.key(2))
    key, checked = jax.random.clone(state.key), 0
    for index in range(12):
        there = federation.answers(prepared, key, index)
        ids = federation.cohort(prepared, key, index)[there]
        before = jax.tree.map(jnp.copy, state.training)
        state, _ = prepared.train_round(state)
        if len(ids) == 2:  # one program
            checked += 1
            stream = jax.random.fold_in(key, 0)
            expected, _ = play(before, ids, ids, jnp.ones(2), stream)
            both = zip(*map(jax.tree.leaves, (state.training, expected)), strict=True)
            for a, b in both:
                np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
        away = np.setdiff1d(np.arange(6), ids)
        kept = jax.tree.map(lambda x: x[away], (before.pool, state.training.pool))
        assert_same_bits(*kept)
    assert checked >= 3


# -------------------------------------------------------- prologue, bytes, scores


def with_prologue(grad_fn):
    """The server holds what the prologue measured: the mean first gradient."""
    first = Exchange(
        lambda state, round: state.params,
        lambda x, mine, batches, round: (
            mean_gradient(grad_fn, x, batches, round.key),
            mine,
        ),
        lambda state, mean, round: state._replace(measured=mean),
    )
    return fedavg_with(grad_fn)._replace(prologue=(first,))


class Measured(simulation.NamedTuple):
    params: dict
    measured: dict


def fedavg_with(grad_fn):
    main = Exchange(
        lambda state, round: state,
        lambda shared, mine, batches, round: (shared.params, mine),
        lambda state, mean, round: state,
    )
    return Algorithm(lambda x: Measured(x, tree.zeros_like(x)), stateless, (main,))


def test_the_prologue_is_played_by_all_clients():
    prepared = federation.federation(with_prologue, weighting=simulation.by_examples)
    state = prepared.init(jax.random.key(3))
    assert state.round == 0
    rows = federation.rows(prepared, state.key, 0, np.arange(6), steps=1)[:, 0]
    x = federation.as_float64(state.params)
    mean = [0, 0]
    for part, ids in zip(PARTS, rows, strict=True):
        assert np.isin(ids, part).all()
        grad = federation.gradient(
            x, DATA.x_train[ids].astype(float), DATA.y_train[ids]
        )
        share = len(part) / sum(map(len, PARTS))
        mean = [m + share * g for m, g in zip(mean, grad, strict=True)]
    got = federation.as_float64(state.training.server.measured)
    for a, b in zip(got, mean, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_a_prologue_that_is_not_finite_is_refused():
    x = DATA.x_train.copy()
    x[PARTS[4]] = np.nan
    x[PARTS[1]] = np.inf
    poisoned = federation.federation(with_prologue, data=DATA._replace(x_train=x))
    with pytest.raises(simulation.NonFiniteError, match="round 0: .* client 1, 4;"):
        poisoned.init(jax.random.key(0))


def test_the_error_names_at_most_five_clients():
    error = simulation.NonFiniteError(8, [3, 1, 4, 15, 9, 2])
    assert str(error).startswith("round 8: not a finite message from client 3, 1, ")
    assert "15, 9, ...; lower" in str(error)


def test_bytes_by_hand():
    x = 4 * (5 * 3 + 3)  # W and b in float32
    cases = {
        fedavg: (x, x, 0),
        CORRECT: (2 * x, 2 * x, 0),
        with_prologue: (2 * x, x, x),
    }
    for algorithm, (down, up, first) in cases.items():
        prepared = federation.federation(algorithm)
        for rounds in (0, 1, 10):
            total = prepared.bytes_after(rounds)
            assert total.down == 6 * first + rounds * 3 * down
            assert total.up == 6 * first + rounds * 3 * up


def test_evaluation_equals_scikit_learn():
    digits = data.load("digits")
    parts = partition.dirichlet(digits.y_train[:1400], 5, 0.5, key=jax.random.key(1))
    parts[0] = np.append(parts[0], parts[1][:50])  # shared examples count twice
    prepared = simulation.simulate(
        partial(fedavg, lr=0.1),
        tasks.classification(Linear(10), (8, 8, 1)),
        digits,
        parts,
        cohort_size=2,
        local_steps=3,
        batch_size=20,
    )
    state = played(prepared, 0, 5)
    w, b = federation.as_float64(state.params)

    def scores(x, y):
        logits = x.reshape(len(x), 64).astype(np.float64) @ w + b
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        loss = log_loss(y, p, labels=np.arange(10))
        return loss, accuracy_score(y, logits.argmax(1))

    got = prepared.evaluate(state)
    each = [scores(digits.x_train[ids], digits.y_train[ids]) for ids in parts]
    used = np.concatenate(parts)
    expected = [
        *scores(digits.x_train[used], digits.y_train[used]),
        *scores(digits.x_test, digits.y_test),
        np.std([accuracy for _, accuracy in each]),
    ]
    assert expected[-1] > 0.01
    np.testing.assert_allclose(np.array(got), expected, rtol=2e-6)


# --------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cohort_size": 0}, "between 1 and the 6 clients there are, got 0"),
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
        plain.repartition(PARTS[:5])
    with pytest.raises(ValueError, match="names example 80"):
        plain.repartition([*PARTS[:5], np.array([80])])
