"""Muon on noisy gradients, with a correction of the bias that noise causes.

The polar factor is not linear: with V a matrix of independent N(0, 1), the mean of
polar(M + s V) differs from polar(M) by about s^2 / 2 times the Laplacian of polar, as
for a solution of the heat equation. Smoothing once more shows that difference,

    polar(M) ~ 2 polar(Y) - (polar(Y + s V) + polar(Y - s V)) / 2,    Y = M + noise,

and removes the leading term. Private gradients have noise of known size, and V is drawn
afterwards, so that the correction costs no privacy.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core import check_count, check_range, tree
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.transforms.layout import (
    Layout,
    as_matrices,
    map_matrices,
    muon_dimension_numbers,
)
from fedjax_muon.transforms.muon import Polar


class State(NamedTuple):
    """The momentum, and how many gradients it has."""

    momentum: Any
    steps: jax.Array  # int32 []


def muon_with_noise(
    noise_std: float,
    *,
    momentum: float = 0.9,
    probes: int = 1,
    seed: int = 0,
    polar: Polar = kernel.orthogonalize,
    layout: Layout = muon_dimension_numbers,
) -> optax.GradientTransformation:
    """Muon with heavy-ball momentum on gradients with noise, corrected for its bias.

    DP-MuonBC (Kim and Fan 2026, arXiv:2605.12994) removes the same leading term of the
    bias; how the correction is computed here is this library's. Without it, `muon` is
    the same rule. Leaves that are no matrices keep their momentum.

    Args:
      noise_std: Standard deviation of the noise in a gradient, independent in every
        coordinate and step; 0 is no correction.
      probes: Number of independent V, whose mean is taken.
      seed: Number that V is drawn from.
    """
    check_range("noise_std", noise_std, schedules=False)
    check_range("momentum", momentum, 0, 1, open_high=True, schedules=False)
    check_count("probes", probes)

    def init(params: Any) -> State:
        return State(tree.zeros_like(params), jnp.int32(0))

    def corrected(y: jax.Array, s: jax.Array, key: jax.Array) -> jax.Array:
        def smoothed(key: jax.Array) -> jax.Array:
            v = s.astype(y.dtype) * jax.random.normal(key, y.shape, y.dtype)
            return (polar(y + v) + polar(y - v)) / 2

        mean = jax.vmap(smoothed)(jax.random.split(key, probes)).mean(0)
        return 2 * polar(y) - mean

    def update(updates: Any, state: State, params: Any = None) -> tuple[Any, State]:
        del params
        m = tree.map(lambda m, g: momentum * m + g, state.momentum, updates)
        count = state.steps + 1
        kept = (1 - momentum ** (2 * count)) / (1 - momentum**2)  # sum of weights^2
        s = noise_std * jnp.sqrt(kept)
        key = jax.random.fold_in(jax.random.key(seed), count)
        keys = iter(jax.random.split(key, max(1, len(jax.tree.leaves(m)))))
        one = lambda y: corrected(y, s, next(keys)) if noise_std else polar(y)
        step = map_matrices(
            lambda numbers, leaf: as_matrices(one, numbers, leaf), layout(m), m
        )
        return step, State(m, count)

    return optax.GradientTransformation(init, update)
