"""FedLADA: amended local AMSGrad."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedjax_muon import core
from fedjax_muon.core import tree


class State(NamedTuple):
    params: Any
    square: Any  # v
    delta: Any  # d


class Message(NamedTuple):
    params: Any  # x_i - x
    square: Any  # w_i


@core.recorded
def fedlada(
    lr: core.Hyper = 0.001,
    *,
    server_lr: core.Hyper = 1.0,
    amend: core.Hyper = 0.1,
    b1: core.Number = 0.9,
    b2: core.Number = 0.99,
    eps: core.Number = 1e-8,
) -> core.Algorithm:
    """FedLADA: local AMSGrad, amended with the last round's mean direction.

    From the broadcast (x, v, d), with m = 0 and v_i = w = v, for each batch's gradient
    g

        m <- b1 m + (1 - b1) g;    v_i <- b2 v_i + (1 - b2) g^2;    w <- max(w, v_i)
        x_i <- x_i - lr (amend m / sqrt(w) + (1 - amend) d)

    then v <- mean_i w_i, d <- mean_i (x - x_i) / (K lr) and x <- x + server_lr mean_i
    (x_i - x). There is no bias correction, and eps enters only the initial v = eps^2.

    Source: Sun et al. 2023, arXiv:2308.00522, Algorithm 3. Checked against independent
    code.

    Args:
      lr: Local learning rate, 0.0001 to 0.003.
      server_lr: Server learning rate, usually 1, which is plain averaging.
      amend: Weight of the adaptive direction, alpha in the paper, usually 0.1.
      b1: Decay of the first moment, usually 0.9.
      b2: Decay of the second moment, 0.99 or 0.999.
      eps: Square root of the initial second moment, usually 1e-8.

    Example:
      >>> sizes = {"cohort": 4, "local_steps": 5, "batch_size": 8}
      >>> amended = fm.fedlada(lr=0.001, amend=0.25)
      >>> simulation = fm.federate(amended, task, digits, clients, **sizes)
      >>> simulation.meter.bytes_after(1)  # x, v and d down, x and v up
      Traffic(down=14880, up=9920)

    See also: `fedadamw` sends one number per second moment, `fedcm` amends SGD.
    """
    core.check_range("lr", lr)
    core.check_range("server_lr", server_lr)
    core.check_range("amend", amend, 0.0, 1.0)
    core.check_range("b1", b1, 0.0, 1.0, open_high=True, schedules=False)
    core.check_range("b2", b2, 0.0, 1.0, open_high=True, schedules=False)
    core.check_range("eps", eps, open_low=True, schedules=False)

    def init(params):
        square = tree.map(lambda x: jnp.full_like(x, eps**2), params)
        return State(params, square, tree.zeros_like(params))

    def client(objective, broadcast, client_state, batches, round):
        start, square, delta = broadcast
        a = core.value_at(amend, round)

        def step(carry, batch, key):
            x, m, v, w = carry
            g = objective.grad(x, batch, key)
            m, v = tree.mix(m, 1 - b1, g), tree.mix(v, 1 - b2, tree.map(jnp.square, g))
            w = tree.map(jnp.maximum, w, v)
            d = tree.mix(delta, a, tree.map(lambda m, w: m / jnp.sqrt(w), m, w))
            x = objective.project(tree.sub_scaled(x, core.value_at(lr, round), d))
            return (x, m, v, w), ()

        carry = start, tree.zeros_like(start), square, square
        (x, _, _, w), _ = core.local_steps(step, carry, batches, round)
        return Message(tree.sub(x, start), w), client_state

    def server(state, mean, round):
        dx, square = mean
        return State(
            params=tree.add_scaled(state.params, core.value_at(server_lr, round), dx),
            square=square,
            delta=core.mean_direction(lr, round, dx, state.delta),
        )

    main = core.Exchange(core.broadcast_state, client, server)
    return core.Algorithm(init, core.no_client_state, (main,))
