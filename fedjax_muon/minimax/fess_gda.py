"""FESS-GDA: local descent ascent, a server that smooths the primal variable.

Shen et al., AISTATS 2024, arXiv:2311.00944. From the broadcast (x, y), for each batch s

    x_i <- x_i - lr.x rule(grad_x F_i(x_i, y_i; s)), y_i <- y_i + lr.y rule(grad_y F_i)

then, with dx and dy the mean moves, z = x before round 0 and K local steps,

    x <- x + server_lr.x dx - lr.x server_lr.x K pull (x - z)
    y <- project(y + server_lr.y dy);    z <- z + follow (x - z)
"""

from typing import Any, NamedTuple

import optax

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    ParamsMessage,
    broadcast_params,
    check_range,
    local_steps,
    move,
    no_client_state,
    recorded,
    tree,
    value_at,
)
from fedjax_muon.core.pair import Pair, as_pair


class State(NamedTuple):
    params: Any  # Pair(x, y)
    anchor: Any  # z


@recorded
def fess_gda(
    lr: Hyper = 0.1,
    *,
    server_lr: Hyper = 1.0,
    pull: Hyper = 0.1,
    follow: Hyper = 0.5,
    rule: optax.GradientTransformation = optax.identity(),
) -> Algorithm:
    """Federated stochastic smoothed gradient descent ascent.

    Args:
      pull: Strength of the pull of x toward z, rho in the paper.
      follow: Weight of x in the update of z, beta in the paper.
    """
    check_range("lr", lr)
    check_range("server_lr", server_lr)
    check_range("pull", pull)
    check_range("follow", follow, 0.0, 1.0)

    def client(objective, broadcast, client_state, batches, round):
        start = broadcast.params

        def step(carry, batch, key):
            x, opt = carry
            g = objective.grad(x, batch, key)
            return move(objective, x, value_at(lr, round), rule, opt, g), ()

        (end, _), _ = local_steps(step, (start, rule.init(start)), batches, round)
        return ParamsMessage(tree.sub(end, start)), client_state

    def server(state, mean, round):
        (x, y), z = state
        local = as_pair(value_at(lr, round))
        relative = as_pair(value_at(server_lr, round))
        back = -local.x * relative.x * round.steps * value_at(pull, round)
        moved = tree.add_scaled(Pair(x, y), relative, mean.params)
        moved = moved._replace(x=tree.add_scaled(moved.x, back, tree.sub(x, z)))
        return State(moved, tree.mix(z, value_at(follow, round), moved.x))

    def init(params):
        return State(params, params.x)

    main = Exchange(broadcast_params, client, server)
    return Algorithm(init, no_client_state, (main,))
