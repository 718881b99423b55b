"""Training: when it evaluates, what the rows say, going on, messages that overflow."""

import dataclasses

import federation
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federation import DATA, PARTS, assert_same_bits

from fedjax_muon import simulation
from fedjax_muon.algorithms import fedavg
from fedjax_muon.simulation import training
from fedjax_muon.simulation.early_stopping import early_stopping


def ran(prepared, state, **how):
    """The last state and all rows of `evaluations`, up to a total of rounds."""
    rows = []
    for last, row in training.evaluations(prepared, state, **how):
        state = last
        rows.append(row)
    return state, rows


COLUMNS = [
    "round",
    "bytes_down",
    "bytes_up",
    "client_accuracy_std",
    "test_accuracy",
    "test_loss",
    "train_accuracy",
    "train_loss",
    "dropped",
    "seconds",
]


@pytest.fixture(scope="module")
def plain():
    return federation.federation()


def start(prepared):
    return prepared.init(jax.random.key(8))


@pytest.mark.parametrize(
    ("rounds", "every", "expected"),
    [
        (23, 10, [0, 10, 20, 23]),
        (20, 10, [0, 10, 20]),
        (3, 10, [0, 3]),
        (2, 1, [0, 1, 2]),
        (0, 5, [0]),
    ],
)
def test_rows_are_at_multiples_and_at_the_end(plain, rounds, every, expected):
    ticks = []
    state, rows = ran(
        plain, start(plain), rounds=rounds, evaluate_every=every, tick=ticks.append
    )
    assert [row["round"] for row in rows] == expected
    assert state.round == rounds == sum(ticks)
    assert min(ticks, default=1) >= 1
    assert all(list(row) == COLUMNS for row in rows)
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    assert seconds[0] >= 0


def test_rows_hold_the_scores_and_bytes_of_their_round(plain):
    pairs = training.evaluations(plain, start(plain), rounds=7, evaluate_every=3)
    other = start(plain)
    for state, row in pairs:
        other, _ = plain.train_rounds(other, row["round"] - other.round)
        assert_same_bits(state, other)
        scores = plain.evaluate(other)
        assert {name: row[name] for name in scores} == jax.tree.map(float, scores)
        assert (row["bytes_down"], row["bytes_up"]) == plain.bytes_after(row["round"])
        assert row["dropped"] == 0
        assert all(type(value) in (int, float) for value in row.values())


@pytest.mark.slow
def test_going_on_from_the_middle_gives_the_same_rows(plain):
    how = {"rounds": 23, "evaluate_every": 5}
    last, rows = ran(plain, start(plain), **how)
    middle, _ = plain.train_rounds(start(plain), 13)
    resumed, later = ran(plain, middle, **how)
    assert_same_bits(resumed, last)
    assert [row["round"] for row in later] == [13, 15, 20, 23]
    untimed = lambda row: {k: v for k, v in row.items() if k != "seconds"}
    assert list(map(untimed, later[1:])) == list(map(untimed, rows[-3:]))


def test_a_finished_state_is_evaluated_once(plain):
    state, _ = plain.train_rounds(start(plain), 4)
    kept = jax.tree.map(jnp.copy, state)
    ticks = []
    state, rows = ran(plain, state, rounds=4, tick=ticks.append)
    assert_same_bits(state, kept)
    assert [row["round"] for row in rows] == [4]
    assert ticks == []


@pytest.mark.parametrize("every", [0, -3])
def test_evaluations_need_a_cadence(plain, every):
    message = f"evaluate_every must be at least 1, got {every}"
    with pytest.raises(ValueError, match=message):
        ran(plain, start(plain), rounds=1, evaluate_every=every)


# ------------------------------------------------------------- not finite

GREEDY, FIRST = 4, 5  # whose message overflows, from which round on


@pytest.fixture(scope="module")
def overflowing():
    """Client 4's gradients are about 1e30, and from round 5 on lr is 1e10.

    Before, lr is 0; the others' parameters become 1e10 or so, which is finite. With
    one local step only the message overflows.
    """
    x = DATA.x_train.copy()
    x[PARTS[GREEDY]] *= 1e30
    lr = lambda index: jnp.where(index < FIRST, 0.0, 1e10)
    return federation.federation(
        fedavg(lr=lr), data=DATA._replace(x_train=x), local_steps=1
    )


def rounds_with(prepared, key, client, rounds):
    return [r for r in range(rounds) if client in federation.cohort(prepared, key, r)]


def test_the_error_names_the_round_and_the_client(overflowing):
    state = start(overflowing)
    there = rounds_with(overflowing, state.key, GREEDY, 40)
    first = next(r for r in there if r >= FIRST)
    assert there[0] < FIRST  # while its messages were finite
    ticks = []
    with pytest.raises(
        simulation.NonFiniteError,
        match=rf"round {first}: not a finite message from client {GREEDY}; lower the",
    ):
        ran(overflowing, state, rounds=40, evaluate_every=40, tick=ticks.append)
    assert sum(ticks) <= first


def test_messages_that_are_not_finite_are_left_out_and_counted(overflowing):
    state = start(overflowing)
    key = jax.random.clone(state.key)
    pairs = training.evaluations(
        overflowing, state, rounds=40, evaluate_every=8, drop_nonfinite=True
    )
    for state, row in pairs:
        there = rounds_with(overflowing, key, GREEDY, row["round"])
        assert row["dropped"] == sum(r >= FIRST for r in there)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))
    assert row["dropped"] > 5


@pytest.mark.slow
def test_metrics_name_the_first_loss_of_every_client(overflowing):
    state = start(overflowing)
    key = jax.random.clone(state.key)
    state, metrics = overflowing.train_rounds(state, 30)
    lost = [r for r in rounds_with(overflowing, key, GREEDY, 30) if r >= FIRST]
    only = np.arange(6) == GREEDY
    np.testing.assert_array_equal(metrics.lost, np.where(only, len(lost), 0))
    np.testing.assert_array_equal(metrics.lost_round, np.where(only, lost[0], -1))


# ---------------------------------------------------------------------------- train


def test_training_twice_adds_up(plain):
    state, first = training.train(plain, start(plain), rounds=6, evaluate_every=4)
    state, second = training.train(plain, state, rounds=6, evaluate_every=4)
    assert [row["round"] for row in first] == [0, 4, 6]
    assert [row["round"] for row in second] == [6, 8, 12]
    expected, _ = plain.train_rounds(start(plain), 12)
    assert_same_bits(state, expected)


def test_callbacks_see_every_record_and_may_end_the_training(plain):
    seen, kept = [], []

    def enough(state, record):
        kept.append(state.round)
        return record["round"] >= 8

    state, records = training.train(
        plain,
        start(plain),
        rounds=100,
        evaluate_every=4,
        callbacks=[lambda state, record: seen.append(record), enough],
    )
    assert records == seen
    assert kept == [0, 4, 8]
    assert state.round == 8


@pytest.mark.parametrize("rounds", [0, -1])
def test_training_is_of_one_round_or_more(plain, rounds):
    with pytest.raises(ValueError, match=f"rounds must be at least 1, got {rounds}"):
        training.train(plain, start(plain), rounds=rounds)


@pytest.mark.slow
def test_a_loss_that_becomes_nan_names_its_round():
    """Messages stay finite: the loss alone overflows."""
    prepared = federation.federation()
    task = prepared.inputs.task
    low = lambda scores: jnp.mean(scores["loss"]) < 1.05
    late = lambda scores, y: jnp.where(low(scores), jnp.nan, 1.0)
    metrics = {**task.metrics, "loss": jax.tree_util.Partial(late)}
    inputs = prepared.inputs._replace(task=task._replace(metrics=metrics))
    broken = dataclasses.replace(prepared, inputs=inputs)
    how = {"rounds": 40, "evaluate_every": 1}
    with pytest.raises(
        simulation.NonFiniteError, match="the training loss is NaN"
    ) as e:
        training.train(broken, start(broken), **how)
    first = int(str(e.value).split(":")[0].removeprefix("round "))
    _, rows = training.train(broken, start(broken), drop_nonfinite=True, **how)
    nan = [row["round"] for row in rows if np.isnan(row["train_loss"])]
    assert nan[0] == first > 0


# ------------------------------------------------------------------ early stopping


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


def test_training_ends_early(plain):
    stop = early_stopping("bytes_up", patience=2, mode="min")  # which only increase
    how = {"rounds": 50, "evaluate_every": 1, "callbacks": [stop]}
    _, history = training.train(plain, start(plain), **how)
    assert [row["round"] for row in history] == [0, 1, 2]


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="patience must be at least 1, got 0"):
        early_stopping("train_loss", patience=0, mode="min")
    with pytest.raises(ValueError, match='"min" or "max", got \'less\''):
        early_stopping("train_loss", patience=1, mode="less")
    with pytest.raises(ValueError, match="min_change must be at least 0, got -1"):
        early_stopping("train_loss", patience=1, mode="min", min_change=-1)
    stop = early_stopping("loss", patience=1, mode="min")
    with pytest.raises(ValueError, match="no metric 'loss'; there are round, f1"):
        stop(None, {"round": 0, "f1": 1.0})
