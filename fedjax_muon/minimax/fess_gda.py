"""FESS-GDA: local descent ascent, a server that smooths the primal variable.

Shen et al., AISTATS 2024, arXiv:2311.00944. From the broadcast (x, y), for each batch s

    x_i <- x_i - lr.x rule(grad_x F_i(x_i, y_i; s)), y_i <- y_i + lr.y rule(grad_y F_i)

then, with dx and dy the mean moves, z = x before round 0 and K local steps,

    x <- x + server_lr.x dx - lr.x server_lr.x K pull (x - z)
    y <- project(y + server_lr.y dy);    z <- z + follow (x - z)
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
from fedjax_muon.pair import Pair, both
from fedjax_muon.ranges import check_range


class State(NamedTuple):
    params: Any  # Pair(x, y)
    anchor: Any  # z


def fess_gda(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.1,
    server_lr: Hyper = 1.0,
    pull: Hyper = 0.1,
    follow: Hyper = 0.5,
    rule: optax.GradientTransformation = optax.identity(),
) -> Algorithm:
    """Federated stochastic smoothed gradient descent ascent.

    Args:
      lr: local learning rates.
      server_lr: server learning rates; 1 is plain averaging.
      pull: strength of the pull of x towards z, rho in the paper.
      follow: how far z follows x in a round, beta in the paper.
      rule: local rule, without learning rate; a projection of y belongs to it.
    """
    check_range("lr", lr)
    check_range("server_lr", server_lr)
    check_range("pull", pull)
    check_range("follow", follow, 0.0, 1.0)

    def client(start, mine, batches, round):
        def step(carry, batch, key):
            x, opt = carry
            return move(x, at(lr, round), rule, opt, grad_fn(x, batch, key)), ()

        (end, _), _ = local_steps(step, (start, rule.init(start)), batches, round.key)
        return tree.sub(end, start), mine

    def server(state, mean, round):
        (x, y), z = state
        local, relative = both(at(lr, round)), both(at(server_lr, round))
        back = -local.x * relative.x * round.steps * at(pull, round)
        moved = tree.add_scaled(Pair(x, y), relative, mean)
        moved = moved._replace(x=tree.add_scaled(moved.x, back, tree.sub(x, z)))
        project = getattr(rule, "project", lambda params: params)
        new = project(moved)
        return State(new, tree.mix(z, at(follow, round), new.x))

    def init(params):
        return State(params, params.x)

    main = Exchange(lambda state, round: state.params, client, server)
    return Algorithm(init, stateless, (main,))
