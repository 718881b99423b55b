"""DiLoCo: FedAvg whose clients keep their rule's state; MuLoCo with a Muon rule, and
SparseLoCo with sparse messages.

Douillard et al. 2023, arXiv:2311.08105, Algorithm 1; Therien et al. 2025,
arXiv:2505.23725; Sarfi et al. 2025, arXiv:2508.15706. Client i's rule keeps its state
between rounds; for each batch s

    x_i <- x_i - lr rule_i(grad_i(x_i; s)),    then    x <- x - server_lr server_rule(g)

with g = mean_i (x - x_i) and, by default, Nesterov momentum at the server.
"""

from typing import Any, NamedTuple

import optax

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    Number,
    ParamsMessage,
    before_change,
    broadcast_params,
    check_range,
    descend,
    local_steps,
    move,
    recorded,
    tree,
    value_at,
)
from fedjax_muon.transforms import (
    Polar,
    default_rule,
    muon,
    muon_dimension_numbers,
    spectral,
)
from fedjax_muon.transforms.layout import Layout
from fedjax_muon.wrappers.compression import bins, chunked_top_k, compress


class State(NamedTuple):
    params: Any
    opt: optax.OptState  # of the server rule


@recorded
def diloco(
    lr: Hyper = 0.0004,
    *,
    rule: optax.GradientTransformation = optax.chain(
        optax.scale_by_adam(), optax.add_decayed_weights(0.1)
    ),
    server_lr: Hyper = 0.7,
    server_rule: optax.GradientTransformation = optax.trace(0.9, nesterov=True),
) -> Algorithm:
    """Distributed low-communication training.

    Args:
      rule: Local rule whose state persists at each client, without a learning rate.
      server_rule: Rule applied to the pseudo-gradient, without a learning rate.
    """
    check_range("lr", lr)
    check_range("server_lr", server_lr)

    def init(params):
        return State(params, server_rule.init(params))

    def client(objective, broadcast, opt, batches, round):
        start = broadcast.params

        def step(carry, batch, key):
            x, opt = carry
            g = objective.grad(x, batch, key)
            return move(objective, x, value_at(lr, round), rule, opt, g), ()

        (x, opt), _ = local_steps(step, (start, opt), batches, round)
        return ParamsMessage(tree.sub(start, x)), opt

    def server(state, mean, round):
        x, opt = state
        return State(
            *descend(x, value_at(server_lr, round), server_rule, opt, mean.params)
        )

    main = Exchange(broadcast_params, client, server, local_params=before_change)
    return Algorithm(init, rule.init, (main,))


@recorded
def muloco(
    lr: Hyper = 0.0224,
    *,
    server_lr: Hyper = 0.8,
    momentum: Hyper = 0.9,
    server_momentum: Number = 0.9,
    decay: Number = 0.0,
    b2: Number = 0.99,
    nesterov: bool = False,
    polar: Polar | None = None,
    layout: Layout = muon_dimension_numbers,
) -> Algorithm:
    """MuLoCo: DiLoCo with Muon at the clients.

    Matrices are orthogonalized and scaled by sqrt(fan_out / fan_in); other leaves use
    Adam. The update was checked against the authors' code. The defaults are from its
    configurations for two workers with streaming or a quantized outer step
    (torchtitan/config/diloco/2x_4gpu_muloco_*.py).

    Args:
      momentum: Momentum of the clients' Muon.
      server_momentum: Nesterov momentum of the server.
      decay: Decoupled weight decay of the clients.
      b2: Decay of the second moment of the clients' Adam, for other leaves.
      nesterov: Whether the clients' Muon looks ahead.
      layout: Which leaves are matrices; in the authors' code, those of
        `transforms.hidden_matrices`.
    """
    check_range("server_momentum", server_momentum, 0.0, 1.0, schedules=False)
    check_range("decay", decay, schedules=False)
    check_range("b2", b2, 0.0, 1.0, open_high=True, schedules=False)
    options: dict[str, Any] = {"nesterov": nesterov, "shape_scale": spectral}
    options["layout"] = layout
    options["rest"] = optax.scale_by_adam(0.9, b2)
    decayed = optax.add_decayed_weights(decay)
    make = lambda polar: optax.chain(muon(momentum, polar=polar, **options), decayed)
    return diloco(
        lr=lr,
        rule=default_rule(None, polar, make),
        server_lr=server_lr,
        server_rule=optax.trace(server_momentum, nesterov=True),
    )


@recorded
def sparseloco(
    lr: Hyper = 0.0008,
    *,
    rule: optax.GradientTransformation = optax.chain(
        optax.scale_by_adam(), optax.add_decayed_weights(0.1)
    ),
    server_lr: Hyper = 1.0,
    k: int = 64,
    chunk: int = 64,
    bits: int | None = 2,
    feedback: float = 0.95,
) -> Algorithm:
    """SparseLoCo: DiLoCo with error feedback instead of the server's momentum.

    The mean is over all clients that take part, as in a summary of the paper; the
    authors' code averages an entry over those that sent it. The compressor was checked
    against their code.

    Args:
      k: Entries that are sent of a block, see `compression.chunked_top_k`.
      chunk: Largest side of a block.
      bits: Bits of an entry, see `compression.bins`; None sends it unchanged.
      feedback: Decay of the accumulated compression error, in [0, 1].
    """
    plain = diloco(lr, rule=rule, server_lr=server_lr, server_rule=optax.identity())
    values = None if bits is None else bins(bits)
    return compress(plain, chunked_top_k(k, chunk, values=values), feedback=feedback)
