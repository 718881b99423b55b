"""Minimax methods in the engine, and steps of bounded length."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fedjax_muon import algorithms, data, engine, models
from fedjax_muon.algorithms.minimax import ALL, fedmuon_da
from fedjax_muon.core import Objective, tree
from fedjax_muon.core.pair import Pair
from fedjax_muon.data import partition
from fedjax_muon.engine import plans
from fedjax_muon.simulation import Simulation, federate
from fedjax_muon.simulation.rounds import State
from fedjax_muon.simulation.sweeps import Cell, run_cells
from fedjax_muon.simulation.training import Record, run
from fedjax_muon.tasks import auc
from fedjax_muon.tasks.heavy_tails import alpha_stable, noisy
from tests.oracles.saddle_cases import PARTIAL, START
from tests.support.saddle import OBJECTIVE
from tests.support.traces import stack

POINT = Pair(START["x"], START["y"])


def single(t):
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), t)


SLOW = pytest.mark.slow


# -------------------------------------------------------------------- communication

# (down, up) of a round and of the prologue, in pairs of 23 numbers
COST = dict.fromkeys(("local_sgda", "fsgda", "fess_gda"), ((1, 1), (0, 0)))
COST |= dict.fromkeys(("local_sgdam", "fedsgda_m"), ((2, 2), (1, 1)))
CONTROLLED = "sagda", "fed_nsgda_m", "fedmuon_da", "fedsgda_clip"
COST |= dict.fromkeys(CONTROLLED, ((2, 2), (0, 0)))


def traffic(algorithm):
    _, data = PARTIAL.rounds[0]
    batches = jax.tree.map(lambda a: a[0, :2], single(stack(data)))
    return [
        engine.traffic(exchanges, algorithm, OBJECTIVE, single(POINT), batches)
        for exchanges in (algorithm.exchanges, algorithm.prologue)
    ]


def test_traffic_is_the_papers():
    pair = 4 * (4 * 3 + 3 + 1 + 3 * 2 + 1)
    assert tree.nbytes(single(POINT)) == pair
    shares = lambda sent: tuple((down / pair, up / pair) for down, up in sent)
    sent = {name: traffic(method.function()) for name, method in ALL.items()}
    assert {name: shares(both) for name, both in sent.items()} == COST


# ------------------------------------------------------------------------- the rows
def test_rows_are_complete():
    assert ALL.keys() == COST.keys()
    assert len({method.label for method in ALL.values()}) == len(ALL)
    assert not ALL.keys() & algorithms.ALL.keys()
    assert all(method.paper for method in ALL.values())


# ------------------------------------------------------------------- AUC, in training

REST, VALIDATION = data.hold_out(data.load("breast_cancer"), 0.1)
PARTS = partition.iid(REST.y_train, 4, key=jax.random.key(1))
MODEL = models.MLP(2, (8,))
TASK = auc(MODEL, REST.x_train.shape[1:])


def federation(name, *, cohort=4, **hyper):
    sizes = {"cohort": cohort, "local_steps": 4, "batch_size": 16}
    return federate(ALL[name].function(**hyper), TASK, REST, PARTS, **sizes)


RATES = {"fed_nsgda_m": 0.03, "local_sgda": 0.3}
SPAN: dict[str, Any] = {"rounds": 6, "evaluate_every": 3}
BEGIN = jax.random.key(4)  # of a model that is no better than chance


class Trained(NamedTuple):
    simulation: Simulation
    state: State
    rows: list[Record]


@functools.cache
def trained(name) -> Trained:
    prepared = federation(name, lr=RATES[name])
    return Trained(prepared, *run(prepared, prepared.init(BEGIN), **SPAN))


def area(state, x, y):
    """By the difference of logits, in scikit-learn."""
    logits: Any = MODEL.apply({"params": state.params.x.model}, x)
    return pytest.approx(roc_auc_score(y, logits[:, 1] - logits[:, 0]), abs=1e-5)


@pytest.mark.parametrize(
    "name", ["local_sgda", pytest.param("fed_nsgda_m", marks=SLOW)]
)
def test_training_raises_the_area_under_the_curve(name):
    _, state, rows = trained(name)
    assert rows[-1]["test_auc"] == area(state, REST.x_test, REST.y_test)
    assert rows[0]["test_auc"] < 0.5
    assert rows[-1]["test_auc"] > 0.9


@SLOW
def test_a_sweep_is_its_single_runs():
    _, state, rows = trained("local_sgda")
    cells = [Cell({"lr": lr}, BEGIN, PARTS) for lr in (0.01, RATES["local_sgda"])]
    swept = run_cells(federation("local_sgda"), cells, validation=VALIDATION, **SPAN)
    other, outcome = [outcome for group in swept for outcome in group]
    assert outcome.diverged is None
    for found, wanted in zip(outcome.rows, rows, strict=True):
        names = {f"validation_{what}" for what in ("loss", "accuracy", "auc")}
        assert found.keys() == wanted.keys() | names
        for column in wanted.keys() - {"seconds"}:
            assert found[column] == pytest.approx(wanted[column], abs=1e-5), column
    assert outcome.rows[-1]["validation_auc"] == area(state, *VALIDATION)
    assert abs(other.rows[-1]["train_loss"] - rows[-1]["train_loss"]) > 1e-3


# -------- fedMuon-DA under noise without a variance: no gradient makes a step long

CLIENTS, STEPS, ROUNDS, LR = 8, 4, 40, 0.05


def quadratic(params, batch, key):
    """Descent in x and ascent in y towards zero."""
    del batch, key
    return params


def moves(**options):
    """Longest changes in one round of the kernel, the vector and the scalar."""
    objective = Objective(noisy(quadratic, alpha_stable(1.2)))
    algorithm = fedmuon_da(lr=LR, **options)
    start = Pair({"kernel": jnp.eye(6), "bias": jnp.ones(6)}, jnp.array(1.0))
    state = engine.init(algorithm, start, CLIENTS)
    run = engine.make_round(algorithm, objective, CLIENTS, plans.vmapped)
    cohort = jnp.arange(CLIENTS)
    batches = jnp.zeros((CLIENTS, STEPS))

    def body(state, key):
        before = state.server.params
        state, _ = run(state, cohort, batches, jnp.ones(CLIENTS), key)
        moved = jax.tree.map(jnp.subtract, state.server.params, before)
        return state, jax.tree.map(jnp.linalg.norm, moved)

    keys = jax.random.split(jax.random.key(0), ROUNDS)
    _, found = jax.jit(lambda state: jax.lax.scan(body, state, keys))(state)
    return jax.tree.map(np.max, found)


@pytest.mark.slow
def test_steps_are_bounded_under_alpha_stable_noise():
    # Lemma B.1: at most lr for each of the local steps, times sqrt(n) for a matrix
    bound = STEPS * LR * 1.0001
    found = moves()
    assert 0.1 * bound < found.x["bias"] <= bound
    assert 0.1 * bound < found.y <= bound
    assert found.x["kernel"] <= 1.21 * 6**0.5 * bound  # singular values below 1.21


@pytest.mark.slow
def test_without_normalized_vectors_they_are_not():
    found = moves(normalize_vectors=False)
    assert found.x["bias"] > 5 * STEPS * LR
    assert found.y <= STEPS * LR * 1.0001  # scalars have their sign in both forms


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_scale_of_a_gradient_does_not_matter(scale):
    objective = Objective(
        lambda params, batch, key: jax.tree.map(lambda leaf: scale * leaf, params)
    )
    start = Pair({"bias": jnp.array([3.0, 4.0])}, jnp.array(1.0))
    algorithm = fedmuon_da(lr=LR)
    state = engine.init(algorithm, start, 1)
    run = engine.make_round(algorithm, objective, 1, plans.vmapped)
    given = jnp.arange(1), jnp.zeros((1, 1)), jnp.ones(1), jax.random.key(0)
    state, _ = run(state, *given)
    expected = np.array([3.0, 4.0]) - LR * np.array([0.6, 0.8])
    np.testing.assert_allclose(state.server.params.x["bias"], expected, rtol=1e-6)
