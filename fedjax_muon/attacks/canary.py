"""Canaries: records made to be seen, with which to audit a private mechanism.

A canary's gradient lies in a direction of its own, is far above any clip, and turns
round between the two points at which STORM takes it: the worst case of every clip in
`private_storm`. `plant` adds canaries to an agent's examples, before any clip:

    gradients = plant(example_grad, 100 * limit * directions)  # [K, ...]
    objective = Objective(grad, example_grad=gradients)
    algorithm = PRIVATE["private_storm"].build(mechanism, noise, lr=0.1)
    ...
    here = state.nodes.params
    state = step(state, Planted(batches, weight, here), key)  # weight [m, K]

Run this in worlds with weights and in worlds with zeros, and keep all agents' x along
a canary's direction, [T + 1, m]. Whoever sees them finds what every agent told:

    told = untracked(moves(x, W, lr), W)  # [T, m]; `moves` alone for `dsgd`
    score = matched_filter(told[:, 0] / sigma, remembered(changes, beta) / sigma)

`privacy.audit` makes lower bounds of epsilon from scores of worlds with and without.
Scores take the last axis as iterations, t = 0 first.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import signal

from fedjax_muon.core import GradFn, check_range, tree


class Planted(NamedTuple):
    """An agent's batch and its canaries."""

    batch: Any
    # [K]: 0 if the canary is not in the batch, else 1 or -1, its direction at x_t. A
    # record in consecutive batches is a function of x only if its sign alternates.
    weight: jax.Array
    here: Any  # x_t, the parameters at the beginning of the iteration


def plant(example_grad: GradFn, canaries) -> GradFn:
    """The gradients of a batch's examples, and of K canaries after them.

    Takes `Planted` batches. `canaries` has the leaves of the parameters, [K, ...]:
    `weight` times these at x_t, the opposite at any other point, zero when absent. The
    gradients raise `ValueError` for another number of weights, and `plant` for leaves
    of several numbers of canaries.
    """
    number, *others = sorted({len(c) for c in jax.tree.leaves(canaries)})
    if others:
        raise ValueError(
            "leaves of canaries must lead with their one number K, got "
            f"{[number, *others]}"
        )

    def gradients(params, planted, key):
        if planted.weight.shape != (number,):
            raise ValueError(
                f"weight must have one entry for each of {number} canaries, got shape "
                f"{planted.weight.shape}"
            )
        rows = example_grad(params, planted.batch, key)
        same = jax.tree.map(lambda x, h: jnp.all(x == h), params, planted.here)
        now = jnp.all(jnp.array(jax.tree.leaves(same)))
        weight = jnp.where(now, planted.weight, -planted.weight)

        def more(row, canary):
            return jnp.concatenate([row, jax.vmap(jnp.multiply)(weight, canary)])

        canary = jax.tree.map(lambda c, row: c.astype(row.dtype), canaries, rows)
        return tree.map(lambda r, c: more(r, c).astype(r.dtype), rows, canary)

    return gradients


def moves(params, weights, lr: float) -> np.ndarray:
    """What every agent took off its parameters, over `lr`, from parameters alone.

    Args:
      params: coordinates of all agents' x, [..., T + 1, m], from the start on.
      weights: W [m, m] of x <- W (x - lr u).
      lr: learning rate.

    Returns u, [..., T, m]: without a rule the estimates told in `dsgd` and the tracks
    in `tracking`. Raises `ValueError` if W is singular or `lr` is not positive.
    """
    check_range("lr", lr, open_low=True, schedules=False)
    params = np.asarray(params, np.float64)
    return (params[..., :-1, :] - _unmixed(params[..., 1:, :], weights)) / lr


def untracked(tracks, weights) -> np.ndarray:
    """The estimates that agents told, from their tracks v <- W (v + g - g_).

    Both are [..., T, m]. Raises `ValueError` if W is singular.
    """
    tracks = np.asarray(tracks, np.float64)
    before = np.zeros_like(tracks)
    before[..., 1:, :] = tracks[..., :-1, :]
    return np.cumsum(_unmixed(tracks, weights) - before, axis=-2)


def remembered(changes, beta: float) -> np.ndarray:
    """A u: what is in STORM's estimates if the fresh terms change by u, [..., T]."""
    return signal.lfilter([1.0], [1.0, beta - 1], np.asarray(changes, float), axis=-1)


def innovations(told, beta: float) -> np.ndarray:
    """d*_t = y_t - (1 - beta) y_{t-1}: what is new in estimates y, [..., T].

    Noise inside is independent in these; `remembered` undoes it.
    """
    return signal.lfilter([1.0, beta - 1], [1.0], np.asarray(told, float), axis=-1)


def matched_filter(seen, pattern) -> np.ndarray:
    """<seen, pattern> / ||pattern||, the best score if the noise is white.

    `seen` [..., T] and the `pattern` [T] that the canary leaves in it are in standard
    deviations of the noise: N(0, 1) without the canary and N(||pattern||, 1) with it.
    Raises `ValueError` for a pattern of zeros.
    """
    pattern = np.asarray(pattern, float)
    if not pattern.any():
        raise ValueError("pattern must not be zero everywhere: nothing is looked for")
    return np.asarray(seen) @ (pattern / np.linalg.norm(pattern))


def likelihood_ratio(seen, pattern, probability: float) -> np.ndarray:
    """The log-likelihood ratio if the canary is in every batch by a coin:

        sum_t log(1 - q + q exp(s_t (y_t - s_t / 2)))

    As `matched_filter`; `pattern` [T] is what the canary leaves when it takes part, and
    `probability` is q, in (0, 1).
    """
    ends = {"open_low": True, "open_high": True, "schedules": False}
    check_range("probability", probability, 0, 1, **ends)
    exponent = pattern * (np.asarray(seen) - np.asarray(pattern) / 2)
    parts = np.log1p(-probability), np.log(probability) + exponent
    return np.logaddexp(*parts).sum(-1)


def largest_difference(seen) -> np.ndarray:
    """The largest |seen_t - seen_{t-1}|: tells worlds apart only if noise is reused."""
    return np.abs(np.diff(seen, axis=-1)).max(-1)


def _unmixed(values, weights) -> np.ndarray:
    """W^-1 applied to the last axis."""
    weights = np.asarray(weights, np.float64)
    if np.linalg.matrix_rank(weights) < len(weights):
        raise ValueError(
            "what agents sent cannot be found from singular weights: take another "
            "graph, or weights with more of an agent's own part"
        )
    return values @ np.linalg.inv(weights).T
