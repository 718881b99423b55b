"""What an agent says its gradient is: fresh, by STORM, with noise on the way out."""

from typing import Any, NamedTuple

import jax

from fedjax_muon.core import Hyper, check_range, recorded, tree, value_at
from fedjax_muon.decentralized.gossip import Estimator, Iteration
from fedjax_muon.privacy.gaussian import add_normal


class Storm(NamedTuple):
    """The memory of a recursive estimate."""

    estimate: Any  # g
    before: Any  # x_, the parameters that g belongs to


@recorded
def fresh() -> Estimator:
    """The gradient on the batch: g = grad(x; z)."""

    def start(objective, params, batch, iteration):
        return objective.grad(params, batch, iteration.key), ()

    def update(objective, memory, params, batch, iteration):
        del memory
        return start(objective, params, batch, iteration)

    return Estimator(start, update)


@recorded
def storm(beta: Hyper = 0.01) -> Estimator:
    """g <- grad(x; z) + (1 - beta) (g - grad(x_; z)), with x_ the x before.

    Both gradients are taken with the same batch z and key (Cutkosky and Orabona 2019,
    arXiv:1905.10018). At t = 0, g = grad(x; z). `beta` in [0, 1] may be a schedule of t
    and a prefix of the parameters.
    """
    check_range("beta", beta, 0.0, 1.0)

    def start(objective, params, batch, iteration):
        g = objective.grad(params, batch, iteration.key)
        return g, Storm(g, params)

    def update(objective, memory, params, batch, iteration):
        g, before = memory
        new = objective.grad(params, batch, iteration.key)
        old = objective.grad(before, batch, iteration.key)
        g = tree.add(new, tree.fade(value_at(beta, iteration), tree.sub(g, old)))
        return g, Storm(g, params)

    return Estimator(start, update)


@recorded
def noisy(estimator: Estimator, sigma: Hyper) -> Estimator:
    """g* = g + N(0, sigma^2) in every coordinate is told, at t = 0 too; g is kept.

    The memory stays clean. `sigma`, a standard deviation, may be a schedule of t and a
    prefix of the parameters; 0 changes no bit. See `add_normal` for what the noise is
    made of. Raises `ValueError` for a negative `sigma`.
    """
    check_range("sigma", sigma)

    def with_noise(estimate, iteration, key):
        g, memory = estimate
        return add_normal(key, value_at(sigma, iteration), g), memory

    def start(objective, params, batch, iteration):
        inner, key = apart(iteration)
        return with_noise(
            estimator.start(objective, params, batch, inner), iteration, key
        )

    def update(objective, memory, params, batch, iteration):
        inner, key = apart(iteration)
        return with_noise(
            estimator.update(objective, memory, params, batch, inner), iteration, key
        )

    return Estimator(start, update)


@recorded
def add_public_gradient(estimator: Estimator) -> Estimator:
    """Adds the gradient of terms that touch no data, `objective.public_grad`.

    Regularizers need neither clip nor noise. The memory of `estimator` does not see
    them. Without such terms the estimate stays.
    """

    def total(objective, estimate, params):
        g, memory = estimate
        if objective.public_grad is None:
            return g, memory
        return tree.add(g, objective.public_grad(params)), memory

    def start(objective, params, batch, iteration):
        estimate = estimator.start(objective, params, batch, iteration)
        return total(objective, estimate, params)

    def update(objective, memory, params, batch, iteration):
        estimate = estimator.update(objective, memory, params, batch, iteration)
        return total(objective, estimate, params)

    return Estimator(start, update)


def apart(iteration: Iteration) -> tuple[Iteration, jax.Array]:
    """The turn of an estimator within, and a key for noise that it cannot draw."""
    within, mine = jax.random.split(iteration.noise)
    return iteration._replace(noise=within), mine
