"""Decentralized SGD: move, then mix.

With g what `estimator` says the gradient is, and W the multiplication by the weights,

    x <- project(W(x - lr rule(g)))

Lian et al. 2017, arXiv:1705.09056, who mix before they move; here the move is mixed
too, as D-SGDA has it, which this is for parameters that are a `Pair`.
"""

from typing import Any, NamedTuple

import optax

from fedjax_muon import tree
from fedjax_muon.core import Hyper, at
from fedjax_muon.gossip import Estimator, Gossip
from fedjax_muon.ranges import check_range


class State(NamedTuple):
    params: Any  # x
    memory: Any  # the estimator's
    opt: Any  # the rule's


def dsgd(
    estimator: Estimator,
    *,
    lr: Hyper = 0.1,
    rule: optax.GradientTransformation = optax.identity(),
) -> Gossip:
    """Decentralized (stochastic) gradient descent.

    Args:
      estimator: what an agent's gradient is.
      lr: learning rate.
      rule: local rule, without learning rate, whose state persists; a projection
        belongs to it (`pair.projected`) and follows the mixing.
    """
    check_range("lr", lr)
    project = getattr(rule, "project", lambda params: params)

    def advance(x, g, memory, opt, mix, turn):
        u, opt = rule.update(g, opt, x)
        moved = tree.sub_scaled(x, at(lr, turn), u)
        return State(project(mix(moved)), memory, opt)

    def start(x, mix, batch, turn):
        g, memory = estimator.start(x, batch, turn)
        return advance(x, g, memory, rule.init(x), mix, turn)

    def step(state, mix, batch, turn):
        x, memory, opt = state
        g, memory = estimator.update(memory, x, batch, turn)
        return advance(x, g, memory, opt, mix, turn)

    return Gossip(start, step)
