"""FAFED: recursive momentum with a preconditioner."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedjax_muon import core
from fedjax_muon.core import tree


class State(NamedTuple):
    params: Any  # x
    mean: Any  # m
    square: Any  # v


class Moments(NamedTuple):
    mean: Any
    square: Any


@core.recorded
def fafed(
    lr: core.Hyper = 0.001,
    *,
    momentum: core.Hyper = 0.9,
    beta: core.Number = 0.99,
    floor: core.Number = 0.01,
) -> core.Algorithm:
    """FAFED: STEM's momentum with a preconditioner that is fixed within a round.

    With x_ the client's own previous iterate and D = sqrt(v) + floor from the
    broadcast, for each of K batches s

        g = grad_i(x_i; s);    m_i <- g + momentum (m_i - grad_i(x_; s))
        v_i <- beta v_i + (1 - beta) g^2;    x_ <- x_i;    x_i <- x_i - lr m_i / D

    except that the server makes the last move, with the means. The move before round 0
    uses no D. All clients must take part.

    Source: Wu et al. 2023, AAAI, arXiv:2212.00974, Algorithm 2. Checked against
    independent code.

    Args:
      lr: Local learning rate, 0.001 to 0.01.
      momentum: Weight of the past in the momentum, 1 - alpha in the paper, usually 0.9.
      beta: Decay of the second moment, usually 0.99.
      floor: Constant added to the preconditioner, rho in the paper, 0.001 to 0.1.

    Example:
      >>> sizes = {"cohort": 4, "local_steps": 5, "batch_size": 8}  # all four clients
      >>> fast = fm.fafed(lr=0.003, floor=0.1)
      >>> simulation = fm.federate(fast, task, digits, clients, **sizes)

    See also: `stem` without a preconditioner, `fedlada` and `fedadamw` for sampled
    clients.
    """
    core.check_range("lr", lr)
    core.check_range("momentum", momentum, 0.0, 1.0)
    core.check_range("beta", beta, 0.0, 1.0, schedules=False)
    core.check_range("floor", floor, open_low=True, schedules=False)

    def precondition(m, v):
        return tree.map(lambda m, v: m / (jnp.sqrt(v) + floor), m, v)

    def init(params):
        return State(params, tree.zeros_like(params), tree.zeros_like(params))

    def first(objective, broadcast, client_state, batches, round):
        g = core.mean_gradient(objective, broadcast.params, batches, round)
        return Moments(g, tree.map(jnp.square, g)), client_state

    def start(state, mean, round):
        m, v = mean
        return State(tree.sub_scaled(state.params, core.value_at(lr, round), m), m, v)

    def client(objective, broadcast, previous, batches, round):
        def step(carry, batch, key):
            x, previous, m, v = carry
            new = objective.grad(x, batch, key)
            old = objective.grad(previous, batch, key)
            m = tree.add_scaled(new, core.value_at(momentum, round), tree.sub(m, old))
            v = tree.mix(v, 1 - beta, tree.map(jnp.square, new))
            d = precondition(m, broadcast.square)
            moved = objective.project(tree.sub_scaled(x, core.value_at(lr, round), d))
            return (moved, x, m, v), ()

        carry = broadcast.params, previous, broadcast.mean, broadcast.square
        (_, last, m, v), _ = core.local_steps(step, carry, batches, round)
        return State(tree.sub(last, broadcast.params), m, v), last

    def server(state, mean, round):
        dx, m, v = mean
        x = tree.add(state.params, dx)
        return State(
            tree.sub_scaled(x, core.value_at(lr, round), precondition(m, v)), m, v
        )

    prologue = core.Exchange(core.broadcast_params, first, start)
    main = core.Exchange(core.broadcast_state, client, server)
    init_client = lambda params: params  # x_
    return core.Algorithm(
        init, init_client, (main,), (prologue,), full_participation=True
    )
