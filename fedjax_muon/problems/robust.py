"""Robust logistic regression: a minimax problem over the weights of examples.

Decentralized minimax with privacy (DPMixSGD), eq. (22), after Xian et al. 2021,
arXiv:2104.10116: with n training examples, labels b_j in {-1, 1} and y in the simplex,

    min over x, max over y:  sum_j y_j l_j(x) - (lambda1 / 2) ||n y - 1||^2 + g(x),
    l_j(x) = log(1 + exp(-b_j a_j^T x)),   g(x) = lambda2 sum_i alpha x_i^2 /
    (1 + alpha x_i^2),   lambda1 = 1 / n^2.

The paper writes m, its number of agents, for n. An agent has its own examples' part of
the sum, times the number of agents, so that the objective is the mean of theirs.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_muon import tree
from fedjax_muon.pair import Pair, descent_ascent, on_y
from fedjax_muon.ranges import check_range
from fedjax_muon.tasks import Scores, Task, weighted_mean

# for `pair.projected`: keeps the weights of examples in the simplex
project_weights = on_y(optax.projections.projection_simplex)


def data_gradient(examples: int):
    """The gradient of the part that depends on data, of n = `examples`.

    A batch says which training examples it has (`Batch.ids`); its mean stands for that
    of its agent, so that agents count the same, and all examples do where agents have
    equally many. Descends in both variables; raises `ValueError` for a batch without
    ids.
    """

    def objective(params, batch):
        margin = (2 * batch.y - 1) * (batch.x @ params.x)
        losses = examples * params.y[batch.ids] * jax.nn.softplus(-margin)
        return weighted_mean(losses, batch.weight)

    def grad(params, batch, key):
        del key
        if batch.ids is None:
            raise ValueError("a batch must say which training examples it has (ids)")
        return jax.grad(objective)(params, batch)

    return descent_ascent(grad)


def public_gradient(*, regularization: float = 0.001, bend: float = 10.0):
    """`params -> gradient` of the other terms, to which privacy costs nothing; for
    `estimators.plus`. Arguments as those of `robust_logistic`."""
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
    examples: int,
    *,
    regularization: float = 0.001,
    bend: float = 10.0,
) -> Task:
    """The task, for labels 0 and 1, which stand for -1 and 1.

    Parameters are `Pair(x, y)`, x [features] of zeros and y [examples] of 1 / examples
    at first; the gradient is `data_gradient` and `public_gradient` together.

    Args:
      features: of an example.
      examples: n, all training examples of all agents.
      regularization: lambda2.
      bend: alpha.

    `evaluate` gives the logistic loss, the sign of a^T x as the prediction, and a^T x
    as the score. Raises `ValueError` for numbers out of range.
    """
    if features < 1 or examples < 1:
        raise ValueError(
            f"features and examples must be at least 1, got {features} and {examples}"
        )
    data = data_gradient(examples)
    public = public_gradient(regularization=regularization, bend=bend)

    def init(key):
        del key
        return Pair(jnp.zeros(features), jnp.full(examples, 1 / examples))

    def grad(params, batch, key):
        return tree.add(data(params, batch, key), public(params))

    def evaluate(params, x, y):
        score = x @ params.x
        loss = jax.nn.softplus(-(2 * y - 1) * score)
        return Scores(loss, (score > 0) == (y == 1), score)

    return Task(init, grad, evaluate)
