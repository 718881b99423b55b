"""Every wrapper with every kind of task, and whether the constraints hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon import aggregators, attacks, clocks, staleness
from fedjax_muon.privacy.client_privacy import ClientPrivacy
from fedjax_muon.tasks.robust import agents, robust_logistic
from tests.support import federation

KEY = jax.random.key(0)
pytestmark = pytest.mark.filterwarnings("ignore:messages have", "ignore:the noise in")
DATA, MODEL = federation.DATA, federation.Linear(3)
BINARY = DATA._replace(
    y_train=np.minimum(DATA.y_train, 1),
    y_test=np.minimum(DATA.y_test, 1),
    classes=("a", "b"),
)
SGD, MINIMAX = fm.fedavg(lr=0.5), fm.minimax.fedmuon_da(lr=0.5)
TASKS = {
    "classification": (federation.TASK, DATA, SGD),
    "prologue": (federation.TASK, DATA, fm.fedmuon(lr=0.5)),
    "auc": (fm.tasks.auc(federation.Linear(2), (5,)), BINARY, MINIMAX),
    "agnostic": (fm.tasks.agnostic(MODEL, (5,), 6), DATA, MINIMAX),
    "adversarial": (fm.tasks.adversarial(MODEL, (5,), radius=0.1), DATA, MINIMAX),
    "robust": (robust_logistic(5, 6, agents), BINARY, MINIMAX),
}
DAMPED = fm.buffered(5, 2, damping=staleness.inverse(1))
PRIVATE = ClientPrivacy(
    clip_norm=0.5, cohort=3, rounds=4, delta=1e-2, noise_multiplier=5.0
)
LATE = {"cohort": DAMPED}
SLOW = fm.timed(3, clocks.measured([1, 1, 1, 1, 1, 9]), deadline=2.5)


def alone(algorithm):
    return algorithm


WRAPPERS = {  # with the arguments of `federate`
    "none": (alone, {}),
    "dropout": (alone, {"cohort": fm.sampled(3, dropout=0.3)}),
    "deadline": (alone, {"cohort": SLOW}),
    "buffered": (alone, LATE),
    "compressed": (
        lambda algorithm: fm.compress(algorithm, fm.top_k(0.5), feedback=1.0),
        {},
    ),
    "compressed broadcasts": (
        lambda algorithm: fm.compress_broadcasts(algorithm, fm.quantize(4)),
        {},
    ),
    "robust": (
        lambda algorithm: aggregators.robust(
            attacks.attack(algorithm, attacks.sign_flip(), [0]), aggregators.median()
        ),
        {"cohort": 6},
    ),
    "compressed, buffered": (
        lambda algorithm: fm.compress(algorithm, fm.top_k(0.5)),
        LATE,
    ),
    "private": (alone, {"privacy": PRIVATE, "cohort": None}),
}


def prepared(wrapper, task):
    wrap, changes = WRAPPERS[wrapper]
    problem, data, algorithm = TASKS[task]
    return federation.federation(wrap(algorithm), data=data, task=problem, **changes)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_rounds_can_be_traced(wrapper, task):
    simulation = prepared(wrapper, task)
    program, given = simulation.program, (simulation.data, simulation.run)
    created = jax.eval_shape(program.create, *given, KEY)
    begun, _ = jax.eval_shape(program.begin, *given, created)
    after, _ = jax.eval_shape(program.rounds, *given, begun, 1)
    assert jax.tree.structure(after) == jax.tree.structure(begun)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["agnostic", "adversarial", "robust"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_parameters_stay_in_the_constraint_set(wrapper, task):
    simulation = prepared(wrapper, task)
    begin = simulation.init(KEY)
    first = jax.tree.map(np.asarray, begin.params.y)
    state, _ = simulation.train_rounds(begin, 4)
    y = np.asarray(state.params.y)
    assert np.abs(y - first).max() > 1e-4
    if task == "adversarial":
        assert np.linalg.norm(y) <= 0.1 * (1 + 1e-6)
    else:
        assert y.min() >= 0
        assert y.sum() == pytest.approx(1, abs=1e-5)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(state.params))
