"""LocalMuon (Takezawa et al.): local momenta that are never sent, and no correction.

arXiv:2509.26337, Section 3, where it is shown to stall. m_i persists; for each batch s

    m_i <- (1 - fresh) m_i + fresh grad_i(x_i; s);    x_i <- x_i - lr rule(m_i)

then x <- (N - S)/N x + (1/N) sum_i x_i over the S sampled clients.
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
    everything,
    local_steps,
    move,
)
from fedjax_muon.ranges import check_range
from fedjax_muon.transforms import by_rank, orthogonalize


class State(NamedTuple):
    params: Any


def local_muon_persistent(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.001,
    fresh: Hyper = 0.1,
    rule: optax.GradientTransformation = by_rank(orthogonalize(), optax.scale(10.0)),
) -> Algorithm:
    """LocalMuon as the bias-corrected FedMuon's paper defines it.

    Args:
      lr: learning rate.
      fresh: weight of the fresh gradient in the momentum, alpha in the paper.
      rule: minus the LMO, without learning rate.
    """
    check_range("lr", lr)
    check_range("fresh", fresh, 0.0, 1.0)

    def client(shared, m, batches, round):
        def step(carry, batch, key):
            x, m, opt = carry
            m = tree.mix(m, at(fresh, round), grad_fn(x, batch, key))
            x, opt = move(x, at(lr, round), rule, opt, m)
            return (x, m, opt), ()

        carry = shared.params, m, rule.init(shared.params)
        (x, m, _), _ = local_steps(step, carry, batches, round.key)
        return State(tree.sub(x, shared.params)), m

    def server(state, mean, round):
        return tree.add_scaled(state, round.fraction, mean)

    main = Exchange(everything, client, server)
    return Algorithm(State, tree.zeros_like, (main,))
