"""FedProx: local steps on the loss plus (mu/2) |x - x^r|^2.

Li et al. 2020, arXiv:1812.06127, Algorithm 2, with a fixed number of local steps in
place of inexact solutions:

    x_i <- x_i - lr rule(grad_i(x_i; s) + mu (x_i - x)),    then    x <- mean_i x_i
"""

from typing import Any, NamedTuple

import optax

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    after_change,
    broadcast_state,
    check_range,
    local_steps,
    move,
    no_client_state,
    recorded,
    tree,
    value_at,
)


class State(NamedTuple):
    params: Any


@recorded
def fedprox(
    lr: Hyper = 0.1,
    *,
    mu: Hyper = 0.01,
    rule: optax.GradientTransformation = optax.identity(),
) -> Algorithm:
    """Federated averaging with a proximal pull toward the broadcast parameters.

    Args:
      mu: Strength of the pull; 0 is FedAvg.
      rule: Local rule, without a learning rate.
    """
    check_range("lr", lr)
    check_range("mu", mu)

    def client(objective, broadcast, client_state, batches, round):
        start = broadcast.params

        def step(carry, batch, key):
            x, opt = carry
            pull = tree.sub(x, start)
            d = tree.add_scaled(
                objective.grad(x, batch, key), value_at(mu, round), pull
            )
            return move(objective, x, value_at(lr, round), rule, opt, d), ()

        (x, _), _ = local_steps(step, (start, rule.init(start)), batches, round)
        return State(tree.sub(x, start)), client_state

    def server(state, mean, round):
        del round
        return tree.add(state, mean)

    return Algorithm(
        State,
        no_client_state,
        (Exchange(broadcast_state, client, server, local_params=after_change),),
    )
