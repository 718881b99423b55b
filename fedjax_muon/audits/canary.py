"""Canaries: records made to be detected.

The gradient of a canary has a direction of its own, is far longer than any clip norm,
and changes its sign between the two points at which STORM evaluates it: the worst case
of every clip of `privacy`. `plant` adds canaries to an agent's examples, before any
clip:

    gradients = plant(example_grad, 100 * clip_norm * directions)  # [K, ...]
    objective = Objective(grad, example_grad=gradients)
    algorithm = PRIVATE["private_storm"].build(mechanism, noise_scale, lr=0.1)
    ...
    params = state.agents.params
    state = step(state, Planted(batches, weight, params), key)  # weight [m, K]

This is run in worlds with weights and in worlds with zeros. An adversary who sees all
agents' x along a canary's direction, [T + 1, m], recovers what every agent sent:

    moves = moves_from_params(x, W, lr)
    estimates = estimates_from_tracked(moves, W)  # [T, m]; for `dsgd`, `moves` itself
    pattern = storm_estimates(changes, beta)
    score = matched_filter(estimates[:, 0] / sigma, pattern / sigma)

`audits.bounds` computes lower bounds of epsilon from the scores of both kinds of
worlds. The last axis of scored arrays is the iteration, beginning with t = 0.

`canary_task` and `canary_data` are a task and examples for audits of whole simulations.
The gradient of the canary has a direction and a sign as above; the sign may depend on
the iteration, since a public gradient moves one of the parameters by the same amount in
every iteration. Other records have a second direction, which tells how many of them are
in a batch.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy import signal

from fedjax_muon.core import GradFn, check_range, tree
from fedjax_muon.core.pair import Pair
from fedjax_muon.data import Dataset
from fedjax_muon.tasks.task import Batch, Task

LENGTH = 1e3  # of the canary's gradient; far above every clip norm
SHORT = 1e-2  # of it, the length of other gradients: above clip norms, but the canary's
# dominates a mean
OVERFLOW = 1e38  # its gradient is infinite, and a client with it counts as absent
TICK = 1e4  # by which the clock moves in every iteration
ROOT = math.sqrt(0.5)
# the parameters are (x0, x1, x2, y0, y1, y2), and y2 is the clock
CANARY = np.array([ROOT, 0, 0, -ROOT, 0, 0])
OTHERS = np.array([0.0, 1, 0, 0, 0, 0])
FREE = np.array([[ROOT, 0, 0, ROOT, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0]])


class Planted(NamedTuple):
    """An agent's batch and its canaries."""

    batch: Any
    # [K]: 0 if the canary is not in the batch, else 1 or -1, its direction at x_t. A
    # record in consecutive batches is a function of x only if its sign alternates.
    weight: jax.Array
    params: Any  # x_t, the parameters at the start of the iteration


def plant(example_grad: GradFn, canaries: Any) -> GradFn:
    """Appends the gradients of K canaries to those of a batch's examples.

    Args:
      example_grad: Gradients of single examples, leaves [B, ...].
      canaries: Directions and lengths of the canaries' gradients, with the tree of the
        parameters, leaves [K, ...].

    Returns:
      Gradients of `Planted` batches, leaves [B + K, ...]. Those of a canary are its
      weight times its direction at x_t, the opposite at any other point, and zero if it
      is absent. They raise `ValueError` for another number of weights than K.
    """
    number, *others = sorted({len(c) for c in jax.tree.leaves(canaries)})
    if others:
        raise ValueError(
            "all leaves of canaries must have the same number K of canaries, got "
            f"{[number, *others]}"
        )

    def gradients(params: Any, planted: Planted, key: jax.Array) -> Any:
        if planted.weight.shape != (number,):
            raise ValueError(
                f"weight must have one entry for each of {number} canaries, got shape "
                f"{planted.weight.shape}"
            )
        rows = example_grad(params, planted.batch, key)
        same = jax.tree.map(lambda x, x_t: jnp.all(x == x_t), params, planted.params)
        current = jnp.all(jnp.array(jax.tree.leaves(same)))
        weight = jnp.where(current, planted.weight, -planted.weight)

        def append(row: jax.Array, canary: jax.Array) -> jax.Array:
            return jnp.concatenate([row, jax.vmap(jnp.multiply)(weight, canary)])

        canary = jax.tree.map(lambda c, row: c.astype(row.dtype), canaries, rows)
        return tree.map(lambda r, c: append(r, c).astype(r.dtype), rows, canary)

    return gradients


def moves_from_params(params: ArrayLike, weights: ArrayLike, lr: float) -> np.ndarray:
    """Recovers every agent's move u of x <- W (x - lr u) from the parameters alone.

    Without a rule, the moves are the estimates that agents send in `dsgd`, and the
    tracked gradients in `gradient_tracking`.

    Args:
      params: Coordinates of all agents' x, [..., T + 1, m], from the start.
      weights: Mixing matrix W, [m, m].

    Returns:
      u, [..., T, m].
    """
    check_range("lr", lr, open_low=True, schedules=False)
    params = np.asarray(params, np.float64)
    return (params[..., :-1, :] - _unmixed(params[..., 1:, :], weights)) / lr


def estimates_from_tracked(tracked: ArrayLike, weights: ArrayLike) -> np.ndarray:
    """Recovers agents' estimates g from tracked gradients v <- W (v + g - g_).

    All are [..., T, m]; g_ is the estimate of the iteration before.
    """
    tracked = np.asarray(tracked, np.float64)
    before = np.zeros_like(tracked)
    before[..., 1:, :] = tracked[..., :-1, :]
    return np.cumsum(_unmixed(tracked, weights) - before, axis=-2)


def storm_estimates(changes: ArrayLike, beta: float) -> np.ndarray:
    """Returns the change of STORM's estimates g_t = (1 - beta) g_{t-1} + d_t.

    Changes of the innovations d_t and of the estimates are [..., T].
    """
    return signal.lfilter([1.0], [1.0, beta - 1], np.asarray(changes, float), axis=-1)


def innovations(estimates: ArrayLike, beta: float) -> np.ndarray:
    """Returns the innovations d_t = g_t - (1 - beta) g_{t-1} of STORM's estimates.

    Noise that the recursion keeps is independent in different innovations.
    """
    return signal.lfilter([1.0, beta - 1], [1.0], np.asarray(estimates, float), axis=-1)


def matched_filter(observed: ArrayLike, pattern: ArrayLike) -> np.ndarray:
    """Returns <observed, pattern> / ||pattern||, the best score for white noise.

    Args:
      observed: Observations, [..., T], in standard deviations of the noise.
      pattern: What the canary adds to them, [T], in the same unit.

    Returns:
      Scores, [...]: N(0, 1) without the canary and N(||pattern||, 1) with it.

    Example:
      >>> matched_filter([[3.0, 4.0]], pattern=[0.6, 0.8]).tolist()
      [5.0]
    """
    pattern = np.asarray(pattern, float)
    if not pattern.any():
        raise ValueError("pattern must not be zero everywhere")
    return np.asarray(observed) @ (pattern / np.linalg.norm(pattern))


def likelihood_ratio(
    observed: ArrayLike, pattern: ArrayLike, probability: float
) -> np.ndarray:
    """Returns the log-likelihood ratio if the canary joins each batch at random:

        sum_t log(1 - q + q exp(s_t (y_t - s_t / 2)))

    Args:
      observed: Observations y, [..., T], in standard deviations of the noise.
      pattern: What the canary adds when it takes part, s, [T], in the same unit.
      probability: q, with which it takes part.
    """
    ends = {"open_low": True, "open_high": True, "schedules": False}
    check_range("probability", probability, 0, 1, **ends)
    pattern = np.asarray(pattern)
    exponent = pattern * (np.asarray(observed) - pattern / 2)
    parts = np.log1p(-probability), np.log(probability) + exponent
    return np.logaddexp(*parts).sum(-1)


def largest_difference(observed: ArrayLike) -> np.ndarray:
    """Returns the largest |y_t - y_{t-1}|, which detects noise that is reused."""
    return np.abs(np.diff(observed, axis=-1)).max(-1)


def _unmixed(values: np.ndarray, weights: ArrayLike) -> np.ndarray:
    """W^-1 applied to the last axis."""
    weights = np.asarray(weights, np.float64)
    if np.linalg.matrix_rank(weights) < len(weights):
        raise ValueError(
            "what agents sent cannot be recovered from singular weights: use another "
            "graph, or weights with more of an agent's own part"
        )
    return values @ np.linalg.inv(weights).T


def canary_task(lr: float, period: int | None = None) -> Task:
    """Makes a task whose gradients are written in its examples.

    Example (a, b) has the gradient a LENGTH along the canary's direction and b LENGTH
    along that of the others, times a sign that may depend on the iteration: plus where
    t is a multiple of `period`, and minus elsewhere.

    Args:
      lr: Learning rate of the algorithm, by which the clock moves.
      period: Period of the sign; None for plus everywhere, without a clock.

    Returns:
      The task; its parameters are a `Pair` of three numbers each, from zero.
    """

    def sign(params: Pair) -> jax.Array | float:
        if period is None:
            return 1.0
        time = jnp.round(-params.y[2] / TICK).astype(jnp.int32)
        return jnp.where(time % period == 0, 1.0, -1.0)

    def example_grad(params: Pair, batch: Batch, key: jax.Array) -> Pair:
        del key
        directions = jnp.asarray(np.stack([CANARY, OTHERS]), jnp.float32)
        rows = LENGTH * sign(params) * (batch.x @ directions) * batch.weight[:, None]
        return Pair(rows[:, :3], rows[:, 3:])

    def grad(params: Pair, batch: Batch, key: jax.Array) -> Pair:
        total = jnp.maximum(batch.weight.sum(), 1)
        rows = example_grad(params, batch, key)
        return jax.tree.map(lambda x: x.sum(0) / total, rows)

    def clock(params: Pair) -> Pair:
        return Pair(jnp.zeros_like(params.x), params.y * 0 + _last(TICK / lr))

    zeros = jnp.zeros(3, jnp.float32)
    return Task(
        init=lambda key: Pair(zeros, zeros),
        grad=grad,
        evaluate=lambda params, x, y: {"loss": jnp.zeros(len(x))},
        example_grad=example_grad,
        public_grad=None if period is None else clock,
        metrics={},
    )


def _last(value: float) -> jax.Array:
    return jnp.array([0.0, 0.0, value], jnp.float32)


def canary_data(
    sizes: Sequence[int], owner: int, *, together: bool = False, alone: bool = False
) -> tuple[Dataset, list[np.ndarray]]:
    """Makes the examples of all agents, or of all clients.

    Args:
      sizes: Numbers of their examples.
      owner: Who has the canary.
      together: Whether all examples of the owner are canaries, so that the owner is the
        record, as for the privacy of clients.
      alone: Whether the gradients of all others are infinite, so that a server with
        private clients counts none of them.

    Returns:
      Examples, and the ids of everyone's examples. The canary is the owner's first.
    """
    ends = np.cumsum([0, *sizes])
    x = np.tile(np.array([0, OVERFLOW if alone else SHORT], np.float32), (ends[-1], 1))
    start = ends[owner]
    x[start : ends[owner + 1] if together else start + 1] = [1, 0]
    labels = np.arange(ends[-1], dtype=np.int32) % 2
    parts = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    return Dataset(x, labels, x[:2], labels[:2], ("0", "1")), parts
