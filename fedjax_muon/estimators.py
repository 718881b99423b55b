"""What an agent says its gradient is: fresh, by STORM, with noise on the way out."""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon import tree
from fedjax_muon.core import GradFn, Hyper, at
from fedjax_muon.gaussian import standard_normal
from fedjax_muon.gossip import Estimator, Turn
from fedjax_muon.ranges import check_range


class Storm(NamedTuple):
    """The memory of a recursive estimate."""

    estimate: Any  # g
    before: Any  # x_, the parameters that g belongs to


def fresh(grad_fn: GradFn) -> Estimator:
    """The gradient on the batch: g = grad(x; z)."""

    def start(params, batch, turn):
        return grad_fn(params, batch, turn.key), ()

    def update(memory, params, batch, turn):
        del memory
        return start(params, batch, turn)

    return Estimator(start, update)


def storm(grad_fn: GradFn, beta: Hyper = 0.01) -> Estimator:
    """g <- grad(x; z) + (1 - beta) (g - grad(x_; z)), with x_ the x before.

    Both gradients are taken with the same batch z and key (Cutkosky and Orabona 2019,
    arXiv:1905.10018). At t = 0, g = grad(x; z). `beta` in [0, 1] may be a schedule of t
    and a prefix of the parameters.
    """
    check_range("beta", beta, 0.0, 1.0)

    def start(params, batch, turn):
        g = grad_fn(params, batch, turn.key)
        return g, Storm(g, params)

    def update(memory, params, batch, turn):
        g, before = memory
        new = grad_fn(params, batch, turn.key)
        old = grad_fn(before, batch, turn.key)
        g = tree.add(new, tree.fade(at(beta, turn), tree.sub(g, old)))
        return g, Storm(g, params)

    return Estimator(start, update)


def noisy(estimator: Estimator, sigma: Hyper) -> Estimator:
    """g* = g + N(0, sigma^2) in every coordinate is told, at t = 0 too; g is kept.

    The memory stays clean. `sigma`, a standard deviation, may be a schedule of t and a
    prefix of the parameters; 0 changes no bit. See `add_normal` for what the noise is
    made of. Raises `ValueError` for a negative `sigma`.
    """
    check_range("sigma", sigma)

    def told(estimate, turn, mine):
        g, memory = estimate
        return add_normal(mine, at(sigma, turn), g), memory

    def start(params, batch, turn):
        inner, mine = apart(turn)
        return told(estimator.start(params, batch, inner), turn, mine)

    def update(memory, params, batch, turn):
        inner, mine = apart(turn)
        return told(estimator.update(memory, params, batch, inner), turn, mine)

    return Estimator(start, update)


def plus(estimator: Estimator, public) -> Estimator:
    """Adds `public(params)` to what is told: the gradient of terms without data.

    Regularisers need neither clip nor noise. The memory of `estimator` does not see
    them; for parameters in which some are ascended `public` is directed as gradients
    are (`pair.descent_ascent`).
    """

    def more(estimate, params):
        g, memory = estimate
        return tree.add(g, public(params)), memory

    def start(params, batch, turn):
        return more(estimator.start(params, batch, turn), params)

    def update(memory, params, batch, turn):
        return more(estimator.update(memory, params, batch, turn), params)

    return Estimator(start, update)


def apart(turn: Turn) -> tuple[Turn, jax.Array]:
    """The turn of an estimator within, and a key for noise that it cannot draw."""
    within, mine = jax.random.split(turn.noise)
    return turn._replace(noise=within), mine


def wide(x) -> Any:
    """The type that sums of `x` and noise are taken in: float32 or better."""
    return jnp.promote_types(x.dtype, jnp.float32)


def add_normal(key: jax.Array, sigma, g):
    """g + sigma N(0, 1), independent in every coordinate; `sigma` is a prefix of g.

    Drawn and added in float32 or better, whatever the dtype of g, in which the result
    is returned. Where sigma is 0, g is returned to the bit.
    """
    leaves, structure = jax.tree.flatten(g)
    if not leaves:
        return g
    # one draw for all leaves: every call of a generator is compiled by itself
    ends = list(itertools.accumulate(x.size for x in leaves))
    parts = jnp.split(standard_normal(key, (ends[-1],)), ends[:-1])
    noise = [part.reshape(x.shape) for part, x in zip(parts, leaves, strict=True)]

    def one(sigma, x, n):
        total = x.astype(jnp.promote_types(wide(x), n.dtype)) + sigma * n
        return jnp.where(sigma > 0, total.astype(x.dtype), x)

    below = lambda sigma, *parts: jax.tree.map(lambda *p: one(sigma, *p), *parts)
    return jax.tree.map(below, sigma, g, jax.tree.unflatten(structure, noise))
