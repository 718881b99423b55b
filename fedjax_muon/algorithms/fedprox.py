"""FedProx: local steps on the loss plus (mu/2) |x - x^r|^2.

Li et al. 2020, arXiv:1812.06127, Algorithm 2, with a fixed number of local steps in
place of inexact solutions:

    x_i <- x_i - lr rule(grad_i(x_i; s) + mu (x_i - x)),    then    x <- mean_i x_i
"""

from typing import Any, NamedTuple

import optax

from fedjax_muon import tree
from fedjax_muon.core import (
    Algorithm,
    Exchange,
    GradFn,
    Hyper,
    at,
    everything,
    local_steps,
    move,
    stateless,
)
from fedjax_muon.ranges import check_range


class State(NamedTuple):
    params: Any


def fedprox(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.1,
    mu: Hyper = 0.01,
    rule: optax.GradientTransformation = optax.identity(),
) -> Algorithm:
    """Federated averaging with a proximal pull towards the broadcast parameters.

    Args:
      lr: local learning rate.
      mu: strength of the pull; 0 is FedAvg.
      rule: local rule, without learning rate.
    """
    check_range("lr", lr)
    check_range("mu", mu)

    def client(shared, mine, batches, round):
        start = shared.params

        def step(carry, batch, key):
            x, opt = carry
            pull = tree.sub(x, start)
            d = tree.add_scaled(grad_fn(x, batch, key), at(mu, round), pull)
            return move(x, at(lr, round), rule, opt, d), ()

        (x, _), _ = local_steps(step, (start, rule.init(start)), batches, round.key)
        return State(tree.sub(x, start)), mine

    def server(state, mean, round):
        del round
        return tree.add(state, mean)

    return Algorithm(State, stateless, (Exchange(everything, client, server),))
