"""DiLoCo, and its variants MuLoCo, SparseLoCo and HeLoCo."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_muon import core, transforms
from fedjax_muon.core import tree
from fedjax_muon.transforms.layout import Layout, widened
from fedjax_muon.wrappers.compression import bins, chunked_top_k, compress


class State(NamedTuple):
    params: Any
    opt: optax.OptState  # of the server rule


def _train(
    objective: core.Objective,
    start: core.Params,
    lr: core.Hyper,
    rule: optax.GradientTransformation,
    opt: optax.OptState,
    batches: Any,
    round: core.Round,
) -> tuple[core.Params, optax.OptState]:
    """The local steps of a client, from the state that its rule had."""

    def step(carry: Any, batch: Any, key: jax.Array) -> tuple[Any, tuple[()]]:
        x, opt = carry
        g = objective.grad(x, batch, key)
        return core.move(objective, x, core.value_at(lr, round), rule, opt, g), ()

    return core.local_steps(step, (start, opt), batches, round)[0]


@core.recorded
def diloco(
    lr: core.Hyper = 0.0004,
    *,
    rule: optax.GradientTransformation = optax.chain(
        optax.scale_by_adam(), optax.add_decayed_weights(0.1)
    ),
    server_lr: core.Hyper = 0.7,
    server_rule: optax.GradientTransformation = optax.trace(0.9, nesterov=True),
) -> core.Algorithm:
    """DiLoCo: clients keep their rule's state, and the server uses Nesterov momentum.

    Client i keeps the state of rule_i between rounds. From the broadcast x, for each
    batch s

        x_i <- x_i - lr rule_i(grad_i(x_i; s))

    and the server follows g = mean_i (x - x_i):

        x <- x - server_lr server_rule(g)

    It suits a few clients that take part in every round, such as data centers.

    Source: Douillard et al. 2023, arXiv:2311.08105, Algorithm 1. Checked against
    independent code.

    Args:
      lr: Local learning rate: 0.0003 to 0.003 for the default AdamW.
      rule: Local rule whose state persists at each client, without a learning rate;
        AdamW with a weight decay of 0.1 by default.
      server_lr: Server learning rate, usually 0.7 to 1.
      server_rule: Rule applied to the pseudo-gradient, without a learning rate; by
        default, Nesterov momentum 0.9.

    Example:
      >>> muon = fm.transforms.muon(0.9)
      >>> decayed = optax.chain(muon, optax.add_decayed_weights(0.01))
      >>> algorithm = fm.diloco(lr=0.02, rule=decayed, server_lr=0.8)

    See also: `muloco`, `sparseloco`, `heloco` and `streaming_diloco`, its variants;
    `fedavg` resets the rule.
    """
    core.check_range("lr", lr)
    core.check_range("server_lr", server_lr)

    def init(params):
        return State(params, server_rule.init(params))

    def client(objective, broadcast, opt, batches, round):
        x, opt = _train(objective, broadcast.params, lr, rule, opt, batches, round)
        return core.ParamsMessage(tree.sub(broadcast.params, x)), opt

    def server(state, mean, round):
        x, opt = state
        return State(
            *core.descend(
                x, core.value_at(server_lr, round), server_rule, opt, mean.params
            )
        )

    main = core.Exchange(
        core.broadcast_params, client, server, local_params=core.before_change
    )
    return core.Algorithm(init, rule.init, (main,))


@core.recorded
def muloco(
    lr: core.Hyper = 0.0224,
    *,
    server_lr: core.Hyper = 0.8,
    momentum: core.Hyper = 0.9,
    server_momentum: core.Number = 0.9,
    decay: core.Number = 0.0,
    b2: core.Number = 0.99,
    nesterov: bool = False,
    polar: transforms.Polar | None = None,
    layout: Layout = transforms.muon_dimension_numbers,
) -> core.Algorithm:
    """MuLoCo: DiLoCo with Muon at the clients.

    Client i keeps M_i between rounds. Matrices follow

        M_i <- momentum M_i + grad_i(x_i; s)
        x_i <- x_i - lr (sqrt(fan_out / fan_in) orth(M_i) + decay x_i)

    and other leaves Adam. The server follows mean_i (x - x_i) with Nesterov momentum.

    Source: Therien et al. 2025, arXiv:2505.23725. Checked against the authors' code.
    The defaults come from its configurations for two workers with streaming or a
    quantized outer step (torchtitan/config/diloco/2x_4gpu_muloco_*.py), except for
    their weight decay of 0.0001. Embeddings and the last layer use Muon too, unless
    `layout` says otherwise.

    Args:
      lr: Local learning rate, 0.01 to 0.05.
      server_lr: Server learning rate, 0.7 to 1.
      momentum: Momentum of the clients' Muon, in [0, 1), usually 0.9 or 0.95.
      server_momentum: Nesterov momentum of the server, 0.6 to 0.9.
      decay: Decoupled weight decay of the clients, 0 to 0.01.
      b2: Decay of the second moment of the clients' Adam, for other leaves, 0.95 to
        0.99.
      nesterov: Whether the clients' Muon looks ahead.
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.
      layout: Which leaves are matrices; in the authors' code, those of
        `transforms.hidden_matrices`.

    Example:
      >>> hidden = fm.transforms.hidden_matrices
      >>> algorithm = fm.muloco(lr=0.02, layout=hidden)
      >>> sent = fm.compress(algorithm, fm.quantize(4), feedback=1.0)

    See also: `muloco_1`, `muloco_2` and `muloco_16`, the authors' configurations;
    `diloco`.
    """
    core.check_range("server_momentum", server_momentum, 0.0, 1.0, schedules=False)
    core.check_range("decay", decay, schedules=False)
    core.check_range("b2", b2, 0.0, 1.0, open_high=True, schedules=False)
    rule = transforms.muon(
        momentum,
        nesterov=nesterov,
        polar=polar,
        shape_scale=transforms.spectral,
        rest=optax.scale_by_adam(0.9, b2),
        layout=layout,
    )
    return diloco(
        lr=lr,
        rule=optax.chain(rule, optax.add_decayed_weights(decay)),
        server_lr=server_lr,
        server_rule=optax.trace(server_momentum, nesterov=True),
    )


@core.recorded
def sparseloco(
    lr: core.Hyper = 0.0008,
    *,
    rule: optax.GradientTransformation = optax.chain(
        optax.scale_by_adam(), optax.add_decayed_weights(0.1)
    ),
    server_lr: core.Hyper = 1.0,
    k: int = 64,
    chunk: int = 64,
    bits: int | None = 2,
    feedback: float = 0.95,
) -> core.Algorithm:
    """SparseLoCo: DiLoCo with sparse messages and error feedback.

    With C the compressor, client i keeps e_i and its rule's state. After local steps,

        e_i <- feedback e_i + x - x_i;    q_i = C(e_i);    e_i <- e_i - q_i

    and the server updates x <- x - server_lr mean_i q_i. C sends the k largest entries
    of every block of chunk x chunk entries, each as one of 2^bits numbers.

    Source: Sarfi et al. 2025, arXiv:2508.15706. Checked against the authors' code, from
    which it departs: the mean runs over all clients that take part, as in a summary of
    the paper, while their code averages an entry over the clients that sent it.

    Args:
      lr: Local learning rate: 0.0003 to 0.003 for the default AdamW.
      rule: Local rule whose state persists at each client, without a learning rate;
        AdamW with a weight decay of 0.1 by default.
      server_lr: Server learning rate, 0.7 to 1.
      k: Entries that are sent of a block, see `compression.chunked_top_k`.
      chunk: Largest side of a block.
      bits: Bits of an entry, see `compression.bins`; None sends it unchanged.
      feedback: Decay of the accumulated compression error, in [0, 1].

    Example:
      >>> sizes = {"cohort": 4, "local_steps": 5, "batch_size": 8}
      >>> for algorithm in (fm.diloco(), fm.sparseloco(k=2, chunk=8)):
      ...     simulation = fm.federate(algorithm, task, digits, clients, **sizes)
      ...     print(simulation.meter.bytes_after(1).up)
      4960
      492

    See also: `diloco`; `compress` with `chunked_top_k` does the same to any method.
    """
    plain = diloco(lr, rule=rule, server_lr=server_lr, server_rule=optax.identity())
    values = None if bits is None else bins(bits)
    return compress(plain, chunked_top_k(k, chunk, values=values), feedback=feedback)


class LookAhead(NamedTuple):
    params: Any
    momentum: Any  # average of the corrected messages


def _corrected(
    change: jax.Array,
    momentum: jax.Array,
    threshold: core.Number,
    shrink: core.Number,
    turn: core.Number,
    kappa: core.Number,
) -> jax.Array:
    """One array of a message, closer to the direction of the momentum; see `heloco`."""
    d, m = widened(change), widened(momentum)
    size, length = jnp.linalg.norm(d.ravel()), jnp.linalg.norm(m.ravel())
    unit, ahead = (x / jnp.where(n > 0, n, 1) for x, n in ((d, size), (m, length)))
    c = jnp.clip(jnp.sum(unit * ahead), -1, 1)
    share = size / (size + kappa * length + 1e-8)
    less = jnp.minimum(shrink * -c * share, 0.5)
    weight = jnp.minimum(turn * (1 - c) * share, 1)
    mixed = (1 - weight) * unit + weight * ahead
    turned = size * mixed / jnp.maximum(jnp.linalg.norm(mixed.ravel()), 1e-8)
    nearer = jnp.where(c < 0, d - less * c * size * ahead, turned)
    passes = (c >= threshold) | (length == 0)
    return jnp.where(passes, d, nearer).astype(change.dtype)


@core.recorded
def heloco(
    lr: core.Hyper = 0.0004,
    *,
    rule: optax.GradientTransformation = optax.chain(
        optax.scale_by_adam(), optax.add_decayed_weights(0.1)
    ),
    server_lr: core.Hyper = 0.7,
    momentum: core.Hyper = 0.9,
    weight: core.Hyper = 1.0,
    threshold: core.Number = 0.2,
    shrink: core.Number = 0.5,
    turn: core.Number = 1.0,
    kappa: core.Number = 3.0,
) -> core.Algorithm:
    """HeLoCo: DiLoCo that corrects late messages against the server's momentum.

    Clients start from y = x - server_lr momentum m. For a message d = y - x_i and the
    server's momentum m, array by array, with their cosine c, the unit vectors u and v,
    and share = |d| / (|d| + kappa |m|),

        d <- d                                              where c >= threshold,
        d <- d - min(-shrink c share, 1/2) c |d| v          where c < 0, else
        d <- |d| z / |z|,    z = (1 - w) u + w v,    w = min(turn (1 - c) share, 1)
        m <- momentum m + (1 - momentum) weight d
        x <- x - server_lr (weight d + momentum m)

    In synchronous rounds, d is the mean message.

    Source: Asif et al. 2026, arXiv:2606.00271. Checked against independent code: two,
    one of them by colleagues of an author. Of the paper, only its abstract was read.

    Args:
      lr: Local learning rate: 0.0003 to 0.003 for the default AdamW.
      rule: Local rule whose state persists at each client, without a learning rate;
        AdamW with a weight decay of 0.1 by default.
      server_lr: Server learning rate, usually 0.7.
      momentum: Weight of the past in the server's momentum, in [0, 1), usually 0.9.
      weight: Factor of messages; with n clients at a time, 1 / sqrt(n) is recommended.
      threshold: Cosine from which messages pass unchanged, in [0, 1]. With 0, and
        `shrink=0`, all do.
      shrink: How far the part of a message against the momentum is reduced, 0 to 1.
      turn: How far a message is turned to the momentum, 0 to 1.
      kappa: The larger, the less a message is corrected that is small beside the
        momentum; at least 0.

    Example:
      >>> workers = 4
      >>> algorithm = fm.heloco(lr=0.001, weight=workers**-0.5)
      >>> cohort = fm.buffered(workers, 1, staleness=fm.staleness.constant())
      >>> sizes = {"cohort": cohort, "local_steps": 5, "batch_size": 8}
      >>> simulation = fm.federate(algorithm, task, digits, clients, **sizes)

    See also: `diloco` for equal workers; `buffered` and `ringmaster_lmo`.
    """
    for name, rate in {"lr": lr, "server_lr": server_lr, "weight": weight}.items():
        core.check_range(name, rate)
    core.check_range("momentum", momentum, 0.0, 1.0, open_high=True)
    core.check_range("threshold", threshold, 0.0, 1.0, schedules=False)
    for name, number in {"shrink": shrink, "turn": turn, "kappa": kappa}.items():
        core.check_range(name, number, schedules=False)

    def init(params):
        return LookAhead(params, tree.zeros_like(params))

    def broadcast(state, round):
        ahead = tree.scale(state.momentum, core.value_at(momentum, round))
        start = tree.sub_scaled(state.params, core.value_at(server_lr, round), ahead)
        return core.ParamsMessage(start)

    def client(objective, broadcast, opt, batches, round):
        start = objective.project(broadcast.params)
        x, opt = _train(objective, start, lr, rule, opt, batches, round)
        return core.ParamsMessage(tree.sub(broadcast.params, x)), opt

    def server(state, mean, round):
        correct = lambda d, m: _corrected(d, m, threshold, shrink, turn, kappa)
        g = tree.map(correct, mean.params, state.momentum)
        g = tree.scale(g, core.value_at(weight, round))
        mu = core.value_at(momentum, round)
        m = tree.mix(g, mu, state.momentum)
        step = tree.add_scaled(g, mu, m)
        eta = core.value_at(server_lr, round)
        return LookAhead(tree.sub_scaled(state.params, eta, step), m)

    main = core.Exchange(broadcast, client, server, local_params=core.before_change)
    return core.Algorithm(init, rule.init, (main,))


@core.recorded
def muloco_1(
    lr: core.Hyper = 0.02,
    *,
    server_lr: core.Hyper = 0.7,
    momentum: core.Hyper = 0.95,
    server_momentum: core.Number = 0.6,
    decay: core.Number = 0.01,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """MuLoCo(1 worker): the configuration that the authors recommend for one worker.

    Source: Therien et al. 2025, arXiv:2505.23725. Checked against the authors' code.
    The same as `fm.muloco(b2=0.95)` with other defaults.
    """
    return muloco(
        lr=lr,
        server_lr=server_lr,
        momentum=momentum,
        server_momentum=server_momentum,
        decay=decay,
        b2=0.95,
        polar=polar,
    )


@core.recorded
def muloco_2(
    lr: core.Hyper = 0.044,
    *,
    server_lr: core.Hyper = 0.9,
    momentum: core.Hyper = 0.9,
    server_momentum: core.Number = 0.8,
    decay: core.Number = 0.00125,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """MuLoCo(2 workers): the authors' configuration for two, without streaming.

    Source: Therien et al. 2025, arXiv:2505.23725. Checked against the authors' code.
    The same as `fm.muloco()` with other defaults.
    """
    return muloco(
        lr=lr,
        server_lr=server_lr,
        momentum=momentum,
        server_momentum=server_momentum,
        decay=decay,
        polar=polar,
    )


@core.recorded
def muloco_16(
    lr: core.Hyper = 0.015625,
    *,
    server_lr: core.Hyper = 1.0,
    momentum: core.Hyper = 0.9,
    server_momentum: core.Number = 0.9,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """MuLoCo(16 workers): the authors' configuration for 16 workers.

    Source: Therien et al. 2025, arXiv:2505.23725. Checked against the authors' code.
    The same as `fm.muloco()` with other defaults.
    """
    return muloco(
        lr=lr,
        server_lr=server_lr,
        momentum=momentum,
        server_momentum=server_momentum,
        polar=polar,
    )
