"""STORM in which every example has bounded influence, with noise outside or inside.

STORM is g_t = k g_{t-1} + d_t with k = 1 - beta, and k = 0 at t = 0. A `Clip` bounds
one example's share of d_t, so that it must see both of the example's gradients:

    each(C)        clip_C(new) - k clip_C(old)                 S = (1 + k) C / b
    difference(C)  clip_C(new - k old)                         S = C / b
    split(C, D)    (1 - k) clip_C(new) + k clip_D(new - old)   S = ((1 - k) C + k D) / b

d_t is the sum of all shares over b, the *expected* batch size, never the realised one,
which would tell how many examples there were. S is how far one example more or less
moves d_t; to replace an example counts twice. `each` clips the gradients of Xian et al.
2021, arXiv:2104.10116; clipped differences are DIFF2's (Murata and Suzuki 2023,
arXiv:2302.03884), `split` is their composition.

Noise outside, as the paper of DPMixSGD has it: `noisy(private_storm(...), sigma)`.
Inside: d_t + N(0, (inside S)^2), which the recursion keeps.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.core import Hyper, check_range, recorded, tree, value_at
from fedjax_muon.decentralized.estimators import Storm, apart
from fedjax_muon.decentralized.gossip import Estimator
from fedjax_muon.privacy.clipping import clipped
from fedjax_muon.privacy.gaussian import add_normal, wide


class Clip(NamedTuple):
    """How one example's share of the innovation d is bounded."""

    # (new, old, k) -> share; both gradients and k have all leaves of the parameters
    innovate: Callable[[Any, Any, Any], Any]
    # (k, b) -> S, one value for every limit: the largest norm of a share, over b
    sensitivity: Callable[[Any, Any], Any]


def each(limit) -> Clip:
    """Both gradients are clipped to `limit`: STORM on clipped gradients.

    Here and below, a number limits the norm of all variables together and a `Pair` that
    of each; gradients that are not finite count as zero. Raises `ValueError` unless
    limits are positive.
    """
    _check_limit("limit", limit)

    def innovate(new, old, k):
        faded = jax.tree.map(jnp.multiply, k, clipped(limit, old))
        return tree.sub(clipped(limit, new), faded)

    def sensitivity(k, size):
        _, most = _extremes(limit, k)
        return jax.tree.map(lambda c, k: (1 + k) * c / size, limit, most)

    return Clip(innovate, sensitivity)


def difference(limit) -> Clip:
    """The gradient less what STORM keeps of the old one is clipped to `limit`."""
    _check_limit("limit", limit)

    def innovate(new, old, k):
        return clipped(limit, jax.tree.map(lambda n, o, k: n - k * o, new, old, k))

    return Clip(innovate, lambda k, size: jax.tree.map(lambda c: c / size, limit))


def split(limit, change) -> Clip:
    """The gradient is clipped to `limit`, its change since the last point to `change`.

    The two must be both numbers or both `Pair`s. With numbers and a beta of each
    variable the sensitivity, which takes the larger weight of both, is a bound only.
    """
    _check_limit("limit", limit)
    _check_limit("change", change)
    if hasattr(limit, "_fields") != hasattr(change, "_fields"):
        raise ValueError(
            "limit and change must be both numbers or both pairs, got "
            f"{limit!r} and {change!r}"
        )

    def innovate(new, old, k):
        now, moved = clipped(limit, new), clipped(change, tree.sub(new, old))
        return jax.tree.map(lambda n, m, k: (1 - k) * n + k * m, now, moved, k)

    def sensitivity(k, size):
        least, most = _extremes(limit, k)
        bound = lambda c, d, least, most: ((1 - least) * c + most * d) / size
        return jax.tree.map(bound, limit, change, least, most)

    return Clip(innovate, sensitivity)


@recorded
def private_gradient(
    limit,
    *,
    batch_size,
    first_size=None,
    inside: Hyper = 0.0,
) -> Estimator:
    """The mean of clipped per-example gradients, as DP-SGD's (Abadi et al. 2016,
    arXiv:1607.00133); arguments as those of `private_storm`, S = limit / b."""
    clip = difference(limit)
    size, first = _checked_sizes(batch_size, first_size)
    check_range("inside", inside, schedules=False)

    def measure(size, objective, params, batch, iteration):
        new = objective.example_grad(params, batch, iteration.key)
        none = jax.tree.map(lambda _: 0.0, params)
        return _innovation(clip, new, new, none, size, inside, iteration), ()

    def update(objective, memory, params, batch, iteration):
        del memory
        return measure(size, objective, params, batch, iteration)

    return Estimator(functools.partial(measure, first), update)


@recorded
def private_storm(
    clip: Clip,
    *,
    beta: Hyper = 0.01,
    batch_size,
    first_size=None,
    inside: Hyper = 0.0,
) -> Estimator:
    """STORM with bounded influence of every example.

    Estimates are in float32 or better, also for parameters of fewer bits: to round
    before noise is added would move them by more than the sensitivity.

    Args:
      clip: `each`, `difference` or `split`.
      beta: weight of the fresh gradient, in [0, 1], as in `estimators.storm`.
      batch_size: expected number of examples in a batch at t >= 1, b above.
      first_size: that of the batch at t = 0; the same by default.
      inside: noise multiplier, standard deviation over sensitivity; 0 is no noise.
    """
    check_range("beta", beta, 0.0, 1.0)
    size, first = _checked_sizes(batch_size, first_size)
    check_range("inside", inside, schedules=False)

    def start(objective, params, batch, iteration):
        new = objective.example_grad(params, batch, iteration.key)
        none = jax.tree.map(lambda _: 0.0, params)
        g = _innovation(clip, new, new, none, first, inside, iteration)
        return g, Storm(g, params)

    def update(objective, memory, params, batch, iteration):
        g, before = memory
        new = objective.example_grad(params, batch, iteration.key)
        old = objective.example_grad(before, batch, iteration.key)
        k = tree.map(lambda beta: 1 - beta, value_at(beta, iteration))
        d = _innovation(clip, new, old, _spread(k, params), size, inside, iteration)
        g = tree.add(tree.scale(k, g), d)
        return g, Storm(g, params)

    return Estimator(start, update)


def _innovation(clip: Clip, new, old, k, size, inside, iteration):
    """d: the sum of the examples' shares over the expected size, and the noise."""
    new, old = (tree.map(lambda x: x.astype(wide(x)), g) for g in (new, old))
    shares = jax.vmap(clip.innovate, in_axes=(0, 0, None))(new, old, k)
    d = tree.map(lambda share, g: (share.sum(0) / size).astype(g.dtype), shares, new)
    bound = _spread(clip.sensitivity(k, size), d)
    sigma = tree.map(jnp.multiply, _spread(inside, d), bound)
    return add_normal(apart(iteration)[1], sigma, d)


def _spread(prefix, a):
    """A prefix of a's tree as a tree with the leaves of a."""
    return tree.map(lambda p, part: tree.map(lambda _: p, part), prefix, a)


def _extremes(limit, k):
    """The smallest and the largest k below every limit; k may be one number."""
    if jax.tree_util.all_leaves([k]):
        k = tree.map(lambda _: k, limit)
    least = lambda _, part: functools.reduce(jnp.minimum, jax.tree.leaves(part))
    most = lambda _, part: functools.reduce(jnp.maximum, jax.tree.leaves(part))
    return jax.tree.map(least, limit, k), jax.tree.map(most, limit, k)


def _check_limit(name, limit):
    check_range(name, limit, open_low=True, schedules=False)


def _checked_sizes(batch_size, first_size):
    first = batch_size if first_size is None else first_size
    check_range("batch_size", batch_size, open_low=True, schedules=False)
    check_range("first_size", first, open_low=True, schedules=False)
    return batch_size, first
