"""Gradients that are added up a few examples at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon.tasks import microbatched
from fedjax_muon.tasks.task import Batch
from tests.support.error_lines import one_line

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 5)).astype(np.float32)
DATA = fm.data.from_arrays(np.tile(X, (3, 1)), [0, 1, 2] * 10)
TASK = fm.tasks.classification(fm.models.MLP(3, (7,)), DATA)
WEIGHT = np.float32([1, 0, 2, 1, 0, 0, 0.5, 1, 1, 3])
BATCH = Batch(jnp.asarray(X), jnp.arange(10) % 3, jnp.asarray(WEIGHT))


@pytest.mark.parametrize("size", [1, 3, 5, 9, 10, 99])
def test_the_gradient_is_that_of_the_whole_batch(size):
    params = TASK.init(KEY)
    wanted = TASK.grad(params, BATCH, KEY)
    found = jax.jit(microbatched(TASK, size).grad)(params, BATCH, KEY)
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6)
    jax.tree.map(close, found, wanted)


def test_padding_alone_has_no_gradient():
    batch = BATCH._replace(weight=jnp.zeros(10))
    g = microbatched(TASK, 3).grad(TASK.init(KEY), batch, KEY)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(g))


def test_federated_training_is_the_same():
    parts = fm.partition.iid(DATA.y_train, 3, key=KEY)

    how = {"batch_size": 7, "cohort": 3, "local_steps": 2}

    def trained(task):
        simulation = fm.federate(fm.fedmuon(lr=0.1), task, DATA, parts, **how)
        return fm.run(simulation, simulation.init(KEY), rounds=2)[0].params

    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4)
    jax.tree.map(close, trained(microbatched(TASK, 2)), trained(TASK))


def test_a_problem_of_texts_takes_it():
    letters = {"a": 30 * "to be or not ", "b": 30 * "that is it. "}
    small = lambda data: fm.problems.gpt(data, width=8, depth=1, heads=2)
    how = {"window": 8, "model": small, "clients": 2}
    params = fm.problems.text(letters, **how).task.init(KEY)
    x = jnp.asarray(fm.problems.text(letters, **how).dataset.x_train[:6])
    batch = Batch(x, jnp.zeros(6, jnp.int32), jnp.ones(6))
    several = [fm.problems.text(letters, **how, microbatch=n).task for n in (None, 4)]
    wanted, found = (task.grad(params, batch, KEY) for task in several)
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6)
    jax.tree.map(close, found, wanted)
    with one_line("microbatch must be at least 1, got 0"):
        fm.problems.text(letters, **how, microbatch=0)
