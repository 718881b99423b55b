"""Deep AUC maximization: the area under the ROC curve as a minimax problem.

Ying et al. 2016 and Liu et al. 2020, as in Zhang and Gao, "Federated stochastic minimax
optimization under heavy-tailed noises", eq. (20). Let h be the model's probability of
the positive class and p the share of positives; [+] and [-] select the examples with
label 1 and 0. The mean over examples of

    (1 - p) (h - w1)^2 [+] + p (h - w2)^2 [-] + 2 (1 + w3) (p h [-] - (1 - p) h [+])
        - p (1 - p) w3^2

is minimized over the model, w1 and w2, and maximized over w3.
"""

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_muon.core import check_range
from fedjax_muon.core.pair import Pair, descent_ascent
from fedjax_muon.tasks.classification import (
    Examples,
    check_batch,
    classification,
    example_shape_of,
    logits_of,
    weighted_mean,
)
from fedjax_muon.tasks.metrics import MEANS, auc as area
from fedjax_muon.tasks.task import Batch, Scores, Task


class Primal(NamedTuple):
    """The primal variable: parameters of the model, and the classes' mean scores."""

    model: Any
    w1: jax.Array  # mean score of the positives
    w2: jax.Array  # mean score of the negatives


def auc(model: nn.Module, examples: Examples, *, share: float | None = None) -> Task:
    """Maximization of the AUC of a binary classifier.

    Args:
      model: Module that maps [B, *shape] to two logits per example.
      share: Share of positives p in (0, 1). By default every client uses its own
        share; then a client with a single class has a gradient of zero.

    Returns:
      A task whose parameters are `Pair(Primal(model, w1, w2), w3)`. Its scores are the
      cross-entropy as "loss", "correct" for the prediction h > 1/2, and the log-odds
      of h as "score", which ranks like h but has no ties where h rounds to 1. The
      metric "auc" is computed from the score. Without `share`, the gradient requires
      `Batch.shares`.
    """
    if share is not None:
        check_range(
            "share", share, 0.0, 1.0, open_low=True, open_high=True, schedules=False
        )
    plain = classification(model, examples)
    example = jax.ShapeDtypeStruct((1, *example_shape_of(examples)), jnp.float32)
    drawn = jax.eval_shape(plain.init, jax.random.key(0))
    logits = jax.eval_shape(partial(logits_of, model), drawn, example)
    if logits.shape != (1, 2):
        raise ValueError(
            f"AUC is defined for two classes; the model gives {logits.shape[-1]} logits"
        )

    def init(key: jax.Array) -> Pair:
        zero = jnp.zeros(())
        return Pair(Primal(plain.init(key), zero, zero), zero)

    def objective(params: Pair, batch: Batch, key: jax.Array) -> jax.Array:
        h = jax.nn.softmax(logits_of(model, params.x.model, batch.x, key))[:, 1]
        shares: Any = batch.shares  # which batches of clients have
        p = shares[1] if share is None else share
        positive = batch.y.astype(h.dtype)
        negative, (_, w1, w2), w3 = 1 - positive, params.x, params.y
        losses = (
            (1 - p) * (h - w1) ** 2 * positive
            + p * (h - w2) ** 2 * negative
            + 2 * (1 + w3) * (p * h * negative - (1 - p) * h * positive)
            - p * (1 - p) * w3**2
        )
        return weighted_mean(losses, batch.weight)

    def grad(params: Pair, batch: Batch, key: jax.Array) -> Pair:
        check_batch(batch.x, batch.y, batch.weight)
        shape = getattr(batch.shares, "shape", None)
        if shape != (2,) and (share is None or shape is not None):
            raise ValueError(
                "a batch must have its client's shares of two classes, of shape (2,), "
                f"got {shape}; or set `share` and leave Batch.shares empty"
            )
        return jax.grad(objective)(params, batch, key)

    def evaluate(params: Pair, x: jax.Array, y: jax.Array) -> Scores:
        logits = logits_of(model, params.x.model, x)
        scores = plain.evaluate(params.x.model, x, y)
        return {**scores, "score": logits[:, 1] - logits[:, 0]}

    return Task(init, descent_ascent(grad), evaluate, metrics={**MEANS, "auc": area})
