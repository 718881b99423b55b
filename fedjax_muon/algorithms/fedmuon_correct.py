"""FedMuon (Takezawa et al.): bias-corrected, with momenta that stay at the clients.

arXiv:2509.26337, Algorithm 1. m_i persists, and c_i is its value when client i last
took part. From the broadcast (x, c), for each batch s

    m_i <- (1 - fresh) m_i + fresh grad_i(x_i; s);  x_i <- x_i - lr rule(m_i - c_i + c)

then c <- c + (1/N) sum_i (m_i - c_i) and x <- (N - S)/N x + (1/N) sum_i x_i, the sums
over the S sampled clients. The rule is minus the paper's LMO, for the spectral norm by
default; momenta and controls start at zero. One buffer serves for m_i and c_i.
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
    control: Any  # c, the mean of all c_i


def fedmuon_correct(
    grad_fn: GradFn,
    *,
    lr: Hyper = 0.001,
    fresh: Hyper = 0.1,
    rule: optax.GradientTransformation = by_rank(orthogonalize(), optax.scale(10.0)),
) -> Algorithm:
    """FedMuon with bias correction; refuses weights other than uniform.

    Args:
      lr: learning rate.
      fresh: weight of the fresh gradient in the momentum, alpha in the paper.
      rule: minus the LMO, without learning rate.
    """
    check_range("lr", lr)
    check_range("fresh", fresh, 0.0, 1.0)

    def init(params):
        return State(params, tree.zeros_like(params))

    def client(shared, control, batches, round):
        def step(carry, batch, key):
            x, m, opt = carry
            m = tree.mix(m, at(fresh, round), grad_fn(x, batch, key))
            d = tree.map(lambda m, ci, c: m - ci + c, m, control, shared.control)
            x, opt = move(x, at(lr, round), rule, opt, d)
            return (x, m, opt), ()

        carry = shared.params, control, rule.init(shared.params)
        (x, m, _), _ = local_steps(step, carry, batches, round.key)
        return State(tree.sub(x, shared.params), tree.sub(m, control)), m

    def server(state, mean, round):
        return tree.add_scaled(state, round.fraction, mean)

    main = Exchange(everything, client, server)
    return Algorithm(init, tree.zeros_like, (main,), uniform=True)
