"""Decentralized SGD: agents move, then mix.

With g the estimate of the gradient, and W the multiplication by the mixing weights,

    x <- project(W(x - lr rule(g)))

In Lian et al. 2017, arXiv:1705.09056, agents mix before they move. Here the move is
mixed too. For parameters that are a `Pair` this is D-SGDA, whose order of the two was
not verified.
"""

from typing import Any, NamedTuple

import optax

from fedjax_muon.core import Hyper, check_range, descend, recorded, value_at
from fedjax_muon.decentralized.estimators import fresh
from fedjax_muon.decentralized.gossip import Estimator, Gossip


class State(NamedTuple):
    """State of an agent."""

    params: Any  # x
    memory: Any  # of the estimator
    opt: Any  # state of the rule


@recorded
def dsgd(
    lr: Hyper = 0.1,
    *,
    rule: optax.GradientTransformation = optax.identity(),
    estimator: Estimator = fresh(),
) -> Gossip:
    """Decentralized stochastic gradient descent.

    Args:
      estimator: How an agent estimates its gradient, such as `estimators.ema(0.9)`; by
        default by the gradient of a batch.
    """
    check_range("lr", lr)

    def advance(objective, x, g, memory, opt, mix, iteration):
        moved, opt = descend(x, value_at(lr, iteration), rule, opt, g)
        return State(objective.project(mix(moved)), memory, opt)

    def start(objective, x, mix, batch, iteration):
        g, memory = estimator.start(objective, x, batch, iteration)
        return advance(objective, x, g, memory, rule.init(x), mix, iteration)

    def step(objective, state, mix, batch, iteration):
        x, memory, opt = state
        g, memory = estimator.update(objective, memory, x, batch, iteration)
        return advance(objective, x, g, memory, opt, mix, iteration)

    return Gossip(start, step)
