"""Frequencies of random draws, against what they should be."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

# One test in a million would fail for another key, if all is as it should be.
RARE = 1e-6


def draw_many(sampler, sizes, steps, batch, max_client_size):
    """One draw for every size, each with its own key: [n, steps, batch]."""
    keys = jax.random.split(jax.random.key(5), len(sizes))
    draw = lambda key, size: sampler(key, size, steps, batch, max_client_size)
    return np.asarray(jax.jit(jax.vmap(draw))(keys, jnp.asarray(sizes)))


def frequencies(draws):
    """How often each row of `draws` [n, length] occurs, by its values."""
    seen, counts = np.unique(draws, axis=0, return_counts=True)
    return {tuple(row): int(n) for row, n in zip(seen.tolist(), counts, strict=True)}


def assert_uniform(counts, outcomes):
    """Chi-square: `counts` are of equally likely outcomes, `outcomes` of them."""
    observed = np.zeros(outcomes)
    observed[: len(counts)] = counts
    expected = observed.sum() / outcomes
    assert expected >= 5  # below, the statistic is not chi-square
    chi2 = np.sum((observed - expected) ** 2) / expected
    assert chi2 < stats.chi2.isf(RARE, outcomes - 1)
