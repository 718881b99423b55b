"""FedAvg and FedOpt, and methods that differ only in their rules."""

from typing import Any, NamedTuple

import optax

from fedjax_muon import core, transforms
from fedjax_muon.core import tree
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


@core.recorded
def fedavg(
    lr: core.Hyper = 0.1,
    *,
    rule: optax.GradientTransformation = optax.identity(),
    averaged_state: tuple[str, ...] = (),
    server_lr: core.Hyper = 1.0,
    server_rule: optax.GradientTransformation = optax.identity(),
) -> core.Algorithm:
    """FedAvg and FedOpt: local steps by any rule, and a server step along their mean.

    From the broadcast x, client i repeats for each of its batches s

        x_i <- x_i - lr rule(grad_i(x_i; s))

    and the server follows the pseudo-gradient g = mean_i (x - x_i):

        x <- x - server_lr server_rule(g)

    The local rule's fields named in `averaged_state` start from the clients' mean in
    the last round; its other fields start anew.

    Source: McMahan et al. 2017, arXiv:1602.05629. Checked against independent code. It
    departs in the weights: means are uniform unless `federate` gets
    `weighting=by_examples`.

    Args:
      lr: Local learning rate: 0.01 to 1 for SGD, 0.001 to 0.01 if `rule` is Adam, and
        0.01 to 0.1 if it is Muon.
      rule: Local rule, without a learning rate; SGD by default.
      averaged_state: Names of the rule's fields that the server averages, such as
        "trace" of a momentum or ("mu", "nu") of Adam; () averages none.
      server_lr: Server learning rate: 1 is plain averaging; 0.001 to 0.1 if
        `server_rule` normalizes the step.
      server_rule: Rule applied to the pseudo-gradient, without a learning rate; its
        state stays at the server.

    Example:
      >>> muon = fm.transforms.muon(0.95)
      >>> at_clients = fm.fedavg(lr=0.03, rule=muon)
      >>> at_server = fm.fedavg(lr=0.1, server_lr=0.03, server_rule=muon)
      >>> averaged = fm.fedavg(lr=0.03, rule=muon, averaged_state=("trace",))

    See also: `local_muon`, `fedadam` and `local_sgdm`, which fix the rules; `fedprox`
    and `scaffold` against client drift; `diloco` keeps the rule's state at clients.
    """
    core.check_range("lr", lr)
    core.check_range("server_lr", server_lr)

    def init(params):
        averaged = tree.pick(rule.init(params), averaged_state)
        return State(params, averaged, server_rule.init(params))

    def client(objective, broadcast, client_state, batches, round):
        start, averaged = broadcast

        def step(now, batch, key):
            x, opt = now
            g = objective.grad(x, batch, key)
            return core.move(objective, x, core.value_at(lr, round), rule, opt, g), ()

        now = start, tree.put(rule.init(start), averaged_state, averaged)
        (x, opt), _ = core.local_steps(step, now, batches, round)
        return Message(tree.sub(start, x), tree.pick(opt, averaged_state)), client_state

    def server(state, mean, round):
        g, averaged = mean
        x, opt = core.descend(
            state.params, core.value_at(server_lr, round), server_rule, state.opt, g
        )
        return State(x, averaged, opt)

    send = lambda state, round: Broadcast(state.params, state.averaged)
    main = core.Exchange(send, client, server, local_params=core.before_change)
    return core.Algorithm(init, core.no_client_state, (main,))


@core.recorded
def local_adamw(
    lr: core.Hyper = 0.0005, *, decay: core.Number = 0.01
) -> core.Algorithm:
    """Local AdamW: local Adam with decoupled weight decay, reset every round.

    Equal to `fedavg` with the rule u = adam(grad_i(x_i; s)) + decay x_i:

        x_i <- x_i - lr u,    then    x <- mean_i x_i

    Adam uses optax's decays, 0.9 and 0.999.

    Source: Liu et al. 2025, arXiv:2510.27403, as a baseline. Checked against the
    authors' code, from which it departs: that code clips gradients at 10.

    Args:
      lr: Local learning rate, usually 0.0003 to 0.01.
      decay: Decoupled weight decay, 0 to 0.1.

    Example:
      >>> schedule = optax.cosine_decay_schedule(0.003, 100)  # over rounds
      >>> algorithm = fm.local_adamw(lr=schedule, decay=0.1)

    See also: `fedadamw` averages second moments, `fedadam` runs Adam at the server.
    """
    core.check_range("decay", decay, schedules=False)
    rule = optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(decay))
    return fedavg(lr=lr, rule=rule)


@core.recorded
def local_sgdm(lr: core.Hyper = 0.01, *, momentum: core.Number = 0.9) -> core.Algorithm:
    """LocalSGDM: local SGD with momenta that the server averages.

    From the broadcast (x, m), client i repeats for each of its batches s

        m_i <- momentum m_i + grad_i(x_i; s);    x_i <- x_i - lr m_i

    and the server averages both.

    Source: Yu et al. 2019, ICML, arXiv:1905.03817. Checked against independent code.

    Args:
      lr: Local learning rate, usually 0.003 to 0.1: a momentum of 0.9 makes steps ten
        times as long.
      momentum: Weight of the past in the momentum, in [0, 1), usually 0.9.

    Example:
      >>> sizes = {"cohort": 4, "local_steps": 5, "batch_size": 8}
      >>> simulation = fm.federate(fm.local_sgdm(), task, digits, clients, **sizes)
      >>> simulation.meter.bytes_after(1)  # twice as much as with `fedavg`
      Traffic(down=9920, up=9920)

    See also: `fedavg_momentum` resets momenta, `fedmuon` orthogonalizes the averaged
    one.
    """
    return fedavg(
        lr=lr, rule=transforms.heavy_ball(momentum), averaged_state=("trace",)
    )


@core.recorded
def fedadam(lr: core.Hyper = 0.1, *, server_lr: core.Hyper = 0.01) -> core.Algorithm:
    """FedAdam: local SGD, and Adam without bias correction at the server.

    With the pseudo-gradient g = mean_i (x - x_i), the server updates

        m <- 0.9 m + 0.1 g;    v <- 0.99 v + 0.01 g^2
        x <- x - server_lr m / (sqrt(v) + 0.001)

    Source: Reddi et al. 2021, ICLR, arXiv:2003.00295, Algorithm 2. Checked against
    independent code.

    Args:
      lr: Local learning rate of SGD, 0.01 to 1.
      server_lr: Learning rate of the server's Adam, 0.001 to 0.1.

    Example:
      >>> own = fm.transforms.scale_by_fedadam(b2=0.999, tau=1e-4)
      >>> algorithm = fm.fedavg(lr=0.1, server_lr=0.01, server_rule=own)

    See also: `fedyogi`, `fedadagrad` and `fadas` for other server rules; `fedavg_adam`
    runs Adam at the clients.
    """
    return fedavg(lr=lr, server_lr=server_lr, server_rule=transforms.scale_by_fedadam())


@core.recorded
def fedyogi(lr: core.Hyper = 0.1, *, server_lr: core.Hyper = 0.01) -> core.Algorithm:
    """FedYogi: local SGD, and Yogi at the server.

    The second moment moves by an amount that does not depend on its size:

        v <- v - 0.01 g^2 sign(v - g^2)

    with the pseudo-gradient g = mean_i (x - x_i). The rest equals `fedadam`.

    Source: Reddi et al. 2021, ICLR, arXiv:2003.00295, Algorithm 2. Checked against
    independent code.

    Args:
      lr: Local learning rate of SGD, 0.01 to 1.
      server_lr: Learning rate of the server's Yogi, 0.001 to 0.1.

    Example:
      >>> sizes = {"cohort": fm.buffered(3, 2), "local_steps": 5, "batch_size": 8}
      >>> yogi = fm.fedyogi(lr=0.1, server_lr=0.03)  # a server step per two messages
      >>> simulation = fm.federate(yogi, task, digits, clients, **sizes)

    See also: `fedadam` and `fedadagrad`.
    """
    return fedavg(lr=lr, server_lr=server_lr, server_rule=transforms.scale_by_fedyogi())


@core.recorded
def fedadagrad(lr: core.Hyper = 0.1, *, server_lr: core.Hyper = 0.01) -> core.Algorithm:
    """FedAdagrad: local SGD, and Adagrad at the server.

    The second moment adds up the squares of the pseudo-gradients g = mean_i (x - x_i):

        v <- v + g^2;    x <- x - server_lr g / (sqrt(v) + 0.001)

    so that server steps become shorter without a schedule.

    Source: Reddi et al. 2021, ICLR, arXiv:2003.00295, Algorithm 2. Checked against
    independent code.

    Args:
      lr: Local learning rate of SGD, 0.01 to 1.
      server_lr: Learning rate of the server's Adagrad, 0.01 to 1.

    Example:
      >>> local = optax.exponential_decay(0.3, 50, 0.5)  # halves every 50 rounds
      >>> fm.fedadagrad(lr=local, server_lr=0.1)
      fedadagrad(lr=exponential_decay, server_lr=0.1)

    See also: `fedadam` and `fedyogi`.
    """
    return fedavg(
        lr=lr, server_lr=server_lr, server_rule=transforms.scale_by_fedadagrad()
    )


def decayed_muon(
    momentum: core.Hyper, decay: core.Number, polar: transforms.Polar | None
) -> optax.GradientTransformation:
    """Muon with decoupled weight decay.

    Args:
      momentum: Weight of the past in the momentum, in [0, 1), usually 0.9 to 0.98.
      decay: Decoupled weight decay, relative to `lr`, 0 to 0.01.
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.
    """
    core.check_range("decay", decay, schedules=False)
    rule = transforms.muon(momentum, polar=polar)
    return optax.chain(rule, optax.add_decayed_weights(decay))


@core.recorded
def local_muon(
    lr: core.Hyper = 0.03,
    *,
    momentum: core.Hyper = 0.98,
    decay: core.Number = 0.01,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """Local Muon: momenta start at zero in every round.

    From the broadcast x and M = 0, client i repeats for each of its batches s

        M <- momentum M + grad_i(x_i; s)
        x_i <- x_i - lr (orth(M) + decay x_i)

    then x <- mean_i x_i. Leaves that are not matrices use Adam instead of orth.

    Source: Liu et al. 2025, arXiv:2510.27403. Checked against the paper's text.

    Args:
      lr: Local learning rate, usually 0.01 to 0.1.
      momentum: Weight of the past in the momentum, in [0, 1), usually 0.9 to 0.98.
      decay: Decoupled weight decay, relative to `lr`, 0 to 0.01.
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.

    Example:
      >>> normuon = fm.transforms.by_rank(fm.transforms.scale_by_normuon())
      >>> algorithm = fm.fedavg(lr=0.03, rule=normuon)  # another variant of Muon

    See also: `local_muon_averaged` averages momenta, `fedmuon_align` adds alignment,
    `local_muon_persistent` and `muloco` keep momenta at clients.
    """
    return fedavg(lr=lr, rule=decayed_muon(momentum, decay, polar))


@core.recorded
def dp_fedmuon(
    lr: core.Hyper = 0.1,
    *,
    server_lr: core.Hyper = 0.1,
    momentum: core.Hyper = 0.9,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """DP-FedMuon: FedAvg with Muon at the server, for client-level privacy.

    Clients send x_i - x after local SGD, `federate` clips it and adds noise, and the
    server follows the noisy mean g = mean_i (x - x_i):

        M <- momentum M + g;    x <- x - server_lr orth(M)

    Messages contain only parameters, so that no noise is spent on a momentum.

    Source: Defined here: DP-FedAvg, McMahan et al. 2018, arXiv:1710.06963, with Muon as
    the server's rule.

    Args:
      lr: Local learning rate of SGD, 0.01 to 1.
      server_lr: Learning rate of the server's Muon, 0.01 to 0.1.
      momentum: Weight of the past in the server's momentum, in [0, 1), usually 0.9.
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.

    Example:
      >>> bounds = {"clip_norm": 0.3, "cohort": 4, "rounds": 100, "delta": 0.01}
      >>> privacy = fm.privacy.ClientPrivacy(**bounds, noise_multiplier=0.1)
      >>> sizes = {"local_steps": 5, "batch_size": 8, "privacy": privacy}
      >>> simulation = fm.federate(fm.dp_fedmuon(), task, digits, clients, **sizes)

    See also: `privacy.ClientPrivacy`; `fedavg` with `server_rule`.
    """
    rule = transforms.muon(momentum, polar=polar)
    return fedavg(lr=lr, server_lr=server_lr, server_rule=rule)


@core.recorded
def muonh(
    lr: core.Hyper = 0.018,
    *,
    momentum: core.Hyper = 0.95,
    nesterov: bool = True,
    rest: optax.GradientTransformation = optax.scale_by_adam(0.8, 0.95, 1e-10),
    polar: transforms.Polar | None = None,
    layout: Layout = transforms.hidden_matrices,
) -> core.Algorithm:
    """MuonH: local Muon whose matrices keep their norms, instead of a weight decay.

    With R = |W| at the start and N(v) = v / |v|, a local step of a matrix is

        W_i <- R N(W_i - lr R N(orth(M)))

    and the server projects the mean to the same norm. Momenta start at zero in every
    round.

    Source: Defined here: Hyperball, Wen et al. 2026, arXiv:2606.16899, as the local
    rule of FedAvg. The rule was checked against the authors' code.

    Args:
      lr: Approximate angle in radians by which a local step turns a matrix, 0.003 to
        0.1; also the learning rate of other parameters.
      momentum: Weight of the past in the momentum, in [0, 1), usually 0.9 to 0.98.
      nesterov: Whether Muon looks ahead.
      rest: Rule of the other parameters, without a learning rate; Adam by default.
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.
      layout: Which leaves are matrices; none of them may be 0 at the start.

    Example:
      >>> rest = optax.scale_by_adam(0.9, 0.95)
      >>> algorithm = fm.muonh(lr=0.02, nesterov=False, rest=rest)

    See also: `local_muon` decays weights; `transforms.hyperball` and `keep_norms`, its
    parts.
    """
    rule = transforms.muon(
        momentum, nesterov=nesterov, polar=polar, rest=rest, layout=layout
    )
    rule = optax.chain(rule, transforms.hyperball(layout))
    return keep_norms(fedavg(lr=lr, rule=rule), layout)


@core.recorded
def fedavg_momentum(
    lr: core.Hyper = 0.1, *, momentum: core.Number = 0.9
) -> core.Algorithm:
    """FedAvg(momentum): local SGD with momentum that is reset every round.

    Source: Takezawa et al. 2026, ICLR, arXiv:2509.26337. Checked against the paper's
    text. The same as `fm.fedavg(rule=heavy_ball(momentum))`.

    Args:
      momentum: Weight of the past in the momentum, in [0, 1), usually 0.9.
    """
    return fedavg(lr=lr, rule=transforms.heavy_ball(momentum))


@core.recorded
def fedavg_server_momentum(
    lr: core.Hyper = 0.1, *, server_lr: core.Hyper = 1.0, momentum: core.Number = 0.9
) -> core.Algorithm:
    """FedAvg(server momentum): FedAvgM, heavy-ball momentum at the server.

    Source: Hsu et al. 2019, arXiv:1909.06335. Checked against independent code. The
    same as `fm.fedavg(server_rule=heavy_ball(momentum))`.

    Args:
      momentum: Weight of the past in the momentum, in [0, 1), usually 0.9.
    """
    return fedavg(
        lr=lr, server_lr=server_lr, server_rule=transforms.heavy_ball(momentum)
    )


@core.recorded
def fedavg_adam(lr: core.Hyper = 0.001) -> core.Algorithm:
    """FedAvg(Adam): local Adam that is reset every round.

    Source: Takezawa et al. 2026, ICLR, arXiv:2509.26337. Checked against the paper's
    text. The same as `fm.fedavg(rule=optax.scale_by_adam())`.
    """
    return fedavg(lr=lr, rule=optax.scale_by_adam())


@core.recorded
def local_soap(lr: core.Hyper = 0.003, *, decay: core.Number = 0.01) -> core.Algorithm:
    """Local SOAP: SOAP that is reset every round; its first call only looks.

    Source: Liu et al. 2026, FedPAC, arXiv:2602.19271. Checked against the authors'
    code. The same as `fm.fedavg(rule=scale_by_soap())` with a weight decay.

    Args:
      decay: Decoupled weight decay, relative to `lr`, 0 to 0.1.
    """
    core.check_range("decay", decay, schedules=False)
    rule = optax.chain(transforms.scale_by_soap(), optax.add_decayed_weights(decay))
    return fedavg(lr=lr, rule=rule)


@core.recorded
def fadas(lr: core.Hyper = 0.1, *, server_lr: core.Hyper = 0.001) -> core.Algorithm:
    """FADAS: AMSGrad at the server, without any bias correction.

    Source: Wang et al. 2024, arXiv:2407.18365. Checked against the authors' code, from
    which it departs. The same as `fm.fedavg(server_rule=scale_by_fadas())`.
    """
    return fedavg(lr=lr, server_lr=server_lr, server_rule=transforms.scale_by_fadas())


@core.recorded
def local_muon_averaged(
    lr: core.Hyper = 0.03,
    *,
    momentum: core.Hyper = 0.98,
    decay: core.Number = 0.01,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """Local Muon(averaged momentum): FedMuon(alignment) without alignment, an ablation.

    Source: Liu et al. 2025, arXiv:2510.27403. Checked against the paper's text. The
    same as `fm.fedavg(rule=decayed_muon(momentum, decay, polar),
    averaged_state=("trace",))`.

    Args:
      momentum: Weight of the past in the momentum, in [0, 1), usually 0.9 to 0.98.
      decay: Decoupled weight decay, relative to `lr`, 0 to 0.01.
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.
    """
    rule = decayed_muon(momentum, decay, polar)
    return fedavg(lr=lr, rule=rule, averaged_state=("trace",))


@core.recorded
def ringmaster_lmo(
    lr: core.Hyper = 1.0,
    *,
    server_lr: core.Hyper = 0.04,
    momentum: core.Number = 0.95,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """Ringmaster LMO: Muon at the server, for single gradients of asynchronous clients.

    Source: Sadiev et al. 2026, arXiv:2605.18174. Checked against the authors' code. The
    same as `fm.fedavg(server_rule=muon(momentum, nesterov=True))`, where other leaves
    than matrices follow the mean gradient, which looks ahead too.

    Args:
      momentum: Weight of the past in the momentum, in [0, 1), usually 0.95.
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.
    """
    ahead = optax.trace(momentum, nesterov=True)  # over 1 - b: b M + (1 - b) g
    rest = optax.chain(ahead, optax.scale(1 - momentum))
    rule = transforms.muon(
        momentum, nesterov=True, polar=polar, shape_scale=transforms.jordan, rest=rest
    )
    return fedavg(lr=lr, server_lr=server_lr, server_rule=rule)


@core.recorded
def adam_biclip(
    lr: core.Hyper = 0.1,
    *,
    server_lr: core.Hyper = 0.01,
    low: core.Number = 1e-5,
    high: core.Number = 0.1,
) -> core.Algorithm:
    """Adam-BiClip: coordinates clipped from both sides, FedAdam at the server.

    Source: Lee, Zaheer and Li 2025, arXiv:2502.04164. Checked against independent code.
    The same as `fm.fedavg(rule=biclip(low, high), server_rule=scale_by_fedadam())`.

    Args:
      low: Smallest magnitude of an entry that is not zero.
      high: Largest magnitude of an entry.
    """
    rule, server_rule = transforms.biclip(low, high), transforms.scale_by_fedadam()
    return fedavg(lr=lr, rule=rule, server_lr=server_lr, server_rule=server_rule)


@core.recorded
def bi2clip(
    lr: core.Hyper = 0.1,
    *,
    server_lr: core.Hyper = 1.0,
    low: core.Number = 1e-5,
    high: core.Number = 0.1,
) -> core.Algorithm:
    """Bi2Clip: coordinates clipped from both sides, at clients and server.

    Source: Lee, Zaheer and Li 2025, arXiv:2502.04164. Checked against independent code.
    The same as `fm.fedavg(rule=biclip(low, high), server_rule=biclip(low, high))`.

    Args:
      low: Smallest magnitude of an entry that is not zero.
      high: Largest magnitude of an entry.
    """
    rule, server_rule = transforms.biclip(low, high), transforms.biclip(low, high)
    return fedavg(lr=lr, rule=rule, server_lr=server_lr, server_rule=server_rule)
