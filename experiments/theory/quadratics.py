"""Clients whose losses are quadratics of a matrix, and rounds of training on them.

Client i of N has f_i(X) = 1/2 <X - B_i, A_i (X - B_i)> for X of shape (m, n), so that
gradients, optima and the constants of theorems are known exactly.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon import engine
from fedjax_muon.core import Algorithm, Objective
from fedjax_muon.engine import plans
from fedjax_muon.linalg.newton_schulz import polar
from fedjax_muon.tasks import heavy_tails
from fedjax_muon.transforms import orthogonalize

# at the default level, compiling one of these programs (mostly its random number
# generator) takes longer than running it
compiled = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 1}
)


class Quadratics(NamedTuple):
    """One quadratic, or one per client, stacked."""

    curvature: jax.Array  # A [N, m, m], symmetric positive definite
    target: jax.Array  # B [N, m, n]


def gradient(x, client: Quadratics, key):
    """Returns A (X - B) of one client: the `GradFn` of all studies, without noise."""
    del key
    return client.curvature @ (x - client.target)


EXACT = Objective(gradient)


def full_gradient(clients: Quadratics, x):
    """Returns the gradient of the mean loss."""
    each = jax.vmap(gradient, in_axes=(None, 0, None))
    return jnp.mean(each(x, clients, None), axis=0)


def optimum(clients: Quadratics) -> np.ndarray:
    """Returns the minimizer of the mean loss in float64."""
    a, b = (np.asarray(v, np.float64) for v in clients)
    return np.linalg.solve(a.mean(0), (a @ b).mean(0))


def dissimilarity(clients: Quadratics, x) -> float:
    """Returns the root of the mean of ||grad f_i - grad f||_F^2 over clients, at x.

    At the optimum this is zeta_* of arXiv:2509.26337; for equal curvatures it is the
    same everywhere, and the delta of Zhang and Gao.
    """
    a, b = (np.asarray(v, np.float64) for v in clients)
    each = a @ (np.asarray(x, np.float64) - b)
    return float(np.sqrt(np.mean(np.sum((each - each.mean(0)) ** 2, axis=(1, 2)))))


@functools.partial(jax.jit, static_argnums=(1, 2))
def random(
    key, clients: int, shape: tuple[int, int], least: float, spread: float
) -> Quadratics:
    """Draws quadratics with one curvature, and targets around a common matrix.

    Gradients have the Lipschitz constant 1: the curvature's eigenvalues are a geometric
    sequence on [least, 1]. The common matrix, and what `spread` multiplies, is normal.
    """
    curvature_key, common_key, own_key = jax.random.split(key, 3)
    q = jnp.linalg.qr(jax.random.normal(curvature_key, (shape[0], shape[0])))[0]
    curvature = q @ jnp.diag(jnp.geomspace(least, 1.0, shape[0])) @ q.T
    own = jax.random.normal(own_key, (clients, *shape))
    target = jax.random.normal(common_key, (1, *shape)) + spread * own
    return Quadratics(jnp.broadcast_to(curvature, (clients, *curvature.shape)), target)


def repeated(steps: int):
    """Returns a function that gives a client `steps` equal batches: its exact loss."""

    def draw(client, key):
        del key
        copies = lambda a: jnp.broadcast_to(a, (steps, *a.shape))
        return jax.tree.map(copies, client)

    return draw


def full_participation(clients: Quadratics):
    """Returns the cohort, batches and weights of full participation."""
    count = len(clients.target)
    return jnp.arange(count, dtype=jnp.int32), clients, jnp.ones(count)


def start(
    algorithm: Algorithm, clients: Quadratics, x, key, objective: Objective = EXACT
) -> engine.State:
    """Returns the state after the prologue, in which every client uses one batch."""
    count = len(clients.target)
    begin = engine.make_prologue(
        algorithm, objective, count, plans.vmapped, repeated(1)
    )
    state = engine.init(algorithm, x, count)
    return begin(state, *full_participation(clients), key)[0]


def muon(algorithm: Callable, lr, beta, rule=None) -> Algorithm:
    """Returns an algorithm with beta, the weight of new gradients in the momentum."""
    exact = orthogonalize(polar)
    return algorithm(lr=lr, momentum=1 - beta, rule=exact if rule is None else rule)


def noisy(noise) -> Objective:
    """Returns the objective whose gradients have some noise of `tasks.heavy_tails`."""
    return Objective(heavy_tails.noisy(gradient, noise))


def run(
    algorithm: Algorithm,
    clients: Quadratics,
    x,
    key,
    *,
    rounds: int,
    steps: int,
    observe: Callable,
    objective: Objective = EXACT,
):
    """Returns `observe(parameters)` before every round and after the last.

    All clients participate, with `steps` local steps. The function can be traced and
    mapped. Observations are stacked, [rounds + 1, ...].
    """
    count = len(clients.target)
    run_round = engine.make_round(
        algorithm, objective, count, plans.vmapped, repeated(steps)
    )

    def body(state, _):
        state, _ = run_round(state, *full_participation(clients), key)
        return state, observe(state.server.params)

    state = start(algorithm, clients, x, key, objective)
    first = observe(state.server.params)
    _, later = jax.lax.scan(body, state, None, length=rounds)
    return jnp.concatenate([first[None], later])


def gradient_norm(clients: Quadratics, kind: str | None = None) -> Callable:
    """Returns an `observe` for `run`: a norm of the gradient, Frobenius or "nuc"."""
    return lambda x: jnp.linalg.norm(full_gradient(clients, x), kind)


def over_grid(one: Callable, *axes):
    """Returns `one(*point)` at all points of a grid, [*lengths of axes, ...]."""
    for axis in reversed(range(len(axes))):
        one = jax.vmap(one, tuple(0 if i == axis else None for i in range(len(axes))))
    found = compiled(one)(*map(jnp.asarray, axes))
    return jax.tree.map(lambda x: np.asarray(x, np.float64), found)
