"""FedAvg and FedOpt: local steps, the mean move, one server step on it.

McMahan et al. 2017, arXiv:1602.05629; server rules: Reddi et al. 2021,
arXiv:2003.00295. From the broadcast x, client i repeats for each of its batches s

    x_i <- x_i - lr rule(grad_i(x_i; s)),    then    x <- x - server_lr server_rule(g)

with the pseudo-gradient g = mean_i (x - x_i). The parts of the local rule's state
called `carry` start where the clients' mean ended (with `optax.trace`: Yu et al. 2019,
local momentum SGD); the rest starts anew every round.
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
    stateless,
)
from fedjax_muon.ranges import check_range


class State(NamedTuple):
    params: Any
    carried: Any  # the leaves of the local rule's state that travel
    opt: optax.OptState  # of the server rule


class Message(NamedTuple):
    params: Any  # x - x_i: optax descends
    carried: Any


def fedavg(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.1,
    rule: optax.GradientTransformation = optax.identity(),
    carry: tuple[str, ...] = (),
    server_lr: Hyper = 1.0,
    server_rule: optax.GradientTransformation = optax.identity(),
) -> Algorithm:
    """Federated averaging with any local and any server rule.

    Args:
      lr: local learning rate.
      rule: local rule, without learning rate.
      carry: names of the parts of its state that the server averages.
      server_lr: server learning rate; 1 is plain averaging.
      server_rule: rule applied to the pseudo-gradient, without learning rate.
    """
    check_range("lr", lr)
    check_range("server_lr", server_lr)

    def init(params):
        carried = tree.pick(rule.init(params), carry)
        return State(params, carried, server_rule.init(params))

    def client(shared, mine, batches, round):
        start, carried = shared

        def step(now, batch, key):
            x, opt = now
            return move(x, at(lr, round), rule, opt, grad_fn(x, batch, key)), ()

        now = start, tree.put(rule.init(start), carry, carried)
        (x, opt), _ = local_steps(step, now, batches, round.key)
        return Message(tree.sub(start, x), tree.pick(opt, carry)), mine

    def server(state, mean, round):
        g, carried = mean
        x, opt = move(state.params, at(server_lr, round), server_rule, state.opt, g)
        return State(x, carried, opt)

    main = Exchange(lambda s, round: (s.params, s.carried), client, server)
    return Algorithm(init, stateless, (main,))
