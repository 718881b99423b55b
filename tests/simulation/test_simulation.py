"""Simulations: one program, the prologue, bytes, training."""

import dataclasses
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_muon as fm
from fedjax_muon import simulation
from fedjax_muon.algorithms import fedavg, fedmuon_correct
from fedjax_muon.core import (
    Algorithm,
    Exchange,
    mean_gradient,
    no_client_state,
    streams,
    tree,
)
from fedjax_muon.simulation import cohort_loss, training
from fedjax_muon.simulation.rounds import init_state
from fedjax_muon.simulation.training import early_stopping
from tests.support import federation
from tests.support.federation import DATA, PARTS, TASK, assert_same_bits, cut, trained
from tests.support.literal_batches import answers

UNEQUAL = fm.clocks.lognormal(1.0, key=jax.random.key(0))
CORRECT = fedmuon_correct(lr=0.2, rule=optax.identity())  # has client states


@pytest.fixture(scope="module")
def plain():
    """FedAvg on the small federation; whoever trains it starts from its own state."""
    return federation.federation()


def test_one_program_for_any_number_of_rounds():
    prepared = federation.federation()
    state, _ = prepared.train_round(prepared.init(jax.random.key(0)))
    state, _ = prepared.train_rounds(state, 7)
    for every in (3, 10):
        state, _ = training.run(prepared, state, rounds=17, evaluate_every=every)
    assert state.round == 42
    scored = prepared.compiled.score._cache_size()  # other tests' too
    others = cut([17, 4, 25, 9, 10, 10])  # the longest has 17 to 32 in both
    other = prepared.at(parts=others)
    trained(other, 0, 3)
    assert prepared.compiled.rounds._cache_size() == 1
    assert other.compiled.score is prepared.compiled.score
    other.evaluate(other.init(jax.random.key(1)))
    assert prepared.compiled.score._cache_size() == scored


def test_methods_on_one_task_share_the_program_of_scores(plain):
    plain.evaluate(plain.init(jax.random.key(0)))
    scored = plain.compiled.score._cache_size()
    other = federation.federation(CORRECT)
    other.evaluate(other.init(jax.random.key(0)))
    assert plain.compiled.score._cache_size() == scored


def test_a_run_may_start_from_parameters(plain):
    state = plain.init(jax.random.key(4))
    given = jax.tree.map(lambda x: np.asarray(x, float), state.params)
    other = plain.init(jax.random.key(9), params=state.params)
    assert_same_bits(other.params, state.params)  # which are not donated with it
    other = plain.init(jax.random.key(4), params=given)
    both = [plain.train_round(each)[0] for each in (state, other)]
    assert_same_bits(*both)


@pytest.mark.slow
def test_repartition_is_the_simulation_of_these_parts(plain):
    parts = cut([5, 5, 30, 5, 15, 15], seed=3)
    expected = trained(federation.federation(parts=parts), 3, 4)
    assert_same_bits(trained(plain.at(parts=parts), 3, 4), expected)
    assert plain.at(parts=cut([1, 1, 1, 1, 1, 33])).clients.max_size >= 33


def test_the_seed_decides_everything(plain):
    first = trained(plain, 5, 3)
    assert_same_bits(trained(plain, 5, 3), first)
    kernels = [trained(plain, seed, 3).params["Dense_0"]["kernel"] for seed in (5, 6)]
    assert np.abs(np.subtract(*kernels)).min() > 0


def test_the_state_is_donated(plain):
    before = plain.init(jax.random.key(0))
    after, _ = plain.train_round(before)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after))
    with pytest.raises(ValueError, match="donated to an earlier call; continue with"):
        plain.train_round(before)


@pytest.mark.slow
def test_examples_are_no_part_of_the_program():
    def text(count):
        prepared = federation.federation(data=federation.blobs(count))
        state = prepared.init(jax.random.key(0))
        args = prepared.data, prepared.run, state, 1
        return prepared.compiled.rounds.lower(*args).as_text()

    small, large = text(100), text(3000)
    assert "3000x5" in large
    assert re.sub(r"\d+", "#", small) == re.sub(r"\d+", "#", large)
    assert abs(len(large) - len(small)) < 100 * 3  # digits of shapes


class Held(NamedTuple):
    """What the servers below hold."""

    params: Any


def with_prologue():
    """The server adds the mean first gradient to its parameters; nothing else."""

    def measure(objective, x, client_state, batches, round):
        return mean_gradient(objective, x, batches, round), client_state

    params = lambda state, round: state.params
    add = lambda state, mean, round: Held(tree.add(state.params, mean))
    first = Exchange(params, measure, add)
    idle = lambda objective, x, client_state, *_: (x, client_state)
    rest = Exchange(params, idle, lambda state, *_: state)
    return Algorithm(Held, no_client_state, (rest,), (first,))


@pytest.mark.parametrize("asked", [None, 4])
def test_the_prologue_is_the_mean_over_the_clients_that_are_asked(asked):
    how = {"weighting": simulation.by_examples, "cohort": fm.sampled(3, prologue=asked)}
    prepared = federation.federation(with_prologue(), **how)
    start = jax.random.key(3)
    x = start_x = federation.as_float64(TASK.init(jax.random.split(start)[0]))
    state = prepared.init(start)
    assert state.round == 0
    clients = np.arange(6)
    if asked is not None:
        key = jax.random.fold_in(state.key, streams.PROLOGUE)
        clients = np.asarray(jax.random.choice(key, 6, (asked,), replace=False))
    rows = federation.rows(prepared, state.key, 0, clients, steps=1)[:, 0]
    parts = [PARTS[client] for client in clients]
    for part, ids in zip(parts, rows, strict=True):
        assert np.isin(ids, part).all()
        images = DATA.x_train[ids].astype(np.float64)
        grad = federation.gradient(start_x, images, DATA.y_train[ids])
        share = len(part) / sum(map(len, parts))
        x = [p + share * g for p, g in zip(x, grad, strict=True)]
    for a, b in zip(federation.as_float64(state.params), x, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_rounds_are_the_same_whoever_the_prologue_asks():
    """Its clients are drawn by a stream of their own."""
    ends = []
    for asked in (None, 2, 6):
        prepared = federation.federation(cohort=fm.sampled(3, prologue=asked))
        ends.append(trained(prepared, 0, 3))
    federation.assert_same_bits(ends[0], ends[1])
    federation.assert_same_bits(ends[0], ends[2])


@pytest.mark.slow
def test_a_prologue_that_is_not_finite_is_refused():
    x = DATA.x_train.copy()
    x[PARTS[4]], x[PARTS[1]] = 3e38, -3e38

    def grad(params, batch, key):
        huge = jnp.any(jnp.abs(batch.x) > 1e38)
        spoil = lambda g: jnp.where(huge, jnp.nan, g)
        return jax.tree.map(spoil, TASK.grad(params, batch, key))

    how = {"data": DATA._replace(x_train=x), "task": TASK._replace(grad=grad)}
    poisoned = federation.federation(with_prologue(), **how)
    with pytest.raises(simulation.NonFiniteError, match=r"round 0: .* client 1, 4;"):
        poisoned.init(jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lenet", "vit"])  # one program, one for each shape
def test_fewer_optimizations_draw_the_same_parameters(plain, monkeypatch, model):
    task = fm.tasks.classification(fm.models.ALL[model](classes=10), (28, 28, 1))
    task = task._replace(init=jax.tree_util.Partial(task.init))
    setup, key = plain.settings._replace(task=task), jax.random.key(1)
    init_key = jax.random.split(key)[0]
    level = "xla_backend_optimization_level"  # 0 in tests, 3 by default
    drawn = jax.jit(task.init).lower(init_key).compile({level: 3})(init_key)
    monkeypatch.setenv("XLA_FLAGS", "")
    assert_same_bits(init_state(setup, key).params, drawn)
    monkeypatch.setenv("XLA_FLAGS", f"--{level}=0")
    inside = jax.jit(lambda key: init_state(setup, key).params)(key)
    assert_same_bits(init_state(setup, key).params, inside)


WEIGHTED = (
    federation.SGD,
    simulation.by_examples,
    lambda ids: [len(PARTS[i]) for i in ids],
)
UNIFORM = (CORRECT, simulation.uniform, np.ones_like)  # has a prologue


@pytest.mark.parametrize(("algorithm", "weighting", "sizes"), [WEIGHTED, UNIFORM])
def test_cohort_loss_is_of_the_next_rounds_first_batches(algorithm, weighting, sizes):
    prepared = federation.federation(algorithm, weighting=weighting)
    state, first = prepared.init(jax.random.key(3)), len(algorithm.prologue)
    for index in range(2):
        ids = federation.cohort(prepared, state.key, index)
        w, b = federation.as_float64(state.params)
        losses = []
        for row in federation.rows(prepared, state.key, index, ids, prologue=first):
            batch = row[0][row[0] >= 0]
            logits = DATA.x_train[batch].astype(float) @ w + b
            right = logits[np.arange(len(batch)), DATA.y_train[batch]]
            losses.append(np.mean(np.log(np.exp(logits).sum(1)) - right))
        expected = np.average(losses, weights=sizes(ids))
        np.testing.assert_allclose(cohort_loss(prepared, state), expected, rtol=1e-5)
        state, _ = prepared.train_round(state)


WHOLE = {"cohort": 6, "batch_size": 32, "weighting": simulation.by_examples}
WHOLE["sampler"] = simulation.batching.without_replacement  # all examples of a client


@pytest.mark.parametrize(
    "changes", [{}, {"devices": jax.devices()[:2], "split_examples": True}]
)
def test_cohort_loss_of_all_examples_is_the_training_loss(changes):
    prepared = federation.federation(**WHOLE, **changes)
    state = trained(prepared, 0, 2)
    train_loss = prepared.evaluate(state)["train_loss"]
    np.testing.assert_allclose(cohort_loss(prepared, state), train_loss, rtol=1e-5)


def test_cohort_loss_is_of_the_clients_own_leaves():
    own = fm.personalization.keep_own(federation.SGD, ["bias"])
    prepared = federation.federation(own, **WHOLE)
    state = trained(prepared, 0, 5)
    served = prepared.evaluate(state)["train_loss"]  # with the bias of the beginning
    assert cohort_loss(prepared, state) < 0.95 * served


def test_bytes_by_hand():
    x = 4 * (5 * 3 + 3)  # W and b in float32
    # a round, both down and up; the prologue
    expected = (fedavg(), x, 0), (CORRECT, 2 * x, 0), (with_prologue(), x, x)
    for algorithm, each, first in expected:
        prepared = federation.federation(algorithm)
        for rounds in (0, 1, 10):
            total = 6 * first + rounds * 3 * each
            assert prepared.meter.bytes_after(rounds) == (total, total)


@pytest.mark.parametrize("make", [fm.sampled, fm.poisson, fm.fedasync])
def test_bytes_of_a_prologue_are_of_those_that_it_asks(make):
    prepared = federation.federation(fm.fedmuon(), cohort=make(3, prologue=2))
    first, round_up = 2 * 4 * (5 * 3 + 3), 2 * 4 * (5 * 3 + 3)
    assert prepared.meter.bytes_after(0) == (first, first)
    lossy = make(3, prologue=2, dropout=0.5)
    prepared, key = federation.federation(fm.fedmuon(), cohort=lossy), jax.random.key(4)
    answered = prepared.meter.answered(key, 4)
    assert prepared.meter.bytes_after(4, key).up == first + answered * round_up


def test_validation_examples_are_scored_apart(plain):
    x, y = held = DATA.x_train[:30], DATA.y_train[:30]
    watched = dataclasses.replace(plain, data=plain.data._replace(validation=held))
    state = trained(plain, 3, 2)
    w, b = federation.as_float64(state.params)
    found, without = watched.evaluate(state), plain.evaluate(state)
    right = np.mean((x @ w + b).argmax(1) == y)
    np.testing.assert_allclose(found["validation_accuracy"], right, rtol=1e-6)
    assert right != pytest.approx(float(found["test_accuracy"]), abs=1e-3)
    apart = found.keys() - without.keys()
    assert apart == {"validation_accuracy", "validation_loss"}


# --- training: when it evaluates, what the rows say, going on, messages that overflow
def ran(prepared, state, **how):
    """The last state and all rows of `evaluations`, up to a total of rounds."""
    rows = []
    for last, row in evaluations(prepared, state, **how):
        state = last
        rows.append(row)
    return state, rows


def evaluations(prepared, state, tick=lambda rounds: None, **how):
    """The states and rows of those steps that have an evaluation."""
    for step in training.steps(prepared, state, **how):
        tick(step.rounds)
        if step.record is not None:
            yield step.state, step.record


COLUMNS = ["round", "bytes_down", "bytes_up", "client_accuracy_min"]
COLUMNS += [
    "client_accuracy_std",
    "test_accuracy",
    "test_loss",
    "train_accuracy",
    "train_loss",
    "dropped",
    "seconds",
]


def start(prepared):
    return prepared.init(jax.random.key(8))


@pytest.mark.parametrize(
    ("expected", "every"),
    [([0, 10, 20, 23], 10), ([0, 10, 20], 10), ([0, 3], 10), ([0, 1, 2], 1), ([0], 5)],
)
def test_rows_are_at_multiples_and_at_the_end(plain, expected, every):
    ticks, rounds = [], expected[-1]
    how = {"rounds": rounds, "evaluate_every": every, "tick": ticks.append}
    state, rows = ran(plain, start(plain), **how)
    assert [row["round"] for row in rows] == expected
    assert state.round == rounds == sum(ticks)
    assert min(ticks[1:], default=1) >= 1
    assert all(list(row) == COLUMNS for row in rows)
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    assert seconds[0] >= 0


def test_rows_hold_the_scores_and_bytes_of_their_round(plain):
    pairs = evaluations(plain, start(plain), rounds=7, evaluate_every=3)
    other = start(plain)
    for state, row in pairs:
        other, _ = plain.train_rounds(other, row["round"] - other.round)
        assert_same_bits(state, other)
        scores = plain.evaluate(other)
        assert {name: row[name] for name in scores} == jax.tree.map(float, scores)
        assert (row["bytes_down"], row["bytes_up"]) == plain.meter.bytes_after(
            row["round"]
        )
        assert row["dropped"] == 0
        assert all(type(value) in (int, float) for value in row.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": fm.robust(fedavg(), fm.aggregators.trimmed_mean(1))},
        {
            "algorithm": fm.fedmuon_align(),
            "cohort": fm.sampled(3, dropout=0.3),
            "local_steps": [1, 2] * 3,
        },
        pytest.param(
            {"cohort": fm.buffered(3, 2, UNEQUAL)},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_strict_promotion_of_dtypes_works_in_rounds(changes):
    with jax.numpy_dtype_promotion("strict"):
        prepared = federation.federation(**changes)
        _, rows = fm.run(prepared, start(prepared), rounds=2)
    assert np.isfinite(rows[-1]["train_loss"])


def test_a_second_run_with_the_same_callback_stops_as_the_first():
    stop = early_stopping("loss", patience=1, mode="min")
    rows = [{"round": r, "loss": loss} for r, loss in ((0, 3.0), (1, 2.0), (2, 2.5))]
    for _ in range(2):
        assert [stop(None, row) for row in rows] == [False, False, True]


def test_only_answers_are_counted_as_sent():
    prepared = federation.federation(cohort=fm.sampled(3, dropout=0.7))
    begun = start(prepared)
    key, size = jax.random.clone(begun.key), prepared.settings.cohort.size
    down, up = prepared.meter.bytes_after(1)
    for _, row in evaluations(prepared, begun, rounds=7, evaluate_every=3):
        draws = [answers(key, index, size, 0.7) for index in range(row["round"])]
        assert row["answered"] == np.sum(draws)
        assert row["bytes_up"] * size == row["answered"] * up
        assert row["bytes_down"] == row["round"] * down
    assert 0 < row["answered"] < 7 * size


GREEDY, FIRST = 4, 5  # whose message overflows, from which round on


@pytest.fixture(scope="module")
def overflowing():
    """Client 4's gradients are about 1e30, and from round 5 on lr is 1e10.

    Before, lr is 0; the others' parameters become 1e10 or so, which is finite. With
    one local step only the message overflows.
    """
    x = DATA.x_train.copy()
    x[PARTS[GREEDY]] *= 1e30
    late = fedavg(lr=lambda index: jnp.where(index < FIRST, 0.0, 1e10))
    return federation.federation(late, data=DATA._replace(x_train=x), local_steps=1)


def rounds_with(prepared, key, client, rounds):
    return [r for r in range(rounds) if client in federation.cohort(prepared, key, r)]


def test_the_error_names_the_round_and_up_to_five_clients(overflowing):
    state = start(overflowing)
    there = rounds_with(overflowing, state.key, GREEDY, 40)
    first = next(r for r in there if r >= FIRST)
    assert there[0] < FIRST  # while its messages were finite
    ticks = []
    message = rf"round {first}: not a finite message from client {GREEDY}; lower the"
    with pytest.raises(simulation.NonFiniteError, match=message):
        ran(overflowing, state, rounds=40, evaluate_every=40, tick=ticks.append)
    assert sum(ticks) <= first
    several = str(simulation.NonFiniteError(8, [3, 1, 4, 15, 9, 2]))
    assert several.startswith("round 8: not a finite message from client 3, 1, ")
    assert "15, 9, ...; lower" in several


def test_messages_that_are_not_finite_are_left_out_and_counted(overflowing):
    begun = start(overflowing)
    key = jax.random.clone(begun.key)
    how = {"rounds": 40, "evaluate_every": 8, "drop_nonfinite": True}
    for state, row in evaluations(overflowing, begun, **how):
        there = rounds_with(overflowing, key, GREEDY, row["round"])
        assert row["dropped"] == sum(r >= FIRST for r in there)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))
    assert row["dropped"] > 5


def test_callbacks_see_every_record_and_may_end_the_training(plain):
    seen, kept = [], []

    def enough(state, record):
        kept.append(state.round)
        return record["round"] >= 8

    callbacks = [lambda state, record: seen.append(record), enough]
    how = {"rounds": 100, "evaluate_every": 4, "callbacks": callbacks}
    state, records = training.run(plain, start(plain), **how)
    assert records == seen
    assert kept == [0, 4, 8]
    assert state.round == 8


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "options", "stops"),
    [
        ([3, 2, 1, 1, 1], {"mode": "min", "patience": 2}, 4),
        ([3, 2, 2.5, 1, 2, 2], {"mode": "min", "patience": 2}, 5),
        ([1, 2, 1, 3, 2, 1, 0], {"mode": "max", "patience": 3}, 6),
        ([1, 2, 2.05, 2.09], {"mode": "max", "patience": 2, "min_change": 0.1}, 3),
        ([1, NAN, NAN, 2], {"mode": "max", "patience": 2}, 2),
        ([5, 4, 3, 2], {"mode": "min", "patience": 1}, None),
    ],
)
def test_it_stops_after_the_patience(values, options, stops):
    stop = early_stopping("loss", **options)
    answers = [stop(None, {"loss": value}) for value in values]
    assert (answers.index(True) if True in answers else None) == stops
