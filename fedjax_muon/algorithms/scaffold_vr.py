"""SCAFFOLD-VR: control variates and variance reduction."""

from typing import Any, NamedTuple

from fedjax_muon import core
from fedjax_muon.core import tree


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


@core.recorded
def scaffold_vr(
    lr: core.Hyper = 0.003,
    *,
    server_lr: core.Hyper = 1.0,
    momentum: core.Hyper = core.after_first(0.9),
) -> core.Algorithm:
    """SCAFFOLD-VR: control variates, and server momentum with two gradients on a batch.

    With x_ the server's previous iterate and h = (1 - momentum) c + momentum g, for
    each batch s

        d = grad_i(x_i; s) - (1 - momentum) c_i + h - momentum grad_i(x_; s)
        x_i <- x_i - lr d

    then c_i <- mean_k grad_i, g <- mean_i (x - x_i) / (K lr), c <- c + (S/N) mean_i
    (change of c_i) and x <- x + server_lr mean_i (x_i - x). All weights must be equal.

    Source: Cheng et al. 2024, ICLR, arXiv:2306.16504. Not verified: it was written from
    memory, since the text was not available.

    Args:
      lr: Local learning rate, 0.001 to 0.1; at FedAvg's rates it can be unstable.
      server_lr: Server learning rate, usually 1, which is plain averaging.
      momentum: Weight of the past, 0.5 to 0.9; by default 0 in round 0, which has no
        past, and then 0.9.

    Example:
      >>> sizes = {"cohort": 4, "local_steps": 5, "batch_size": 8}
      >>> simulation = fm.federate(fm.scaffold_vr(), task, digits, clients, **sizes)
      >>> simulation.meter.bytes_after(1)  # three models down, two up
      Traffic(down=14880, up=9920)

    See also: `scaffold_m`, `fedavg_vr` without control variates, `padamfed_vr` with
    normalized steps.
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

        def step(x, batch, key):
            new = objective.grad(x, batch, key)
            old = objective.grad(previous, batch, key)
            d = tree.sub(tree.add(new, h), tree.mix(control, b, old))
            return objective.project(
                tree.sub_scaled(x, core.value_at(lr, round), d)
            ), new

        x, seen = core.local_steps(step, start, batches, round)
        return Message(tree.sub(x, start), tree.sub(seen, control)), seen

    def server(state, mean, round):
        dx, dc = mean
        return State(
            params=tree.add_scaled(state.params, core.value_at(server_lr, round), dx),
            previous=state.params,
            control=tree.add_scaled(state.control, round.fraction, dc),
            momentum=core.mean_direction(lr, round, dx, state.momentum),
        )

    main = core.Exchange(send, client, server)
    return core.Algorithm(init, tree.zeros_like, (main,), uniform_weights=True)
