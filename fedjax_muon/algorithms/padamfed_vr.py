"""PAdaMFed-VR: normalized steps and variance reduction."""

from typing import Any, NamedTuple

import optax

from fedjax_muon import core
from fedjax_muon.core import tree
from fedjax_muon.transforms import normalize


class State(NamedTuple):
    params: Any
    previous: Any  # x_
    control: Any  # c
    momentum: Any  # g


class Broadcast(NamedTuple):
    params: Any
    previous: Any
    direction: Any  # h


class Message(NamedTuple):
    params: Any  # x_i - x
    control: Any  # change of c_i
    direction: Any  # mean of d


@core.recorded
def padamfed_vr(
    lr: core.Hyper = 0.01,
    *,
    server_lr: core.Hyper = 1.0,
    momentum: core.Hyper = core.after_first(0.9),
    rule: optax.GradientTransformation = normalize(),
) -> core.Algorithm:
    """PAdaMFed-VR: normalized steps with control variates and variance reduction.

    With x_ the server's previous iterate and h = (1 - momentum) c + momentum g, for
    each batch s

        d = grad_i(x_i; s) - (1 - momentum) c_i + h - momentum grad_i(x_; s)
        x_i <- x_i - lr d / |d|

    then c_i <- mean_k grad_i and g <- mean of all local d. All weights must be equal.

    Source: Yan et al. 2025, Problem-Parameter-Free Federated Learning, ICLR. Not
    verified. It departs from public code, whose formula for the server omits the second
    gradient; the mean of d is an additional message here.

    Args:
      lr: Local learning rate, the length of every local move, 0.001 to 0.1.
      server_lr: Server learning rate, usually 1, which is plain averaging.
      momentum: Weight of the past, 0.5 to 0.9; by default 0 in round 0, which has no
        past, and then 0.9.
      rule: Local rule of the direction d, without a learning rate; it divides the whole
        model's direction by its norm by default.

    Example:
      >>> matrices = fm.transforms.unit_directions()  # a unit step for every matrix
      >>> algorithm = fm.padamfed_vr(lr=0.01, rule=matrices)

    See also: `padamfed` takes one gradient per step, `scaffold_vr` does not normalize.
    """
    core.check_range("lr", lr)
    core.check_range("server_lr", server_lr)
    core.check_range("momentum", momentum, 0.0, 1.0)

    def init(params):
        zeros = tree.zeros_like(params)
        return State(params, params, zeros, zeros)

    def send(state, round):
        h = tree.mix(state.control, core.value_at(momentum, round), state.momentum)
        return Broadcast(state.params, state.previous, h)

    def client(objective, broadcast, control, batches, round):
        start, previous, h = broadcast
        b = core.value_at(momentum, round)

        def step(carry, batch, key):
            x, opt = carry
            new = objective.grad(x, batch, key)
            old = objective.grad(previous, batch, key)
            d = tree.sub(tree.add(new, h), tree.mix(control, b, old))
            return core.move(objective, x, core.value_at(lr, round), rule, opt, d), (
                new,
                d,
            )

        carry = start, rule.init(start)
        (x, _), (seen, d) = core.local_steps(step, carry, batches, round)
        return Message(tree.sub(x, start), tree.sub(seen, control), d), seen

    def server(state, mean, round):
        dx, dc, d = mean
        return State(
            params=tree.add_scaled(state.params, core.value_at(server_lr, round), dx),
            previous=state.params,
            control=tree.add_scaled(state.control, round.fraction, dc),
            momentum=d,
        )

    main = core.Exchange(send, client, server)
    return core.Algorithm(init, tree.zeros_like, (main,), uniform_weights=True)
