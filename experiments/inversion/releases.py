"""Releases of an agent as functions of its examples and the parameters.

Attacks differentiate these functions, so that the model must be smooth: the second
derivative of a network of ReLUs does not guide a search.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_muon.core import check_range, tree
from fedjax_muon.privacy import clipping
from fedjax_muon.tasks.classification import logits_of

# (params, x [B, ...], labels [B, classes] that sum to 1) -> release
Gradient = Callable[[Any, jax.Array, jax.Array], Any]


class Reconstruction(NamedTuple):
    """Examples that an attack found."""

    x: np.ndarray  # [B, ...]
    labels: np.ndarray  # [B, classes], not negative, every row sums to 1


def cross_entropy_gradient(model: nn.Module) -> Gradient:
    """Returns the gradient of the mean cross-entropy, as in `tasks.classification`.

    Args:
      model: Flax module that returns logits.

    Returns:
      Function of parameters, examples and labels, which may be soft.
    """

    def loss(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        logits = logits_of(model, params, x)
        return jnp.mean(optax.losses.softmax_cross_entropy(logits, labels))

    return jax.grad(loss)


def clipped(gradient: Gradient, clip_norm: float | jax.Array) -> Gradient:
    """Returns the mean of the examples' gradients, each of which is clipped.

    This is the value that `private.private_gradient` adds its noise to.

    Args:
      gradient: Gradient of a batch.
      clip_norm: Largest norm of an example's gradient, which is public.

    Returns:
      Function of parameters, examples and labels.
    """
    check_range("clip_norm", clip_norm, open_low=True, schedules=False)

    def mean(params: Any, x: jax.Array, labels: jax.Array) -> Any:
        def one(x: jax.Array, labels: jax.Array) -> Any:
            alone = gradient(params, x[None], labels[None])
            return clipping.clipped(clip_norm, alone)

        return tree.map(lambda g: g.mean(0), jax.vmap(one)(x, labels))

    return mean


def innovation(gradient: Gradient, keep: float) -> Gradient:
    """Returns what STORM adds to its memory: gradient(now) - keep gradient(before).

    An adversary who receives the estimates g has it as d_t = g_t - keep g_{t-1}. Noise
    on both makes it noisier by a factor of sqrt(1 + keep^2).

    Args:
      gradient: Gradient of a batch.
      keep: Weight of the old gradient, 1 - beta, in [0, 1].

    Returns:
      Function of parameters, examples and labels, whose parameters are the pair
      (now, before).
    """
    check_range("keep", keep, 0.0, 1.0, schedules=False)

    def difference(params: tuple[Any, Any], x: jax.Array, labels: jax.Array) -> Any:
        now, before = params
        new, old = gradient(now, x, labels), gradient(before, x, labels)
        return tree.sub_scaled(new, keep, old)

    return difference


def average(releases: Any) -> Any:
    """Returns the mean of k releases, whose noise is smaller by a factor of sqrt(k).

    This is for releases of the same examples, at parameters that move little, with
    independent noise.

    Args:
      releases: Pytree with leaves [k, ...].

    Returns:
      Pytree of NumPy arrays in float64, leaves [...].
    """
    releases = jax.tree.map(np.asarray, releases)
    leaves = jax.tree.leaves(releases)
    counts = {leaf.shape[0] if leaf.ndim else None for leaf in leaves}
    if len(counts) != 1 or not counts - {None, 0}:
        raise ValueError(
            "average needs leaves [k, ...] with one k of at least 1, got shapes "
            f"{[leaf.shape for leaf in leaves]}"
        )
    return jax.tree.map(lambda a: np.mean(a, axis=0, dtype=np.float64), releases)
