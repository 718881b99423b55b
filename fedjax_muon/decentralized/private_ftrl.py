"""DP-FTRL for agents: clipped gradients with noise that is correlated between steps.

    g*_t = (1 / b) sum over the batch of clip(grad(x_t; z)) + w_t,    w = C^-1 z

with `privacy.correlated`'s C, and z independent with standard deviation z clip_norm /
b. The steps of the parameters add up the g*, in whose sum the noise cancels in part.
"""

from typing import Any, NamedTuple

import jax

from fedjax_muon.core import Hyper, check_range, recorded, tree
from fedjax_muon.decentralized.estimators import split_noise_key
from fedjax_muon.decentralized.gossip import Estimator
from fedjax_muon.decentralized.private_storm import ClipNorm, private_gradient
from fedjax_muon.privacy.correlated import Strategy
from fedjax_muon.privacy.gaussian import add_normal


class Past(NamedTuple):
    """The memory of correlated noise, as secret as the noise itself."""

    noise: Any  # of `Strategy.next`


@recorded
def correlated_gradient(
    clip_norm: ClipNorm,
    *,
    batch_size: float,
    strategy: Strategy,
    noise_multiplier: Hyper = 0.0,
) -> Estimator:
    """Estimates the gradient by the mean of clipped gradients, with correlated noise.

    Choquette-Choo et al. 2023, arXiv:2306.08153, Algorithm 1.

    Args:
      clip_norm: Largest norm of an example's gradient, all variables together, or a
        `Pair` of the largest norms of x and y.
      batch_size: b, the expected number of examples in a batch.
      strategy: How the noise is correlated: `privacy.banded` or `privacy.buffered`.
      noise_multiplier: Standard deviation of z over clip_norm / b; 0 is no noise.

    Returns:
      An estimator whose memory is that of the noise.
    """
    check_range("noise_multiplier", noise_multiplier, schedules=False)
    clean = private_gradient(clip_norm, batch_size=batch_size)
    sigma = jax.tree.map(lambda c: noise_multiplier * c / batch_size, clip_norm)

    def with_noise(g, past, key):
        z = add_normal(key, sigma, tree.zeros_like(g))
        w, noise = strategy.next(z, past.noise)
        return tree.add(g, w), Past(noise)

    def start(objective, params, batch, iteration):
        inner, key = split_noise_key(iteration)
        g, _ = clean.start(objective, params, batch, inner)
        return with_noise(g, Past(strategy.start(g)), key)

    def update(objective, memory, params, batch, iteration):
        inner, key = split_noise_key(iteration)
        g, _ = clean.update(objective, (), params, batch, inner)
        return with_noise(g, memory, key)

    return Estimator(start, update)
