"""SCAFFOLD-M, and with normalised steps PAdaMFed: control variates, server momentum.

SCAFFOLD-M: Cheng et al., ICLR 2024, arXiv:2306.16504, from memory: the text was not at
hand. PAdaMFed: Yan et al., ICLR 2025. With h = fresh c + (1 - fresh) g broadcast beside
x, for each batch s

    d = fresh (grad_i(x_i; s) - c_i) + h;    x_i <- x_i - lr rule(d)

then c_i <- mean_k grad_i, and g <- fresh (c + mean_i (change of c_i)) + (1 - fresh) g,
which is the mean of all local d; c <- c + (S/N) mean_i (change of c_i).
"""

from typing import Any, NamedTuple

import optax

from fedjax_muon import tree
from fedjax_muon.core import (
    Algorithm,
    Exchange,
    GradFn,
    Hyper,
    after_first,
    at,
    local_steps,
    move,
)
from fedjax_muon.ranges import check_range


class State(NamedTuple):
    params: Any
    control: Any  # c
    momentum: Any  # g


class Message(NamedTuple):
    params: Any  # x_i - x
    control: Any  # change of c_i


def scaffold_m(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.1,
    server_lr: Hyper = 1.0,
    fresh: Hyper = after_first(0.1),
    rule: optax.GradientTransformation = optax.identity(),
) -> Algorithm:
    """Controlled averaging with server momentum; refuses weights other than uniform.

    Args:
      lr: local learning rate.
      server_lr: server learning rate; 1 is plain averaging.
      fresh: weight of the fresh gradient; 1 in round 0, where g has no past.
      rule: local rule of the direction, without learning rate; `normalize()` gives
        PAdaMFed.
    """
    check_range("lr", lr)
    check_range("server_lr", server_lr)
    check_range("fresh", fresh, 0.0, 1.0)

    def init(params):
        return State(params, tree.zeros_like(params), tree.zeros_like(params))

    def broadcast(state, round):
        return state.params, tree.mix(state.momentum, at(fresh, round), state.control)

    def client(shared, control, batches, round):
        start, h = shared
        b = at(fresh, round)

        def step(carry, batch, key):
            x, opt = carry
            g = grad_fn(x, batch, key)
            d = tree.add_scaled(h, b, tree.sub(g, control))
            return move(x, at(lr, round), rule, opt, d), g

        carry = start, rule.init(start)
        (x, _), seen = local_steps(step, carry, batches, round.key)
        return Message(tree.sub(x, start), tree.sub(seen, control)), seen

    def server(state, mean, round):
        dx, dc = mean
        fresh_mean = tree.add(state.control, dc)
        return State(
            params=tree.add_scaled(state.params, at(server_lr, round), dx),
            control=tree.add_scaled(state.control, round.fraction, dc),
            momentum=tree.mix(state.momentum, at(fresh, round), fresh_mean),
        )

    main = Exchange(broadcast, client, server)
    return Algorithm(init, tree.zeros_like, (main,), uniform=True)
