"""Gradient estimators with bounded examples, on a few points."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from gossip_cases import (
    QUICKLY,
    TRACE,
    pair,
)
from oracles import gossip as oracle
from oracles.saddle import draw_saddle
from saddle import loss

from fedjax_muon.core import Objective
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized.gossip import Iteration
from fedjax_muon.decentralized.private_storm import (
    difference,
    each,
    split,
)
from fedjax_muon.tasks.task import Batch, per_example

LIMIT, CHANGE = Pair(0.8, 0.5), Pair(0.05, 0.03)


CLIPS = {
    "each": (each(LIMIT), oracle.share_each),
    "difference": (difference(LIMIT), oracle.share_difference),
    "split": (split(LIMIT, CHANGE), oracle.share_split),
}


T = 5


def grad_fn(params, batch, key):
    del key
    x, y = jax.grad(loss)(params, (batch.x, batch.y, batch.weight))
    return Pair(x, jax.tree.map(jnp.negative, y))


OBJECTIVE = Objective(grad_fn, example_grad=per_example(grad_fn))


quick = functools.partial(jax.jit, compiler_options=QUICKLY)


POINTS = [draw_saddle(seed) for seed in range(T)]


RAW = [agents[2] for agents in TRACE.batches[:T]]
# the last example is twice padding: junk for the library, absent for the oracle
RAW = [(a, y, np.where(np.arange(len(w)) >= len(w) - 2, 0.0, w)) for a, y, w in RAW]


def as_batch(raw, dtype=jnp.float64):
    return Batch(*(jnp.asarray(leaf, dtype) for leaf in raw))


def iteration(t):
    key = jax.random.fold_in(jax.random.key(3), t)
    return Iteration(jnp.int32(t), *jax.random.split(key))


def compiled(estimator, objective):
    """Its two functions for an objective."""
    start, update, _ = estimator
    return (
        quick(functools.partial(start, objective)),
        quick(functools.partial(update, objective)),
    )


def estimates(estimator, points=POINTS, batches=RAW, dtype=jnp.float64):
    """What one agent tells at t = 0 to T - 1: two compiled functions."""
    start, update = compiled(estimator, OBJECTIVE)
    points = [jax.tree.map(lambda a: jnp.asarray(a, dtype), pair(p)) for p in points]
    batches = [as_batch(raw, dtype) for raw in batches]
    told, memory = start(points[0], batches[0], iteration(0))
    seen = [told]
    for t in range(1, len(points)):
        told, memory = update(memory, points[t], batches[t], iteration(t))
        seen.append(told)
    return seen


def descending(saddle):
    """The oracle's estimate as the library has it."""
    return Pair(saddle["x"], {n: -v for n, v in saddle["y"].items()})


def assert_close(found, want, bound=1e-10):
    for a, b in zip(found, want, strict=True):
        jax.tree.map(
            lambda u, v: np.testing.assert_allclose(u, v, rtol=0, atol=bound), a, b
        )
