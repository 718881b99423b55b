"""FedProx: local steps with a proximal term."""

from typing import Any, NamedTuple

import optax

from fedjax_muon import core
from fedjax_muon.core import tree


class State(NamedTuple):
    params: Any


@core.recorded
def fedprox(
    lr: core.Hyper = 0.1,
    *,
    mu: core.Hyper = 0.01,
    rule: optax.GradientTransformation = optax.identity(),
) -> core.Algorithm:
    """FedProx: FedAvg with a proximal pull toward the broadcast parameters.

    Clients minimize their loss plus (mu/2) |x_i - x|^2. From the broadcast x, for each
    batch s

        x_i <- x_i - lr rule(grad_i(x_i; s) + mu (x_i - x)),    then    x <- mean_i x_i

    Source: Li et al. 2020, MLSys, arXiv:1812.06127, Algorithm 2. Checked against
    independent code. It departs in the local solutions: clients take local steps
    instead of solving to a given precision.

    Args:
      lr: Local learning rate: 0.01 to 1 for SGD, 0.001 to 0.01 if `rule` is Adam, and
        0.01 to 0.1 if it is Muon.
      mu: Strength of the pull, 0.001 to 1; 0 is FedAvg.
      rule: Local rule, without a learning rate; SGD by default.

    Example:
      >>> stragglers = {"cohort": 4, "local_epochs": (1, 20), "batch_size": 8}
      >>> proximal = fm.fedprox(lr=0.1, mu=0.1)  # clients of unequal work
      >>> simulation = fm.federate(proximal, task, digits, clients, **stragglers)

    See also: `fedavg`, `fednova` for clients of unequal work, `feddyn` and `scaffold`
    for corrections with a memory.
    """
    core.check_range("lr", lr)
    core.check_range("mu", mu)

    def client(objective, broadcast, client_state, batches, round):
        start = broadcast.params

        def step(carry, batch, key):
            x, opt = carry
            pull = tree.sub(x, start)
            d = tree.add_scaled(
                objective.grad(x, batch, key), core.value_at(mu, round), pull
            )
            rate = core.value_at(lr, round)
            return core.move(objective, x, rate, rule, opt, d), ()

        begun = start, rule.init(start)
        (x, _), _ = core.local_steps(step, begun, batches, round)
        return State(tree.sub(x, start)), client_state

    def server(state, mean, round):
        del round
        return tree.add(state, mean)

    exchange = core.Exchange(
        core.broadcast_state, client, server, local_params=core.after_change
    )
    return core.Algorithm(State, core.no_client_state, (exchange,))
