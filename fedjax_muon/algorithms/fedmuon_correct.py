"""FedMuon of Takezawa et al."""

from typing import Any, NamedTuple

import optax

from fedjax_muon import core, transforms
from fedjax_muon.core import tree
from fedjax_muon.linalg import lmo


class State(NamedTuple):
    params: Any
    control: Any  # c, the mean of all c_i


@core.recorded
def fedmuon_correct(
    lr: core.Hyper = 0.001,
    *,
    momentum: core.Hyper = 0.9,
    rule: optax.GradientTransformation | None = None,
    polar: transforms.Polar | None = None,
    shape_scale: transforms.ShapeScale = transforms.unscaled,
) -> core.Algorithm:
    """FedMuon with bias correction: momenta stay at clients, controls correct steps.

    Client i keeps m_i; c_i denotes its value after the last round in which the client
    took part. From the broadcast (x, c), for each batch s

        m_i <- momentum m_i + (1 - momentum) grad_i(x_i; s)
        x_i <- x_i - lr rule(m_i - c_i + c)

    Then c <- c + (1/N) sum_i (m_i - c_i) and x <- (N - S)/N x + (1/N) sum_i x_i, with
    sums over the S sampled clients of N. All weights must be equal, so that c stays the
    mean of all c_i. Momenta and controls start at zero, and one buffer stores both.

    Source: Takezawa et al. 2026, ICLR, arXiv:2509.26337, Algorithm 1. Checked against
    the paper's text.

    Args:
      lr: Local learning rate: 0.001 to 0.03 with the default rule.
      momentum: Weight of the past in the momentum, 1 - alpha in the paper, usually 0.9.
      rule: Minus the linear minimization oracle (LMO) of a norm, without a learning
        rate. By default, the spectral norm's for matrices; other leaves are multiplied
        by 10.
      polar: Function that the default rule computes polar factors with; by default,
        five Newton-Schulz steps.
      shape_scale: Factor of a matrix's step in the default rule, as a function of
        (fan_in, fan_out). The paper's experiments use one that depends on the dimension
        (section 7.1); `transforms.moonlight` comes from the paper they cite.

    Example:
      >>> fm.fedmuon_correct(lr=0.003, shape_scale=fm.transforms.moonlight)
      fedmuon_correct(lr=0.003, momentum=0.9, shape_scale=moonlight)
      >>> euclidean = fm.transforms.scale_by_lmo(fm.linalg.lmo.euclidean)
      >>> other = fm.fedmuon_correct(lr=0.01, rule=euclidean)  # another norm

    See also: `local_muon_persistent` omits the correction, `scaffold` corrects
    gradients instead of momenta, `fedmuon` averages momenta.
    """
    core.check_range("lr", lr)
    core.check_range("momentum", momentum, 0.0, 1.0)

    def scaled(polar: transforms.Polar) -> optax.GradientTransformation:
        matrices = optax.chain(
            transforms.orthogonalize(polar), transforms.scale_by_shape(shape_scale)
        )
        return transforms.by_rank(matrices, optax.scale(10.0))

    rule = transforms.default_rule(rule, polar, scaled)

    def init(params):
        return State(params, tree.zeros_like(params))

    def client(objective, broadcast, control, batches, round):
        def step(carry, batch, key):
            x, m, opt = carry
            m = tree.mix(
                objective.grad(x, batch, key), core.value_at(momentum, round), m
            )
            d = tree.map(lambda m, ci, c: m - ci + c, m, control, broadcast.control)
            x, opt = core.move(objective, x, core.value_at(lr, round), rule, opt, d)
            return (x, m, opt), ()

        carry = broadcast.params, control, rule.init(broadcast.params)
        (x, m, _), _ = core.local_steps(step, carry, batches, round)
        return State(tree.sub(x, broadcast.params), tree.sub(m, control)), m

    def server(state, mean, round):
        return tree.add_scaled(state, round.fraction, mean)

    main = core.Exchange(core.broadcast_state, client, server)
    return core.Algorithm(init, tree.zeros_like, (main,), uniform_weights=True)


@core.recorded
def fedmuon_correct_euclidean(
    lr: core.Hyper = 0.01, *, momentum: core.Hyper = 0.9
) -> core.Algorithm:
    """FedMuon(bias correction, Euclidean): steps in the Euclidean norm of every array.

    Source: Takezawa et al. 2026, ICLR, arXiv:2509.26337. Checked against the paper's
    text. The same as `fm.fedmuon_correct(rule=scale_by_lmo(lmo.euclidean))`.
    """
    return fedmuon_correct(
        lr=lr, momentum=momentum, rule=transforms.scale_by_lmo(lmo.euclidean)
    )


@core.recorded
def fedmuon_correct_max_norm(
    lr: core.Hyper = 0.001, *, momentum: core.Hyper = 0.9
) -> core.Algorithm:
    """FedMuon(bias correction, max norm): steps in the maximum norm.

    Source: Takezawa et al. 2026, ICLR, arXiv:2509.26337. Checked against the paper's
    text. The same as `fm.fedmuon_correct(rule=scale_by_lmo(lmo.max_norm))`.
    """
    return fedmuon_correct(
        lr=lr, momentum=momentum, rule=transforms.scale_by_lmo(lmo.max_norm)
    )
