"""Audits of privacy: attacks with records made to be detected, and bounds of epsilon.

The gradient of a record, the *canary*, has a direction of its own, is far longer than
any clip norm, and changes its sign between the two points at which STORM evaluates it:
the worst case of every clip of `privacy`. `plant` adds canaries to an agent's examples,
before any clip:

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

The last axis of scored arrays is the iteration, beginning with t = 0. The error rates
of any attack that tells worlds apart by a score bound epsilon from below. If the bound
is above the claim, the claim is false, or something improbable happened. A bound below
the claim proves nothing. There are two kinds of audit:

- Many runs, one canary (Nasr et al. 2023, arXiv:2302.07956). A score above a threshold
  says that the record was present. The threshold must not depend on the scores that are
  counted: it is fixed beforehand, or `best_threshold` of *other* worlds.
- One run, many canaries, each of which is present with probability 1/2 (Steinke, Nasr
  and Jagielski 2023, arXiv:2305.08846). The attack guesses the most certain ones.

`confidence` is the probability, over the worlds, that a bound is true.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, signal, special, stats

from fedjax_muon.core import GradFn, check_count, check_range, tree
from fedjax_muon.privacy.accounting import gaussian_epsilon


class Planted(NamedTuple):
    """An agent's batch and its canaries."""

    batch: Any
    # [K]: 0 if the canary is not in the batch, else 1 or -1, its direction at x_t. A
    # record in consecutive batches is a function of x only if its sign alternates.
    weight: jax.Array
    params: Any  # x_t, the parameters at the start of the iteration


def plant(example_grad: GradFn, canaries: Any) -> GradFn:
    """Appends the gradients of K canaries to the gradients of a batch's examples.

    Args:
      example_grad: Gradients of single examples, leaves [B, ...].
      canaries: Directions and lengths of the canaries' gradients, with the tree of the
        parameters, leaves [K, ...].

    Returns:
      Gradients of `Planted` batches, leaves [B + K, ...]. The gradient of a canary is
      its weight times its direction at x_t, the opposite at any other point, and zero
      if it is absent. It raises `ValueError` if the number of weights is not K.
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
        raise ValueError("pattern must not be all zeros")
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
            "the messages of agents cannot be recovered from singular weights; use "
            "another graph, or give each agent's own values more weight"
        )
    return values @ np.linalg.inv(weights).T


class Errors(NamedTuple):
    """How often an attack was wrong, in independent worlds."""

    false_positives: int  # of `absent` worlds without the record
    absent: int
    false_negatives: int  # of `present` worlds with it
    present: int


def errors(absent: ArrayLike, present: ArrayLike, threshold: float) -> Errors:
    """Counts the errors of an attack that says "present" above a threshold.

    Scores are from worlds without and with the record, and have any shape.

    Example:
      >>> errors([0.1, 0.9], [0.8, 1.2], threshold=0.5)
      Errors(false_positives=1, absent=2, false_negatives=0, present=2)
    """
    absent, present = (
        checked_scores("absent", absent),
        checked_scores("present", present),
    )
    return Errors(
        int((absent > threshold).sum()),
        absent.size,
        int((present <= threshold).sum()),
        present.size,
    )


def clopper_pearson(events: int, trials: int, confidence: float) -> float:
    """Returns the upper end of a one-sided interval for a rate.

    Clopper and Pearson 1934, "The use of confidence or fiducial limits".
    """
    check_count("trials", trials)
    check_count("events", events, 0)
    if events > trials:
        raise ValueError(f"events must be at most the {trials} trials, got {events}")
    _check_confidence(confidence)
    if events == trials:
        return 1.0
    return float(special.betaincinv(events + 1, trials - events, confidence))


def gdp_bound(counts: Errors, confidence: float = 0.95) -> float:
    """Returns a lower bound of mu for a mechanism that is mu-GDP.

    Gaussian mechanisms without sampling are. Any attack has

        mu >= Phi^-1(1 - false positive rate) - Phi^-1(false negative rate)

    (Dong, Roth and Su 2019, arXiv:1905.02383). The difference keeps its sign: the rates
    are upper bounds, so that its absolute value would be large for a poor attack.
    """
    positive, negative = _rates(counts, confidence)
    return max(0.0, -float(special.ndtri(positive) + special.ndtri(negative)))


def gaussian_epsilon_bound(
    counts: Errors, delta: float, confidence: float = 0.95
) -> float:
    """Returns the epsilon of the Gaussian mechanism whose mu is `gdp_bound`."""
    mu = gdp_bound(counts, confidence)
    return gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0


def epsilon_bound(counts: Errors, delta: float, confidence: float = 0.95) -> float:
    """Returns a lower bound of epsilon for any mechanism.

        exp(epsilon) >= (1 - delta - one rate) / the other rate,

    in both directions (Kairouz, Oh and Viswanath 2015, arXiv:1311.0776). The bound
    never exceeds about log(worlds / 4): refuting a larger claim takes more worlds.
    """
    _check_delta(delta)
    positive, negative = _rates(counts, confidence)
    ways = (positive, negative), (negative, positive)
    ratios = ((1 - delta - one) / other for one, other in ways)
    return math.log(max(1.0, *ratios))


def best_threshold(
    absent: ArrayLike, present: ArrayLike, bound: Callable[[Errors], float]
) -> float:
    """Finds the threshold with the largest bound, of 200 quantiles of all scores.

    The bound is valid for the errors of other worlds at this threshold, not for these.
    """
    absent, present = (
        checked_scores("absent", absent),
        checked_scores("present", present),
    )
    both = np.concatenate([absent, present])
    levels = np.unique(np.quantile(both, np.linspace(0, 1, 202)[1:-1]))
    bounds = [bound(errors(absent, present, level)) for level in levels]
    return float(levels[int(np.argmax(bounds))])


def correct_guesses(scores: ArrayLike, included: ArrayLike, guesses: int) -> int:
    """Counts an attack's correct guesses in one run.

    Args:
      guesses: r, even and at most m, fixed beforehand: the r / 2 largest scores are
        guessed to be present, the r / 2 smallest to be absent, and the others are left
        out.
    """
    scores, included = checked_scores("scores", scores), np.asarray(included, bool)
    if scores.shape != included.shape:
        raise ValueError(
            "scores and included must have one entry for each canary, got shapes "
            f"{scores.shape} and {included.shape}"
        )
    check_count("guesses", guesses, 2)
    if guesses % 2 or guesses > scores.size:
        raise ValueError(
            f"guesses must be even and at most the {scores.size} canaries, "
            f"got {guesses}"
        )
    order = included[np.argsort(scores, kind="stable")]
    half = guesses // 2
    return int(order[-half:].sum() + (~order[:half]).sum())


def one_run_p_value(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """Bounds the probability of so many correct guesses if a claim is true.

    With W binomial with `guesses` trials of probability e^epsilon / (1 + e^epsilon),
    the bound is

        P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i

    for m canaries and v correct guesses (Steinke et al. 2023, Theorem 5.2).
    """
    check_count("canaries", canaries)
    check_count("guesses", guesses)
    check_count("correct", correct, 0)
    if not correct <= guesses <= canaries:
        raise ValueError(
            "correct must be at most guesses, and guesses at most canaries, got "
            f"{correct}, {guesses} and {canaries}"
        )
    check_range("epsilon", epsilon, schedules=False)
    _check_delta(delta)
    right = 1 / (1 + math.exp(-epsilon))
    tail = stats.binom.sf(correct - 1, guesses, right)
    below = np.cumsum(stats.binom.pmf(np.arange(correct)[::-1], guesses, right))
    most = np.max(below / np.arange(1, correct + 1), initial=0.0)
    return float(min(1.0, tail + 2 * canaries * delta * most))


def one_run_bound(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """Returns the epsilon at which `one_run_p_value` is 1 - `confidence`, or 0."""
    _check_confidence(confidence)

    def excess(epsilon: float) -> float:
        p = one_run_p_value(canaries, guesses, correct, epsilon, delta)
        return p - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high))


def _rates(counts: Errors, confidence: float) -> tuple[float, float]:
    """Upper bounds of both error rates, which hold together."""
    _check_confidence(confidence)
    each = (1 + confidence) / 2
    return (
        clopper_pearson(counts.false_positives, counts.absent, each),
        clopper_pearson(counts.false_negatives, counts.present, each),
    )


def checked_scores(name: str, values: ArrayLike, least: int = 1) -> np.ndarray:
    """Returns scores as a flat array; refuses NaN, and fewer than `least`."""
    values = np.asarray(values, float).ravel()
    if values.size < least or np.isnan(values).any():
        what = "NaN" if np.isnan(values).any() else len(values) or "none"
        raise ValueError(
            f"{name} must be at least {least} scores without NaN, got {what}"
        )
    return values


def _check_confidence(confidence: float) -> None:
    ends = {"open_low": True, "open_high": True, "schedules": False}
    check_range("confidence", confidence, 0, 1, **ends)


def _check_delta(delta: float) -> None:
    check_range("delta", delta, 0, 1, open_high=True, schedules=False)
