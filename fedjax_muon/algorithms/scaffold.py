"""SCAFFOLD: control variates against client drift.

Karimireddy et al. 2020, arXiv:1910.06378, Algorithm 1. From the broadcast (x, c),

    x_i <- x_i - lr rule(grad_i(x_i; s) - c_i + c),    then    c_i <- mean_k grad_i,
    x <- x + server_lr mean_i (x_i - x),    c <- c + (S/N) mean_i (change of c_i)

With the identity as the rule, the new c_i is the paper's Option II. Unlike Option II,
it is an average of gradients for any other rule too.
"""

from typing import Any, NamedTuple

import optax

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    broadcast_state,
    check_range,
    local_steps,
    move,
    recorded,
    tree,
    value_at,
)


class State(NamedTuple):
    params: Any
    control: Any  # c: the mean of all clients' controls


@recorded
def scaffold(
    lr: Hyper = 0.01,
    *,
    server_lr: Hyper = 1.0,
    rule: optax.GradientTransformation = optax.identity(),
) -> Algorithm:
    """Stochastic controlled averaging; requires uniform weights.

    Args:
      rule: Local rule applied to the corrected gradient, without a learning rate.
    """
    check_range("lr", lr)
    check_range("server_lr", server_lr)

    def init(params):
        return State(params, tree.zeros_like(params))

    def client(objective, broadcast, control, batches, round):
        def step(carry, batch, key):
            x, opt = carry
            g = objective.grad(x, batch, key)
            d = tree.map(lambda g, ci, c: g - ci + c, g, control, broadcast.control)
            return move(objective, x, value_at(lr, round), rule, opt, d), g

        carry = broadcast.params, rule.init(broadcast.params)
        (x, _), seen = local_steps(step, carry, batches, round)
        return State(tree.sub(x, broadcast.params), tree.sub(seen, control)), seen

    def server(state, mean, round):
        return State(
            params=tree.add_scaled(
                state.params, value_at(server_lr, round), mean.params
            ),
            control=tree.add_scaled(state.control, round.fraction, mean.control),
        )

    main = Exchange(broadcast_state, client, server)
    return Algorithm(init, tree.zeros_like, (main,), uniform_weights=True)
