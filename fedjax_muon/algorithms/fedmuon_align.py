"""FedMuon of Liu et al., and its compression by truncated decompositions."""

from typing import Any, Literal, NamedTuple

import optax

from fedjax_muon import core, transforms
from fedjax_muon.core import tree
from fedjax_muon.wrappers.compression import (
    compress,
    memory_share,
    rank_share,
    truncated_svd,
)


class State(NamedTuple):
    params: Any
    momentum: Any  # the leaves of the rule's state that are sent
    delta: Any  # the mean local direction of the last round


class Message(NamedTuple):
    params: Any  # x_i - x
    momentum: Any


@core.recorded
def fedmuon_align(
    lr: core.Hyper = 0.03,
    *,
    align: core.Hyper = 0.5,
    decay: core.Hyper = 0.01,
    momentum: core.Hyper = 0.98,
    rule: optax.GradientTransformation | None = None,
    polar: transforms.Polar | None = None,
    averaged_state: tuple[str, ...] = ("trace",),
) -> core.Algorithm:
    """FedMuon with alignment: averaged momenta, steps mixed with the mean direction.

    From the broadcast (x, m, delta), client i repeats for each of its batches s

        u = rule(grad_i(x_i; s))
        x_i <- x_i - lr ((1 - align) u + align delta + decay x_i)

    Then delta <- mean_i (x - x_i) / (K lr) and x <- mean_i x_i. The rule's fields named
    in `averaged_state` start from the clients' mean in the last round, m; its other
    fields start anew. Without alignment, the update equals that of `fedavg` with the
    same `averaged_state`.

    Source: Liu et al. 2025, arXiv:2510.27403, Algorithm 2. Checked against the paper's
    text. It departs in the number of local steps: the paper's loop counts from 1 and
    uploads the iterate before the last, while all K steps count here.

    Args:
      lr: Local learning rate: 0.01 to 0.1 if `rule` is Muon, 0.001 to 0.01 if it is
        Adam or SOAP, and 0.01 to 1 for SGD.
      align: Weight of the last round's mean direction, in [0, 1]; alpha in the paper,
        usually 0.5.
      decay: Decoupled weight decay, 0 to 0.01; lambda in the paper.
      momentum: Momentum of the default rule, usually 0.9 to 0.98; it has no effect if
        `rule` is given.
      rule: Local rule of the gradient, without a learning rate; Muon by default.
      polar: Function that the default rule computes polar factors with; by default,
        five Newton-Schulz steps.
      averaged_state: Names of the rule's fields that the server averages, such as
        "trace" of a momentum or ("mu", "nu") of Adam; () averages none.

    Example:
      >>> adam = optax.scale_by_adam(0.9, 0.95)
      >>> moments = {"rule": adam, "averaged_state": ("mu", "nu")}
      >>> algorithm = fm.fedmuon_align(lr=0.001, align=0.25, **moments)
      >>> without = fm.fedmuon_align(align=0.0, averaged_state=())  # Local Muon

    See also: `fedmuon_svd` sends fewer bytes, `fedadamw` aligns Adam, `fedmuon`
    averages momenta without alignment.
    """
    core.check_range("lr", lr)
    core.check_range("align", align, 0.0, 1.0)
    core.check_range("decay", decay)
    rule = transforms.default_rule(
        rule, polar, lambda polar: transforms.muon(momentum, polar=polar)
    )

    def init(params):
        momentum = tree.pick(rule.init(params), averaged_state)
        return State(params, momentum, tree.zeros_like(params))

    def client(objective, broadcast, client_state, batches, round):
        start, momentum, delta = broadcast
        a, wd = core.value_at(align, round), core.value_at(decay, round)

        def step(now, batch, key):
            x, opt = now
            u, opt = rule.update(objective.grad(x, batch, key), opt, x)
            d = tree.add_scaled(tree.mix(u, a, delta), wd, x)
            return (
                objective.project(tree.sub_scaled(x, core.value_at(lr, round), d)),
                opt,
            ), ()

        now = start, tree.put(rule.init(start), averaged_state, momentum)
        (x, opt), _ = core.local_steps(step, now, batches, round)
        return Message(tree.sub(x, start), tree.pick(opt, averaged_state)), client_state

    def server(state, mean, round):
        dx, momentum = mean
        return State(
            params=tree.add(state.params, dx),
            momentum=momentum,
            delta=core.mean_direction(lr, round, dx, state.delta),
        )

    main = core.Exchange(
        core.broadcast_state, client, server, local_params=core.after_change
    )
    return core.Algorithm(init, core.no_client_state, (main,))


@core.recorded
def fedmuon_svd(
    lr: core.Hyper = 0.03,
    *,
    align: core.Hyper = 0.5,
    decay: core.Hyper = 0.01,
    momentum: core.Hyper = 0.98,
    share: float = 0.05,
    share_of: Literal["memory", "rank"] = "memory",
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """FedMuon with alignment that sends momenta as truncated decompositions.

    The update equals that of `fedmuon_align`. For each matrix M in a momentum, a client
    sends the r largest singular values with their vectors,

        M  ->  sum_{k <= r} s_k u_k v_k^T

    and the server averages these sums. Parameters travel whole.

    Source: Liu et al. 2025, arXiv:2510.27403, Section 5.2. Checked against the paper's
    text.

    Args:
      lr: Local learning rate, usually 0.01 to 0.1.
      align: Weight of the last round's mean direction, in [0, 1].
      decay: Decoupled weight decay, 0 to 0.01.
      momentum: Momentum of Muon, usually 0.9 to 0.98.
      share: Share that the factors keep, in (0, 1]; 0.05 in the paper.
      share_of: What the share refers to: "memory", the momentum's entries, as in the
        public code and for the upload of the paper's Table 7; or "rank", as in Section
        5.2.
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.

    Example:
      >>> sizes = {"cohort": 4, "local_steps": 5, "batch_size": 8}
      >>> for algorithm in (fm.fedmuon_align(), fm.fedmuon_svd(share=0.1)):
      ...     simulation = fm.federate(algorithm, task, digits, clients, **sizes)
      ...     print(simulation.meter.bytes_after(1).up)
      9696
      6304

    See also: `fedmuon_align`; `compress` with `truncated_svd` does the same to any
    method.
    """
    algorithm = fedmuon_align(
        lr=lr, align=align, decay=decay, momentum=momentum, polar=polar
    )
    shares = {"memory": memory_share, "rank": rank_share}
    if share_of not in shares:
        raise ValueError(f"share_of must be memory or rank, got {share_of!r}")
    svd = truncated_svd(shares[share_of](share))
    return compress(algorithm, svd, fields=("momentum",))


@core.recorded
def fedmuon_align_reset(
    lr: core.Hyper = 0.03,
    *,
    align: core.Hyper = 0.5,
    decay: core.Hyper = 0.01,
    momentum: core.Hyper = 0.98,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """FedMuon(alignment, own momentum): momenta start anew in every round, as Table 5.

    Source: Liu et al. 2025, arXiv:2510.27403. Checked against the paper's text. The
    same as `fm.fedmuon_align(averaged_state=())`.
    """
    return fedmuon_align(
        lr=lr,
        align=align,
        decay=decay,
        momentum=momentum,
        polar=polar,
        averaged_state=(),
    )


@core.recorded
def fedpac_muon(
    lr: core.Hyper = 0.03,
    *,
    align: core.Hyper = 0.5,
    decay: core.Hyper = 0.01,
    momentum: core.Hyper = 0.95,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """FedPAC(Muon): FedMuon(alignment); the authors' decay has the factor 1 - align.

    Source: Liu et al. 2026, FedPAC, arXiv:2602.19271. Checked against the authors'
    code, from which it departs. The same as `fm.fedmuon_align()` with other defaults.
    """
    return fedmuon_align(
        lr=lr, align=align, decay=decay, momentum=momentum, polar=polar
    )


@core.recorded
def fedpac_soap(
    lr: core.Hyper = 0.003, *, align: core.Hyper = 0.5, decay: core.Hyper = 0.01
) -> core.Algorithm:
    """FedPAC(SOAP): SOAP with averaged g g^T and g^T g, which steps in its first call.

    Source: Liu et al. 2026, FedPAC, arXiv:2602.19271. Checked against the authors'
    code, from which it departs. The same as
    `fm.fedmuon_align(rule=scale_by_soap(first_step=True), averaged_state=("grams",))`.
    """
    rule = transforms.scale_by_soap(first_step=True)
    return fedmuon_align(
        lr=lr, align=align, decay=decay, rule=rule, averaged_state=("grams",)
    )


@core.recorded
def local_sgd_align(
    lr: core.Hyper = 0.1,
    *,
    align: core.Hyper = 0.5,
    momentum: core.Number = 0.9,
    decay: core.Number = 0.0,
) -> core.Algorithm:
    """Local SGD(averaged momentum, alignment): Table 5, which has a decay of 0.001.

    Source: Liu et al. 2025, arXiv:2510.27403. Checked against the paper's text. The
    same as `fm.fedmuon_align(rule=optax.chain(optax.add_decayed_weights(decay),
    heavy_ball(momentum)), decay=0.0)`.

    Args:
      momentum: Weight of the past in the momentum, in [0, 1), usually 0.9.
      decay: Weight decay that is added to the gradient, 0 to 0.001.
    """
    core.check_range("decay", decay, schedules=False)
    rule = optax.chain(
        optax.add_decayed_weights(decay), transforms.heavy_ball(momentum)
    )
    return fedmuon_align(lr=lr, align=align, rule=rule, decay=0.0)


@core.recorded
def local_adamw_align(
    lr: core.Hyper = 0.0005, *, align: core.Hyper = 0.5, decay: core.Hyper = 0.01
) -> core.Algorithm:
    """Local AdamW(averaged momentum, alignment): Table 5; both moments are averaged.

    Source: Liu et al. 2025, arXiv:2510.27403. Checked against the paper's text. The
    same as `fm.fedmuon_align(rule=optax.scale_by_adam(), averaged_state=("mu", "nu"))`.
    """
    # With a second moment that is reset too, an averaged first moment is divided by a
    # single gradient's size, and it diverges.
    rule = optax.scale_by_adam()
    return fedmuon_align(
        lr=lr, align=align, decay=decay, rule=rule, averaged_state=("mu", "nu")
    )
