"""FedAvg-VR: variance-reduced server momentum."""

from typing import Any, NamedTuple

from fedjax_muon import core
from fedjax_muon.core import tree


class State(NamedTuple):
    params: Any
    previous: Any  # x_
    momentum: Any  # g


@core.recorded
def fedavg_vr(
    lr: core.Hyper = 0.003,
    *,
    server_lr: core.Hyper = 1.0,
    momentum: core.Hyper = core.after_first(0.9),
) -> core.Algorithm:
    """FedAvg-VR: server momentum with two gradients on the same batch.

    With x_ the server's previous iterate, from the broadcast (x, x_, g), for each batch
    s

        d = grad_i(x_i; s) + momentum (g - grad_i(x_; s));    x_i <- x_i - lr d

    then g <- mean_i (x - x_i) / (K lr) and x <- x + server_lr mean_i (x_i - x).

    Source: Cheng et al. 2024, ICLR, arXiv:2306.16504. Not verified: it was written from
    memory, since the text was not available.

    Args:
      lr: Local learning rate, 0.001 to 0.1; at FedAvg's rates it can be unstable.
      server_lr: Server learning rate, usually 1, which is plain averaging.
      momentum: Weight of the past, 0.5 to 0.9; by default 0 in round 0, which has no
        past, and then 0.9.

    Example:
      >>> fm.fedavg_vr(lr=0.003, momentum=fm.after_first(0.5))
      fedavg_vr(lr=0.003, server_lr=1.0, momentum=after_first)

    See also: `fedavg_m` takes one gradient per step, `scaffold_vr` adds control
    variates, `stem` averages momenta within a step.
    """
    core.check_range("lr", lr)
    core.check_range("server_lr", server_lr)
    core.check_range("momentum", momentum, 0.0, 1.0)

    def init(params):
        return State(params, params, tree.zeros_like(params))

    def client(objective, broadcast, client_state, batches, round):
        start, previous, g = broadcast

        def step(x, batch, key):
            new = objective.grad(x, batch, key)
            old = objective.grad(previous, batch, key)
            d = tree.add_scaled(new, core.value_at(momentum, round), tree.sub(g, old))
            return objective.project(
                tree.sub_scaled(x, core.value_at(lr, round), d)
            ), ()

        x, _ = core.local_steps(step, start, batches, round)
        return core.ParamsMessage(tree.sub(x, start)), client_state

    def server(state, mean, round):
        return State(
            params=tree.add_scaled(
                state.params, core.value_at(server_lr, round), mean.params
            ),
            previous=state.params,
            momentum=core.mean_direction(lr, round, mean.params, state.momentum),
        )

    main = core.Exchange(core.broadcast_state, client, server)
    return core.Algorithm(init, core.no_client_state, (main,))
