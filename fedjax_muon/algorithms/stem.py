"""STEM: momentum by two gradients at one sample, averaged in the middle of a step.

Khanduri et al. 2021, arXiv:2106.10435, from memory: the text was not at hand; defined
for full participation. With x_ the client's own previous iterate, for each of K
batches s

    d_i <- grad_i(x_i; s) + (1 - fresh) (d_i - grad_i(x_; s))
    x_ <- x_i;    x_i <- x_i - lr rule(d_i)

but the last move is the server's, on the means: clients send x_, not x_i.
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
    mean_gradient,
    move,
)
from fedjax_muon.ranges import check_range


class State(NamedTuple):
    params: Any  # x
    momentum: Any  # d


def stem(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.1,
    fresh: Hyper = 0.1,
    rule: optax.GradientTransformation = optax.identity(),
) -> Algorithm:
    """Stochastic two-sided momentum.

    Args:
      lr: learning rate.
      fresh: weight of the fresh gradient in the momentum, a in the paper.
      rule: what is done to the momentum, stateless, without learning rate.
    """
    check_range("lr", lr)
    check_range("fresh", fresh, 0.0, 1.0)

    def init(params):
        return State(params, tree.zeros_like(params))

    def step_along(x, d, round):
        return move(x, at(lr, round), rule, rule.init(x), d)[0]

    def first(x, mine, batches, round):
        return mean_gradient(grad_fn, x, batches, round.key), mine

    def start(state, d, round):
        return State(step_along(state.params, d, round), d)

    def client(shared, previous, batches, round):
        def step(carry, batch, key):
            x, previous, d = carry
            new, old = grad_fn(x, batch, key), grad_fn(previous, batch, key)
            d = tree.add(new, tree.fade(at(fresh, round), tree.sub(d, old)))
            return (step_along(x, d, round), x, d), ()

        x, d = shared
        (_, last, d), _ = local_steps(step, (x, previous, d), batches, round.key)
        return State(tree.sub(last, x), d), last

    def server(state, mean, round):
        dx, d = mean
        x = tree.add(state.params, dx)
        return State(step_along(x, d, round), d)

    prologue = Exchange(lambda state, round: state.params, first, start)
    main = Exchange(everything, client, server)
    init_client = lambda params: params  # x_
    return Algorithm(init, init_client, (main,), (prologue,), everyone=True)
