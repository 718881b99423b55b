"""FedMuon (Liu et al.): momentum aggregation, and alignment with the mean direction.

arXiv:2510.27403, Algorithm 2. From the broadcast (x, m, delta), for each batch s

    u = rule(grad_i(x_i; s))
    x_i <- x_i - lr ((1 - align) u + align delta + decay x_i)

then delta <- mean_i (x - x_i) / (K lr) and x <- mean_i x_i. The fields of the rule's
state that are named in `averaged_state` start from the clients' mean of the last round
(m); the rest is reset. `averaged_state=()` is the paper's ablation without momentum
aggregation. Without alignment, the algorithm is `fedavg` with the same
`averaged_state`.

There are exactly K local steps from the broadcast x. The paper's loop counts from 1 and
uploads the iterate before the last.
"""

from typing import Any, Literal, NamedTuple

import optax

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    after_change,
    broadcast_state,
    check_range,
    local_steps,
    mean_direction,
    no_client_state,
    recorded,
    tree,
    value_at,
)
from fedjax_muon.transforms import Polar, default_rule, muon
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


@recorded
def fedmuon_align(
    lr: Hyper = 0.03,
    *,
    align: Hyper = 0.5,
    decay: Hyper = 0.01,
    momentum: Hyper = 0.98,
    rule: optax.GradientTransformation | None = None,
    polar: Polar | None = None,
    averaged_state: tuple[str, ...] = ("trace",),
) -> Algorithm:
    """FedMuon with local-global alignment.

    Args:
      align: Weight of the last round's mean direction, alpha in the paper.
      decay: Decoupled weight decay, lambda in the paper.
      momentum: Momentum of the default rule; has no effect if `rule` is given.
      rule: Local rule of the gradient, without a learning rate; Muon by default.
      polar: Polar factor of matrices in the default rule.
      averaged_state: Names of the fields of the rule's state that the server averages,
        such as "momentum" or, for Adam, ("mu", "nu").
    """
    check_range("lr", lr)
    check_range("align", align, 0.0, 1.0)
    check_range("decay", decay)
    rule = default_rule(rule, polar, lambda polar: muon(momentum, polar=polar))

    def init(params):
        momentum = tree.pick(rule.init(params), averaged_state)
        return State(params, momentum, tree.zeros_like(params))

    def client(objective, broadcast, client_state, batches, round):
        start, momentum, delta = broadcast
        a, wd = value_at(align, round), value_at(decay, round)

        def step(now, batch, key):
            x, opt = now
            u, opt = rule.update(objective.grad(x, batch, key), opt, x)
            d = tree.add_scaled(tree.mix(u, a, delta), wd, x)
            return (
                objective.project(tree.sub_scaled(x, value_at(lr, round), d)),
                opt,
            ), ()

        now = start, tree.put(rule.init(start), averaged_state, momentum)
        (x, opt), _ = local_steps(step, now, batches, round)
        return Message(tree.sub(x, start), tree.pick(opt, averaged_state)), client_state

    def server(state, mean, round):
        dx, momentum = mean
        return State(
            params=tree.add(state.params, dx),
            momentum=momentum,
            delta=mean_direction(lr, round, dx, state.delta),
        )

    main = Exchange(broadcast_state, client, server, local_params=after_change)
    return Algorithm(init, no_client_state, (main,))


@recorded
def fedmuon_svd(
    lr: Hyper = 0.03,
    *,
    align: Hyper = 0.5,
    decay: Hyper = 0.01,
    momentum: Hyper = 0.98,
    share: float = 0.05,
    share_of: Literal["memory", "rank"] = "memory",
    polar: Polar | None = None,
) -> Algorithm:
    """FedMuon that sends momenta as a truncated singular value decomposition.

    Liu et al. 2025, arXiv:2510.27403, Section 5.2.

    Args:
      share: Share that the factors keep, in (0, 1].
      share_of: What the share refers to: "memory", the momentum's entries, as in the
        public code and for the upload of the paper's Table 7; or "rank", as in Section
        5.2.
    """
    algorithm = fedmuon_align(
        lr=lr, align=align, decay=decay, momentum=momentum, polar=polar
    )
    shares = {"memory": memory_share, "rank": rank_share}
    if share_of not in shares:
        raise ValueError(f"share_of must be memory or rank, got {share_of!r}")
    svd = truncated_svd(shares[share_of](share))
    return compress(algorithm, svd, fields=("momentum",))
