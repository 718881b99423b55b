"""The estimators of private agents, and what they release; `PRIVATE` has them by name.

A row makes an estimator, which needs the gradients of single examples, and describes
what an agent releases, in terms of `fedjax_muon.privacy`. Both are derived from the
same `Mechanism`, so that the accounting describes the method that runs. A study that
draws its own batches can do without a guarantee:

    mechanism = Mechanism(
        clip_norm=1.0, change_clip_norm=0.1, beta=0.1, batch_size=20
    )
    agents = PrivateAgents(partial(gradient_tracking, 0.1), PRIVATE["private_storm"])
    algorithm = private(agents, mechanism, noise_scale=1.0)

The estimators, DP-SGD, STORM and DP-FTRL, bound the influence of each example. STORM is
g_t = (1 - beta) g_{t-1} + d_t, with beta = 1 at t = 0. A clip of `privacy.clipping`
bounds the share of one example in d_t, given both gradients of the example, and has the
sensitivity S of d_t.

Noise on the output, as in the DPMixSGD paper, is `noisy(private_storm(...), sigma)`.
Noise inside is d_t + N(0, (noise_multiplier S)^2), which the recursion keeps. In
DP-FTRL, the noise on clipped gradients is correlated between steps,

    g*_t = (1 / b) sum over the batch of clip(grad(x_t; z)) + w_t,    w = C^-1 z,

with `privacy.correlated`'s C, and z independent. The steps of the parameters add up the
g*, in whose sum the noise cancels in part.

Estimates are in float32 or wider, also for parameters in fewer bits: rounding before
the noise is added would change them by more than the sensitivity. Sums are divided by
`batch_size`, the expected number of examples in a batch, or `first_size` at t = 0. A
noise multiplier is the standard deviation over the sensitivity; 0 means no noise.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.core import Hyper, Objective, check_range, recorded, tree, value_at
from fedjax_muon.core.recipe import Recipe
from fedjax_muon.decentralized.estimators import (
    Storm,
    add_public_gradient,
    noisy,
    split_noise_key,
)
from fedjax_muon.decentralized.gossip import Estimator, Gossip, Iteration
from fedjax_muon.privacy.clipping import Clip, ClipNorm, Difference, Each, Split
from fedjax_muon.privacy.correlated import Strategy, banded, buffered_toeplitz
from fedjax_muon.privacy.gaussian import add_normal, sum_dtype
from fedjax_muon.privacy.releases import Correlated, Inside, Output, Release


@recorded
def private_gradient(
    clip_norm: ClipNorm,
    *,
    batch_size: float,
    first_size: float | None = None,
    noise_multiplier: Hyper = 0.0,
) -> Estimator:
    """Estimates the gradient by the mean of clipped gradients, as DP-SGD.

    The sensitivity is S = clip_norm / b.

    Source: Abadi et al. 2016, arXiv:1607.00133.

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

    Source: Cutkosky and Orabona 2019, arXiv:1905.10018, for STORM.

    Args:
      clip: `Each`, `Difference` or `Split` of `privacy`.
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
        g = tree.add(tree.fade(g, weight), d)
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

    Source: Choquette-Choo et al. 2023, arXiv:2306.08153, Algorithm 1.

    Args:
      strategy: How the noise is correlated: `privacy.banded` or
        `privacy.buffered_toeplitz`.
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


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """How the influence of an example is bounded; the same for all agents."""

    clip_norm: float  # of an example's gradient, all variables together
    change_clip_norm: float  # of its change between two iterations, for `split`
    beta: float  # weight of the new gradient in STORM
    batch_size: int  # expected number of examples in a batch
    strategy: Strategy | None = None  # of correlated noise, for DP-FTRL


class PrivateMethod(NamedTuple):
    """How private agents estimate their gradients, and what they release."""

    estimator: Callable[[Mechanism, Hyper], Estimator]
    # (mechanism, noise scale) -> private estimator; the scale is a noise multiplier, or
    # for noise on the output, a standard deviation
    release: Callable[[Mechanism, float], Release]
    # (mechanism, noise scale) -> what an agent releases
    amplified: bool
    # whether it is accounted for under Poisson sampling, of groups that take turns if
    # the noise is correlated, or under cyclic sampling
    strategy: Callable[[int, int, int], Strategy | None] = lambda *numbers: None
    # (steps, bands, steps between batches of an example) -> correlation of the noise


class PrivateAgents(NamedTuple):
    """A private algorithm, before it is known how much noise it needs.

    The algorithm must touch its data through the estimator alone, and once in an
    iteration, outside of loops; what it does with the estimates costs no privacy.
    It is refused if it asks for a gradient itself, or for several estimates. Its states
    and messages must not contain the estimator's memory, except to keep it.

    Example:
      >>> make = lambda estimator: fm.decentralized.suda(lr=0.1, estimator=estimator)
      >>> method = PrivateAgents(make, fm.decentralized.PRIVATE["dp_sgda"])
    """

    make: Callable[..., Gossip]  # of the keyword `estimator`
    method: PrivateMethod
    beta: float = 0.1  # weight of the fresh gradient in STORM
    recipe: Recipe | None = None

    def __repr__(self) -> str:
        return type(self).__name__ if self.recipe is None else self.recipe.call()


@recorded
def private(agents: PrivateAgents, mechanism: Mechanism, noise_scale: Hyper) -> Gossip:
    """Makes an algorithm with its private estimator.

    It clips the gradients of `objective.example_grad` and adds noise.
    `objective.public_grad` is added without either.
    """
    make = agents.make
    estimator = add_public_gradient(agents.method.estimator(mechanism, noise_scale))

    def sealing(phase: str) -> Callable[..., Any]:
        """A phase of the algorithm in which only the estimator has data, once."""

        def run(objective, state, mix, batch, iteration):
            opened = []

            def opening(estimate: Callable[..., Any]) -> Callable[..., Any]:
                def estimated(_, *given):
                    *known, _, _ = given  # without the batch
                    opened.append(estimate)
                    return estimate(objective, *known, batch, iteration)

                return estimated

            sealed = Estimator(opening(estimator.start), opening(estimator.update))
            made = make(estimator=sealed)
            advance = getattr(made, phase)
            state = advance(_closed(objective), state, mix, None, iteration)
            if len(opened) != 1:
                name = made.recipe.function.__name__ if made.recipe else "it"
                raise ValueError(
                    "a private algorithm must estimate its gradient once per "
                    f"iteration, but {name} did {len(opened)} times"
                )
            return state

        return run

    return Gossip(sealing("start"), sealing("step"))


def _closed(objective: Objective) -> Objective:
    def refuse(*_: Any) -> Any:
        raise ValueError(
            "a private algorithm must use its data only through its estimator, but "
            "this one computes a gradient itself"
        )

    return objective._replace(grad=refuse, example_grad=refuse, value_and_grad=refuse)


def _fresh(m: Mechanism, noise_scale: Hyper) -> Estimator:
    return private_gradient(
        m.clip_norm, batch_size=m.batch_size, noise_multiplier=noise_scale
    )


def _correlated(m: Mechanism, noise_scale: Hyper) -> Estimator:
    return correlated_gradient(
        m.clip_norm,
        batch_size=m.batch_size,
        strategy=_strategy(m),
        noise_multiplier=noise_scale,
    )


def _strategy(m: Mechanism) -> Strategy:
    if m.strategy is None:
        raise ValueError(
            "DP-FTRL needs the strategy of its mechanism, such as "
            "privacy.banded(steps, bands), got None"
        )
    return m.strategy


def _correlated_release(m: Mechanism, z: float) -> Release:
    return Release(Each(m.clip_norm), Correlated(z, _strategy(m)))


def _each(m: Mechanism) -> Clip:
    return Each(m.clip_norm)


def _split(m: Mechanism) -> Clip:
    return Split(m.clip_norm, m.change_clip_norm)


def _outside(m: Mechanism, noise_scale: Hyper) -> Estimator:
    storm = private_storm(_each(m), beta=m.beta, batch_size=m.batch_size)
    return noisy(storm, noise_scale)


def _inside(
    clip: Callable[[Mechanism], Clip],
) -> Callable[[Mechanism, Hyper], Estimator]:
    return lambda m, z: private_storm(
        clip(m), beta=m.beta, batch_size=m.batch_size, noise_multiplier=z
    )


PRIVATE = {
    "dp_sgda": PrivateMethod(
        _fresh, lambda m, z: Release(_each(m), Inside(z)), amplified=True
    ),
    "dp_ftrl": PrivateMethod(
        _correlated,
        _correlated_release,
        amplified=True,
        strategy=lambda steps, bands, _: banded(steps, min(bands, steps)),
    ),
    "dp_ftrl_buffered": PrivateMethod(
        _correlated,
        _correlated_release,
        amplified=False,
        strategy=lambda steps, _, separation: buffered_toeplitz(steps, separation),
    ),
    "dpmixsgd": PrivateMethod(
        _outside,
        lambda m, sigma: Release(_each(m), Output(sigma), m.beta),
        amplified=False,
    ),
    "dpmixsgd_inside": PrivateMethod(
        _inside(_each),
        lambda m, z: Release(_each(m), Inside(z), m.beta),
        amplified=True,
    ),
    "private_storm": PrivateMethod(
        _inside(_split),
        lambda m, z: Release(_split(m), Inside(z), m.beta),
        amplified=True,
    ),
}
