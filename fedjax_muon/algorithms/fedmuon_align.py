"""FedMuon (Liu et al.): momentum aggregation and alignment with the mean move.

arXiv:2510.27403, Algorithm 2. From the broadcast (x, m, delta), for each batch s

    u = rule(grad_i(x_i; s))
    x_i <- x_i - lr ((1 - align) u + align delta + decay x_i)

where the parts of the rule's state called `carry` start at the mean of the clients'
last ones (m), and the rest anew; then delta <- mean_i (x - x_i) / (K lr), x <- mean_i
x_i. With `carry=()` it is the paper's ablation without momentum aggregation; without
alignment it is `fedavg` with the same `carry`.

Exactly K local steps are taken from the broadcast x, where the paper's loop starts its
count at 1 and uploads the last but one.
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
    stateless,
)
from fedjax_muon.ranges import check_range
from fedjax_muon.transforms import muon


class State(NamedTuple):
    params: Any
    momentum: Any  # the leaves of the rule's state that travel
    delta: Any  # the mean local direction of the last round


class Message(NamedTuple):
    params: Any  # x_i - x
    momentum: Any


def fedmuon_align(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.03,
    align: Hyper = 0.5,
    decay: Hyper = 0.01,
    rule: optax.GradientTransformation = muon(0.98),
    carry: tuple[str, ...] = ("trace",),
) -> Algorithm:
    """FedMuon with local-global alignment.

    Args:
      lr: learning rate.
      align: weight of the last round's mean direction, alpha in the paper.
      decay: decoupled weight decay, lambda in the paper.
      rule: local rule of the gradient, without learning rate.
      carry: names of the parts of its state that the server averages.
    """
    check_range("lr", lr, open_low=True)
    check_range("align", align, 0.0, 1.0)
    check_range("decay", decay)

    def init(params):
        momentum = tree.pick(rule.init(params), carry)
        return State(params, momentum, tree.zeros_like(params))

    def client(shared, mine, batches, round):
        start, momentum, delta = shared
        a, wd = at(align, round), at(decay, round)

        def step(now, batch, key):
            x, opt = now
            u, opt = rule.update(grad_fn(x, batch, key), opt, x)
            d = tree.add_scaled(tree.mix(u, a, delta), wd, x)
            return (tree.sub_scaled(x, at(lr, round), d), opt), ()

        now = start, tree.put(rule.init(start), carry, momentum)
        (x, opt), _ = local_steps(step, now, batches, round.key)
        return Message(tree.sub(x, start), tree.pick(opt, carry)), mine

    def server(state, mean, round):
        dx, momentum = mean
        return State(
            params=tree.add(state.params, dx),
            momentum=momentum,
            delta=mean_direction(lr, round, dx),
        )

    main = Exchange(everything, client, server)
    return Algorithm(init, stateless, (main,))
