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
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy import signal

from fedjax_muon.core import GradFn, check_range, tree


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
