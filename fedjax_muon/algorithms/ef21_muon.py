"""EF21-Muon: Muon at the server with compressed messages and broadcasts."""

from typing import Any, NamedTuple

import optax

from fedjax_muon import core, transforms
from fedjax_muon.core import tree
from fedjax_muon.linalg import lmo
from fedjax_muon.wrappers.compression import (
    Compressor,
    compress,
    compress_broadcasts,
    top_k,
)

TENTH = top_k(0.1)


class State(NamedTuple):
    params: Any  # x
    momentum: Any  # g
    opt: optax.OptState  # of the rule


class First(NamedTuple):
    gradient: Any


class Change(NamedTuple):
    momentum: Any  # what m_i changed by


@core.recorded
def ef21_muon(
    lr: core.Hyper = 0.01,
    *,
    momentum: core.Hyper = 0.9,
    compressor: Compressor = TENTH,
    broadcast_compressor: Compressor = TENTH,
    rule: optax.GradientTransformation | None = None,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """EF21-Muon: Muon at the server, with error feedback in both directions.

    In a round, S of N clients take a gradient at w, their copy of x, and the server
    takes one step:

        m_i <- momentum m_i + (1 - momentum) grad_i(w)
        r_i = C(m_i - g_i),    g_i <- g_i + r_i,    g <- g + (S/N) mean_i r_i
        x <- x - lr rule(g),    w <- w + C(x - w)

    where g is the mean of g_i over all N clients. Before round 0, all clients send m_i
    = g_i, their gradient at x, and the server takes a first step. All weights must be
    equal. A round is one step, however many batches a client has.

    Source: Gruntkowska et al. 2025, arXiv:2510.00643. Checked against independent code
    for the steps of vectors and the start. Of the paper, a summary was read; partial
    participation is an addition.

    Args:
      lr: Learning rate of the server, 0.003 to 0.1.
      momentum: Weight of the past in the clients' momenta, in [0, 1), usually 0.9.
      compressor: Compressor of the messages; it sends a tenth of the entries by
        default.
      broadcast_compressor: Compressor of the broadcasts, see `compress_broadcasts`.
      rule: Rule of the server's step, without a learning rate. By default, matrices are
        orthogonalized, and other leaves replaced by their signs.
      polar: Function that the default rule computes polar factors with; by default,
        five Newton-Schulz steps.

    Example:
      >>> low = fm.truncated_svd(fm.memory_share(0.1), rest=fm.no_compression())
      >>> both = fm.ef21_muon(compressor=low, broadcast_compressor=fm.top_k(0.1))
      >>> sizes = {"cohort": 4, "local_steps": 1, "batch_size": 8}
      >>> simulation = fm.federate(both, task, digits, clients, **sizes)

    See also: `compress` and `compress_broadcasts`, its parts; `dp_fedmuon` and
    `ringmaster_lmo` for Muon at the server.
    """
    core.check_range("lr", lr)
    core.check_range("momentum", momentum, 0.0, 1.0)
    signs = transforms.scale_by_lmo(lmo.max_norm)
    make = lambda polar: transforms.by_rank(transforms.orthogonalize(polar), signs)
    rule = transforms.default_rule(rule, polar, make)

    def init(params):
        return State(params, tree.zeros_like(params), rule.init(params))

    def first(objective, broadcast, m, batches, round):
        m = core.mean_gradient(objective, broadcast.params, batches, round)
        return First(m), m

    def client(objective, broadcast, m, batches, round):
        g = core.mean_gradient(objective, broadcast.params, batches, round)
        new = tree.mix(g, core.value_at(momentum, round), m)
        return Change(tree.sub(new, m)), new

    def server(state, mean, round):
        (change,) = mean
        g = tree.add_scaled(state.momentum, round.fraction, change)
        x, opt = core.descend(
            state.params, core.value_at(lr, round), rule, state.opt, g
        )
        return State(x, g, opt)

    prologue = core.Exchange(core.broadcast_params, first, server)
    main = core.Exchange(core.broadcast_params, client, server)
    start = tree.zeros_like  # m_i
    plain = core.Algorithm(init, start, (main,), (prologue,), uniform_weights=True)
    sent = compress(plain, compressor, fields=("momentum",), feedback=1.0)
    return compress_broadcasts(sent, broadcast_compressor)
