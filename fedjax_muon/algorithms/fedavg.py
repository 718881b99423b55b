"""FedAvg and FedOpt: local steps, and a server step along their mean.

McMahan et al. 2017, arXiv:1602.05629; server rules: Reddi et al. 2021,
arXiv:2003.00295. From the broadcast x, client i repeats for each of its batches s

    x_i <- x_i - lr rule(grad_i(x_i; s)),    then    x <- x - server_lr server_rule(g)

with the pseudo-gradient g = mean_i (x - x_i). The fields of the local rule's state that
are named in `averaged_state` start from the clients' mean of the last round (with
`optax.trace`: local momentum SGD, Yu et al. 2019); the rest is reset every round.
Methods that differ only in their rules are below.
"""

from typing import Any, NamedTuple

import optax

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    Number,
    before_change,
    check_range,
    descend,
    local_steps,
    move,
    no_client_state,
    recorded,
    tree,
    value_at,
)
from fedjax_muon.transforms import (
    Polar,
    default_rule,
    hidden_matrices,
    hyperball,
    muon,
    scale_by_fedadagrad,
    scale_by_fedadam,
    scale_by_fedyogi,
)
from fedjax_muon.transforms.layout import Layout
from fedjax_muon.wrappers.spheres import keep_norms


class State(NamedTuple):
    params: Any
    averaged: Any  # the leaves of the local rule's state that are sent
    opt: optax.OptState  # of the server rule


class Broadcast(NamedTuple):
    params: Any
    averaged: Any


class Message(NamedTuple):
    params: Any  # x - x_i, the pseudo-gradient
    averaged: Any


@recorded
def fedavg(
    lr: Hyper = 0.1,
    *,
    rule: optax.GradientTransformation = optax.identity(),
    averaged_state: tuple[str, ...] = (),
    server_lr: Hyper = 1.0,
    server_rule: optax.GradientTransformation = optax.identity(),
) -> Algorithm:
    """Federated averaging with any local rule and any server rule.

    Args:
      lr: Local learning rate.
      rule: Local rule, without a learning rate.
      averaged_state: Names of the fields of the rule's state that the server averages,
        such as "momentum" or, for Adam, ("mu", "nu").
      server_lr: Server learning rate; 1 is plain averaging.
      server_rule: Rule applied to the pseudo-gradient, without a learning rate.
    """
    check_range("lr", lr)
    check_range("server_lr", server_lr)

    def init(params):
        averaged = tree.pick(rule.init(params), averaged_state)
        return State(params, averaged, server_rule.init(params))

    def client(objective, broadcast, client_state, batches, round):
        start, averaged = broadcast

        def step(now, batch, key):
            x, opt = now
            g = objective.grad(x, batch, key)
            return move(objective, x, value_at(lr, round), rule, opt, g), ()

        now = start, tree.put(rule.init(start), averaged_state, averaged)
        (x, opt), _ = local_steps(step, now, batches, round)
        return Message(tree.sub(start, x), tree.pick(opt, averaged_state)), client_state

    def server(state, mean, round):
        g, averaged = mean
        x, opt = descend(
            state.params, value_at(server_lr, round), server_rule, state.opt, g
        )
        return State(x, averaged, opt)

    send = lambda state, round: Broadcast(state.params, state.averaged)
    main = Exchange(send, client, server, local_params=before_change)
    return Algorithm(init, no_client_state, (main,))


@recorded
def local_adamw(lr: Hyper = 0.0005, *, decay: Number = 0.01) -> Algorithm:
    """Local AdamW: local Adam with decoupled weight decay (Liu et al. 2025)."""
    check_range("decay", decay, schedules=False)
    rule = optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(decay))
    return fedavg(lr=lr, rule=rule)


def heavy_ball(momentum: Number = 0.9) -> optax.GradientTransformation:
    """Momentum without dampening."""
    check_range("momentum", momentum, 0.0, 1.0, open_high=True, schedules=False)
    return optax.trace(momentum)


@recorded
def local_sgdm(lr: Hyper = 0.01, *, momentum: Number = 0.9) -> Algorithm:
    """LocalSGDM: local SGD whose momenta the server averages (Yu et al. 2019)."""
    return fedavg(lr=lr, rule=heavy_ball(momentum), averaged_state=("trace",))


@recorded
def fedadam(lr: Hyper = 0.1, *, server_lr: Hyper = 0.01) -> Algorithm:
    """FedAdam: Adam without bias correction at the server."""
    return fedavg(lr=lr, server_lr=server_lr, server_rule=scale_by_fedadam())


@recorded
def fedyogi(lr: Hyper = 0.1, *, server_lr: Hyper = 0.01) -> Algorithm:
    """FedYogi: Yogi at the server."""
    return fedavg(lr=lr, server_lr=server_lr, server_rule=scale_by_fedyogi())


@recorded
def fedadagrad(lr: Hyper = 0.1, *, server_lr: Hyper = 0.01) -> Algorithm:
    """FedAdagrad: Adagrad at the server."""
    return fedavg(lr=lr, server_lr=server_lr, server_rule=scale_by_fedadagrad())


def decayed_muon(
    momentum: Hyper, decay: Number, polar: Polar | None
) -> optax.GradientTransformation:
    """Muon with decoupled weight decay."""
    check_range("decay", decay, schedules=False)
    rule = default_rule(None, polar, lambda polar: muon(momentum, polar=polar))
    return optax.chain(rule, optax.add_decayed_weights(decay))


@recorded
def local_muon(
    lr: Hyper = 0.03,
    *,
    momentum: Hyper = 0.98,
    decay: Number = 0.01,
    polar: Polar | None = None,
) -> Algorithm:
    """Local Muon: momenta that are reset every round (Liu et al. 2025).

    Args:
      decay: Decoupled weight decay, relative to `lr`.
    """
    return fedavg(lr=lr, rule=decayed_muon(momentum, decay, polar))


@recorded
def dp_fedmuon(
    lr: Hyper = 0.1,
    *,
    server_lr: Hyper = 0.1,
    momentum: Hyper = 0.9,
    polar: Polar | None = None,
) -> Algorithm:
    """DP-FedMuon: FedAvg with Muon at the server, for `federate(..., privacy=)`.

    Messages contain only parameters, so that no noise is spent on a momentum.
    """
    rule = default_rule(None, polar, lambda polar: muon(momentum, polar=polar))
    return fedavg(lr=lr, server_lr=server_lr, server_rule=rule)


@recorded
def muonh(
    lr: Hyper = 0.018,
    *,
    momentum: Hyper = 0.95,
    nesterov: bool = True,
    rest: optax.GradientTransformation = optax.scale_by_adam(0.8, 0.95, 1e-10),
    polar: Polar | None = None,
    layout: Layout = hidden_matrices,
) -> Algorithm:
    """MuonH: local Muon whose matrices keep their norms, instead of a weight decay.

    Hyperball, Wen et al. 2026, arXiv:2606.16899, as the local rule of FedAvg, whose
    server projects the mean. Momenta are reset every round. The rule was checked
    against the authors' code.

    Args:
      lr: About the angle that a local step turns a matrix by; also the learning rate of
        the other parameters.
      nesterov: Whether Muon looks ahead.
      rest: Rule of the other parameters, without a learning rate.
      layout: Which leaves are matrices; none of them may be 0 at the start.
    """
    options: dict[str, Any] = {"nesterov": nesterov, "rest": rest, "layout": layout}
    make = lambda polar: muon(momentum, polar=polar, **options)
    rule = optax.chain(default_rule(None, polar, make), hyperball(layout))
    return keep_norms(fedavg(lr=lr, rule=rule), layout)
