"""FedAvg-M, also known as FedCM: local steps lean on the last round's mean direction.

Cheng et al., ICLR 2024, arXiv:2306.16504, and Xu et al. 2021, arXiv:2106.10874. From
the broadcast (x, g), for each batch s

    x_i <- x_i - lr rule(fresh grad_i(x_i; s) + (1 - fresh) g)

then g <- mean_i (x - x_i) / (K lr) and x <- x + server_lr mean_i (x_i - x). The paper's
server rate gamma is K lr server_lr. Its recursion and step are as other papers quote
them; the text itself was not at hand.
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
    mean_direction,
    move,
    stateless,
)
from fedjax_muon.ranges import check_range


class State(NamedTuple):
    params: Any
    momentum: Any  # g


def fedavg_m(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.1,
    server_lr: Hyper = 1.0,
    fresh: Hyper = 0.1,
    rule: optax.GradientTransformation = optax.identity(),
) -> Algorithm:
    """Federated averaging with momentum at the server, applied by the clients.

    Args:
      lr: local learning rate.
      server_lr: server learning rate; 1 is plain averaging.
      fresh: weight of the fresh gradient, alpha in FedCM and beta in FedAvg-M.
      rule: local rule of the mixed direction, without learning rate.
    """
    check_range("lr", lr, open_low=True)
    check_range("server_lr", server_lr)
    check_range("fresh", fresh, 0.0, 1.0)

    def init(params):
        return State(params, tree.zeros_like(params))

    def client(shared, mine, batches, round):
        def step(carry, batch, key):
            x, opt = carry
            g = grad_fn(x, batch, key)
            d = tree.mix(shared.momentum, at(fresh, round), g)
            return move(x, at(lr, round), rule, opt, d), ()

        carry = shared.params, rule.init(shared.params)
        (x, _), _ = local_steps(step, carry, batches, round.key)
        return tree.sub(x, shared.params), mine

    def server(state, dx, round):
        return State(
            params=tree.add_scaled(state.params, at(server_lr, round), dx),
            momentum=mean_direction(lr, round, dx),
        )

    main = Exchange(everything, client, server)
    return Algorithm(init, stateless, (main,))
