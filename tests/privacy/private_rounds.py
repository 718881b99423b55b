"""Rounds of private clients, in cohorts of any size."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from fedjax_muon import engine
from fedjax_muon.core import Objective, tree
from fedjax_muon.engine import plans
from tests.oracles.problem import draw_trace
from tests.support.traces import TOY, stack

N, KEY = 5, jax.random.key(3)
SIZES = {"clients": N, "cohort": 2}
ECHO = Objective(lambda params, batch, key: batch)  # what a client sends is its batch
TRACE = draw_trace(1, N, N, 3, 4, 5, [3, 9, 5, 14, 7])
WHO = [(1, 1, 0, 1, 0), (0, 0, 0, 1, 0), (1, 1, 1, 1, 1), (0, 0, 0, 0, 0)]
WHO.append((0, 1, 1, 0, 1))


def rounds_of_trace(algorithm, x):
    """The server after every round; weights other than 0 all count the same."""
    state = engine.init(algorithm, jax.tree.map(jnp.asarray, x), N)
    step = jax.jit(engine.make_round(algorithm, TOY, N, plans.mapped))
    for (ids, data), present in zip(TRACE.rounds, WHO, strict=True):
        weights = jnp.asarray([3.0 * present[i] for i in ids])
        batches = jax.tree.map(jnp.asarray, stack(data))
        state, received = step(state, jnp.array(ids), batches, weights, KEY)
        assert received.tolist() == [bool(present[i]) for i in ids]
        yield state.server


def rounds_of(algorithm, batches, count, weights=None):
    """The server after every round, of the same batches [N, K, ...]."""
    size = len(jax.tree.leaves(batches)[0])
    start = tree.zeros_like(jax.tree.map(lambda x: x[0, 0], batches))
    state = engine.init(algorithm, start, size)
    step = jax.jit(engine.make_round(algorithm, ECHO, size, plans.vmapped))
    weights = jnp.ones(size) if weights is None else weights
    for _ in range(count):
        state, received = step(state, jnp.arange(size), batches, weights, KEY)
        assert received.tolist() == (weights > 0).tolist()
        yield state.server


def assert_standard_normal(columns):
    """All of them, each [worlds, ...], and independent of one another."""
    for drawn in columns:
        assert abs(drawn.std() - 1) < 4 / np.sqrt(2 * drawn.size)
        assert stats.kstest(drawn.ravel(), "norm").pvalue > 1e-3
    everything = np.concatenate(columns, axis=1)
    worlds, number = everything.shape
    apart = np.corrcoef(everything, rowvar=False) - np.eye(number)
    assert np.abs(apart).max() < 5 / np.sqrt(worlds)
