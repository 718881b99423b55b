"""FedCoMuon: Muon for functions of the clients' losses, such as robust ones."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_muon import core, transforms
from fedjax_muon.core import tree

Outer = Callable[[jax.Array], jax.Array]  # f, of a loss []


class State(NamedTuple):
    params: Any
    momentum: Any


class Momentum(NamedTuple):
    momentum: Any


def _init(params: Any) -> State:
    return State(params, tree.zeros_like(params))


def _agree(state: State, mean: Momentum, round: core.Round) -> State:
    del round
    return state._replace(momentum=mean.momentum)


def _slope(
    outer: Outer | None, temperature: core.Hyper, max_slope: core.Number
) -> Callable[[jax.Array, core.Round], jax.Array]:
    """Makes the function (u, round) -> f'(u), which `max_slope` bounds."""
    core.check_range("temperature", temperature, open_low=True)
    core.check_range("max_slope", max_slope, open_low=True, schedules=False)
    if outer is not None:
        core.check_function("outer", outer, "jax.numpy.square")

    def slope(u: jax.Array, round: core.Round) -> jax.Array:
        t = core.value_at(temperature, round)
        f = outer or (lambda u: t * jnp.exp(u / t))
        return jnp.clip(jax.grad(f)(u), -max_slope, max_slope)

    return slope


@core.recorded
def fedcomuon(
    lr: core.Hyper = 0.01,
    *,
    momentum: core.Hyper = 0.9,
    inner_momentum: core.Hyper = 0.9,
    temperature: core.Hyper = 0.5,
    outer: Outer | None = None,
    max_slope: core.Number = 100.0,
    rule: optax.GradientTransformation | None = None,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """FedCoMuon: FedMuon on the mean of f(loss of a client), for robust training.

    With f(u) = t exp(u / t), clients with large losses count more, the more so the
    lower the temperature t is. Client i keeps an estimate u_i of its loss. From the
    broadcast (x, m), for each of its batches s

        x_i <- x_i - lr rule(m_i)
        u_i <- inner_momentum u_i + (1 - inner_momentum) loss_i(x_i; s)
        m_i <- momentum m_i + (1 - momentum) f'(u_i) grad_i(x_i; s)

    and the server averages x_i and m_i. Before round 0, u_i is the loss at x, and m the
    mean of f'(u_i) grad_i(x). Losses are those of `Objective.value_and_grad`.

    Source: Yan and Huang 2026, arXiv:2608.12710v2, Algorithm 1. Not verified: it was
    written from notes on the paper. It departs where f is steep: beyond `max_slope`, f
    follows its tangent, so that no loss is too large for exp. Its f is t times the
    paper's.

    Args:
      lr: Local learning rate, the spectral norm of a matrix's step, 0.003 to 0.03.
      momentum: Weight of the past in the momentum, 1 - beta in the paper, usually 0.9.
      inner_momentum: Weight of the past in u, 1 - alpha in the paper, in [0, 1).
      temperature: t, in units of the loss, 0.1 to 1; lambda in the paper. It has no
        effect if `outer` is given.
      outer: The function f of a loss, which JAX differentiates, such as `jnp.square`.
      max_slope: Largest absolute value of f'(u), 10 to 1000.
      rule: Rule applied to the momentum, without a learning rate. By default, it
        orthogonalizes matrices and divides other leaves by their norms, so that steps
        do not depend on the size of f'.
      polar: Function that the default rule computes polar factors with; by default,
        five Newton-Schulz steps.

    Example:
      >>> robust = fm.fedcomuon(lr=0.02, temperature=0.2)
      >>> mean = fm.fedcomuon(outer=lambda loss: loss)  # fm.fedmuon with this rule
      >>> sizes = {"cohort": 4, "local_steps": 5, "batch_size": 8}
      >>> simulation = fm.federate(robust, task, digits, clients, **sizes)
      >>> simulation.meter.bytes_after(1)  # u_i stays
      Traffic(down=14880, up=14880)

    See also: `fedcomuon_vr` reduces the variance of u and of gradients, `fedmuon`
    minimizes the mean loss, `tasks.agnostic` a worst mixture of losses.
    """
    core.check_range("lr", lr)
    core.check_range("momentum", momentum, 0.0, 1.0)
    core.check_range("inner_momentum", inner_momentum, 0.0, 1.0)
    slope = _slope(outer, temperature, max_slope)
    rule = transforms.default_rule(rule, polar, transforms.unit_directions)

    def first(objective, broadcast, u, batches, round):
        at = lambda _, *row: ((), objective.value_and_grad(broadcast.params, *row))
        _, (loss, g) = core.local_steps(at, (), batches, round)
        return Momentum(tree.scale(g, slope(loss, round))), loss.astype(u.dtype)

    def client(objective, broadcast, u, batches, round):
        def step(carry, batch, key):
            x, m, opt, u = carry
            x, opt = core.move(objective, x, core.value_at(lr, round), rule, opt, m)
            loss, g = objective.value_and_grad(x, batch, key)
            u = tree.mix(u, 1 - core.value_at(inner_momentum, round), loss)
            z = tree.scale(g, slope(u, round))
            return (x, tree.mix(z, core.value_at(momentum, round), m), opt, u), ()

        x, m = broadcast
        carry = x, m, rule.init(x), u
        (y, m, _, u), _ = core.local_steps(step, carry, batches, round)
        return State(tree.sub(y, x), m), u

    def server(state, mean, round):
        del round
        return State(tree.add(state.params, mean.params), mean.momentum)

    prologue = core.Exchange(core.broadcast_params, first, _agree)
    main = core.Exchange(
        core.broadcast_state, client, server, local_params=core.after_change
    )
    init_client = lambda params: jnp.zeros(())  # u
    return core.Algorithm(_init, init_client, (main,), (prologue,))


class Client(NamedTuple):
    previous: Any  # x_, where the last samples were taken
    loss: jax.Array  # u
    gradient: Any  # h
    momentum: Any  # m


@core.recorded
def fedcomuon_vr(
    lr: core.Hyper = 0.01,
    *,
    momentum: core.Hyper = 0.9,
    inner_momentum: core.Hyper = 0.9,
    temperature: core.Hyper = 0.5,
    outer: Outer | None = None,
    max_slope: core.Number = 100.0,
    clip_norm: core.Number = 10.0,
    polar: transforms.Polar | None = None,
) -> core.Algorithm:
    """FedCoMuon-VR: FedCoMuon with recursive estimates of losses and gradients.

    With x_ the point of a client's last batch, it takes each batch s at two points:

        u_i <- loss_i(x_i; s) + inner_momentum (u_i - loss_i(x_; s))
        h_i <- clip(grad_i(x_i; s) + inner_momentum (h_i - grad_i(x_; s)))
        m_i <- momentum m_i + (1 - momentum) f'(u_i) h_i;    x_ <- x_i

    A round has two exchanges. In the first, clients do this with one batch at x, and
    the server averages m_i. In the second, they move by -lr orth(m_i) after each batch,
    and the server averages x_i; orth is the default rule of `fedcomuon`. In round 0,
    the first estimates have no past. All clients must take part.

    Source: Yan and Huang 2026, arXiv:2608.12710v2, Algorithm 2. Not verified: it was
    written from notes on the paper. There, f'(u) also follows such a recursion, over
    samples of f. An f without samples makes it f'(u) itself.

    Args:
      lr: Local learning rate, the spectral norm of a matrix's step, 0.003 to 0.03.
      momentum: Weight of the past in m, 1 - rho in the paper, usually 0.9.
      inner_momentum: Weight of the past in u and h, in [0, 1).
      temperature: Temperature t of f(u) = t exp(u / t), 0.1 to 1.
      outer: The function f, as in `fedcomuon`.
      max_slope: Largest absolute value of f'(u), C_f in the paper.
      clip_norm: Largest norm of h, C_g in the paper.
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.

    Example:
      >>> fm.fedcomuon_vr(temperature=0.2).full_participation
      True

    See also: `fedcomuon` takes one gradient per step; `stem` has such a recursion.
    """
    core.check_range("lr", lr)
    core.check_range("momentum", momentum, 0.0, 1.0)
    core.check_range("inner_momentum", inner_momentum, 0.0, 1.0)
    core.check_range("clip_norm", clip_norm, open_low=True, schedules=False)
    slope = _slope(outer, temperature, max_slope)
    rule = transforms.unit_directions(polar)
    ball = optax.clip_by_global_norm(clip_norm)

    def init_client(params):
        zeros = tree.zeros_like(params)
        return Client(params, jnp.zeros(()), zeros, zeros)

    def sample(objective, x, own, batch, key, round, past=1):
        a, b = (past * core.value_at(w, round) for w in (inner_momentum, momentum))
        loss, g = objective.value_and_grad(x, batch, key)
        loss_, g_ = objective.value_and_grad(own.previous, batch, key)
        u = (loss + a * (own.loss - loss_)).astype(own.loss.dtype)
        h = tree.add_scaled(g, a, tree.sub(own.gradient, g_))
        h, _ = ball.update(h, ball.init(h))
        m = tree.mix(tree.scale(h, slope(u, round)), b, own.momentum)
        return Client(x, u, h, m)

    def meet(objective, broadcast, own, batches, round):
        batch, past = tree.map(lambda b: b[0], batches), jnp.sign(round.index)
        own = sample(objective, broadcast.params, own, batch, round.key, round, past)
        return Momentum(own.momentum), own

    def client(objective, broadcast, own, batches, round):
        def move(x, own):
            rate, state = core.value_at(lr, round), rule.init(x)
            return core.move(objective, x, rate, rule, state, own.momentum)[0], own

        def step(carry, batch, key):
            x, own = carry
            return move(x, sample(objective, x, own, batch, key, round)), ()

        x = own.previous
        carry = move(x, own._replace(momentum=broadcast.momentum))
        if jax.tree.leaves(batches)[0].shape[0] > 1:
            rest = tree.map(lambda b: b[1:], batches)
            fewer = round._replace(steps=round.steps - 1)
            carry, _ = core.local_steps(step, carry, rest, fewer)
        return core.ParamsMessage(tree.sub(carry[0], x)), carry[1]

    def server(state, mean, round):
        del round
        return state._replace(params=tree.add(state.params, mean.params))

    exchanges = (
        core.Exchange(core.broadcast_params, meet, _agree),
        core.Exchange(lambda state, _: Momentum(state.momentum), client, server),
    )
    return core.Algorithm(_init, init_client, exchanges, full_participation=True)
