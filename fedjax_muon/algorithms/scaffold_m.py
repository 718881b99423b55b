"""SCAFFOLD-M and PAdaMFed: control variates and server momentum."""

from typing import Any, NamedTuple

import optax

from fedjax_muon import core
from fedjax_muon.core import tree
from fedjax_muon.transforms import normalize


class State(NamedTuple):
    params: Any
    control: Any  # c
    momentum: Any  # g


class Broadcast(NamedTuple):
    params: Any
    direction: Any  # h


class Message(NamedTuple):
    params: Any  # x_i - x
    control: Any  # change of c_i


@core.recorded
def scaffold_m(
    lr: core.Hyper = 0.1,
    *,
    server_lr: core.Hyper = 1.0,
    momentum: core.Hyper = core.after_first(0.9),
    rule: optax.GradientTransformation = optax.identity(),
) -> core.Algorithm:
    """SCAFFOLD-M: control variates and server momentum.

    From the broadcast (x, h) with h = (1 - momentum) c + momentum g, for each batch s

        d = (1 - momentum) (grad_i(x_i; s) - c_i) + h;    x_i <- x_i - lr rule(d)

    then c_i <- mean_k grad_i, and

        g <- (1 - momentum) (c + mean_i (change of c_i)) + momentum g
        c <- c + (S/N) mean_i (change of c_i),    x <- x + server_lr mean_i (x_i - x)

    so that g is the mean of all local d. All weights must be equal.

    Source: Cheng et al. 2024, ICLR, arXiv:2306.16504. Not verified: it was written from
    memory, since the text was not available.

    Args:
      lr: Local learning rate: 0.01 to 1 for SGD, 0.001 to 0.1 if `rule` normalizes.
      server_lr: Server learning rate, usually 1, which is plain averaging.
      momentum: Weight of the past, 0.5 to 0.9; by default 0 in round 0, which has no
        past, and then 0.9.
      rule: Local rule of the direction, without a learning rate;
        `transforms.normalize()` makes PAdaMFed (Yan et al. 2025).

    Example:
      >>> unit = fm.transforms.normalize()  # every local step has the length lr
      >>> algorithm = fm.scaffold_m(lr=0.01, rule=unit)
      >>> algorithm.uniform_weights
      True

    See also: `padamfed`, `scaffold`, `scaffold_vr`, and `minimax.fedmuon_da`.
    """
    core.check_range("lr", lr)
    core.check_range("server_lr", server_lr)
    core.check_range("momentum", momentum, 0.0, 1.0)

    def init(params):
        return State(params, tree.zeros_like(params), tree.zeros_like(params))

    def send(state, round):
        h = tree.mix(state.control, core.value_at(momentum, round), state.momentum)
        return Broadcast(state.params, h)

    def client(objective, broadcast, control, batches, round):
        start, h = broadcast
        weight = tree.map(lambda b: 1 - b, core.value_at(momentum, round))

        def step(carry, batch, key):
            x, opt = carry
            g = objective.grad(x, batch, key)
            d = tree.add_scaled(h, weight, tree.sub(g, control))
            return core.move(objective, x, core.value_at(lr, round), rule, opt, d), g

        carry = start, rule.init(start)
        (x, _), seen = core.local_steps(step, carry, batches, round)
        return Message(tree.sub(x, start), tree.sub(seen, control)), seen

    def server(state, mean, round):
        dx, dc = mean
        new = tree.add(state.control, dc)
        return State(
            params=tree.add_scaled(state.params, core.value_at(server_lr, round), dx),
            control=tree.add_scaled(state.control, round.fraction, dc),
            momentum=tree.mix(new, core.value_at(momentum, round), state.momentum),
        )

    main = core.Exchange(send, client, server)
    return core.Algorithm(init, tree.zeros_like, (main,), uniform_weights=True)


@core.recorded
def padamfed(
    lr: core.Hyper = 0.01,
    *,
    server_lr: core.Hyper = 1.0,
    momentum: core.Hyper = core.after_first(0.9),
) -> core.Algorithm:
    """PAdaMFed: SCAFFOLD-M with local steps of the length `lr`.

    Source: Yan et al. 2025, Problem-Parameter-Free Federated Learning, ICLR. Checked
    against independent code. The same as `fm.scaffold_m(rule=normalize())` with other
    defaults.
    """
    return scaffold_m(lr=lr, server_lr=server_lr, momentum=momentum, rule=normalize())
