"""Private estimators: DP-SGD, STORM and DP-FTRL with bounded influence of examples.

STORM is g_t = (1 - beta) g_{t-1} + d_t, with beta = 1 at t = 0. A clip of
`privacy.clipping` bounds the share of one example in d_t, for which it takes both
gradients of the example, and says the sensitivity S of d_t.

Noise on the output, as in the paper of DPMixSGD, is `noisy(private_storm(...), sigma)`.
Noise inside is d_t + N(0, (noise_multiplier S)^2), which the recursion keeps. In
DP-FTRL, clipped gradients have noise that is correlated between steps,

    g*_t = (1 / b) sum over the batch of clip(grad(x_t; z)) + w_t,    w = C^-1 z,

with `privacy.correlated`'s C, and z independent. The steps of the parameters add up the
g*, in whose sum the noise cancels in part.

Estimates are in float32 or wider, also for parameters in fewer bits: rounding before
the noise is added would change them by more than the sensitivity. Sums are divided by
`batch_size`, the expected number of examples in a batch, or `first_size` at t = 0. A
noise multiplier is the standard deviation over the sensitivity; 0 is no noise.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.core import Hyper, Objective, check_range, recorded, tree, value_at
from fedjax_muon.decentralized.estimators import Storm, split_noise_key
from fedjax_muon.decentralized.gossip import Estimator, Iteration
from fedjax_muon.privacy.clipping import Clip, ClipNorm, Difference
from fedjax_muon.privacy.correlated import Strategy
from fedjax_muon.privacy.gaussian import add_normal, sum_dtype


@recorded
def private_gradient(
    clip_norm: ClipNorm,
    *,
    batch_size: float,
    first_size: float | None = None,
    noise_multiplier: Hyper = 0.0,
) -> Estimator:
    """Estimates the gradient by the mean of clipped gradients, as DP-SGD.

    Abadi et al. 2016, arXiv:1607.00133; the sensitivity is S = clip_norm / b.

    Args:
      clip_norm: Largest norm of an example's gradient, all variables together, or a
        `Pair` of the largest norms of x and y.
    """
    clip = Difference(clip_norm)
    size, first = _checked_sizes(batch_size, first_size)
    check_range("noise_multiplier", noise_multiplier, schedules=False)

    def measure(size, objective, params, batch, iteration):
        new = _example_gradients(objective, params, batch, iteration)
        one = jax.tree.map(lambda _: 1.0, params)
        return _innovation(clip, new, new, one, size, noise_multiplier, iteration), ()

    def update(objective, memory, params, batch, iteration):
        del memory
        return measure(size, objective, params, batch, iteration)

    return Estimator(functools.partial(measure, first), update)


@recorded
def private_storm(
    clip: Clip,
    *,
    beta: Hyper = 0.01,
    batch_size: float,
    first_size: float | None = None,
    noise_multiplier: Hyper = 0.0,
) -> Estimator:
    """Estimates the gradient by STORM with bounded influence of every example.

    Args:
      clip: `Each`, `Difference` or `Split` of `privacy`.
      beta: Weight of the new gradient, in [0, 1], as in `estimators.storm`.
    """
    check_range("beta", beta, 0.0, 1.0)
    size, first = _checked_sizes(batch_size, first_size)
    check_range("noise_multiplier", noise_multiplier, schedules=False)

    def start(objective, params, batch, iteration):
        new = _example_gradients(objective, params, batch, iteration)
        one = jax.tree.map(lambda _: 1.0, params)
        g = _innovation(clip, new, new, one, first, noise_multiplier, iteration)
        return g, Storm(g, params)

    def update(objective, memory, params, batch, iteration):
        g, before = memory
        new = _example_gradients(objective, params, batch, iteration)
        old = _example_gradients(objective, before, batch, iteration)
        weight = value_at(beta, iteration)
        spread = _spread(weight, params)
        d = _innovation(clip, new, old, spread, size, noise_multiplier, iteration)
        g = tree.add(tree.fade(weight, g), d)
        return g, Storm(g, params)

    return Estimator(start, update)


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
      strategy: How the noise is correlated: `privacy.banded` or `privacy.buffered`.
      noise_multiplier: Standard deviation of z over clip_norm / b.
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


def _example_gradients(
    objective: Objective, params: Any, batch: Any, iteration: Iteration
) -> Any:
    if objective.example_grad is None:
        raise ValueError(
            "private estimators need the gradients of single examples: set "
            "example_grad of the Objective"
        )
    return objective.example_grad(params, batch, iteration.key)


def _innovation(
    clip: Clip,
    new: Any,
    old: Any,
    beta: Any,
    size: Any,
    noise_multiplier: Any,
    iteration: Iteration,
) -> Any:
    """d: the sum of the examples' shares over the expected size, and the noise."""
    new, old = (tree.map(lambda x: x.astype(sum_dtype(x)), g) for g in (new, old))
    shares = jax.vmap(clip.share, in_axes=(0, 0, None))(new, old, beta)
    d = tree.map(lambda share, g: (share.sum(0) / size).astype(g.dtype), shares, new)
    bound = _spread(clip.sensitivity(beta, size), d)
    sigma = tree.map(jnp.multiply, _spread(noise_multiplier, d), bound)
    return add_normal(split_noise_key(iteration)[1], sigma, d)


def _spread(prefix: Any, a: Any) -> Any:
    """A prefix of the tree of `a`, extended to all leaves of `a`."""
    return tree.map(lambda p, part: tree.map(lambda _: p, part), prefix, a)


def _checked_sizes(batch_size: float, first_size: float | None) -> tuple[float, float]:
    first = batch_size if first_size is None else first_size
    check_range("batch_size", batch_size, open_low=True, schedules=False)
    check_range("first_size", first, open_low=True, schedules=False)
    return batch_size, first
