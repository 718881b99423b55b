"""FedAvg-M, also known as FedCM."""

from typing import Any, NamedTuple

import optax

from fedjax_muon import core
from fedjax_muon.core import tree


class State(NamedTuple):
    params: Any
    momentum: Any  # g


@core.recorded
def fedavg_m(
    lr: core.Hyper = 0.1,
    *,
    server_lr: core.Hyper = 1.0,
    momentum: core.Hyper = 0.9,
    rule: optax.GradientTransformation = optax.identity(),
) -> core.Algorithm:
    """FedAvg-M, also known as FedCM: local steps mixed with the last mean direction.

    From the broadcast (x, g), for each batch s

        x_i <- x_i - lr rule((1 - momentum) grad_i(x_i; s) + momentum g)

    then g <- mean_i (x - x_i) / (K lr) and x <- x + server_lr mean_i (x_i - x). The
    paper's server rate gamma equals K lr server_lr.

    Source: Cheng et al. 2024, ICLR, arXiv:2306.16504. Checked against independent code:
    the recursion and the step are those that other papers quote, since the text was not
    available. Xu et al. 2021, arXiv:2106.10874, published the same method as FedCM.

    Args:
      lr: Local learning rate: 0.01 to 1 for SGD.
      server_lr: Server learning rate, usually 1, which is plain averaging.
      momentum: Weight of the last round's mean direction, 0.5 to 0.9; 1 - alpha in
        FedCM and 1 - beta in FedAvg-M.
      rule: Local rule of the mixed direction, without a learning rate; SGD by default.

    Example:
      >>> muon = fm.transforms.muon(0.0)  # the mixed direction, orthogonalized
      >>> fm.fedavg_m(lr=0.02, momentum=0.5, rule=muon).uniform_weights
      False

    See also: `fedavg_vr` adds a second gradient, `scaffold_m` control variates;
    `fedmuon_align` mixes after the rule.
    """
    core.check_range("lr", lr)
    core.check_range("server_lr", server_lr)
    core.check_range("momentum", momentum, 0.0, 1.0)

    def init(params):
        return State(params, tree.zeros_like(params))

    def client(objective, broadcast, client_state, batches, round):
        def step(carry, batch, key):
            x, opt = carry
            g = objective.grad(x, batch, key)
            d = tree.mix(g, core.value_at(momentum, round), broadcast.momentum)
            return core.move(objective, x, core.value_at(lr, round), rule, opt, d), ()

        carry = broadcast.params, rule.init(broadcast.params)
        (x, _), _ = core.local_steps(step, carry, batches, round)
        return core.ParamsMessage(tree.sub(x, broadcast.params)), client_state

    def server(state, mean, round):
        return State(
            params=tree.add_scaled(
                state.params, core.value_at(server_lr, round), mean.params
            ),
            momentum=core.mean_direction(lr, round, mean.params, state.momentum),
        )

    main = core.Exchange(core.broadcast_state, client, server)
    return core.Algorithm(init, core.no_client_state, (main,))


@core.recorded
def fedcm(
    lr: core.Hyper = 0.1,
    *,
    server_lr: core.Hyper = 1.0,
    momentum: core.Hyper = 0.9,
    rule: optax.GradientTransformation = optax.identity(),
) -> core.Algorithm:
    """FedCM: the same algorithm as FedAvg-M, from an earlier paper.

    Source: Xu et al. 2021, arXiv:2106.10874. Checked against independent code. The same
    as `fm.fedavg_m()`.
    """
    return fedavg_m(lr=lr, server_lr=server_lr, momentum=momentum, rule=rule)
