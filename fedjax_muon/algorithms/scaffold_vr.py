"""SCAFFOLD-VR: control variates with server momentum by two gradients at one sample.

Cheng et al., ICLR 2024, arXiv:2306.16504, from memory: the text was not at hand. With
x_ the server's previous iterate and h = fresh c + (1 - fresh) g, for each batch s

    d = grad_i(x_i; s) - fresh c_i + h - (1 - fresh) grad_i(x_; s);  x_i <- x_i - lr d

then c_i <- mean_k grad_i, g <- mean_i (x - x_i) / (K lr), c <- c + (S/N) mean_i (change
of c_i).
"""

from typing import Any, NamedTuple

from fedjax_muon import tree
from fedjax_muon.core import (
    Algorithm,
    Exchange,
    GradFn,
    Hyper,
    after_first,
    at,
    local_steps,
    mean_direction,
)
from fedjax_muon.ranges import check_range


class State(NamedTuple):
    params: Any
    previous: Any  # x_
    control: Any  # c
    momentum: Any  # g


class Message(NamedTuple):
    params: Any  # x_i - x
    control: Any  # change of c_i


def scaffold_vr(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.1,
    server_lr: Hyper = 1.0,
    fresh: Hyper = after_first(0.1),
) -> Algorithm:
    """Controlled, variance-reduced averaging; refuses weights other than uniform.

    Args:
      lr: local learning rate.
      server_lr: server learning rate; 1 is plain averaging.
      fresh: weight of the fresh gradient; 1 in round 0, where g has no past.
    """
    check_range("lr", lr, open_low=True)
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

        def step(x, batch, key):
            new, old = grad_fn(x, batch, key), grad_fn(previous, batch, key)
            d = tree.sub(tree.add(new, h), tree.mix(old, b, control))
            return tree.sub_scaled(x, at(lr, round), d), new

        x, seen = local_steps(step, start, batches, round.key)
        return Message(tree.sub(x, start), tree.sub(seen, control)), seen

    def server(state, mean, round):
        dx, dc = mean
        return State(
            params=tree.add_scaled(state.params, at(server_lr, round), dx),
            previous=state.params,
            control=tree.add_scaled(state.control, round.fraction, dc),
            momentum=mean_direction(lr, round, dx),
        )

    main = Exchange(broadcast, client, server)
    return Algorithm(init, tree.zeros_like, (main,), uniform=True)
