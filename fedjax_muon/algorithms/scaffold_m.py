"""SCAFFOLD-M and PAdaMFed: control variates and server momentum.

SCAFFOLD-M: Cheng et al., ICLR 2024, arXiv:2306.16504, written from memory, since the
text was not available. PAdaMFed, with normalized steps: Yan et al., ICLR 2025. From the
broadcast (x, h) with h = (1 - momentum) c + momentum g, for each batch s

    d = (1 - momentum) (grad_i(x_i; s) - c_i) + h;    x_i <- x_i - lr rule(d)

then c_i <- mean_k grad_i, and g <- (1 - momentum) (c + mean_i (change of c_i)) +
momentum g, which is the mean of all local d; c <- c + (S/N) mean_i (change of c_i).
"""

from typing import Any, NamedTuple

import optax

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    after_first,
    check_range,
    local_steps,
    move,
    recorded,
    tree,
    value_at,
)


class State(NamedTuple):
    params: Any
    control: Any  # c
    momentum: Any  # g


class Broadcast(NamedTuple):
    params: Any
    direction: Any  # h


class Message(NamedTuple):
    params: Any  # x_i - x
    control: Any  # change of c_i


@recorded
def scaffold_m(
    lr: Hyper = 0.1,
    *,
    server_lr: Hyper = 1.0,
    momentum: Hyper = after_first(0.9),
    rule: optax.GradientTransformation = optax.identity(),
) -> Algorithm:
    """Controlled averaging with server momentum; requires uniform weights.

    Args:
      momentum: Weight of the past; by default 0 in round 0, which has no past.
      rule: Local rule of the direction, without a learning rate; `normalize()` gives
        PAdaMFed.
    """
    check_range("lr", lr)
    check_range("server_lr", server_lr)
    check_range("momentum", momentum, 0.0, 1.0)

    def init(params):
        return State(params, tree.zeros_like(params), tree.zeros_like(params))

    def send(state, round):
        h = tree.mix(state.control, value_at(momentum, round), state.momentum)
        return Broadcast(state.params, h)

    def client(objective, broadcast, control, batches, round):
        start, h = broadcast
        weight = tree.map(lambda b: 1 - b, value_at(momentum, round))

        def step(carry, batch, key):
            x, opt = carry
            g = objective.grad(x, batch, key)
            d = tree.add_scaled(h, weight, tree.sub(g, control))
            return move(objective, x, value_at(lr, round), rule, opt, d), g

        carry = start, rule.init(start)
        (x, _), seen = local_steps(step, carry, batches, round)
        return Message(tree.sub(x, start), tree.sub(seen, control)), seen

    def server(state, mean, round):
        dx, dc = mean
        new = tree.add(state.control, dc)
        return State(
            params=tree.add_scaled(state.params, value_at(server_lr, round), dx),
            control=tree.add_scaled(state.control, round.fraction, dc),
            momentum=tree.mix(new, value_at(momentum, round), state.momentum),
        )

    main = Exchange(send, client, server)
    return Algorithm(init, tree.zeros_like, (main,), uniform_weights=True)
