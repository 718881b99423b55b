"""Estimators of an agent's gradient: plain, averaged, recursive (STORM), and noisy."""

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
    """Estimates the gradient by that of the batch: g = grad(x; z)."""

    def start(objective, params, batch, iteration):
        return objective.grad(params, batch, iteration.key), ()

    def update(objective, memory, params, batch, iteration):
        del memory
        return start(objective, params, batch, iteration)

    return Estimator(start, update)


@recorded
def ema(momentum: Hyper = 0.8, from_zero: bool = True) -> Estimator:
    """Estimates the gradient by an exponential average.

        m <- momentum m + (1 - momentum) grad(x; z).

    Tracked by `gradient_tracking` and orthogonalized, it is `decentralized.demuon`.

    Args:
      momentum: Weight of the past, in [0, 1); 0 is `fresh`.
      from_zero: Whether m = 0 before t = 0; otherwise m = grad(x; z) at t = 0, as in
        SUDA-Muon.
    """
    check_range("momentum", momentum, 0.0, 1.0, open_high=True)

    def start(objective, params, batch, iteration):
        g = objective.grad(params, batch, iteration.key)
        m = tree.fade(g, value_at(momentum, iteration)) if from_zero else g
        return m, m

    def update(objective, memory, params, batch, iteration):
        g = objective.grad(params, batch, iteration.key)
        m = tree.mix(g, value_at(momentum, iteration), memory)
        return m, m

    return Estimator(start, update)


@recorded
def storm(beta: Hyper = 0.01) -> Estimator:
    """Estimates the gradient recursively, by STORM.

        g <- grad(x; z) + (1 - beta) (g - grad(x_; z)),

    with x_ the parameters of the iteration before. Both gradients have the same batch z
    and key. At t = 0, g = grad(x; z).

    Source: Cutkosky and Orabona 2019, arXiv:1905.10018.

    Args:
      beta: Weight of the new gradient, in [0, 1]; 1 is `fresh`.
    """
    check_range("beta", beta, 0.0, 1.0)

    def start(objective, params, batch, iteration):
        g = objective.grad(params, batch, iteration.key)
        return g, Storm(g, params)

    def update(objective, memory, params, batch, iteration):
        g, before = memory
        new = objective.grad(params, batch, iteration.key)
        old = objective.grad(before, batch, iteration.key)
        g = tree.add(new, tree.fade(tree.sub(g, old), value_at(beta, iteration)))
        return g, Storm(g, params)

    return Estimator(start, update)


@recorded
def noisy(estimator: Estimator, sigma: Hyper) -> Estimator:
    """Adds Gaussian noise to the estimates that an agent sends: g* = g + N(0, sigma^2).

    The memory of the estimator stays clean. Noise is added at t = 0 too.

    Args:
      sigma: Standard deviation in every coordinate; 0 keeps every bit.
    """
    check_range("sigma", sigma)

    def with_noise(estimate, iteration, key):
        g, memory = estimate
        return add_normal(key, value_at(sigma, iteration), g), memory

    def start(objective, params, batch, iteration):
        inner, key = split_noise_key(iteration)
        return with_noise(
            estimator.start(objective, params, batch, inner), iteration, key
        )

    def update(objective, memory, params, batch, iteration):
        inner, key = split_noise_key(iteration)
        return with_noise(
            estimator.update(objective, memory, params, batch, inner), iteration, key
        )

    return Estimator(start, update)


@recorded
def add_public_gradient(estimator: Estimator) -> Estimator:
    """Adds the gradient of the terms that depend on no data, such as regularizers.

    They need neither clipping nor noise. The memory of the estimator does not contain
    them.
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


def split_noise_key(iteration: Iteration) -> tuple[Iteration, jax.Array]:
    """Splits the noise key: the iteration of a wrapped estimator, and a noise key."""
    inner, key = jax.random.split(iteration.noise)
    return iteration._replace(noise=inner), key
