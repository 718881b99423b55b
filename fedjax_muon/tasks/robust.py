"""Robust logistic regression: a minimax problem over weights of examples or agents.

Decentralized minimax with privacy (DPMixSGD), eq. (22), after Xian et al. 2021,
NeurIPS: with n losses l_j(x), labels b in {-1, 1} and y in the simplex,

    min over x, max over y:  sum_j y_j l_j(x) - (lambda1 / 2) ||n y - 1||^2 + g(x),
    log(1 + exp(-b a^T x)) the loss of an example,   lambda1 = 1 / n^2,
    g(x) = lambda2 sum_i alpha x_i^2 / (1 + alpha x_i^2).

The paper writes m for n. It calls m the number of agents, but also says that there are
m examples. Both are available: `examples` weights every training example, as the code
of Xian et al. does, and `agents` weights the mean loss of every agent. The objective of
an agent is its part of the sum times the number of agents, so that the objective is the
mean over the agents.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_muon.core import check_count, check_range, tree
from fedjax_muon.core.pair import Pair, descent_ascent
from fedjax_muon.tasks.classification import weighted_mean
from fedjax_muon.tasks.metrics import MEANS, auc
from fedjax_muon.tasks.simplex import project_weights
from fedjax_muon.tasks.task import Batch, Scores, Task, per_example


def examples(batch: Batch) -> jax.Array:
    """Selects one weight for every training example.

    All agents count the same, so all examples count the same only if agents have
    equally many.
    """
    if batch.ids is None:
        raise ValueError("a batch must have its examples' numbers (Batch.ids)")
    return batch.ids


def agents(batch: Batch) -> jax.Array:
    """Selects one weight for every agent."""
    if batch.client is None:
        raise ValueError("a batch must have its agent's number (Batch.client)")
    return batch.client


Selection = Callable[[Batch], jax.Array]  # batch -> the numbers of its weights


def robust_logistic(
    features: int,
    weights: int,
    selection: Selection = examples,
    *,
    regularization: float = 0.001,
    bend: float = 10.0,
) -> Task:
    """Robust logistic regression for labels 0 and 1, which stand for -1 and 1.

    Args:
      weights: Number of weights n: that of all training examples, or of the agents.
      selection: Weights of a batch, `examples` or `agents`; a batch without the field
        that it reads raises `ValueError`.
      regularization: Weight lambda2 of the regularizer.
      bend: Curvature alpha of the regularizer.

    Returns:
      A task whose parameters are `Pair(x [features], y [weights])`, zeros and
      1 / weights at first; y is projected onto the simplex. `public_grad` is the
      gradient of the terms without data, which have no privacy cost, `example_grad` of
      the rest. Its scores are the logistic loss, "correct" for the sign of a^T x, and
      a^T x as "score".
    """
    check_count("features", features)
    check_count("weights", weights)
    check_range("regularization", regularization, schedules=False)
    check_range("bend", bend, schedules=False)

    def init(key: jax.Array) -> Pair:
        del key
        return Pair(jnp.zeros(features), jnp.full(weights, 1 / weights))

    def loss(params: Pair, batch: Batch, key: jax.Array) -> jax.Array:
        del key
        margin = (2 * batch.y - 1) * (batch.x @ params.x)
        losses = weights * params.y[selection(batch)] * jax.nn.softplus(-margin)
        return weighted_mean(losses, batch.weight)

    def terms(params: Pair, *_: Any) -> jax.Array:
        square, n = bend * params.x**2, params.y.size
        divergence = jnp.sum((n * params.y - 1) ** 2) / (2 * n**2)
        return regularization * jnp.sum(square / (1 + square)) - divergence

    data, public = (descent_ascent(jax.grad(part)) for part in (loss, terms))

    def grad(params: Pair, batch: Batch, key: jax.Array) -> Pair:
        return tree.add(data(params, batch, key), public(params, None, None))

    def evaluate(params: Pair, x: jax.Array, y: jax.Array) -> Scores:
        score = x @ params.x
        loss = jax.nn.softplus(-(2 * y - 1) * score)
        return {"loss": loss, "correct": (score > 0) == (y == 1), "score": score}

    return Task(
        init=init,
        grad=grad,
        evaluate=evaluate,
        project=project_weights,
        example_grad=per_example(data),
        public_grad=lambda params: public(params, None, None),
        metrics={**MEANS, "auc": auc},
    )
