"""FedAdamW: local AdamW, averaged and aligned."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon import core
from fedjax_muon.core import tree


class State(NamedTuple):
    params: Any
    delta: Any  # the mean local direction of the last round
    second: Any  # v: a number for each leaf, or all of it


class Message(NamedTuple):
    params: Any  # x_i - x
    second: Any


def _wide(leaf: jax.Array) -> Any:
    return jnp.promote_types(leaf.dtype, jnp.float32)


@core.recorded
def fedadamw(
    lr: core.Hyper = 0.0003,
    *,
    align: core.Hyper = 0.5,
    decay: core.Hyper = 0.01,
    b1: core.Hyper = 0.9,
    b2: core.Hyper = 0.999,
    eps: core.Hyper = 1e-8,
    whole_moments: bool = False,
) -> core.Algorithm:
    """FedAdamW: aligned local AdamW, whose second moments the server averages.

    From the broadcast (x, delta, v), with m = 0, for each batch s

        g = grad_i(x_i; s);    m <- b1 m + (1 - b1) g;    v_i <- b2 v_i + (1 - b2) g^2
        u = m / (1 - b1^k) / (sqrt(v_i / (1 - b2^t)) + eps)
        x_i <- x_i - lr (u + align delta + decay x_i)

    with k the local step and t = K (round) + k, both from 1; then delta <- mean_i (x -
    x_i) / (K lr) and x <- mean_i x_i. The server averages the mean of v_i over each
    leaf, and broadcasts that number for all its entries. The paper's blocks are those
    of the Hessian, such as the weights of a neuron; here a block is a leaf.

    Source: Liu et al. 2025, arXiv:2510.27486. Checked against the authors' code, from
    which it departs: that code averages all of v_i, divides m by 1 - b1^t, which hardly
    corrects m after round 0, and clips gradients at 10. Of the paper, a summary was
    read.

    Args:
      lr: Local learning rate, 0.0001 to 0.003.
      align: Weight of the last round's mean direction, alpha in the paper, usually 0.5.
      decay: Decoupled weight decay, lambda in the paper, 0 to 0.1.
      b1: Weight of the past in the first moment, in [0, 1), usually 0.9.
      b2: Weight of the past in the second moment, in [0, 1), usually 0.999.
      eps: Constant added to the root of the second moment, usually 1e-8.
      whole_moments: Whether second moments are averaged entry by entry.

    Example:
      >>> sizes = {"cohort": 4, "local_steps": 5, "batch_size": 8}
      >>> for whole in (False, True):
      ...     algorithm = fm.fedadamw(whole_moments=whole)
      ...     simulation = fm.federate(algorithm, task, digits, clients, **sizes)
      ...     print(simulation.meter.bytes_after(1).up)
      5024
      9920

    See also: `local_adamw` resets moments, `fedmuon_align` aligns Muon, `fedlada`.
    """
    core.check_range("lr", lr)
    for name, value in {"align": align, "decay": decay}.items():
        core.check_range(name, value)
    for name, value in {"b1": b1, "b2": b2}.items():
        core.check_range(name, value, 0.0, 1.0, open_high=True)
    core.check_range("eps", eps, open_low=True)

    def summary(v):
        if whole_moments:
            return v
        return tree.map(lambda v: jnp.mean(v, dtype=_wide(v)), v)

    def init(params):
        zeros = tree.zeros_like(params)
        return State(params, zeros, summary(zeros))

    def client(objective, broadcast, client_state, batches, round):
        start, delta, second = broadcast
        eta, a, wd, p1, p2, tiny = (
            core.value_at(value, round) for value in (lr, align, decay, b1, b2, eps)
        )
        before = round.index * round.steps

        def step(now, batch, key):
            x, m, v, k = now
            g = objective.grad(x, batch, key)
            m = tree.mix(g, p1, m)
            v = tree.mix(tree.map(jnp.square, g), p2, v)
            first, other = 1 - p1**k, 1 - p2 ** (before + k)

            def direction(x, m, v, delta):
                u = m / first / (jnp.sqrt(v / other) + tiny)
                return (u + a * delta + wd * x).astype(x.dtype)

            d = tree.map(direction, x, m, v, delta)
            return (objective.project(tree.sub_scaled(x, eta, d)), m, v, k + 1), ()

        spread = lambda v, x: jnp.broadcast_to(v, x.shape).astype(x.dtype)
        v = tree.map(spread, second, start)
        now = start, tree.zeros_like(start), v, jnp.int32(1)
        (x, _, v, _), _ = core.local_steps(step, now, batches, round)
        return Message(tree.sub(x, start), summary(v)), client_state

    def server(state, mean, round):
        return State(
            params=tree.add(state.params, mean.params),
            delta=core.mean_direction(lr, round, mean.params, state.delta),
            second=mean.second,
        )

    main = core.Exchange(
        core.broadcast_state, client, server, local_params=core.after_change
    )
    return core.Algorithm(init, core.no_client_state, (main,))
