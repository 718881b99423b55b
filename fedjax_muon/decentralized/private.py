"""Decentralized methods with a privacy guarantee; `PRIVATE` has them by name.

A row builds a method, which needs the gradients of single examples, and describes what
an agent releases, in terms of `fedjax_muon.privacy`. Both are derived from the same
`Mechanism`, so that the accounting describes the method that runs. `AgentPrivacy` makes
this an argument of `decentralize`, with the sampling that the accounting assumes. A
study that draws its own batches can use a row directly, without any guarantee:

    mechanism = Mechanism(
        clip_norm=1.0, change_clip_norm=0.1, beta=0.1, batch_size=20
    )
    spec = calibrate("private_storm", mechanism, 8.0, sampling, steps=1001, delta=1e-5)
    noise_scale = noise_scale_of(spec)
    PRIVATE["private_storm"].build(mechanism, noise_scale, lr=0.1)

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
noise multiplier is the standard deviation over the sensitivity; 0 is no noise.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.algorithms.registry import Source
from fedjax_muon.core import Hyper, Objective, check_range, recorded, tree, value_at
from fedjax_muon.core.recipe import recipe_of
from fedjax_muon.decentralized.dsgd import dsgd
from fedjax_muon.decentralized.estimators import (
    Storm,
    add_public_gradient,
    fresh,
    noisy,
    split_noise_key,
)
from fedjax_muon.decentralized.gossip import Estimator, Gossip, Iteration
from fedjax_muon.decentralized.tracking import gradient_tracking
from fedjax_muon.privacy.clipping import Clip, ClipNorm, Difference, Each, Split
from fedjax_muon.privacy.correlated import Strategy, banded, buffered_toeplitz
from fedjax_muon.privacy.gaussian import add_normal, sum_dtype
from fedjax_muon.privacy.guarantees import PrivacySpec, calibrated
from fedjax_muon.privacy.releases import Correlated, Inside, Output, Release
from fedjax_muon.privacy.sampling import Sampling


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
    """A private method, and what it releases."""

    label: str
    paper: str
    source: Source
    estimator: Callable[[Mechanism, Hyper], Estimator]
    # (mechanism, noise scale) -> private estimator
    base: Callable[..., Gossip]  # (lr, rule=, estimator=) -> algorithm
    release: Callable[[Mechanism, float], Release]
    # (mechanism, noise scale) -> what an agent releases
    amplified: bool
    # whether it is accounted for under Poisson sampling, of groups that take turns if
    # the noise is correlated, or under cyclic sampling
    strategy: Callable[[int, int, int], Strategy | None] = lambda *numbers: None
    # (steps, bands, steps between batches of an example) -> correlation of the noise

    def build(
        self,
        mechanism: Mechanism,
        noise_scale: Hyper,
        lr: Hyper = 0.01,
        rule: optax.GradientTransformation = optax.identity(),
    ) -> Gossip:
        """Builds the algorithm.

        It clips the gradients of `objective.example_grad` and adds noise.
        `objective.public_grad` is added without either. It has the hyperparameters
        `noise_scale` and `lr`.

        Args:
          noise_scale: Noise multiplier; for noise on the output, standard deviation.
            See `noise_scale_of`.
        """
        return private(self.base(lr=lr, rule=rule), self, mechanism, noise_scale)


@recorded
def private(
    base: Gossip, method: PrivateMethod, mechanism: Mechanism, noise_scale: Hyper
) -> Gossip:
    """Makes an algorithm again, with a private estimator.

    The algorithm must touch its data through the estimator alone, and once in an
    iteration, outside of loops; what it does with the estimates costs no privacy.
    It is refused if it asks for a gradient itself, or for several estimates. Its states
    and messages must not contain the estimator's memory, except to keep it.

    Args:
      base: Made by a `recorded` function with an argument `estimator=fresh()`, which
        was left out, such as `dsgd` and `gradient_tracking`.
    """
    recipe = recipe_of(base)
    if recipe is None or "estimator" not in recipe.arguments:
        name = recipe.function.__name__ if recipe else "an algorithm without a recipe"
        raise ValueError(
            "privacy replaces the argument `estimator` of a `recorded` function, such "
            f"as dsgd or gradient_tracking, got {name}, which has none"
        )
    given = getattr(recipe.arguments["estimator"], "recipe", None)
    if given is None or given.function is not fresh:
        raise ValueError(
            "privacy decides the estimator, in place of fresh(); leave it out, and "
            "choose the method of the mechanism"
        )
    name = recipe.function.__name__
    make = functools.partial(recipe.function, **recipe.arguments)
    estimator = add_public_gradient(method.estimator(mechanism, noise_scale))

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
            advance = getattr(make(estimator=sealed), phase)
            state = advance(_closed(objective), state, mix, None, iteration)
            if len(opened) != 1:
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


DPMIXSGD = "Decentralized minimax with privacy, DPMixSGD, arXiv:2508.07505"
PRIVATE: dict[str, PrivateMethod] = {
    "dp_sgda": PrivateMethod(
        "DP-SGDA",
        "Yang et al. 2022, UAI, arXiv:2201.09046; here decentralized",
        Source.INDEPENDENT,
        _fresh,
        dsgd,
        lambda m, z: Release(_each(m), Inside(z)),
        amplified=True,
    ),
    "dp_ftrl": PrivateMethod(
        "DP-FTRL (banded)",
        "Choquette-Choo et al. 2023, NeurIPS, arXiv:2306.08153",
        Source.AUTHORS,
        _correlated,
        dsgd,
        _correlated_release,
        amplified=True,
        strategy=lambda steps, bands, _: banded(steps, min(bands, steps)),
    ),
    "dp_ftrl_buffered": PrivateMethod(
        "DP-FTRL (buffered)",
        "McMahan et al. 2024, Buffered linear Toeplitz matrices, arXiv:2408.08868",
        Source.AUTHORS,
        _correlated,
        dsgd,
        _correlated_release,
        amplified=False,
        strategy=lambda steps, _, separation: buffered_toeplitz(steps, separation),
    ),
    "dpmixsgd": PrivateMethod(
        "DPMixSGD (clipped)",
        f"{DPMIXSGD}; both gradients clipped, which the paper does not",
        Source.TEXT,
        _outside,
        gradient_tracking,
        lambda m, sigma: Release(_each(m), Output(sigma), m.beta),
        amplified=False,
    ),
    "dpmixsgd_inside": PrivateMethod(
        "DPMixSGD (clipped, noise inside)",
        f"{DPMIXSGD}; with noise that the recursion keeps",
        Source.OURS,
        _inside(_each),
        gradient_tracking,
        lambda m, z: Release(_each(m), Inside(z), m.beta),
        amplified=True,
    ),
    "private_storm": PrivateMethod(
        "Private STORM (split clip)",
        "none: a composition of this library, after DIFF2, arXiv:2302.03884",
        Source.OURS,
        _inside(_split),
        gradient_tracking,
        lambda m, z: Release(_split(m), Inside(z), m.beta),
        amplified=True,
    ),
}


def calibrate(
    name: str,
    mechanism: Mechanism,
    epsilon: float,
    sampling: Sampling,
    *,
    steps: int,
    delta: float,
) -> PrivacySpec:
    """Finds the smallest noise of a private method for an epsilon.

    Returns:
      What an agent releases, with that noise; see `noise_scale_of`.
    """
    if sampling.batch != mechanism.batch_size:
        raise ValueError(
            f"the mechanism divides by {mechanism.batch_size}, but the sampling has "
            f"batches of {sampling.batch}"
        )
    release = PRIVATE[name].release(mechanism, 1.0)
    spec = PrivacySpec({"estimate": release}, sampling, steps=steps, delta=delta)
    return calibrated(spec, epsilon)


def noise_scale_of(spec: PrivacySpec) -> float:
    """Returns the noise scale of `PrivateMethod.build` for a specification."""
    (release,) = spec.releases.values()
    return release.noise.smallest
