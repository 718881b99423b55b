"""Gradient tracking: every agent tracks the mean of all agents' estimates.

With g the estimate of the gradient, g_ the estimate of the iteration before, and W the
multiplication by the mixing weights,

    v <- W(v + g - g_);    x <- project(W(x - lr rule(v)))

with v = g_ = 0 before t = 0. The mean of all v is the mean of all g, at every t. With
`fresh` gradients it is DIGing's adapt-then-combine form (Nedic et al. 2017,
arXiv:1607.03218), with `storm` it is DM-HSGD (Xian et al. 2021, NeurIPS), and
with noisy `storm` it is DPMixSGD without clipping.
"""

from typing import Any, NamedTuple

import optax

from fedjax_muon.core import Hyper, check_range, descend, recorded, tree, value_at
from fedjax_muon.decentralized.estimators import fresh
from fedjax_muon.decentralized.gossip import Estimator, Gossip


class State(NamedTuple):
    """State of an agent."""

    params: Any  # x
    tracked: Any  # v
    estimate: Any  # g_, as the neighbors received it
    memory: Any  # of the estimator
    opt: Any  # state of the rule


@recorded
def gradient_tracking(
    lr: Hyper = 0.01,
    *,
    rule: optax.GradientTransformation = optax.identity(),
    estimator: Estimator = fresh(),
) -> Gossip:
    """Gradient tracking with any estimator of the gradient.

    Args:
      rule: Rule applied to the tracked gradient, an optax transformation without a
        learning rate; its state persists.
      estimator: How an agent estimates its gradient, such as `estimators.ema(0.9)`; by
        default by the gradient of a batch.
    """
    check_range("lr", lr)

    def advance(objective, x, change, g, memory, opt, mix, iteration):
        v = mix(change)
        moved, opt = descend(x, value_at(lr, iteration), rule, opt, v)
        return State(objective.project(mix(moved)), v, g, memory, opt)

    def start(objective, x, mix, batch, iteration):
        g, memory = estimator.start(objective, x, batch, iteration)
        return advance(objective, x, g, g, memory, rule.init(x), mix, iteration)

    def step(objective, state, mix, batch, iteration):
        x, v, before, memory, opt = state
        g, memory = estimator.update(objective, memory, x, batch, iteration)
        change = tree.sub(tree.add(v, g), before)
        return advance(objective, x, change, g, memory, opt, mix, iteration)

    return Gossip(start, step)
