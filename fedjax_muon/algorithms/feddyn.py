"""FedDyn: dynamic regularization."""

from typing import Any, NamedTuple

import optax

from fedjax_muon import core
from fedjax_muon.core import tree


class State(NamedTuple):
    params: Any
    drift: Any  # h: the mean of all clients' sums of changes


@core.recorded
def feddyn(
    lr: core.Hyper = 0.1,
    *,
    alpha: core.Number = 0.01,
    rule: optax.GradientTransformation = optax.identity(),
) -> core.Algorithm:
    """FedDyn: a linear and a quadratic term align the clients' minimizers.

    Client i keeps h_i, the sum of its changes D_i = x_i - x, and h is the mean of h_i
    over all N clients; both start at 0. From the broadcast x,

        x_i <- x_i - lr rule(grad_i(x_i; s) + alpha (x_i - x + h_i))
        h_i <- h_i + D_i
        h <- h + (S/N) mean_i D_i,    x <- x + mean_i D_i + h

    for S sampled clients. All weights must be equal.

    Source: Acar et al. 2021, ICLR, arXiv:2111.04263. Checked against the authors' code,
    from which it departs: that code divides alpha by a client's share of the examples.
    Its h_i is the paper's linear term divided by -alpha.

    Args:
      lr: Local learning rate: 0.01 to 1 for SGD.
      alpha: Weight of the quadratic term, 0.01 to 0.1.
      rule: Local rule applied to the gradient with both terms, without a learning rate.

    Example:
      >>> sizes = {"cohort": 2, "local_steps": 5, "batch_size": 8}
      >>> for algorithm in (fm.feddyn(alpha=0.1), fm.scaffold()):
      ...     simulation = fm.federate(algorithm, task, digits, clients, **sizes)
      ...     print(simulation.meter.bytes_after(1).up)
      2480
      4960

    See also: `scaffold` sends controls too, `fedprox` keeps no memory.
    """
    core.check_range("lr", lr)
    core.check_range("alpha", alpha, open_low=True, schedules=False)

    def init(params):
        return State(params, tree.zeros_like(params))

    def client(objective, broadcast, drift, batches, round):
        start = broadcast.params

        def step(carry, batch, key):
            x, opt = carry
            g = objective.grad(x, batch, key)
            d = tree.add_scaled(g, alpha, tree.add(tree.sub(x, start), drift))
            return core.move(objective, x, core.value_at(lr, round), rule, opt, d), ()

        (x, _), _ = core.local_steps(step, (start, rule.init(start)), batches, round)
        change = tree.sub(x, start)
        return core.ParamsMessage(change), tree.add(drift, change)

    def server(state, mean, round):
        drift = tree.add_scaled(state.drift, round.fraction, mean.params)
        params = tree.add(state.params, tree.add(mean.params, drift))
        return State(params, drift)

    main = core.Exchange(core.broadcast_params, client, server)
    return core.Algorithm(init, tree.zeros_like, (main,), uniform_weights=True)
