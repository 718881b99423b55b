"""FedNova: normalized averaging for clients of unequal work."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_muon import core
from fedjax_muon.core import tree


class State(NamedTuple):
    params: Any
    opt: optax.OptState  # of the server rule


class Message(NamedTuple):
    params: Any  # (x - x_i) / |a_i|
    norm: jax.Array  # |a_i|


@core.recorded
def fednova(
    lr: core.Hyper = 0.1,
    *,
    momentum: core.Number = 0.0,
    mu: core.Hyper = 0.0,
    server_lr: core.Hyper = 1.0,
    server_rule: optax.GradientTransformation = optax.identity(),
) -> core.Algorithm:
    """FedNova: averaging of normalized directions, for clients of unequal work.

    From the broadcast x, client i repeats for each of its own K_i batches s

        u <- momentum u + grad_i(x_i; s) + mu (x_i - x);    x_i <- x_i - lr u

    so that x - x_i = lr G_i a_i with the gradients G_i and positive weights a_i. With
    p_i the weights of the mean and |a_i| the sum of a_i, the server updates

        x <- x - server_lr server_rule(tau sum_i p_i (x - x_i) / |a_i|)
        tau = sum_i p_i |a_i|

    Without momentum and mu, |a_i| = K_i. FedAvg averages x - x_i instead, which weighs
    clients with more steps more.

    Source: Wang et al. 2020, NeurIPS, arXiv:2007.07481, equations (4) and (7). Checked
    against the authors' code, from which it departs with mu: their tau is then the mean
    of K_i; here it is the mean of |a_i| in all cases.

    Args:
      lr: Local learning rate, 0.01 to 1, the same for all layers.
      momentum: Weight of the past in the local momentum, which is reset every round, in
        [0, 1); the authors use 0 and 0.9.
      mu: Strength of the proximal pull toward the broadcast parameters, 0 to 1.
      server_lr: Server learning rate; 1 is the paper's.
      server_rule: Rule applied to the pseudo-gradient, without a learning rate, such as
        `optax.trace(0.5)`.

    Example:
      >>> work = {"cohort": 4, "local_epochs": (1, 5), "batch_size": 8}
      >>> work["weighting"] = fm.simulation.by_examples  # the paper's weights
      >>> nova = fm.fednova(lr=0.1, momentum=0.9)
      >>> simulation = fm.federate(nova, task, digits, clients, **work)

    See also: `fedprox` for unequal work, `fedavg`.
    """
    core.check_range("lr", lr)
    core.check_range("momentum", momentum, 0.0, 1.0, open_high=True, schedules=False)
    core.check_range("mu", mu)
    core.check_range("server_lr", server_lr)
    rule = optax.trace(momentum)

    def init(params):
        return State(params, server_rule.init(params))

    def client(objective, broadcast, client_state, batches, round):
        start = broadcast.params
        rate, pull = core.value_at(lr, round), core.value_at(mu, round)

        def step(carry, batch, key):
            x, opt, norm, norm_opt = carry
            g = objective.grad(x, batch, key)
            d = tree.add_scaled(g, pull, tree.sub(x, start))
            x, opt = core.move(objective, x, rate, rule, opt, d)
            # |a_i| is the way along the gradient 1 for lr = 1, by the same rule.
            add, norm_opt = rule.update(1 - rate * pull * norm, norm_opt)
            return (x, opt, norm + add, norm_opt), ()

        # In bfloat16 a sum of more than 256 steps would not grow.
        kind = jnp.result_type(jnp.float32, *jax.tree.leaves(start))
        zero = jnp.zeros((), kind)
        carry = start, rule.init(start), zero, rule.init(zero)
        (x, _, norm, _), _ = core.local_steps(step, carry, batches, round)
        mean = tree.map(lambda a, b: ((a - b) / norm).astype(a.dtype), start, x)
        return Message(mean, norm), client_state

    def server(state, mean, round):
        g = tree.map(lambda d: (mean.norm * d).astype(d.dtype), mean.params)
        rate = core.value_at(server_lr, round)
        return State(*core.descend(state.params, rate, server_rule, state.opt, g))

    def local_params(broadcast, message):
        return tree.map(
            lambda x, d: x - (message.norm * d).astype(x.dtype),
            broadcast.params,
            message.params,
        )

    main = core.Exchange(
        core.broadcast_params, client, server, local_params=local_params
    )
    return core.Algorithm(init, core.no_client_state, (main,))
