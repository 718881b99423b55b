"""Constraint sets: no method leaves the set that the problem is constrained to.

The server's parameters lie in it after the start, the prologue and every round, and no
client asks for a gradient outside of it: that gradient would be NaN, and the client's
message lost.
"""

import inspect
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon import algorithms, compression, engine, minimax
from fedjax_muon.algorithms import fedavg
from fedjax_muon.algorithms.registry import Method
from fedjax_muon.core import Objective, tree
from fedjax_muon.core.pair import Pair
from fedjax_muon.engine import plans
from fedjax_muon.privacy.client_mechanism import private_clients
from fedjax_muon.wrappers.compression import compress
from tests.support.cases import slow_but
from tests.support.traces import by_code

N, STEPS, RADIUS, ROUNDS = 3, 3, 0.01, 3
KEY = jax.random.key(5)
QUICKLY = {"xla_backend_optimization_level": 0}  # compiled for three small rounds
ONE = {"w": jnp.full((3, 2), 0.5), "b": jnp.array([-0.003, 0.002])}  # w is outside
WEIGHTS, COHORT = jnp.ones(N), jnp.arange(N)
# constant gradients, one target for each client and step: they point out of the set
TARGETS = jnp.asarray(
    np.random.default_rng(0).normal(size=(N, STEPS, 1)) + 1.0, jnp.float32
)
CHAINED = optax.chain(optax.identity(), optax.scale(1.0))  # hides whatever it is given
METHODS: dict[str, Method] = {**algorithms.ALL, **minimax.ALL}


def box(params):
    """Every coordinate clipped to [-RADIUS, RADIUS]."""
    return jax.tree.map(lambda x: jnp.clip(x, -RADIUS, RADIUS), params)


def is_inside(params):
    """Exactly, as the projection leaves it."""
    leaves = [jnp.all(jnp.abs(x) <= RADIUS) for x in jax.tree.leaves(params)]
    return jnp.all(jnp.stack(leaves))


def pulled(params, target):
    """The gradient of |params - target|^2 / 2, also outside of the box."""
    return jax.tree.map(lambda x: x - target[0], params)


def guarded(params, batch, key):
    """That gradient inside of the box, NaN outside."""
    del key
    inside = is_inside(params)
    return jax.tree.map(lambda g: jnp.where(inside, g, jnp.nan), pulled(params, batch))


BOXED = Objective(
    guarded,
    project=box,
    value_and_grad=lambda *given: (jnp.ones(()), guarded(*given)),
)


class Seen(NamedTuple):
    """The server's parameters after the start, the prologue and every round."""

    points: list
    received: list[bool]  # whether all clients were, in the prologue and every round


def run(algorithm, params=ONE, objective=BOXED) -> Seen:
    state = engine.init(algorithm, params, N, project=objective.project)
    points, received = [state.server.params], []
    prologue = [engine.make_prologue] if algorithm.prologue else []
    steps = [
        jax.jit(make(algorithm, objective, N, plans.mapped), compiler_options=QUICKLY)
        for make in (*prologue, engine.make_round)
    ]
    for step in steps[:-1] + steps[-1:] * ROUNDS:
        state, heard = step(state, COHORT, TARGETS, WEIGHTS, KEY)
        points.append(state.server.params)
        received.append(bool(heard.all()))
    return Seen(points, received)


def start_of(name):
    return Pair(ONE, ONE) if name in minimax.ALL else ONE


def farthest(params) -> float:
    return max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(params))


def assert_stays(algorithm, start=ONE):
    seen = run(algorithm, start)
    assert all(bool(is_inside(point)) for point in seen.points)
    assert all(seen.received)
    # not because nothing moves: the boundary is reached from within
    assert farthest(tree.sub(seen.points[-1], seen.points[0])) > RADIUS / 10


# of methods with the same code one; with clients' states, a prologue, and a pair
PLAIN = {k: m for k, m in algorithms.ALL.items() if k not in algorithms.ADAPTERS}
NAMES = [names[0] for kind in (PLAIN, minimax.ALL) for names in by_code(kind)]
FAST = ("scaffold", "stem", "fess_gda")


@pytest.mark.parametrize("name", slow_but(FAST, NAMES))
def test_no_method_leaves_the_set(name):
    """Neither in one local step, nor by a server's rate above 1."""
    hardest = {"lr": 0.1, "rule": CHAINED, "server_lr": 2.0, "averaged_state": ()}
    method = METHODS[name]
    options = inspect.signature(method.function).parameters
    hyper = {key: value for key, value in hardest.items() if key in options}
    assert_stays(method.function(**hyper), start_of(name))


@pytest.mark.parametrize("name", FAST)
def test_without_a_projection_they_leave_it(name):
    """The problem is one in which a forgotten projection is seen."""
    start = box(start_of(name))
    seen = run(METHODS[name].function(lr=0.1), start, Objective(guarded))
    assert not all(seen.received)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "stem"])
def test_wrappers_do_not_leave_the_set(name):
    sparse = compress(METHODS[name].function(lr=0.1), compression.top_k(0.5))
    assert_stays(sparse)
    too_far = compression.Compressor(lambda x, key: 3 * x, lambda sent, like: sent)
    assert_stays(compression.compress_broadcasts(sparse, too_far))
    mechanism = {"clip_norm": 10.0, "noise_multiplier": 5.0}
    private = private_clients(sparse, **mechanism, clients=N, cohort=N)
    seen = run(private)
    assert all(bool(is_inside(point)) for point in seen.points)
    assert all(seen.received)


def test_only_what_is_constrained_is_projected():
    project = lambda params: {**params, "w": box(params["w"])}
    objective = Objective(
        lambda params, batch, key: pulled(params, batch), project=project
    )
    seen = run(fedavg(lr=0.1), ONE, objective)
    assert all(bool(is_inside(point["w"])) for point in seen.points)
    free = run(fedavg(lr=0.1), ONE, Objective(objective.grad))
    for one, other in zip(seen.points, free.points, strict=True):
        np.testing.assert_array_equal(one["b"], other["b"])
    assert not is_inside(seen.points[-1]["b"])


@pytest.mark.parametrize("plan", [plans.loop, plans.vmapped, plans.chunked(2)])
def test_servers_are_projected_and_never_leave_the_set(plan):
    """A server that leaps out of the box is brought back, and the start is in it."""
    box = lambda params: jax.tree.map(lambda x: jnp.clip(x, -1, 1), params)
    objective = Objective(lambda p, batch, key: -batch, project=box)
    algorithm = fedavg(lr=1.0, server_lr=3.0)
    state = engine.init(algorithm, jnp.array([5.0, 0.2]), 7, project=box)
    np.testing.assert_array_equal(state.server.params, jnp.array([1.0, 0.2]))
    run = jax.jit(engine.make_round(algorithm, objective, 7, plan))
    # local moves end at 1 and 0.5, and the server at 0.2 + 3 * 0.3
    batches = jnp.tile(jnp.array([7.0, 0.3]), (5, 1, 1))
    state, received = run(state, jnp.arange(5), batches, jnp.ones(5), KEY)
    assert bool(received.all())
    np.testing.assert_allclose(state.server.params, [1.0, 1.0])
