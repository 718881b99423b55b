"""Gradient tracking: every agent tracks the mean of all agents' estimates."""

from typing import Any, NamedTuple

import optax

from fedjax_muon.core import Hyper, check_range, descend, recorded, tree, value_at
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized.estimators import ema, fresh, noisy, storm
from fedjax_muon.decentralized.gossip import Estimator, Gossip
from fedjax_muon.transforms import Polar, unit_directions


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
    """Gradient tracking: every agent follows a running mean of all agents' gradients.

    With g the estimate of the gradient, g_ the estimate of the iteration before, and W
    the multiplication by the mixing weights,

        v <- W(v + g - g_);    x <- project(W(x - lr rule(v)))

    with v = g_ = 0 before t = 0. The mean of all v is the mean of all g, at every t.
    With `fresh` gradients it is DIGing's adapt-then-combine form, with `storm` DM-HSGD,
    and with noisy `storm` DPMixSGD without clipping.

    Source: Nedic et al. 2017, arXiv:1607.03218. Checked against independent code. It
    departs in the order: they mix before the step and before the difference of
    gradients, while both are mixed here.

    Args:
      lr: Learning rate: 0.01 to 0.3 for SGD, 0.01 to 0.1 if `rule` is Muon.
      rule: Rule applied to the tracked gradient, an optax transformation without a
        learning rate; its state persists.
      estimator: How an agent estimates its gradient, such as `estimators.ema(0.9)`; by
        default by the gradient of a batch.

    Example:
      >>> recursive = fm.decentralized.estimators.storm(0.1)
      >>> algorithm = fm.decentralized.gradient_tracking(lr=0.1, estimator=recursive)
      >>> weights = fm.topology.metropolis(fm.topology.ring(4))
      >>> around = {"weights": weights, "batch_size": 8}
      >>> agents = fm.decentralize(algorithm, task, digits, clients, **around)

    See also: `decentralized.demuon`, `decentralized.dm_hsgd`, `decentralized.suda`, and
    `decentralized.dpmixsgd` with privacy.
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


@recorded
def gradient_tracking_muon(
    lr: Hyper = 0.01, *, polar: Polar | None = None, normalize_vectors: bool = True
) -> Gossip:
    """Gradient tracking + Muon: tracked gradients, orthogonalized.

    Source: Defined here: a composition of this library, not published. The same as
    `fm.decentralized.gradient_tracking(rule=unit_directions(polar))`.

    Args:
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.
      normalize_vectors: Whether vectors are divided by their norms. If not, they move
        along the tracked gradient itself.
    """
    rule = unit_directions(polar, normalize_vectors=normalize_vectors)
    return gradient_tracking(lr=lr, rule=rule)


@recorded
def demuon(
    lr: Hyper = 0.01,
    *,
    polar: Polar | None = None,
    normalize_vectors: bool = True,
    momentum: Hyper = 0.8,
) -> Gossip:
    """DeMuon: tracked averages of gradients, orthogonalized.

    Source: He et al. 2025, DeMuon, arXiv:2510.01377. Checked against the authors' code.
    The same as `fm.decentralized.gradient_tracking_muon()`, but for
    `estimator=ema(momentum)`.

    Args:
      momentum: Weight of the past in the average of gradients, in [0, 1).
    """
    rule = unit_directions(polar, normalize_vectors=normalize_vectors)
    return gradient_tracking(lr=lr, rule=rule, estimator=ema(momentum))


@recorded
def dm_hsgd(
    lr: Hyper = Pair(0.01, 0.1),  # of x and y, as in the code of Xian et al.
    *,
    beta: Hyper = Pair(0.01, 0.1),
    rule: optax.GradientTransformation = optax.identity(),
) -> Gossip:
    """DM-HSGD: gradient tracking over STORM.

    Source: Xian et al. 2021, A Faster Decentralized Algorithm for Nonconvex Minimax
    Problems, NeurIPS. Checked against the authors' code. The same as
    `fm.decentralized.gradient_tracking(estimator=storm(beta))`.

    Args:
      beta: Weight of the new gradient, in [0, 1]; 1 is `fresh`.
    """
    return gradient_tracking(lr=lr, rule=rule, estimator=storm(beta))


@recorded
def dpmixsgd_unclipped(
    lr: Hyper = Pair(0.01, 0.1),
    *,
    beta: Hyper = Pair(0.01, 0.1),
    sigma: Hyper = 0.5,
    rule: optax.GradientTransformation = optax.identity(),
) -> Gossip:
    """DPMixSGD (unclipped, no privacy): DM-HSGD with noise on what agents send.

    Source: Decentralized minimax with privacy, DPMixSGD, arXiv:2508.07505: Algorithm 1.
    Checked against the paper's text. The same as
    `fm.decentralized.gradient_tracking(estimator=noisy(storm(beta), sigma))`.

    Args:
      beta: Weight of the new gradient, in [0, 1].
      sigma: Standard deviation of the noise in every coordinate, 0 to 1.
    """
    return gradient_tracking(lr=lr, rule=rule, estimator=noisy(storm(beta), sigma))
