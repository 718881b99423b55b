"""Mistakes in the arguments of simulations, made as a user makes them."""

import jax
import numpy as np
import optax
import pytest
from federation import DATA, PARTS, TASK, Linear, federation

import fedjax_muon as fm
from fedjax_muon.engine import plans

SIZES = {"cohort_size": 2, "local_steps": 1, "batch_size": 4}
OWNER = np.arange(len(DATA.x_train)) % 3
WEIGHTS = np.full((6, 6), 1 / 6)


def federate(algorithm=None, task=TASK, data=DATA, parts=PARTS, **changes):
    algorithm = fm.fedavg(lr=0.1) if algorithm is None else algorithm
    return fm.federate(algorithm, task, data, parts, **(SIZES | changes))


def decentralize(algorithm, **changes):
    given = TASK, DATA, PARTS
    return fm.decentralize(algorithm, *given, weights=WEIGHTS, batch_size=4, **changes)


def changed(**parts):
    return {"data": DATA._replace(**parts)}


def with_nan(x):
    x = np.array(x)
    x[7, 0] = np.nan
    return x


SIMULATION = federate()
# what the message says: the arguments of `federate`, or another call
MISTAKES = {
    "call it first: fedavg": {"algorithm": fm.fedavg},
    "simulate it with decentralize": {"algorithm": fm.decentralized.dsgd(lr=0.1)},
    "the algorithm comes first, then the task": {"algorithm": "fedavg"},
    "task must be a Task, got Linear; make one of the model": {"task": Linear(3)},
    "task must be a Task, got Algorithm; see": {"task": fm.fedavg()},
    "dataset must be a data.Dataset, got tuple": {"data": (DATA.x_train, DATA.y_train)},
    "if it names the owner of every example, use": {"parts": OWNER},
    "plan must be a function, got 'vmapped'": {"plan": "vmapped"},
    "sampler must be a function, got 'full_batch'": {"sampler": "full_batch"},
    "weighting must be a function, got 'examples'": {"weighting": "examples"},
    "cohort_size must be an integer, got 2.5": {"cohort_size": 2.5},
    "batch_size must be an integer, got '4'": {"batch_size": "4"},
    "y_test must be 20 integers": changed(y_test=DATA.y_test[:5]),
    "y_test must be in 0..2": changed(y_test=DATA.y_test + 1),
    "y_train must be 80 integers": changed(y_train=np.append(DATA.y_train, 0)),
    "x_train has NaN or infinity in 1 of 80 examples, first in example 7": changed(
        x_train=with_nan(DATA.x_train)
    ),
    "x_test must be non-empty": changed(x_test=DATA.x_test[:0], y_test=DATA.y_test[:0]),
    "simulate it with federate": lambda: decentralize(fm.fedavg()),
    "mixer must be a function, got 'dense'": lambda: decentralize(
        fm.decentralized.dsgd(), mixer="dense"
    ),
    "a model must be made first, as Linear": lambda: fm.tasks.classification(
        Linear, DATA
    ),
    "keyword argument 'learning_rate'; it takes lr, rule": lambda: fm.fedavg(
        learning_rate=0.1
    ),
    "key must be a typed key": lambda: SIMULATION.init(0),
    "rounds must be an integer, got '30'": lambda: fm.train(
        SIMULATION, SIMULATION.init(jax.random.key(0)), rounds="30"
    ),
    "count must be at least 0, got -1": lambda: SIMULATION.train_rounds(
        SIMULATION.init(jax.random.key(0)), -1
    ),
    "rounds must be at least 0, got -1": lambda: SIMULATION.bytes_after(-1),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_refused_by_name(message):
    given = MISTAKES[message]
    with pytest.raises((TypeError, ValueError)) as error:
        given() if callable(given) else federate(**given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_donated_state_is_named():
    simulation = federation(plan=plans.mapped)
    state = simulation.init(jax.random.key(0))
    simulation.train_round(state)
    with pytest.raises(ValueError, match="donated to an earlier call; continue with"):
        simulation.train_round(state)


@pytest.mark.slow
def test_examples_in_float64_are_those_in_float32():
    wide = DATA._replace(x_train=DATA.x_train.astype(float), x_test=np.float64(DATA[2]))
    ends = []
    for data in (DATA, wide):
        simulation = federate(fm.fedavg(rule=optax.identity()), data=data)
        state, _ = simulation.train_round(simulation.init(jax.random.key(1)))
        ends.append(state.params)
    jax.tree.map(np.testing.assert_array_equal, *ends)


def test_hyper_parameters_of_postponed_annotations_are_found():
    source = (
        "from __future__ import annotations\n"
        "import fedjax_muon as fm\n"
        "from fedjax_muon.core import Hyper, recorded\n"
        "@recorded\n"
        "def mine(lr: Hyper = 0.1, *, other: fm.Hyper = 0.5, steps: int = 3):\n"
        "    return fm.fedavg(lr=lr)\n"
    )
    names: dict = {}
    exec(source, names)
    assert fm.core.numbers_of(names["mine"](lr=0.3)) == {"lr": 0.3, "other": 0.5}
