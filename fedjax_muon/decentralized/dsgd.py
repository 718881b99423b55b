"""Decentralized SGD: agents move, then mix."""

from typing import Any, NamedTuple

import optax

from fedjax_muon.core import Hyper, check_range, descend, recorded, value_at
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized.estimators import fresh, noisy
from fedjax_muon.decentralized.gossip import Estimator, Gossip
from fedjax_muon.transforms import Polar, unit_directions


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
    """D-SGD: every agent takes a gradient step, then averages with its neighbors.

    With g the estimate of an agent's gradient, and W the multiplication by the mixing
    weights,

        x <- project(W(x - lr rule(g)))

    For parameters that are a `Pair`, the method becomes D-SGDA, whose order of the two
    was not verified.

    Source: Lian et al. 2017, NeurIPS, arXiv:1705.09056. Checked against independent
    code. It departs in the order: their agents mix before they move, while the move is
    mixed too here.

    Args:
      lr: Learning rate: 0.03 to 1 for SGD, 0.01 to 0.1 if `rule` is Muon.
      rule: Rule applied to the estimate, without a learning rate; its state persists.
      estimator: How an agent estimates its gradient, such as `estimators.ema(0.9)`; by
        default by the gradient of a batch.

    Example:
      >>> weights = fm.topology.metropolis(fm.topology.ring(4))
      >>> average = fm.decentralized.estimators.ema(0.9)
      >>> algorithm = fm.decentralized.dsgd(lr=0.1, estimator=average)
      >>> around = {"weights": weights, "batch_size": 8}
      >>> agents = fm.decentralize(algorithm, task, digits, clients, **around)

    See also: `decentralized.gradient_tracking` for heterogeneous agents,
    `decentralized.dsgd_muon`, and `decentralized.dp_sgda` with privacy.
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


@recorded
def dsgd_muon(
    lr: Hyper = 0.01, *, polar: Polar | None = None, normalize_vectors: bool = True
) -> Gossip:
    """D-SGD + Muon: decentralized SGD with orthogonalized gradients.

    Source: Defined here: a composition of this library, not published. The same as
    `fm.decentralized.dsgd(rule=unit_directions(polar))`.

    Args:
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.
      normalize_vectors: Whether vectors are divided by their norms. If not, they move
        along the tracked gradient itself.
    """
    rule = unit_directions(polar, normalize_vectors=normalize_vectors)
    return dsgd(lr=lr, rule=rule)


@recorded
def dsgda(
    lr: Hyper = Pair(0.01, 0.1),  # of x and y, as in the code of Xian et al.
    *,
    rule: optax.GradientTransformation = optax.identity(),
) -> Gossip:
    """D-SGDA: decentralized stochastic gradient descent ascent.

    Source: Zhu et al. 2023, NeurIPS, arXiv:2310.20369. Not verified. The same as
    `fm.decentralized.dsgd()` with other defaults.
    """
    return dsgd(lr=lr, rule=rule)


@recorded
def dp_sgda_unclipped(
    lr: Hyper = Pair(0.01, 0.1),
    *,
    sigma: Hyper = 0.5,
    rule: optax.GradientTransformation = optax.identity(),
) -> Gossip:
    """DP-SGDA (unclipped, no privacy): D-SGDA with noise on gradients, no privacy.

    Source: Yang et al. 2022, UAI, arXiv:2201.09046; here decentralized and without a
    clip. Checked against independent code. The same as
    `fm.decentralized.dsgd(estimator=noisy(fresh(), sigma))`.

    Args:
      sigma: Standard deviation of the noise in every coordinate, 0 to 1.
    """
    return dsgd(lr=lr, rule=rule, estimator=noisy(fresh(), sigma))
