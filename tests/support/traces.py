"""The JAX side of a trace: how the library runs what an oracle transcribes.

A `Trace` fixes the clients and batches of every round, so that an algorithm and its
oracle must reach the same parameters, round after round.
"""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon import engine
from fedjax_muon.core import Objective
from fedjax_muon.engine import plans
from tests.oracles.problem import Trace
from tests.oracles.saddle import SaddleTrace


def value_and_grad(params, batch, key):
    """`oracles.problem.toy_loss` and its gradient, by automatic differentiation."""
    del key
    x, y, weight = batch

    def loss(p):
        out = jnp.tanh(x @ p["w"] + p["b"][None, :])
        return jnp.sum(weight * jnp.mean((out - y) ** 2, axis=1)) / jnp.sum(weight)

    return jax.value_and_grad(loss)(params)


def grad_fn(params, batch, key):
    """The gradient alone."""
    return value_and_grad(params, batch, key)[1]


TOY = Objective(grad_fn, value_and_grad=value_and_grad)


def stack(data):
    """Lists over clients of lists over steps of batches as arrays [S, K, ...]."""
    rows = [[np.stack(leaf) for leaf in zip(*one, strict=True)] for one in data]
    return tuple(np.stack(leaf) for leaf in zip(*rows, strict=True))


def precision(dtype):
    """The context in which arrays of `dtype` exist."""
    return jax.enable_x64(True) if dtype == jnp.float64 else contextlib.nullcontext()


def compilations(jitted: Any) -> int:
    """How often a jitted function has been compiled."""
    return jitted._cache_size()


def run(
    algorithm,
    params,
    trace: Trace | SaddleTrace,
    *,
    objective: Objective = TOY,
    plan=plans.mapped,
    dtype=jnp.float64,
    weigh=None,
) -> list[engine.State]:
    """The states after each round, in float64 NumPy, from one compiled round.

    `weigh` maps the cohort's ids to weights; by default all are 1.
    """
    with precision(dtype):
        cast = lambda t: jax.tree.map(lambda a: jnp.asarray(a, dtype), t)
        N, key = trace.num_clients, jax.random.key(0)
        state = engine.init(algorithm, cast(params), N, project=objective.project)
        if algorithm.prologue:
            start = jax.jit(engine.make_prologue(algorithm, objective, N, plan))
            first = cast(stack(trace.first))
            state, _ = start(state, jnp.arange(N), first, jnp.ones(N, dtype), key)
        step = jax.jit(engine.make_round(algorithm, objective, N, plan))
        states = []
        for ids, data in trace.rounds:
            cohort = jnp.array(ids, jnp.int32)
            weights = cast(np.ones(len(ids)) if weigh is None else weigh(ids))
            state, received = step(state, cohort, cast(stack(data)), weights, key)
            assert bool(received.all())
            states.append(jax.tree.map(lambda a: np.asarray(a, np.float64), state))
        assert compilations(step) == 1
    return states


def path(algorithm, params, trace: Trace | SaddleTrace, **options):
    """The parameters after each round."""
    return [s.server.params for s in run(algorithm, params, trace, **options)]


def by_code(methods) -> list[list[str]]:
    """The names of the methods that share their clients' code, together."""
    found: dict[str, list[str]] = {}
    for name, method in methods.items():
        *_, main = method.function().exchanges
        found.setdefault(main.client.__qualname__, []).append(name)
    return list(found.values())


def farthest(a, b) -> float:
    """The largest entry of the difference of two equally long paths of parameters."""
    assert len(a) == len(b) > 0
    pairs = [(u[name], v[name]) for u, v in zip(a, b, strict=True) for name in u]
    return max(float(np.max(np.abs(u - v))) for u, v in pairs)
