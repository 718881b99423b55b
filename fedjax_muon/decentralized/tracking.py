"""Gradient tracking: every agent follows the network's mean of what agents estimate.

With g what `estimator` says the gradient is, g_ what it said before, and W the
multiplication by the weights,

    v <- W(v + g - g_);    x <- project(W(x - lr rule(v)))

with v = g_ = 0 before t = 0. The mean of all v is that of all g, at every t. With
`fresh` gradients it is DIGing's adapt-then-combine form (Nedic et al. 2017,
arXiv:1607.03218), with `storm` DM-HSGD (Xian et al. 2021, arXiv:2104.10116), with noise
on it DPMixSGD.
"""

from typing import Any, NamedTuple

import optax

from fedjax_muon import tree
from fedjax_muon.core import Hyper, at
from fedjax_muon.gossip import Estimator, Gossip
from fedjax_muon.ranges import check_range


class State(NamedTuple):
    params: Any  # x
    track: Any  # v
    told: Any  # g_, as the neighbours heard it
    memory: Any  # the estimator's
    opt: Any  # the rule's


def tracking(
    estimator: Estimator,
    *,
    lr: Hyper = 0.01,
    rule: optax.GradientTransformation = optax.identity(),
) -> Gossip:
    """Gradient tracking of an estimate.

    Args:
      estimator: what an agent's gradient is.
      lr: learning rate.
      rule: what is done to the tracked gradient, without learning rate; its state
        persists. A projection belongs to it (`pair.projected`) and follows the mixing.
    """
    check_range("lr", lr)
    project = getattr(rule, "project", lambda params: params)

    def advance(x, news, g, memory, opt, mix, turn):
        v = mix(news)
        u, opt = rule.update(v, opt, x)
        moved = tree.sub_scaled(x, at(lr, turn), u)
        return State(project(mix(moved)), v, g, memory, opt)

    def start(x, mix, batch, turn):
        g, memory = estimator.start(x, batch, turn)
        return advance(x, g, g, memory, rule.init(x), mix, turn)

    def step(state, mix, batch, turn):
        x, v, told, memory, opt = state
        g, memory = estimator.update(memory, x, batch, turn)
        news = tree.sub(tree.add(v, g), told)
        return advance(x, news, g, memory, opt, mix, turn)

    return Gossip(start, step)
