"""STORM with bounded influence of every example, and noise inside or on the output.

STORM is g_t = k g_{t-1} + d_t with k = 1 - beta, and k = 0 at t = 0. A `Clip` bounds
one example's share of d_t, for which it needs both gradients of the example:

    each(C)        clip_C(new) - k clip_C(old)                 S = (1 + k) C / b
    difference(C)  clip_C(new - k old)                         S = C / b
    split(C, D)    (1 - k) clip_C(new) + k clip_D(new - old)   S = ((1 - k) C + k D) / b

d_t is the sum of all shares over b, the *expected* batch size. The actual size is not
used, since it would reveal how many examples there were. S is the sensitivity of d_t to
one added or removed example; replacing an example counts twice. `each` clips the
gradients of Xian et al. 2021, NeurIPS. Clipped differences are those of DIFF2
(Murata and Suzuki 2023, arXiv:2302.03884), and `split` combines both.

Noise on the output, as in the paper of DPMixSGD, is `noisy(private_storm(...), sigma)`.
Noise inside is d_t + N(0, (noise_multiplier S)^2), which the recursion keeps.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon.core import Hyper, Objective, check_range, recorded, tree, value_at
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized.estimators import Storm, split_noise_key
from fedjax_muon.decentralized.gossip import Estimator, Iteration
from fedjax_muon.privacy.clipping import clipped
from fedjax_muon.privacy.gaussian import add_normal, sum_dtype

# of all variables together, or of each of them
ClipNorm = float | jax.Array | Pair


class Clip(NamedTuple):
    """How one example's share of the innovation d is bounded."""

    # (new, old, k) -> share; both gradients and k have all leaves of the parameters
    share: Callable[[Any, Any, Any], Any]
    # (k, b) -> S, one value for every norm: the largest norm of a share, over b
    sensitivity: Callable[[Any, Any], Any]


def each(clip_norm: ClipNorm) -> Clip:
    """Clips both gradients: STORM on clipped gradients.

    Gradients that are not finite count as zero.

    Args:
      clip_norm: Largest norm of all variables together, or a `Pair` of the largest
        norms of x and y.

    Returns:
      A clip with sensitivity (1 + k) clip_norm / b.
    """
    _check_norm("clip_norm", clip_norm)

    def share(new: Any, old: Any, k: Any) -> Any:
        faded = jax.tree.map(jnp.multiply, k, clipped(clip_norm, old))
        return tree.sub(clipped(clip_norm, new), faded)

    def sensitivity(k: Any, size: Any) -> Any:
        _, most = _extremes(clip_norm, k)
        return jax.tree.map(lambda c, k: (1 + k) * c / size, clip_norm, most)

    return Clip(share, sensitivity)


def difference(clip_norm: ClipNorm) -> Clip:
    """Clips the new gradient minus the part of the old one that STORM keeps.

    Gradients that are not finite count as zero.

    Args:
      clip_norm: Largest norm of the difference, all variables together, or a `Pair` of
        the largest norms of x and y.

    Returns:
      A clip with sensitivity clip_norm / b.
    """
    _check_norm("clip_norm", clip_norm)

    def share(new: Any, old: Any, k: Any) -> Any:
        innovation = jax.tree.map(lambda n, o, k: n - k * o, new, old, k)
        return clipped(clip_norm, innovation)

    return Clip(share, lambda k, size: jax.tree.map(lambda c: c / size, clip_norm))


def split(clip_norm: ClipNorm, change_clip_norm: ClipNorm) -> Clip:
    """Clips the gradient, and separately its change since the last iteration.

    Gradients that are not finite count as zero.

    Args:
      clip_norm: Largest norm of the gradient, all variables together, or a `Pair` of
        the largest norms of x and y.
      change_clip_norm: Largest norm of its change, of the same kind.

    Returns:
      A clip with sensitivity ((1 - k) clip_norm + k change_clip_norm) / b. If norms are
      numbers and x and y have different k, it is an upper bound.
    """
    _check_norm("clip_norm", clip_norm)
    _check_norm("change_clip_norm", change_clip_norm)
    if hasattr(clip_norm, "_fields") != hasattr(change_clip_norm, "_fields"):
        raise ValueError(
            "clip_norm and change_clip_norm must be both numbers or both pairs, got "
            f"{clip_norm!r} and {change_clip_norm!r}"
        )

    def share(new: Any, old: Any, k: Any) -> Any:
        gradient = clipped(clip_norm, new)
        change = clipped(change_clip_norm, tree.sub(new, old))
        return jax.tree.map(lambda n, m, k: (1 - k) * n + k * m, gradient, change, k)

    def sensitivity(k: Any, size: Any) -> Any:
        least, most = _extremes(clip_norm, k)
        bound = lambda c, d, least, most: ((1 - least) * c + most * d) / size
        return jax.tree.map(bound, clip_norm, change_clip_norm, least, most)

    return Clip(share, sensitivity)


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
      batch_size: b, the expected number of examples in a batch at t >= 1.
      first_size: The same for the batch at t = 0; `batch_size` by default.
      noise_multiplier: Standard deviation of the noise over S; 0 is no noise.

    Returns:
      An estimator without memory.
    """
    clip = difference(clip_norm)
    size, first = _checked_sizes(batch_size, first_size)
    check_range("noise_multiplier", noise_multiplier, schedules=False)

    def measure(size, objective, params, batch, iteration):
        new = _example_gradients(objective, params, batch, iteration)
        zero = jax.tree.map(lambda _: 0.0, params)
        return _innovation(clip, new, new, zero, size, noise_multiplier, iteration), ()

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

    Estimates are in float32 or wider, also for parameters in fewer bits: rounding
    before the noise is added would change them by more than the sensitivity.

    Args:
      clip: `each`, `difference` or `split`.
      beta: Weight of the new gradient, in [0, 1], as in `estimators.storm`.
      batch_size: b, the expected number of examples in a batch at t >= 1.
      first_size: The same for the batch at t = 0; `batch_size` by default.
      noise_multiplier: Standard deviation of the noise inside over the sensitivity; 0
        is no noise.

    Returns:
      An estimator that takes two gradients of each example.
    """
    check_range("beta", beta, 0.0, 1.0)
    size, first = _checked_sizes(batch_size, first_size)
    check_range("noise_multiplier", noise_multiplier, schedules=False)

    def start(objective, params, batch, iteration):
        new = _example_gradients(objective, params, batch, iteration)
        zero = jax.tree.map(lambda _: 0.0, params)
        g = _innovation(clip, new, new, zero, first, noise_multiplier, iteration)
        return g, Storm(g, params)

    def update(objective, memory, params, batch, iteration):
        g, before = memory
        new = _example_gradients(objective, params, batch, iteration)
        old = _example_gradients(objective, before, batch, iteration)
        k = tree.map(lambda beta: 1 - beta, value_at(beta, iteration))
        spread = _spread(k, params)
        d = _innovation(clip, new, old, spread, size, noise_multiplier, iteration)
        g = tree.add(tree.scale(k, g), d)
        return g, Storm(g, params)

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
    k: Any,
    size: Any,
    noise_multiplier: Any,
    iteration: Iteration,
) -> Any:
    """d: the sum of the examples' shares over the expected size, and the noise."""
    new, old = (tree.map(lambda x: x.astype(sum_dtype(x)), g) for g in (new, old))
    shares = jax.vmap(clip.share, in_axes=(0, 0, None))(new, old, k)
    d = tree.map(lambda share, g: (share.sum(0) / size).astype(g.dtype), shares, new)
    bound = _spread(clip.sensitivity(k, size), d)
    sigma = tree.map(jnp.multiply, _spread(noise_multiplier, d), bound)
    return add_normal(split_noise_key(iteration)[1], sigma, d)


def _spread(prefix: Any, a: Any) -> Any:
    """A prefix of the tree of `a`, extended to all leaves of `a`."""
    return tree.map(lambda p, part: tree.map(lambda _: p, part), prefix, a)


def _extremes(norms: Any, k: Any) -> tuple[Any, Any]:
    """The smallest and the largest k under every norm; k may be one number."""
    if jax.tree_util.all_leaves([k]):
        k = tree.map(lambda _: k, norms)
    least = lambda _, part: functools.reduce(jnp.minimum, jax.tree.leaves(part))
    most = lambda _, part: functools.reduce(jnp.maximum, jax.tree.leaves(part))
    return jax.tree.map(least, norms, k), jax.tree.map(most, norms, k)


def _check_norm(name: str, norm: ClipNorm) -> None:
    check_range(name, norm, open_low=True, schedules=False)


def _checked_sizes(batch_size: float, first_size: float | None) -> tuple[float, float]:
    first = batch_size if first_size is None else first_size
    check_range("batch_size", batch_size, open_low=True, schedules=False)
    check_range("first_size", first, open_low=True, schedules=False)
    return batch_size, first
