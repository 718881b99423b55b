"""SCAFFOLD: control variates cancel client drift.

Karimireddy et al. 2020, arXiv:1910.06378, Algorithm 1. From the broadcast (x, c),

    x_i <- x_i - lr rule(grad_i(x_i; s) - c_i + c),    then    c_i <- mean_k grad_i,
    x <- x + server_lr mean_i (x_i - x),    c <- c + (S/N) mean_i (change of c_i)

The new c_i is the paper's Option II when the rule is the identity; unlike Option II it
stays an average of gradients under any other rule.
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
)
from fedjax_muon.ranges import check_range


class State(NamedTuple):
    params: Any
    control: Any  # c: the mean of all clients' controls


def scaffold(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.1,
    server_lr: Hyper = 1.0,
    rule: optax.GradientTransformation = optax.identity(),
) -> Algorithm:
    """Stochastic controlled averaging; refuses weights other than uniform.

    Args:
      lr: local learning rate.
      server_lr: server learning rate; 1 is plain averaging.
      rule: local rule applied to the corrected gradient, without learning rate.
    """
    check_range("lr", lr)
    check_range("server_lr", server_lr)

    def init(params):
        return State(params, tree.zeros_like(params))

    def client(shared, control, batches, round):
        def step(carry, batch, key):
            x, opt = carry
            g = grad_fn(x, batch, key)
            d = tree.map(lambda g, ci, c: g - ci + c, g, control, shared.control)
            return move(x, at(lr, round), rule, opt, d), g

        carry = shared.params, rule.init(shared.params)
        (x, _), seen = local_steps(step, carry, batches, round.key)
        return State(tree.sub(x, shared.params), tree.sub(seen, control)), seen

    def server(state, mean, round):
        return State(
            params=tree.add_scaled(state.params, at(server_lr, round), mean.params),
            control=tree.add_scaled(state.control, round.fraction, mean.control),
        )

    main = Exchange(everything, client, server)
    return Algorithm(init, tree.zeros_like, (main,), uniform=True)
