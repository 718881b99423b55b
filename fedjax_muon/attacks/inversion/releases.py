"""What an agent releases, as a function of its examples and the parameters.

Attacks differentiate these functions, so the model must be smooth: a network of ReLUs
has no second derivative to search along.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_muon.core import check_range, tree
from fedjax_muon.decentralized import private_storm
from fedjax_muon.tasks.classification import logits_of

# (params, x [B, ...], labels [B, classes] that sum to 1) -> release
Gradient = Callable[[Any, jax.Array, jax.Array], Any]


class Restored(NamedTuple):
    """What an attack takes the examples to be."""

    x: np.ndarray  # [B, ...]
    labels: np.ndarray  # [B, classes], not negative, each row sums to 1


def cross_entropy_gradient(model: nn.Module) -> Gradient:
    """The gradient of the mean cross-entropy, as `tasks.classification` has it, with
    labels that may be soft."""

    def loss(params, x, labels):
        logits = logits_of(model, params, x)
        return jnp.mean(optax.losses.softmax_cross_entropy(logits, labels))

    return jax.grad(loss)


def clipped(gradient: Gradient, limit) -> Gradient:
    """The mean of the examples' gradients, each clipped to `limit` before.

    This is what `private_storm.private_gradient` adds its noise to, and the limit is
    public. Raises `ValueError` unless `limit` is positive.
    """
    check_range("limit", limit, open_low=True, schedules=False)

    def mean(params, x, labels):
        def one(x, labels):
            alone = gradient(params, x[None], labels[None])
            return private_storm.clipped(limit, alone)

        return tree.map(lambda g: g.mean(0), jax.vmap(one)(x, labels))

    return mean


def innovation(gradient: Gradient, keep: float) -> Gradient:
    """What STORM adds to its memory: gradient(now) - keep gradient(before).

    `params` is the pair (now, before), and `keep` is 1 - beta, in [0, 1]. Whoever hears
    the estimates g has it as d_t = g_t - keep g_{t-1}, `tree.sub_scaled(now, keep,
    before)`; noise on both is then longer by sqrt(1 + keep^2).
    """
    check_range("keep", keep, 0.0, 1.0, schedules=False)

    def difference(params, x, labels):
        now, before = params
        new, old = gradient(now, x, labels), gradient(before, x, labels)
        return tree.sub_scaled(new, keep, old)

    return difference


def average(releases):
    """The mean over k releases, leaves [k, ...]: the noise is shorter by sqrt(k).

    An attack for noise that is drawn anew on the same examples at parameters that do
    not move, or hardly. Summed in float64, returned as NumPy arrays of that type.
    Raises `ValueError` unless all leaves have the same k of at least 1.
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
