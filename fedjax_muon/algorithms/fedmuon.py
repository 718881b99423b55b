"""FedMuon (Zhang and Gao): local Muon steps with a momentum that the server averages.

"On Provable Benefits of Muon in Federated Learning", Algorithm 1. From the broadcast
(x, m), client i repeats for each of its batches s

    x_i <- x_i - lr rule(m_i);    m_i <- momentum m_i + (1 - momentum) grad_i(x_i; s)

in this order, and both are averaged. Before round 0, every m_i is a gradient at x: the
clients' mean (`synced`, as the paper's Lemma 6.1 requires), or each client's own, as in
the paper's algorithm. Weight decay is part of the rule: chain it with
`optax.add_decayed_weights`.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    after_change,
    broadcast_params,
    broadcast_state,
    check_range,
    local_steps,
    mean_gradient,
    move,
    no_client_state,
    recorded,
    tree,
    value_at,
)
from fedjax_muon.transforms import Polar, by_rank, default_rule, orthogonalize


class State(NamedTuple):
    params: Any
    momentum: Any


class Momentum(NamedTuple):
    momentum: Any


@recorded
def fedmuon(
    lr: Hyper = 0.01,
    *,
    momentum: Hyper = 0.9,
    rule: optax.GradientTransformation | None = None,
    polar: Polar | None = None,
    synced: bool = True,
) -> Algorithm:
    """FedMuon with averaged momenta.

    Args:
      momentum: Weight of the past in the momentum; beta in the paper's experiments,
        1 - beta in its theory.
      rule: Rule applied to the momentum, without a learning rate; by default, matrices
        are orthogonalized.
      polar: Polar factor of matrices in the default rule.
      synced: Whether the initial momenta are averaged too.
    """
    check_range("lr", lr)
    check_range("momentum", momentum, 0.0, 1.0)
    rule = default_rule(rule, polar, lambda polar: by_rank(orthogonalize(polar)))

    def init(params):
        return State(params, tree.zeros_like(params))

    def first(objective, broadcast, client_state, batches, round):
        m = mean_gradient(objective, broadcast.params, batches, round)
        return (Momentum(m), client_state) if synced else ((), m)

    def start(state, mean, round):
        del round
        return State(state.params, mean.momentum) if synced else state

    def client(objective, broadcast, client_state, batches, round):
        x, m = broadcast
        if not synced:
            m = tree.map(
                lambda s, i: jnp.where(round.index == 0, i, s), m, client_state
            )

        def step(carry, batch, key):
            x, m, opt = carry
            x, opt = move(objective, x, value_at(lr, round), rule, opt, m)
            m = tree.mix(objective.grad(x, batch, key), value_at(momentum, round), m)
            return (x, m, opt), ()

        carry = x, m, rule.init(x)
        (y, m, _), _ = local_steps(step, carry, batches, round)
        return State(tree.sub(y, x), m), client_state

    def server(state, mean, round):
        del round
        return State(tree.add(state.params, mean.params), mean.momentum)

    prologue = Exchange(broadcast_params, first, start)
    main = Exchange(broadcast_state, client, server, local_params=after_change)
    init_client = no_client_state if synced else tree.zeros_like
    return Algorithm(init, init_client, (main,), (prologue,))
