"""SCAFFOLD: control variates against client drift."""

from typing import Any, NamedTuple

import optax

from fedjax_muon import core
from fedjax_muon.core import tree
from fedjax_muon.transforms import heavy_ball


class State(NamedTuple):
    params: Any
    control: Any  # c: the mean of all clients' controls


@core.recorded
def scaffold(
    lr: core.Hyper = 0.01,
    *,
    server_lr: core.Hyper = 1.0,
    rule: optax.GradientTransformation = optax.identity(),
) -> core.Algorithm:
    """SCAFFOLD: control variates correct every local gradient against client drift.

    Client i keeps c_i, its mean gradient when it last took part, and c is the mean of
    all c_i. From the broadcast (x, c), for each batch s

        x_i <- x_i - lr rule(grad_i(x_i; s) - c_i + c)

    then c_i <- mean_k grad_i, x <- x + server_lr mean_i (x_i - x), and c <- c + (S/N)
    mean_i (change of c_i) with S clients of N. All weights must be equal.

    Source: Karimireddy et al. 2020, ICML, arXiv:1910.06378, Algorithm 1. Checked
    against independent code. With the identity as rule, the new c_i is the paper's
    Option II; it departs for other rules, under which c_i stays a mean of gradients.

    Args:
      lr: Local learning rate: 0.01 to 1 for SGD, 0.001 to 0.01 if `rule` is Adam, and
        0.01 to 0.1 if it is Muon.
      server_lr: Server learning rate, usually 1, which is plain averaging.
      rule: Local rule applied to the corrected gradient, without a learning rate.

    Example:
      >>> muon = fm.transforms.muon(0.9)
      >>> sizes = {"cohort": 2, "local_steps": 5, "batch_size": 8}
      >>> simulation = fm.federate(
      ...     fm.scaffold(lr=0.03, rule=muon), task, digits, clients, **sizes
      ... )
      >>> simulation.meter.bytes_after(1).up  # parameters and controls of two clients
      4960

    See also: `scaffold_m` adds a server momentum, `feddyn` sends half as much,
    `fedmuon_correct` corrects momenta.
    """
    core.check_range("lr", lr)
    core.check_range("server_lr", server_lr)

    def init(params):
        return State(params, tree.zeros_like(params))

    def client(objective, broadcast, control, batches, round):
        def step(carry, batch, key):
            x, opt = carry
            g = objective.grad(x, batch, key)
            d = tree.map(lambda g, ci, c: g - ci + c, g, control, broadcast.control)
            return core.move(objective, x, core.value_at(lr, round), rule, opt, d), g

        carry = broadcast.params, rule.init(broadcast.params)
        (x, _), seen = core.local_steps(step, carry, batches, round)
        return State(tree.sub(x, broadcast.params), tree.sub(seen, control)), seen

    def server(state, mean, round):
        return State(
            params=tree.add_scaled(
                state.params, core.value_at(server_lr, round), mean.params
            ),
            control=tree.add_scaled(state.control, round.fraction, mean.control),
        )

    main = core.Exchange(core.broadcast_state, client, server)
    return core.Algorithm(init, tree.zeros_like, (main,), uniform_weights=True)


@core.recorded
def scaffold_momentum(
    lr: core.Hyper = 0.01, *, server_lr: core.Hyper = 1.0, momentum: core.Number = 0.9
) -> core.Algorithm:
    """SCAFFOLD(momentum): momentum of the corrected gradient, reset every round.

    Source: Takezawa et al. 2026, ICLR, arXiv:2509.26337. Checked against the paper's
    text. The same as `fm.scaffold(rule=heavy_ball(momentum))`.

    Args:
      momentum: Weight of the past in the momentum, in [0, 1), usually 0.9.
    """
    return scaffold(lr=lr, server_lr=server_lr, rule=heavy_ball(momentum))


@core.recorded
def scaffold_adam(
    lr: core.Hyper = 0.001, *, server_lr: core.Hyper = 1.0
) -> core.Algorithm:
    """SCAFFOLD(Adam): Adam on the corrected gradient, reset every round.

    Source: Takezawa et al. 2026, ICLR, arXiv:2509.26337. Checked against the paper's
    text. The same as `fm.scaffold(rule=optax.scale_by_adam())`.
    """
    return scaffold(lr=lr, server_lr=server_lr, rule=optax.scale_by_adam())
