"""FedMuon of Zhang and Gao."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from fedjax_muon import core, transforms
from fedjax_muon.core import tree


class State(NamedTuple):
    params: Any
    momentum: Any


class Momentum(NamedTuple):
    momentum: Any


@core.recorded
def fedmuon(
    lr: core.Hyper = 0.01,
    *,
    momentum: core.Hyper = 0.9,
    rule: optax.GradientTransformation | None = None,
    polar: transforms.Polar | None = None,
    synced: bool = True,
) -> core.Algorithm:
    """FedMuon: local Muon steps along a momentum that the server averages.

    From the broadcast (x, m), client i repeats for each of its batches s

        x_i <- x_i - lr rule(m_i)
        m_i <- momentum m_i + (1 - momentum) grad_i(x_i; s)

    in this order, and the server averages both. Before round 0, m becomes the mean of
    the clients' gradients at x, as the paper's Lemma 6.1 requires. Weight decay belongs
    to the rule: chain it with `optax.add_decayed_weights`.

    Source: Zhang and Gao 2025, "On Provable Benefits of Muon in Federated Learning",
    arXiv:2510.03866, Algorithm 1. Checked against the paper's text. It departs from the
    listing, where every client starts with its own gradient, unless `synced=False`.

    Args:
      lr: Local learning rate: 0.01 to 0.1 with the default rule, where it is the
        spectral norm of a matrix's step, and 0.01 to 1 for SGD. Falling from 0.03 to 0
        by a cosine, it rarely needs a search; so it does in `fm.train(fm.fedmuon)`.
      momentum: Weight of the past in the momentum, usually 0.9 to 0.98; beta in the
        paper's experiments, 1 - beta in its theory.
      rule: Rule applied to the momentum, without a learning rate. By default, it
        orthogonalizes matrices and passes other leaves unchanged.
      polar: Function that the default rule computes polar factors with; by default,
        five Newton-Schulz steps.
      synced: Whether the server averages the first momenta too.

    Example:
      >>> svd = fm.linalg.newton_schulz.polar  # exact polar factors
      >>> sizes = {"cohort": 4, "local_steps": 5, "batch_size": 8}
      >>> exact = fm.fedmuon(lr=0.02, polar=svd)
      >>> simulation = fm.federate(exact, task, digits, clients, **sizes)
      >>> simulation.meter.bytes_after(1)  # a momentum travels with the parameters
      Traffic(down=14880, up=14880)

    See also: `fedmuon_align` and `fedmuon_correct`, the other methods of this name;
    `local_muon` resets momenta, and `minimax.fedmuon_da` solves minimax problems.
    """
    core.check_range("lr", lr)
    core.check_range("momentum", momentum, 0.0, 1.0)
    rule = transforms.default_rule(
        rule, polar, lambda polar: transforms.by_rank(transforms.orthogonalize(polar))
    )

    def init(params):
        return State(params, tree.zeros_like(params))

    def first(objective, broadcast, client_state, batches, round):
        m = core.mean_gradient(objective, broadcast.params, batches, round)
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
            x, opt = core.move(objective, x, core.value_at(lr, round), rule, opt, m)
            m = tree.mix(
                objective.grad(x, batch, key), core.value_at(momentum, round), m
            )
            return (x, m, opt), ()

        carry = x, m, rule.init(x)
        (y, m, _), _ = core.local_steps(step, carry, batches, round)
        return State(tree.sub(y, x), m), client_state

    def server(state, mean, round):
        del round
        return State(tree.add(state.params, mean.params), mean.momentum)

    prologue = core.Exchange(core.broadcast_params, first, start)
    main = core.Exchange(
        core.broadcast_state, client, server, local_params=core.after_change
    )
    init_client = core.no_client_state if synced else tree.zeros_like
    return core.Algorithm(init, init_client, (main,), (prologue,))


@core.recorded
def fedmuon_unsynced(
    lr: core.Hyper = 0.01,
    *,
    momentum: core.Hyper = 0.9,
    rule: optax.GradientTransformation | None = None,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """FedMuon(unsynced start): the first momenta are not averaged, as in Algorithm 1.

    Source: Zhang and Gao 2025, arXiv:2510.03866. Checked against the paper's text. The
    same as `fm.fedmuon(synced=False)`.
    """
    return fedmuon(lr=lr, momentum=momentum, rule=rule, polar=polar, synced=False)
