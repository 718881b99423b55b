"""FAFED: STEM's momentum over a preconditioner that stays frozen within a round.

Wu et al., AAAI 2023, arXiv:2212.00974, Algorithm 2; defined for full participation.
With x_ the client's own previous iterate and D = sqrt(v) + floor from the round's
broadcast, for each of K batches s

    g = grad_i(x_i; s);    m_i <- g + (1 - fresh) (m_i - grad_i(x_; s))
    v_i <- beta v_i + (1 - beta) g^2;    x_ <- x_i;    x_i <- x_i - lr m_i / D

but the last move is the server's, on the means. The first of all, before round 0, has
no D.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedjax_muon import tree
from fedjax_muon.core import (
    Algorithm,
    Exchange,
    GradFn,
    Hyper,
    at,
    everything,
    local_steps,
    mean_gradient,
)
from fedjax_muon.ranges import check_range


class State(NamedTuple):
    params: Any  # x
    mean: Any  # m
    square: Any  # v


def fafed(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.01,
    fresh: Hyper = 0.1,
    beta: float = 0.99,
    floor: float = 0.01,
) -> Algorithm:
    """Fast adaptive federated learning.

    Args:
      lr: learning rate.
      fresh: weight of the fresh gradient in the momentum, alpha in the paper.
      beta: decay of the second moment.
      floor: added to the preconditioner, rho in the paper.
    """
    check_range("lr", lr)
    check_range("fresh", fresh, 0.0, 1.0)
    check_range("beta", beta, 0.0, 1.0, schedules=False)
    check_range("floor", floor, open_low=True, schedules=False)

    def precondition(m, v):
        return tree.map(lambda m, v: m / (jnp.sqrt(v) + floor), m, v)

    def init(params):
        return State(params, tree.zeros_like(params), tree.zeros_like(params))

    def first(x, mine, batches, round):
        g = mean_gradient(grad_fn, x, batches, round.key)
        return (g, tree.map(jnp.square, g)), mine

    def start(state, mean, round):
        m, v = mean
        return State(tree.sub_scaled(state.params, at(lr, round), m), m, v)

    def client(shared, previous, batches, round):
        def step(carry, batch, key):
            x, previous, m, v = carry
            new, old = grad_fn(x, batch, key), grad_fn(previous, batch, key)
            m = tree.add(new, tree.fade(at(fresh, round), tree.sub(m, old)))
            v = tree.mix(v, 1 - beta, tree.map(jnp.square, new))
            moved = tree.sub_scaled(x, at(lr, round), precondition(m, shared.square))
            return (moved, x, m, v), ()

        carry = shared.params, previous, shared.mean, shared.square
        (_, last, m, v), _ = local_steps(step, carry, batches, round.key)
        return State(tree.sub(last, shared.params), m, v), last

    def server(state, mean, round):
        dx, m, v = mean
        x = tree.add(state.params, dx)
        return State(tree.sub_scaled(x, at(lr, round), precondition(m, v)), m, v)

    prologue = Exchange(lambda state, round: state.params, first, start)
    main = Exchange(everything, client, server)
    init_client = lambda params: params  # x_
    return Algorithm(init, init_client, (main,), (prologue,), everyone=True)
