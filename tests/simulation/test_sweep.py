"""A cell of a sweep is what a simulation of its own would be."""

import dataclasses
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon import clocks, simulation
from fedjax_muon.algorithms import ALL, fedavg
from fedjax_muon.core import Hyper, ParamsMessage, recorded, tree
from fedjax_muon.decentralized import gradient_tracking, topology
from fedjax_muon.engine import plans
from fedjax_muon.simulation import groups, sweeps, training
from fedjax_muon.simulation.groups import sequential, vectorized
from fedjax_muon.simulation.memory import UnknownMemoryError, held_by, memory_of
from fedjax_muon.simulation.sweeps import Cell
from tests.support import federation
from tests.support.federation import DATA, PARTS, assert_same_bits, cell, cut

ROUNDS, KEY = 7, jax.random.key(0)
HOW = {"rounds": ROUNDS, "evaluate_every": 3}
SLOW = clocks.measured([1.0, 1.5, 2.0, 2.5, 3.0, 4.0])
UNTIL = {"cohort": fm.timed(3, SLOW, deadline=5.0)}


def groups_of(prepared, cells, **how):
    return list(sweeps.run_cells(prepared, cells, **{**HOW, **how}))


def outcomes(prepared, cells, **how):
    return list(itertools.chain(*groups_of(prepared, cells, **how)))


@pytest.fixture
def scored(monkeypatch):
    """The states of a sweep's cells, whenever they were scored."""
    seen: list[Any] = []
    make = groups.make_programs

    def programs(*args):
        made = make(*args)

        def score(data, runs, states):
            seen.append(jax.tree.map(jnp.copy, states))
            return made.score(data, runs, states)

        return made._replace(score=score)

    monkeypatch.setattr(groups, "make_programs", programs)
    return seen


def assert_same_rows(some, others):
    assert len(some) == len(others) > 1
    for a, b in zip(some, others, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - {"seconds"}:
            np.testing.assert_allclose(a[name], b[name], atol=1e-6, err_msg=name)


def assert_same_outcomes(some, others):
    for one, other in zip(some, others, strict=True):
        assert_same_rows(one.rows, other.rows)


# with private states, a prologue and full participation, several messages
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (
            "fedavg",
            {
                "cohort": fm.sampled(3, dropout=0.3),
                "weighting": simulation.by_examples,
            },
        ),
        pytest.param("stem", {"cohort": 6}, marks=pytest.mark.slow),
        pytest.param("fedmuon_svd", {"plan": plans.chunked(2)}, marks=pytest.mark.slow),
        pytest.param("fedmuon", UNTIL, marks=pytest.mark.slow),
        ("scaffold", {"cohort": fm.buffered(5, 2, SLOW)}),
    ],
)
def test_every_cell_equals_a_run_of_its_own(name, changes, scored):
    cells = [cell(0.03, 0), cell(0.3, 0), cell(0.3, 1)]
    common, alone = (
        federation.federation(ALL[name].function(**lr), **changes)
        for lr in ({}, {"lr": 0.3})
    )
    assert_runs_of_their_own(common, alone, cells, scored)


@pytest.mark.parametrize("over", [sequential, vectorized])
def test_agents_have_their_own_graphs(over, scored):
    """Each seed has another random graph, with another number of links."""
    graph = lambda seed: topology.metropolis(
        topology.erdos_renyi(6, 0.5, key=jax.random.key(seed)).graph
    )
    parts = cut([10] * 6, 3)
    cells = [
        Cell({"lr": lr}, jax.random.key(seed), parts, graph(seed))
        for lr, seed in ((0.03, 0), (0.3, 0), (0.3, 1))
    ]
    assert (graph(0) > 0).sum() != (graph(1) > 0).sum()
    how = {"weights": graph(0), "batch_size": 4}
    common, alone = (
        fm.decentralize(gradient_tracking(**lr), federation.TASK, DATA, parts, **how)
        for lr in ({}, {"lr": 0.3})
    )
    exact = over is sequential
    assert_runs_of_their_own(common, alone, cells, scored, exact=exact, over=over)


SCORES = """
import fedjax_muon as fm, jax
from tests.simulation.test_sweep import Cell, outcomes
from tests.support import federation
parts = federation.cut([10] * 6, 3)
how = {"weights": fm.topology.metropolis(fm.topology.ring(6)), "batch_size": 4}
given = fm.decentralized.dsgd(), federation.TASK, federation.DATA, parts
agents = fm.decentralize(*given, **how)
cells = [Cell({"lr": lr}, jax.random.key(0), parts) for lr in (0.03, 0.3)]
for size in 1, 2:
    found = outcomes(agents, cells, cells_at_once=size, evaluate_every=1)
    print([row["test_loss"] for outcome in found for row in outcome.rows])
"""


@pytest.mark.slow
def test_a_cell_has_the_same_scores_alone_in_its_group():
    """In all bits, also where XLA generates code as it does by default."""
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": root, "XLA_FLAGS": ""}
    how = {"env": environment, "capture_output": True, "text": True, "check": True}
    run = subprocess.run([sys.executable, "-c", SCORES], **how)
    alone, together = run.stdout.splitlines()
    assert alone == together


def test_graphs_of_other_degrees_need_a_dense_mixer():
    parts, weights = cut([10] * 6, 3), topology.metropolis(topology.ring(6))
    how = {"weights": weights, "batch_size": 4, "mixer": fm.decentralized.sparse}
    ring = fm.decentralize(gradient_tracking(), federation.TASK, DATA, parts, **how)
    complete = np.full((6, 6), 1 / 6)
    cells = [Cell({}, KEY, parts, graph) for graph in (None, complete)]
    with pytest.raises(ValueError, match=r"cell 1 need another .* mixer=dense"):
        groups_of(ring, cells)
    assert len(groups_of(ring, cells[:1])) == 1


def assert_runs_of_their_own(common, alone, cells, scored, *, exact=True, **how):
    """A sweep's second and third cell are runs of `alone`, which has their rate."""
    found = outcomes(common, cells, **how)
    assert [outcome.diverged for outcome in found] == [None] * 3
    # the first cell's rate is what tells it from the second
    for number in (1, 2):
        one, rows = cells[number], []
        own = alone.at(parts=one.parts, weights=one.weights)
        steps = training.steps(own, own.init(cells[number].key), **HOW)
        course = (step for step in steps if step.record is not None)
        for states, step in zip(scored, course, strict=True):
            ours = jax.tree.map(lambda x, number=number: x[number], states)
            if exact:
                assert_same_bits(ours, step.state)
            rows.append(step.record)
        assert_same_rows(found[number].rows, rows)  # scores may differ in rounding
    losses = [outcome.rows[-1]["train_loss"] for outcome in found]
    assert len(set(losses)) == 3


def test_another_number_needs_no_other_program():
    """Hyperparameters are arguments: a run with other ones is not compiled again."""
    slow, fast = (federation.federation(fedavg(lr=lr)) for lr in (0.03, 0.3))

    def trained(prepared):
        state = prepared.init(jax.random.key(5))
        return prepared.train_rounds(state, ROUNDS)[0]

    expected = [trained(slow), trained(fast)]
    faster = slow.at({"lr": 0.3})
    assert_same_bits(trained(faster), expected[1])
    assert faster.compiled is slow.compiled
    for prepared in (slow, fast):
        assert prepared.compiled.rounds._cache_size() == 1
        assert prepared.compiled.begin._cache_size() == 1
    kernels = [state.params["Dense_0"]["kernel"] for state in expected]
    assert np.abs(np.subtract(*kernels)).min() > 0


CELLS = [cell(lr, 4) for lr in (0.03, 0.1, 0.3, 1.0, 2.0)]
TEST = DATA.x_test, DATA.y_test
HALF = DATA.x_test[::2], DATA.y_test[::2]
VALIDATION = "validation_loss", "validation_accuracy"


@pytest.fixture(scope="module")
def together():
    """Five cells in one group."""
    return outcomes(federation.federation(fedavg()), CELLS, validation=HALF)


@pytest.mark.slow
def test_groups_run_the_same_cells_in_the_same_programs(together, monkeypatch):
    compiled: list[Any] = []
    programs = groups.make_programs
    remember = lambda *args: compiled.append(programs(*args)) or compiled[-1]
    monkeypatch.setattr(groups, "make_programs", remember)
    ticks: list[int] = []
    how = {"validation": HALF, "cells_at_once": 2, "tick": ticks.append}
    found = groups_of(federation.federation(fedavg()), CELLS, **how)
    assert [len(group) for group in found] == [2, 2, 1]
    assert sum(ticks) == ROUNDS * len(CELLS)
    assert [program._cache_size() for program in compiled[0]] == [1, 1, 1]
    assert_same_outcomes(itertools.chain(*found), together)


@pytest.mark.slow
def test_devices_divide_the_cells_of_a_group(together):
    prepared = federation.federation(fedavg())
    how = {"validation": HALF, "devices": jax.devices()[:2], "cells_at_once": 3}
    found = groups_of(prepared, CELLS, **how)
    assert [len(group) for group in found] == [4, 1]  # a multiple of two
    assert_same_outcomes(itertools.chain(*found), together)
    with pytest.raises(ValueError, match="give only one of devices, executor and over"):
        next(sweeps.run_cells(prepared, CELLS, rounds=1, over=sequential, **how))


@pytest.mark.slow
def test_cells_at_once_are_as_cells_one_by_one(together):
    prepared = federation.federation(fedavg())
    parallel = outcomes(prepared, CELLS, over=vectorized, validation=TEST)
    for one, other in zip(parallel, together, strict=True):
        for row, expected in zip(one.rows, other.rows, strict=True):
            for name in row.keys() - {"seconds", *VALIDATION}:
                assert row[name] == pytest.approx(expected[name], abs=1e-6)
            # these had the test examples for validation
            loss, accuracy = (row[name] for name in VALIDATION)
            assert loss == pytest.approx(row["test_loss"], rel=1e-6)
            assert accuracy == pytest.approx(row["test_accuracy"])


# ------------------------------------------------------------- not finite

FIRST = 3  # the round from which client 4 sends what is not finite, if it is sampled


@pytest.fixture(scope="module")
def fragile():
    """Client 4's gradients are about 1e30; `lr` counts from round 3 on."""
    x = DATA.x_train.copy()
    x[PARTS[4]] *= 1e30

    @recorded
    def late(lr: Hyper = 0.0):
        return fedavg(lr=lambda index: jnp.where(index < FIRST, 0.0, lr))

    how = {"data": DATA._replace(x_train=x), "local_steps": 1, "cohort": 6}
    return federation.federation(late(), **how)


def with_rates(*rates):
    return [Cell({"lr": lr}, jax.random.key(0), PARTS) for lr in rates]


def test_a_diverging_cell_ends_and_the_others_go_on(fragile):
    lost, kept = outcomes(fragile, with_rates(1e10, 0.0))
    assert (lost.diverged, kept.diverged) == (FIRST, None)
    assert [row["round"] for row in lost.rows] == [0, 3]
    assert [row["round"] for row in kept.rows] == [0, 3, 6, 7]
    one = federation.federation(fedavg(lr=0.0), local_steps=1, cohort=6)
    state, _ = one.train_rounds(one.init(jax.random.key(0)), 3)
    expected = float(one.evaluate(state)["test_accuracy"])
    assert kept.rows[1]["test_accuracy"] == pytest.approx(expected)


@pytest.mark.slow
def test_a_group_whose_cells_have_all_diverged_is_over(fragile):
    ticks: list[int] = []
    how = {"rounds": 10**7, "evaluate_every": 10**7, "tick": ticks.append}
    found = outcomes(fragile, with_rates(1e10, 1e11), **how)
    assert [outcome.diverged for outcome in found] == [FIRST, FIRST]
    assert sum(ticks) == 2 * 10**7


def broken_loss(request):
    """Messages stay finite: the loss alone overflows, in some round."""
    prepared = federation.federation()
    task = prepared.data.task
    low = lambda scores: jnp.mean(scores["loss"]) < 1.05
    late = lambda scores, y: jnp.where(low(scores), jnp.nan, 1.0)
    metrics = {**task.metrics, "loss": jax.tree_util.Partial(late)}
    data = prepared.data._replace(task=task._replace(metrics=metrics))
    return dataclasses.replace(prepared, data=data), federation.cell(0.1, 0)


def broken_prologue(request):
    """Only the message of the prologue overflows: the server does not use it."""

    @recorded
    def late(lr: Hyper = 0.0):
        inner = fedavg(lr=lr)
        (main,) = inner.exchanges
        client = lambda *args: (
            ParamsMessage(tree.scale(args[1].params, jnp.inf)),
            args[2],
        )
        first = main._replace(client=client, server=lambda state, *_: state)
        return inner._replace(prologue=(first,))

    return federation.federation(late(), cohort=6), with_rates(0.1)[0]


def broken_message(request):
    return request.getfixturevalue("fragile"), with_rates(1e10)[0]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (broken_loss, "the training loss is NaN"),
        (broken_prologue, "round 0: not a finite message from client"),
        (broken_message, f"round {FIRST}: not a finite message from client 4;"),
    ],
)
def test_whatever_ends_a_run_ends_a_cell_with_the_same_error(broken, reason, request):
    prepared, one = broken(request)
    how: Any = {"rounds": 40, "evaluate_every": 1}
    (found,) = outcomes(prepared, [one], **how)
    alone = prepared.at(one.hyper, parts=one.parts)
    with pytest.raises(simulation.NonFiniteError, match=reason) as error:
        fm.run(alone, alone.init(one.key), progress=False, **how)
    assert (type(found.end), str(found.end)) == (type(error.value), str(error.value))
    assert found.diverged == error.value.round
    first_without = found.diverged + (broken is not broken_loss)  # a row
    assert [row["round"] for row in found.rows] == [*range(first_without)]


def test_rows_with_a_loss_that_is_nan_are_kept_if_asked(request):
    prepared, one = broken_loss(request)
    how = {"rounds": 40, "evaluate_every": 1, "drop_nonfinite": True}
    (kept,) = outcomes(prepared, [one], **how)
    _, rows = fm.run(prepared, prepared.init(one.key), progress=False, **how)
    for found in (kept.rows, rows):
        assert found[-1]["round"] == 40
        assert np.isnan(found[-1]["train_loss"])
    assert kept.end is None


(USUAL,) = with_rates(0.1)
MISTAKES = {
    "at least one cell": {"cells": []},
    "cells_at_once must be at least 1, got 0": {"cells_at_once": 0},
    r"cell 1 has the hyperparameters \[\], but the first has \['lr'\]": {
        "cells": [USUAL, USUAL._replace(hyper={})]
    },
    "examples": {"cells": [USUAL, USUAL._replace(parts=PARTS[:5])]},
    "6 clients, got 3 parts": {"cells": [USUAL._replace(parts=cut([25, 25, 25]))]},
}


@pytest.mark.parametrize("message", MISTAKES)
def test_what_is_no_sweep_is_refused_before_it_is_compiled(message, monkeypatch):
    monkeypatch.setattr(groups, "make_programs", None)
    how = {"cells": [USUAL], "rounds": 3} | MISTAKES[message]
    with pytest.raises(ValueError, match=message):
        next(sweeps.run_cells(federation.federation(fedavg()), **how))


def test_groups_take_half_the_memory_and_one_cell_where_it_is_unknown(monkeypatch):
    prepared = federation.federation(fedavg())
    for in_turn, need in ((False, memory_of(prepared)), (True, held_by(prepared))):
        one = need.state + need.work + 4 * 75  # and the order of 75 examples
        three = 2 * (need.examples + 3 * one)
        for memory, cells in ((three, 3), (three - 2, 2), (2, 1)):
            monkeypatch.setattr(sweeps, "limit_of", lambda _, memory=memory: memory)
            assert sweeps._cells_that_fit(prepared, (), in_turn) == cells

    def unknown(devices):
        raise UnknownMemoryError("no device says")

    monkeypatch.setattr(sweeps, "limit_of", unknown)
    with pytest.warns(UserWarning, match="memory not checked, one cell .*: no device"):
        assert sweeps._cells_that_fit(prepared, (), True) == 1
