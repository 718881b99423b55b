"""FedAvg-VR: server momentum by two gradients at one sample.

Cheng et al., ICLR 2024, arXiv:2306.16504, from memory: the text was not at hand. With
x_ the server's previous iterate, from the broadcast (x, x_, g), for each batch s

    d = grad_i(x_i; s) + (1 - fresh) (g - grad_i(x_; s));    x_i <- x_i - lr d

then g <- mean_i (x - x_i) / (K lr) and x <- x + server_lr mean_i (x_i - x).
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
    everything,
    local_steps,
    mean_direction,
    stateless,
)
from fedjax_muon.ranges import check_range


class State(NamedTuple):
    params: Any
    previous: Any  # x_
    momentum: Any  # g


def fedavg_vr(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.1,
    server_lr: Hyper = 1.0,
    fresh: Hyper = after_first(0.1),
) -> Algorithm:
    """Federated averaging with variance-reduced server momentum.

    Args:
      lr: local learning rate.
      server_lr: server learning rate; 1 is plain averaging.
      fresh: weight of the fresh gradient; 1 in round 0, where g has no past.
    """
    check_range("lr", lr, open_low=True)
    check_range("server_lr", server_lr)
    check_range("fresh", fresh, 0.0, 1.0)

    def init(params):
        return State(params, params, tree.zeros_like(params))

    def client(shared, mine, batches, round):
        start, previous, g = shared

        def step(x, batch, key):
            new, old = grad_fn(x, batch, key), grad_fn(previous, batch, key)
            d = tree.add(new, tree.fade(at(fresh, round), tree.sub(g, old)))
            return tree.sub_scaled(x, at(lr, round), d), ()

        x, _ = local_steps(step, start, batches, round.key)
        return tree.sub(x, start), mine

    def server(state, dx, round):
        return State(
            params=tree.add_scaled(state.params, at(server_lr, round), dx),
            previous=state.params,
            momentum=mean_direction(lr, round, dx),
        )

    main = Exchange(everything, client, server)
    return Algorithm(init, stateless, (main,))
