"""Robust logistic regression: a minimax problem over weights of examples or agents.

Decentralized minimax with privacy (DPMixSGD), eq. (22), after Xian et al. 2021,
arXiv:2104.10116: with n losses l_j(x), labels b in {-1, 1} and y in the simplex,

    min over x, max over y:  sum_j y_j l_j(x) - (lambda1 / 2) ||n y - 1||^2 + g(x),
    log(1 + exp(-b a^T x)) the loss of an example,   lambda1 = 1 / n^2,
    g(x) = lambda2 sum_i alpha x_i^2 / (1 + alpha x_i^2).

The paper writes m for n and says that it is the number of agents, but also that there
are m examples. Both can be had: `examples` weighs every training example, as the code
of Xian et al. does, `agents` the mean loss of every agent. An agent has its own part of
the sum, times the number of agents, so that the objective is the mean of theirs.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_muon.core import check_range, tree
from fedjax_muon.core.pair import Pair, descent_ascent
from fedjax_muon.tasks.classification import (
    Batch,
    Task,
    per_example,
    weighted_mean,
)
from fedjax_muon.tasks.metrics import MEANS, auc
from fedjax_muon.tasks.simplex import project_weights


def examples(batch: Batch) -> jax.Array:
    """Whose weight counts: that of every training example, by its number [B].

    Agents count the same, and all examples do where agents have equally many.
    """
    if batch.ids is None:
        raise ValueError("a batch must say which training examples it has (ids)")
    return batch.ids


def agents(batch: Batch) -> jax.Array:
    """Whose weight counts: that of the agent whose batch it is, by its number []."""
    if batch.client is None:
        raise ValueError("a batch must say whose it is (client)")
    return batch.client


Weighed = Callable[[Batch], jax.Array]


def data_gradient(weights: int, of: Weighed = examples):
    """The gradient of the part that depends on data; arguments as `robust_logistic`'s.

    Descends in both variables; raises `ValueError` for a batch that does not say what
    `of` asks for.
    """

    def objective(params, batch):
        margin = (2 * batch.y - 1) * (batch.x @ params.x)
        losses = weights * params.y[of(batch)] * jax.nn.softplus(-margin)
        return weighted_mean(losses, batch.weight)

    def grad(params, batch, key):
        del key
        return jax.grad(objective)(params, batch)

    return descent_ascent(grad)


def public_gradient(*, regularization: float = 0.001, bend: float = 10.0):
    """`params -> gradient` of the other terms, to which privacy costs nothing: the
    task's `public_grad`. Arguments as those of `robust_logistic`."""
    check_range("regularization", regularization, schedules=False)
    check_range("bend", bend, schedules=False)

    def terms(params):
        square, n = bend * params.x**2, params.y.size
        divergence = jnp.sum((n * params.y - 1) ** 2) / (2 * n**2)
        return regularization * jnp.sum(square / (1 + square)) - divergence

    directed = descent_ascent(lambda params, *_: jax.grad(terms)(params))
    return lambda params: directed(params, None, None)


def robust_logistic(
    features: int,
    weights: int,
    of: Weighed = examples,
    *,
    regularization: float = 0.001,
    bend: float = 10.0,
) -> Task:
    """The task, for labels 0 and 1, which stand for -1 and 1.

    Parameters are `Pair(x, y)`, x [features] of zeros and y [weights] of 1 / weights at
    first; y is projected onto the simplex. The gradient is `data_gradient` and
    `public_gradient` together.

    Args:
      features: of an example.
      weights: n, how many there are: all training examples of all agents, or agents.
      of: what is weighed, `examples` or `agents`.
      regularization: lambda2.
      bend: alpha.

    `evaluate` gives the logistic loss, the sign of a^T x as the prediction, and a^T x
    as the score. Raises `ValueError` for numbers out of range.
    """
    if features < 1 or weights < 1:
        raise ValueError(
            f"features and weights must be at least 1, got {features} and {weights}"
        )
    data = data_gradient(weights, of)
    public = public_gradient(regularization=regularization, bend=bend)

    def init(key):
        del key
        return Pair(jnp.zeros(features), jnp.full(weights, 1 / weights))

    def grad(params, batch, key):
        return tree.add(data(params, batch, key), public(params))

    def evaluate(params, x, y):
        score = x @ params.x
        loss = jax.nn.softplus(-(2 * y - 1) * score)
        return {"loss": loss, "correct": (score > 0) == (y == 1), "score": score}

    return Task(
        init=init,
        grad=grad,
        evaluate=evaluate,
        project=project_weights,
        example_grad=per_example(data),
        public_grad=public,
        metrics={**MEANS, "auc": auc},
    )
