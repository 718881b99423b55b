"""FedMuon (Zhang and Gao): clients refresh a momentum that the server averages.

"On Provable Benefits of Muon in Federated Learning", Algorithm 1. From the broadcast
(x, m), client i repeats for each of its batches s

    x_i <- x_i - lr rule(m_i);    m_i <- (1 - fresh) m_i + fresh grad_i(x_i; s)

in this order, and both are averaged. Before round 0 every m_i is a gradient at x:
their mean (`synced`, which the paper's Lemma 6.1 needs), or each client's own, as
printed. Weight decay is part of the rule: chain `optax.add_decayed_weights` to it.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

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
    move,
    stateless,
)
from fedjax_muon.ranges import check_range
from fedjax_muon.transforms import by_rank, orthogonalize


class State(NamedTuple):
    params: Any
    momentum: Any


def fedmuon(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.01,
    fresh: Hyper = 0.1,
    rule: optax.GradientTransformation = by_rank(orthogonalize()),
    synced: bool = True,
) -> Algorithm:
    """FedMuon with averaged momenta.

    Args:
      lr: learning rate.
      fresh: weight of the fresh gradient in the momentum; the paper's experiments call
        the remaining 0.9 beta, its theory calls this one beta.
      rule: what is done to the momentum, without learning rate.
      synced: whether the first momenta are averaged too.
    """
    check_range("lr", lr)
    check_range("fresh", fresh, 0.0, 1.0)

    def init(params):
        return State(params, tree.zeros_like(params))

    def first(x, mine, batches, round):
        m = mean_gradient(grad_fn, x, batches, round.key)
        return (m, mine) if synced else ((), m)

    def start(state, mean, round):
        del round
        return State(state.params, mean) if synced else state

    def client(shared, mine, batches, round):
        x, m = shared
        if not synced:
            m = tree.map(lambda s, i: jnp.where(round.index == 0, i, s), m, mine)

        def step(carry, batch, key):
            x, m, opt = carry
            x, opt = move(x, at(lr, round), rule, opt, m)
            m = tree.mix(m, at(fresh, round), grad_fn(x, batch, key))
            return (x, m, opt), ()

        carry = x, m, rule.init(x)
        (y, m, _), _ = local_steps(step, carry, batches, round.key)
        return State(tree.sub(y, x), m), mine

    def server(state, mean, round):
        del round
        return State(tree.add(state.params, mean.params), mean.momentum)

    prologue = Exchange(lambda state, round: state.params, first, start)
    main = Exchange(everything, client, server)
    init_client = stateless if synced else tree.zeros_like
    return Algorithm(init, init_client, (main,), (prologue,))
