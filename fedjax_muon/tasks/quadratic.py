"""Quadratic minimax problems whose solution, primal function and gap are known.

With matrices X [m, n] and Y [k, n], client i has

    f_i(X, Y) = <X, Q X> / 2 + <B_i, X> + <Y, A X + C_i> - <Y, D Y> / 2

and f is their mean. Q is symmetric, and may be indefinite: f is then nonconvex in X. D
is positive semidefinite, and may be singular, if A and all C_i map into its range: f is
then not strongly concave in Y but still satisfies the Polyak-Lojasiewicz inequality.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.core import check_range
from fedjax_muon.core.pair import Pair, descent_ascent


class Quadratic(NamedTuple):
    """The data of a problem."""

    Q: jax.Array  # [m, m]
    A: jax.Array  # [k, m]
    D: jax.Array  # [k, k]
    B: jax.Array  # [N, m, n]
    C: jax.Array  # [N, k, n]


def draw_quadratic(
    key: jax.Array,
    num_clients: int,
    *,
    shape: tuple[int, int, int] = (6, 4, 3),
    rank: int = 3,
    curvature: float = 0.5,
    coupling: float = 2.0,
    heterogeneity: float = 1.0,
) -> Quadratic:
    """A random problem whose primal function is strongly convex.

    The Hessian of the primal function, Q + A^T D^+ A, has eigenvalues in [curvature,
    curvature + 1]; those of D lie in [1, 2] on a space of dimension `rank`, and are 0
    elsewhere.

    Args:
      key: of everything random.
      num_clients: N.
      shape: m, k and n.
      rank: of D; k makes f strongly concave in Y.
      curvature: of the primal function.
      coupling: the largest eigenvalue of A^T D^+ A over curvature + 1; above 1, Q has a
        negative eigenvalue and f is nonconvex in X.
      heterogeneity: standard deviation over clients of B_i and C_i.

    Raises `ValueError` for numbers out of range.
    """
    m, k, n = shape
    if num_clients < 1 or min(shape) < 1 or rank not in range(1, k + 1):
        raise ValueError(
            "num_clients and shape must be at least 1, and rank an integer from 1 to "
            f"k = {k}, got {num_clients}, {shape} and {rank}"
        )
    check_range("curvature", curvature, open_low=True, schedules=False)
    check_range("coupling", coupling, schedules=False)
    check_range("heterogeneity", heterogeneity, schedules=False)
    keys = jax.random.split(key, 7)
    basis = _orthogonal(keys[0], k)[:, :rank]
    stretch = jax.random.uniform(keys[1], (1, rank), minval=1, maxval=2)
    directions = _orthogonal(keys[2], m)
    bends = curvature + jax.random.uniform(keys[3], (1, m))
    hessian = (directions * bends) @ directions.T
    A = basis @ jax.random.normal(keys[4], (rank, m))
    coupled = lambda A: A.T @ ((basis / stretch) @ basis.T) @ A
    largest = jnp.linalg.eigvalsh(coupled(A))[-1]
    A = A * jnp.sqrt(coupling * (curvature + 1) / largest)
    mean = lambda v: jnp.mean(v, 0, keepdims=True)
    spread = lambda v: mean(v) + heterogeneity * (v - mean(v))
    B = spread(jax.random.normal(keys[5], (num_clients, m, n)))
    C = spread(jax.random.normal(keys[6], (num_clients, k, n)))
    inside = basis @ basis.T
    return Quadratic(
        Q=hessian - coupled(A),
        A=A,
        D=(basis * stretch) @ basis.T,
        B=B,
        C=jnp.einsum("ab,ibc->iac", inside, C),
    )


def _orthogonal(key, size):
    return jnp.linalg.qr(jax.random.normal(key, (size, size)))[0]


def start(problem: Quadratic) -> Pair:
    """X and Y of zeros."""
    return Pair(jnp.zeros(problem.B.shape[1:]), jnp.zeros(problem.C.shape[1:]))


def value(problem: Quadratic, params: Pair, B, C) -> jax.Array:
    """f_i for one client's B and C, or f for their means."""
    X, Y = params
    inner = lambda u, v: jnp.sum(u * v)
    return (
        inner(X, problem.Q @ X) / 2
        + inner(B, X)
        + inner(Y, problem.A @ X + C)
        - inner(Y, problem.D @ Y) / 2
    )


def gradient(problem: Quadratic):
    """The gradient for algorithms: a batch is the id of its client."""

    def grad(params, client, key):
        del key
        f = lambda p: value(problem, p, problem.B[client], problem.C[client])
        return jax.grad(f)(params)

    return descent_ascent(grad)


def _means(problem: Quadratic):
    return jnp.mean(problem.B, 0), jnp.mean(problem.C, 0)


def response(problem: Quadratic, X) -> jax.Array:
    """The Y of least norm that maximises f(X, Y)."""
    _, C = _means(problem)
    return jnp.linalg.pinv(problem.D) @ (problem.A @ X + C)


def primal(problem: Quadratic, X) -> jax.Array:
    """max over Y of f(X, Y)."""
    return value(problem, Pair(X, response(problem, X)), *_means(problem))


def primal_gradient(problem: Quadratic, X) -> jax.Array:
    """Its gradient in X: that of f at the response."""
    B, _ = _means(problem)
    return problem.Q @ X + B + problem.A.T @ response(problem, X)


def hessian(problem: Quadratic) -> jax.Array:
    """The primal function's [m, m]: its gradient at X is this times X - solution."""
    return problem.Q + problem.A.T @ jnp.linalg.pinv(problem.D) @ problem.A


def solution(problem: Quadratic) -> Pair:
    """The minimiser of the primal function, and the response to it."""
    B, C = _means(problem)
    offset = B + problem.A.T @ jnp.linalg.pinv(problem.D) @ C
    X = -jnp.linalg.solve(hessian(problem), offset)
    return Pair(X, response(problem, X))


def dual(problem: Quadratic, Y) -> jax.Array:
    """min over X of f(X, Y): minus infinity if Q is not positive definite."""
    B, _ = _means(problem)
    X = -jnp.linalg.solve(problem.Q, B + problem.A.T @ Y)
    convex = jnp.linalg.eigvalsh(problem.Q)[0] > 0
    found = value(problem, Pair(X, Y), *_means(problem))
    return jnp.where(convex, found, -jnp.inf)


def duality_gap(problem: Quadratic, params: Pair) -> jax.Array:
    """max over Y of f(X, .) minus min over X of f(., Y): 0 at a saddle point only,
    infinite for problems that are nonconvex in X, which have none."""
    return primal(problem, params.x) - dual(problem, params.y)


def potential(problem: Quadratic, params: Pair) -> jax.Array:
    """How far both are: primal(X) - min primal + (primal(X) - f(X, Y)).

    What nonconvex-PL analyses bound in place of a gap; 0 at the solution only.
    """
    best = primal(problem, solution(problem).x)
    here = primal(problem, params.x)
    return 2 * here - best - value(problem, params, *_means(problem))
