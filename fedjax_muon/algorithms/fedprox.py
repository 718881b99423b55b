"""FedProx: local steps with a proximal term."""

from typing import Any, NamedTuple

import optax

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    after_change,
    broadcast_state,
    check_range,
    local_steps,
    move,
    no_client_state,
    recorded,
    tree,
    value_at,
)


class State(NamedTuple):
    params: Any


@recorded
def fedprox(
    lr: Hyper = 0.1,
    *,
    mu: Hyper = 0.01,
    rule: optax.GradientTransformation = optax.identity(),
) -> Algorithm:
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
    check_range("lr", lr)
    check_range("mu", mu)

    def client(objective, broadcast, client_state, batches, round):
        start = broadcast.params

        def step(carry, batch, key):
            x, opt = carry
            pull = tree.sub(x, start)
            d = tree.add_scaled(
                objective.grad(x, batch, key), value_at(mu, round), pull
            )
            return move(objective, x, value_at(lr, round), rule, opt, d), ()

        (x, _), _ = local_steps(step, (start, rule.init(start)), batches, round)
        return State(tree.sub(x, start)), client_state

    def server(state, mean, round):
        del round
        return tree.add(state, mean)

    return Algorithm(
        State,
        no_client_state,
        (Exchange(broadcast_state, client, server, local_params=after_change),),
    )
