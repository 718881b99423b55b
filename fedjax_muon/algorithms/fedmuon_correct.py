"""FedMuon (Takezawa et al.): bias correction with momenta that persist at clients.

arXiv:2509.26337, Algorithm 1. m_i persists, and c_i is its value after the last round
in which client i participated. From the broadcast (x, c), for each batch s

    m_i <- momentum m_i + (1 - momentum) grad_i(x_i; s)
    x_i <- x_i - lr rule(m_i - c_i + c)

then c <- c + (1/N) sum_i (m_i - c_i) and x <- (N - S)/N x + (1/N) sum_i x_i, with sums
over the S sampled clients. The rule is minus the paper's LMO, by default for the
spectral norm. Momenta and controls start at zero. m_i and c_i share one buffer.
"""

from typing import Any, NamedTuple

import optax

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    broadcast_state,
    check_range,
    local_steps,
    move,
    recorded,
    tree,
    value_at,
)
from fedjax_muon.transforms import (
    Polar,
    ShapeScale,
    by_rank,
    default_rule,
    orthogonalize,
    scale_by_shape,
    unscaled,
)


class State(NamedTuple):
    params: Any
    control: Any  # c, the mean of all c_i


@recorded
def fedmuon_correct(
    lr: Hyper = 0.001,
    *,
    momentum: Hyper = 0.9,
    rule: optax.GradientTransformation | None = None,
    polar: Polar | None = None,
    shape_scale: ShapeScale = unscaled,
) -> Algorithm:
    """FedMuon with bias correction; requires uniform weights.

    Args:
      momentum: Weight of the past in the momentum, 1 - alpha in the paper.
      rule: Minus the linear minimization oracle (LMO) of a norm, without a learning
        rate; for matrices, of the spectral norm by default.
      polar: Polar factor of matrices in the default rule.
      shape_scale: Factor of a matrix's step in the default rule, as a function of
        (fan_in, fan_out). The paper's experiments have one that depends on the
        dimension (section 7.1); `transforms.moonlight` is from the paper they cite.
    """
    check_range("lr", lr)
    check_range("momentum", momentum, 0.0, 1.0)

    def scaled(polar: Polar) -> optax.GradientTransformation:
        matrices = optax.chain(orthogonalize(polar), scale_by_shape(shape_scale))
        return by_rank(matrices, optax.scale(10.0))

    rule = default_rule(rule, polar, scaled)

    def init(params):
        return State(params, tree.zeros_like(params))

    def client(objective, broadcast, control, batches, round):
        def step(carry, batch, key):
            x, m, opt = carry
            m = tree.mix(objective.grad(x, batch, key), value_at(momentum, round), m)
            d = tree.map(lambda m, ci, c: m - ci + c, m, control, broadcast.control)
            x, opt = move(objective, x, value_at(lr, round), rule, opt, d)
            return (x, m, opt), ()

        carry = broadcast.params, control, rule.init(broadcast.params)
        (x, m, _), _ = local_steps(step, carry, batches, round)
        return State(tree.sub(x, broadcast.params), tree.sub(m, control)), m

    def server(state, mean, round):
        return tree.add_scaled(state, round.fraction, mean)

    main = Exchange(broadcast_state, client, server)
    return Algorithm(init, tree.zeros_like, (main,), uniform_weights=True)
