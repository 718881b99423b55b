"""PAdaMFed-VR: normalised steps along variance-reduced, controlled momentum.

Yan et al., ICLR 2025. With x_ the server's previous iterate and h = fresh c + (1 -
fresh) g, for each batch s

    d = grad_i(x_i; s) - fresh c_i + h - (1 - fresh) grad_i(x_; s)
    x_i <- x_i - lr d / |d|

then c_i <- mean_k grad_i and g <- mean of all local d, which is sent as a third
message: the server's formula in public code leaves the second gradient out.
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
from fedjax_muon.transforms import normalize


class State(NamedTuple):
    params: Any
    previous: Any  # x_
    control: Any  # c
    momentum: Any  # g


class Message(NamedTuple):
    params: Any  # x_i - x
    control: Any  # change of c_i
    direction: Any  # mean of d


def padamfed_vr(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.01,
    server_lr: Hyper = 1.0,
    fresh: Hyper = after_first(0.1),
    rule: optax.GradientTransformation = normalize(),
) -> Algorithm:
    """PAdaMFed with variance reduction; refuses weights other than uniform.

    Args:
      lr: local learning rate, the length of every local move.
      server_lr: server learning rate; 1 is plain averaging.
      fresh: weight of the fresh gradient; 1 in round 0, where g has no past.
      rule: local rule of the direction, without learning rate.
    """
    check_range("lr", lr)
    check_range("server_lr", server_lr)
    check_range("fresh", fresh, 0.0, 1.0)

    def init(params):
        zeros = tree.zeros_like(params)
        return State(params, params, zeros, zeros)

    def broadcast(state, round):
        h = tree.mix(state.momentum, at(fresh, round), state.control)
        return state.params, state.previous, h

    def client(shared, control, batches, round):
        start, previous, h = shared
        b = at(fresh, round)

        def step(carry, batch, key):
            x, opt = carry
            new, old = grad_fn(x, batch, key), grad_fn(previous, batch, key)
            d = tree.sub(tree.add(new, h), tree.mix(old, b, control))
            return move(x, at(lr, round), rule, opt, d), (new, d)

        carry = start, rule.init(start)
        (x, _), (seen, d) = local_steps(step, carry, batches, round.key)
        return Message(tree.sub(x, start), tree.sub(seen, control), d), seen

    def server(state, mean, round):
        dx, dc, d = mean
        return State(
            params=tree.add_scaled(state.params, at(server_lr, round), dx),
            previous=state.params,
            control=tree.add_scaled(state.control, round.fraction, dc),
            momentum=d,
        )

    main = Exchange(broadcast, client, server)
    return Algorithm(init, tree.zeros_like, (main,), uniform=True)
