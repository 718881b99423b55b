"""DiLoCo: FedAvg whose clients keep their rule's state; MuLoCo with a Muon rule.

Douillard et al. 2023, arXiv:2311.08105, Algorithm 1; Therien et al. 2025,
arXiv:2505.23725. Client i's rule keeps its state between rounds; for each batch s

    x_i <- x_i - lr rule_i(grad_i(x_i; s)),    then    x <- x - server_lr server_rule(g)

with g = mean_i (x - x_i) and, by default, Nesterov momentum at the server.
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
    local_steps,
    move,
)
from fedjax_muon.ranges import check_range


class State(NamedTuple):
    params: Any
    opt: optax.OptState  # of the server rule


def diloco(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.0004,
    rule: optax.GradientTransformation = optax.chain(
        optax.scale_by_adam(), optax.add_decayed_weights(0.1)
    ),
    server_lr: Hyper = 0.7,
    server_rule: optax.GradientTransformation = optax.trace(0.9, nesterov=True),
) -> Algorithm:
    """Distributed low-communication training.

    Args:
      lr: local learning rate.
      rule: local rule whose state persists at each client, without learning rate.
      server_lr: server learning rate.
      server_rule: rule applied to the pseudo-gradient, without learning rate.
    """
    check_range("lr", lr)
    check_range("server_lr", server_lr)

    def init(params):
        return State(params, server_rule.init(params))

    def client(start, opt, batches, round):
        def step(carry, batch, key):
            x, opt = carry
            return move(x, at(lr, round), rule, opt, grad_fn(x, batch, key)), ()

        (x, opt), _ = local_steps(step, (start, opt), batches, round.key)
        return tree.sub(start, x), opt

    def server(state, mean, round):
        x, opt = state
        return State(*move(x, at(server_lr, round), server_rule, opt, mean))

    main = Exchange(lambda state, round: state.params, client, server)
    return Algorithm(init, rule.init, (main,))
