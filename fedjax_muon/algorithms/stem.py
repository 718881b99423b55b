"""STEM: two-sided momentum."""

from typing import Any, NamedTuple

import optax

from fedjax_muon import core
from fedjax_muon.core import tree


class State(NamedTuple):
    params: Any  # x
    momentum: Any  # d


class Direction(NamedTuple):
    momentum: Any


@core.recorded
def stem(
    lr: core.Hyper = 0.01,
    *,
    momentum: core.Hyper = 0.9,
    rule: optax.GradientTransformation = optax.identity(),
) -> core.Algorithm:
    """STEM: momentum with two gradients on the same batch, averaged within a step.

    With x_ the client's own previous iterate, for each of K batches s

        d_i <- grad_i(x_i; s) + momentum (d_i - grad_i(x_; s))
        x_ <- x_i;    x_i <- x_i - lr rule(d_i)

    except that the server makes the last move, with the means: clients send x_, not
    x_i. Before round 0, d becomes the mean gradient at x. All clients must take part.

    Source: Khanduri et al. 2021, NeurIPS, arXiv:2106.10435. Not verified: it was
    written from memory, since the text was not available. It departs in the rates,
    which the paper's theory decreases and which stay constant here, unless you give
    schedules.

    Args:
      lr: Local learning rate: 0.01 to 0.3 for SGD.
      momentum: Weight of the past in the momentum, 1 - a in the paper, usually 0.9.
      rule: Stateless rule applied to the momentum, without a learning rate.

    Example:
      >>> schedule = optax.polynomial_schedule(0.1, 0.01, 1 / 3, 100)
      >>> fm.stem(lr=schedule).full_participation  # cohort = number of clients
      True

    See also: `fafed` adds a preconditioner, `fedavg_vr` samples clients,
    `minimax.fedsgda_m` is the method on pairs.
    """
    core.check_range("lr", lr)
    core.check_range("momentum", momentum, 0.0, 1.0)

    def init(params):
        return State(params, tree.zeros_like(params))

    def step_along(x, d, round):
        return core.descend(x, core.value_at(lr, round), rule, rule.init(x), d)[0]

    def first(objective, broadcast, client_state, batches, round):
        d = core.mean_gradient(objective, broadcast.params, batches, round)
        return Direction(d), client_state

    def start(state, mean, round):
        d = mean.momentum
        return State(step_along(state.params, d, round), d)

    def client(objective, broadcast, previous, batches, round):
        def step(carry, batch, key):
            x, previous, d = carry
            new = objective.grad(x, batch, key)
            old = objective.grad(previous, batch, key)
            d = tree.add_scaled(new, core.value_at(momentum, round), tree.sub(d, old))
            return (objective.project(step_along(x, d, round)), x, d), ()

        x, d = broadcast
        (_, last, d), _ = core.local_steps(step, (x, previous, d), batches, round)
        return State(tree.sub(last, x), d), last

    def server(state, mean, round):
        dx, d = mean
        x = tree.add(state.params, dx)
        return State(step_along(x, d, round), d)

    prologue = core.Exchange(core.broadcast_params, first, start)
    main = core.Exchange(core.broadcast_state, client, server)
    init_client = lambda params: params  # x_
    return core.Algorithm(
        init, init_client, (main,), (prologue,), full_participation=True
    )
