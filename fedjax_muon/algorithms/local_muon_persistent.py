"""Local Muon with momenta that persist at clients."""

from typing import Any, NamedTuple

import optax

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    after_change,
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


@recorded
def local_muon_persistent(
    lr: Hyper = 0.001,
    *,
    momentum: Hyper = 0.9,
    rule: optax.GradientTransformation | None = None,
    polar: Polar | None = None,
    shape_scale: ShapeScale = unscaled,
) -> Algorithm:
    """Local Muon with momenta that persist at clients, without correction.

    Client i keeps m_i. From the broadcast x, for each batch s

        m_i <- momentum m_i + (1 - momentum) grad_i(x_i; s)
        x_i <- x_i - lr rule(m_i)

    Then x <- (N - S)/N x + (1/N) sum_i x_i over the S sampled clients of N. The paper
    shows that this method stalls on heterogeneous clients; use it as a baseline.

    Source: Takezawa et al. 2026, ICLR, arXiv:2509.26337, Section 3. Checked against the
    paper's text.

    Args:
      lr: Local learning rate: 0.001 to 0.03 with the default rule.
      momentum: Weight of the past in the momentum, 1 - alpha in the paper, usually 0.9.
      rule: Rule applied to the momentum, without a learning rate. By default, it
        orthogonalizes matrices and multiplies other leaves by 10.
      polar: Function that the default rule computes polar factors with; by default,
        five Newton-Schulz steps.
      shape_scale: Factor of a matrix's step in the default rule, as a function of
        (fan_in, fan_out).

    Example:
      >>> momenta = fm.local_muon_persistent().init_client({"w": jnp.ones((2, 3))})
      >>> momenta["w"].shape  # what every client stores
      (2, 3)

    See also: `fedmuon_correct` adds the correction, `local_muon` resets momenta,
    `fedmuon` averages them.
    """
    check_range("lr", lr)
    check_range("momentum", momentum, 0.0, 1.0)

    def scaled(polar: Polar) -> optax.GradientTransformation:
        matrices = optax.chain(orthogonalize(polar), scale_by_shape(shape_scale))
        return by_rank(matrices, optax.scale(10.0))

    rule = default_rule(rule, polar, scaled)

    def client(objective, broadcast, m, batches, round):
        def step(carry, batch, key):
            x, m, opt = carry
            m = tree.mix(objective.grad(x, batch, key), value_at(momentum, round), m)
            x, opt = move(objective, x, value_at(lr, round), rule, opt, m)
            return (x, m, opt), ()

        carry = broadcast.params, m, rule.init(broadcast.params)
        (x, m, _), _ = local_steps(step, carry, batches, round)
        return State(tree.sub(x, broadcast.params)), m

    def server(state, mean, round):
        return tree.add_scaled(state, round.fraction, mean)

    main = Exchange(broadcast_state, client, server, local_params=after_change)
    return Algorithm(State, tree.zeros_like, (main,))
