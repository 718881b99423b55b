"""Statistics of scores and of gradients."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax.tree_util import Partial


def roc_auc(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """Computes the area under the ROC curve.

    It is the share of the pairs of a positive and a negative example in which the
    positive one has the larger score; ties count one half. The result is exact, by
    ranks, not by a grid of thresholds.

    Example:
      >>> float(roc_auc(jnp.array([0.1, 0.4, 0.3]), jnp.array([0, 1, 0])))
      1.0
    """
    order = jnp.argsort(scores)
    scores, labels = scores[order], labels[order]
    below = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(labels == 0)])
    first = jnp.searchsorted(scores, scores, side="left")
    last = jnp.searchsorted(scores, scores, side="right")
    positives, negatives = jnp.sum(labels == 1), jnp.sum(labels == 0)
    # Halves of integers up to n, divided before the sum so that it stays small.
    beaten = (below[first] + below[last]) / (2 * negatives)
    area = jnp.sum(jnp.where(labels == 1, beaten, 0)) / positives
    return jnp.where(jnp.isnan(scores).any(), jnp.nan, area)


def matthews(predicted: jax.Array, labels: jax.Array) -> jax.Array:
    """Computes Matthews' correlation of two classes.

    It is the correlation of predictions and labels as numbers: between -1 and 1, and 0
    for guesses.

    Returns:
      The correlation [], 0 if either has a single value, as in GLUE.

    Example:
      >>> float(matthews(jnp.array([0, 1, 1]), jnp.array([0, 1, 1])))
      1.0
    """
    predicted, labels = predicted == 1, labels == 1
    count = lambda of: jnp.sum(of).astype(jnp.float32)
    positive, negative = count(labels), count(~labels)
    right = count(predicted & labels), count(~predicted & ~labels)
    # Rates, since a difference of products of counts would lose digits.
    rates = right[0] / positive + right[1] / negative
    spread, guessed = positive * negative, count(predicted) * count(~predicted)
    both = (spread > 0) & (guessed > 0)
    return jnp.where(both, (rates - 1) * jnp.sqrt(spread / guessed), 0)


def hill(values: jax.Array, tail: int) -> jax.Array:
    """Estimates the tail index of the magnitudes of values (Hill's estimator).

    It is the inverse of the mean of log(|v|_(i) / |v|_(tail + 1)), i = 1..tail, where
    |v|_(i) is the i-th largest magnitude. For P(|v| > t) ~ t^-s it is about s, with
    standard error s / sqrt(tail). The variance is finite for s > 2.

    Args:
      values: Values of any shape. The tail must not contain zeros.
      tail: Number of the largest magnitudes that are used.
    """
    size = values.size
    if not 1 <= tail < size:
        raise ValueError(f"tail must lie between 1 and {size - 1}, got {tail}")
    largest = jax.lax.top_k(jnp.abs(values.reshape(-1)), tail + 1)[0]
    return 1 / jnp.mean(jnp.log(largest[:tail] / largest[tail]))


def mean_loss(scores: Mapping[str, jax.Array], y: jax.Array) -> jax.Array:
    """Metric: the mean of the losses, the score "loss"."""
    del y
    return jnp.mean(scores["loss"])


def mean_error(scores: Mapping[str, jax.Array], y: jax.Array) -> jax.Array:
    """Metric: the mean of the absolute errors, the score "error"."""
    del y
    return jnp.mean(scores["error"])


def accuracy(scores: Mapping[str, jax.Array], y: jax.Array) -> jax.Array:
    """Metric: the share of examples that are classified correctly ("correct")."""
    del y
    return jnp.mean(scores["correct"])


def auc(scores: Mapping[str, jax.Array], y: jax.Array) -> jax.Array:
    """Metric: the area under the ROC curve of two classes, by "score"."""
    return roc_auc(scores["score"], y)


def mcc(scores: Mapping[str, jax.Array], y: jax.Array) -> jax.Array:
    """Metric: Matthews' correlation of two classes, by "predicted"."""
    return matthews(scores["predicted"], y)


# Metrics of every classification task; pytrees like the other functions of a task.
MEANS = {"loss": Partial(mean_loss), "accuracy": Partial(accuracy)}
