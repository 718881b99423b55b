"""Quadratic minimax problems with known solution.

With matrices X [m, n] and Y [k, n], client i has the objective

    f_i(X, Y) = <X, Q X> / 2 + <B_i, X> + <Y, A X + C_i> - <Y, D Y> / 2

and f is their mean. Q is symmetric. If it is indefinite, f is nonconvex in X. D is
positive semidefinite. It may be singular if A and all C_i map into its range; then f is
not strongly concave in Y but still satisfies the Polyak-Lojasiewicz inequality.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.core import GradFn, check_range
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
    """Draws a problem whose primal function is strongly convex.

    The Hessian of the primal function, Q + A^T D^+ A, has eigenvalues in [curvature,
    curvature + 1]. The eigenvalues of D are in [1, 2] on a space of dimension
    `rank`, and 0 elsewhere.

    Args:
      curvature: Lower bound of the eigenvalues of the primal function's Hessian.
      coupling: Largest eigenvalue of A^T D^+ A, divided by curvature + 1. Above 1, Q
        has a negative eigenvalue and f is nonconvex in X.
      heterogeneity: Standard deviation of B_i and C_i over the clients.
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


def _orthogonal(key: jax.Array, size: int) -> jax.Array:
    return jnp.linalg.qr(jax.random.normal(key, (size, size)))[0]


def start(problem: Quadratic) -> Pair:
    """Returns initial parameters of zeros."""
    return Pair(jnp.zeros(problem.B.shape[1:]), jnp.zeros(problem.C.shape[1:]))


def value(problem: Quadratic, params: Pair, B: jax.Array, C: jax.Array) -> jax.Array:
    """Computes f_i, or f for the means of B and C."""
    X, Y = params
    inner = lambda u, v: jnp.sum(u * v)
    return (
        inner(X, problem.Q @ X) / 2
        + inner(B, X)
        + inner(Y, problem.A @ X + C)
        - inner(Y, problem.D @ Y) / 2
    )


def gradient(problem: Quadratic) -> GradFn:
    """Returns the gradient, negated in Y, in which a batch is a client's number."""

    def grad(params: Pair, client: jax.Array, key: jax.Array) -> Pair:
        del key
        f = lambda p: value(problem, p, problem.B[client], problem.C[client])
        return jax.grad(f)(params)

    return descent_ascent(grad)


def _means(problem: Quadratic) -> tuple[jax.Array, jax.Array]:
    return jnp.mean(problem.B, 0), jnp.mean(problem.C, 0)


def response(problem: Quadratic, X: jax.Array) -> jax.Array:
    """Computes the Y of least norm that maximizes f(X, Y)."""
    _, C = _means(problem)
    return jnp.linalg.pinv(problem.D) @ (problem.A @ X + C)


def hessian(problem: Quadratic) -> jax.Array:
    """The Hessian H of the primal function, whose gradient is H (X - solution)."""
    return problem.Q + problem.A.T @ jnp.linalg.pinv(problem.D) @ problem.A


def solution(problem: Quadratic) -> Pair:
    """Computes the minimizer of the primal function and the response to it."""
    B, C = _means(problem)
    offset = B + problem.A.T @ jnp.linalg.pinv(problem.D) @ C
    X = -jnp.linalg.solve(hessian(problem), offset)
    return Pair(X, response(problem, X))
