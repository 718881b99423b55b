"""Local Muon with momenta that persist at clients."""

from typing import Any, NamedTuple

import optax

from fedjax_muon import core, transforms
from fedjax_muon.core import tree


class State(NamedTuple):
    params: Any


@core.recorded
def local_muon_persistent(
    lr: core.Hyper = 0.001,
    *,
    momentum: core.Hyper = 0.9,
    rule: optax.GradientTransformation | None = None,
    polar: transforms.Polar | None = None,
    shape_scale: transforms.ShapeScale = transforms.unscaled,
) -> core.Algorithm:
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
    core.check_range("lr", lr)
    core.check_range("momentum", momentum, 0.0, 1.0)

    def scaled(polar: transforms.Polar) -> optax.GradientTransformation:
        matrices = optax.chain(
            transforms.orthogonalize(polar), transforms.scale_by_shape(shape_scale)
        )
        return transforms.by_rank(matrices, optax.scale(10.0))

    rule = transforms.default_rule(rule, polar, scaled)

    def client(objective, broadcast, m, batches, round):
        def step(carry, batch, key):
            x, m, opt = carry
            m = tree.mix(
                objective.grad(x, batch, key), core.value_at(momentum, round), m
            )
            x, opt = core.move(objective, x, core.value_at(lr, round), rule, opt, m)
            return (x, m, opt), ()

        carry = broadcast.params, m, rule.init(broadcast.params)
        (x, m, _), _ = core.local_steps(step, carry, batches, round)
        return State(tree.sub(x, broadcast.params)), m

    def server(state, mean, round):
        return tree.add_scaled(state, round.fraction, mean)

    main = core.Exchange(
        core.broadcast_state, client, server, local_params=core.after_change
    )
    return core.Algorithm(State, tree.zeros_like, (main,))
