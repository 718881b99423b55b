"""Deep AUC maximization: the area under the ROC curve as a minimax problem.

Ying et al. 2016 and Liu et al. 2020, as in Zhang and Gao, Federated stochastic minimax
optimization under heavy-tailed noises, eq. (20). With h the probability that a model
gives to the positive class, p the share of positives, + and - for examples of label 1
and 0, the mean over examples of

    (1 - p) (h - w1)^2 [+] + p (h - w2)^2 [-] + 2 (1 + w3) (p h [-] - (1 - p) h [+])
        - p (1 - p) w3^2

is minimised over the model, w1 and w2, and maximised over w3.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_muon.core import check_range
from fedjax_muon.core.pair import Pair, descent_ascent
from fedjax_muon.tasks.classification import (
    Examples,
    Task,
    check_batch,
    classification,
    example_shape_of,
    logits_of,
    weighted_mean,
)
from fedjax_muon.tasks.metrics import MEANS
from fedjax_muon.tasks.metrics import auc as area


class Primal(NamedTuple):
    """x: the model's parameters, and the mean scores of both classes."""

    model: Any
    w1: jax.Array  # of the positives
    w2: jax.Array  # of the negatives


def auc_losses(h, y, share, w1, w2, w3):
    """The objective at every example: scores h [B], labels y [B], the rest scalars."""
    positive, negative = y, 1 - y
    return (
        (1 - share) * (h - w1) ** 2 * positive
        + share * (h - w2) ** 2 * negative
        + 2 * (1 + w3) * (share * h * negative - (1 - share) * h * positive)
        - share * (1 - share) * w3**2
    )


class Optimum(NamedTuple):
    """The solution in w1, w2 and w3 for given scores, and the objective there."""

    w1: jax.Array
    w2: jax.Array
    w3: jax.Array
    value: jax.Array


def auc_optimum(h, y) -> Optimum:
    """In closed form: w1 and w2 are the classes' mean scores, and w3 = w2 - w1.

    The value is p (1 - p) (E (1 - h+ + h-)^2 - 1), the square loss of all pairs but for
    constants. Both labels must occur in y [n].
    """
    share = jnp.mean(y)
    mean = lambda v, of: jnp.sum(v * of) / jnp.sum(of)
    w1, w2 = mean(h, y), mean(h, 1 - y)
    variance = mean((h - w1) ** 2, y) + mean((h - w2) ** 2, 1 - y)
    value = share * (1 - share) * (variance + (1 - w1 + w2) ** 2 - 1)
    return Optimum(w1, w2, w2 - w1, value)


def auc(model: nn.Module, examples: Examples, *, share: float | None = None) -> Task:
    """The task of maximising the AUC of `model`, which gives two logits an example.

    Args:
      model: as for `tasks.classification`.
      examples: as for `tasks.classification`.
      share: p, the share of positives; by default every client's own. A client that has
        one class only has p (1 - p) = 0: its gradient is zero, with its own share.

    `evaluate` gives the cross-entropy of the model as loss, h > 1/2 as the prediction,
    and the log-odds of h as the score, which ranks as h does but never ties where h
    rounds to 1; `evaluation.evaluate` computes the AUC from it.

    Raises `ValueError` for a share outside (0, 1), a model that does not give two
    logits, and, when it is used, a gradient without a share, or of other labels than
    0 and 1.
    """
    if share is not None:
        check_range(
            "share", share, 0.0, 1.0, open_low=True, open_high=True, schedules=False
        )
    plain = classification(model, examples)
    _check_two(model, example_shape_of(examples))

    def init(key):
        zero = jnp.zeros(())
        return Pair(Primal(plain.init(key), zero, zero), zero)

    def objective(params: Pair, batch, key):
        h = jax.nn.softmax(logits_of(model, params.x.model, batch.x, key))[:, 1]
        p = batch.shares[1] if share is None else share
        y = batch.y.astype(h.dtype)
        losses = auc_losses(h, y, p, params.x.w1, params.x.w2, params.y)
        return weighted_mean(losses, batch.weight)

    def grad(params, batch, key):
        check_batch(batch.x, batch.y, batch.weight)
        shape = getattr(batch.shares, "shape", None)
        if shape != (2,) and (share is None or shape is not None):
            raise ValueError(
                "a batch must say its client's shares of two classes, 0 and 1, got "
                f"{shape}; or give `share` and batches without"
            )
        return jax.grad(objective)(params, batch, key)

    def evaluate(params, x, y):
        logits = logits_of(model, params.x.model, x)
        scores = plain.evaluate(params.x.model, x, y)
        return {**scores, "score": logits[:, 1] - logits[:, 0]}

    return Task(init, descent_ascent(grad), evaluate, metrics={**MEANS, "auc": area})


def _check_two(model, example_shape) -> None:
    x = jax.ShapeDtypeStruct((1, *example_shape), jnp.float32)
    logits, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), x)
    if logits.shape != (1, 2):
        raise ValueError(
            f"AUC is defined for two classes; the model gives {logits.shape[-1]} logits"
        )
