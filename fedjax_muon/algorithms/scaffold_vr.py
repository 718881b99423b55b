"""SCAFFOLD-VR: control variates, server momentum with two gradients on the same batch.

Cheng et al., ICLR 2024, arXiv:2306.16504, written from memory, since the text was not
available. With x_ the server's previous iterate and h = (1 - momentum) c + momentum g,
for each batch s

    d = grad_i(x_i; s) - (1 - momentum) c_i + h - momentum grad_i(x_; s)
    x_i <- x_i - lr d

then c_i <- mean_k grad_i, g <- mean_i (x - x_i) / (K lr), c <- c + (S/N) mean_i (change
of c_i).
"""

from typing import Any, NamedTuple

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    after_first,
    check_range,
    local_steps,
    mean_direction,
    recorded,
    tree,
    value_at,
)


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


@recorded
def scaffold_vr(
    lr: Hyper = 0.003, *, server_lr: Hyper = 1.0, momentum: Hyper = after_first(0.9)
) -> Algorithm:
    """Controlled, variance-reduced averaging; requires uniform weights."""
    check_range("lr", lr)
    check_range("server_lr", server_lr)
    check_range("momentum", momentum, 0.0, 1.0)

    def init(params):
        zeros = tree.zeros_like(params)
        return State(params, params, zeros, zeros)

    def send(state, round):
        h = tree.mix(state.control, value_at(momentum, round), state.momentum)
        return Broadcast(state.params, state.previous, h)

    def client(objective, broadcast, control, batches, round):
        start, previous, h = broadcast
        b = value_at(momentum, round)

        def step(x, batch, key):
            new = objective.grad(x, batch, key)
            old = objective.grad(previous, batch, key)
            d = tree.sub(tree.add(new, h), tree.mix(control, b, old))
            return objective.project(tree.sub_scaled(x, value_at(lr, round), d)), new

        x, seen = local_steps(step, start, batches, round)
        return Message(tree.sub(x, start), tree.sub(seen, control)), seen

    def server(state, mean, round):
        dx, dc = mean
        return State(
            params=tree.add_scaled(state.params, value_at(server_lr, round), dx),
            previous=state.params,
            control=tree.add_scaled(state.control, round.fraction, dc),
            momentum=mean_direction(lr, round, dx, state.momentum),
        )

    main = Exchange(send, client, server)
    return Algorithm(init, tree.zeros_like, (main,), uniform_weights=True)
