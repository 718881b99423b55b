"""Statistics of scores and of gradients."""

import jax
import jax.numpy as jnp
from jax.tree_util import Partial


def roc_auc(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """The area under the ROC curve: the share of pairs of a positive and a negative
    example in which the positive has the larger score, ties counting one half.

    Exact: by ranks, not by a grid of thresholds. scores [n], labels [n] in {0, 1}; nan
    if one label does not occur, or a score is nan.
    """
    order = jnp.argsort(scores)
    scores, labels = scores[order], labels[order]
    below = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(labels == 0)])
    first = jnp.searchsorted(scores, scores, side="left")
    last = jnp.searchsorted(scores, scores, side="right")
    positives, negatives = jnp.sum(labels == 1), jnp.sum(labels == 0)
    # halves of integers up to n, as shares so that no sum is large
    beaten = (below[first] + below[last]) / (2 * negatives)
    found = jnp.sum(jnp.where(labels == 1, beaten, 0)) / positives
    return jnp.where(jnp.isnan(scores).any(), jnp.nan, found)


def matthews(predicted: jax.Array, labels: jax.Array) -> jax.Array:
    """Matthews' correlation of two classes: between -1 and 1, and 0 for guesses.

    The correlation of predicted [n] and labels [n], both in {0, 1} and taken for
    numbers; 0 if either has only one value, as in GLUE.
    """
    predicted, labels = predicted == 1, labels == 1
    count = lambda of: jnp.sum(of).astype(jnp.float32)
    positive, negative = count(labels), count(~labels)
    right = count(predicted & labels), count(~predicted & ~labels)
    # by rates: products of counts would lose digits in their difference
    rates = right[0] / positive + right[1] / negative
    spread, guessed = positive * negative, count(predicted) * count(~predicted)
    both = (spread > 0) & (guessed > 0)
    return jnp.where(both, (rates - 1) * jnp.sqrt(spread / guessed), 0)


def hill(values: jax.Array, tail: int) -> jax.Array:
    """Hill's estimate of the tail index of |values|, from their `tail` largest.

    The inverse of the mean of log(|v|_(i) / |v|_(tail + 1)), i = 1..tail: about s for
    P(|v| > t) ~ t^-s, with standard error s / sqrt(tail); above 2 the variance is
    finite. values: any shape, of more than `tail` entries; zeros do not belong to a
    tail. Raises `ValueError` unless 1 <= tail < the number of values.
    """
    size = values.size
    if not 1 <= tail < size:
        raise ValueError(f"tail must lie between 1 and {size - 1}, got {tail}")
    largest = jax.lax.top_k(jnp.abs(values.reshape(-1)), tail + 1)[0]
    return 1 / jnp.mean(jnp.log(largest[:tail] / largest[tail]))


def mean_loss(scores, y):
    """The mean loss over examples."""
    del y
    return jnp.mean(scores["loss"])


def accuracy(scores, y):
    """The share of examples that are classified correctly."""
    del y
    return jnp.mean(scores["correct"])


def auc(scores, y):
    """The area under the ROC curve of scores that rank two classes."""
    return roc_auc(scores["score"], y)


def mcc(scores, y):
    """Matthews' correlation of the predicted classes."""
    return matthews(scores["predicted"], y)


# of every task that classifies; pytrees, as the functions of a task
MEANS = {"loss": Partial(mean_loss), "accuracy": Partial(accuracy)}
