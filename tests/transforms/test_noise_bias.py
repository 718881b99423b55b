"""Muon on noisy gradients: the correction of its bias."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon.transforms.noise_bias import muon_with_noise


def polar(a):
    u, _, v = jnp.linalg.svd(a, full_matrices=False)
    return jnp.matmul(u, v)


def exact(a):
    u, _, v = np.linalg.svd(np.asarray(a, np.float64), full_matrices=False)
    return u @ v


def test_steps_are_the_formula():
    """A literal transcription with the same draws, two probes, three steps."""
    std, mu, shape = 0.1, 0.8, (4, 3)
    rule = muon_with_noise(std, momentum=mu, probes=2, seed=5, polar=polar)
    state, m = rule.init({"w": jnp.zeros(shape)}), np.zeros(shape)
    for t in range(3):
        g = np.random.default_rng(t).normal(size=shape)
        step, state = rule.update({"w": jnp.asarray(g, jnp.float32)}, state)
        m = mu * m + g
        s = std * np.sqrt(sum(mu ** (2 * k) for k in range(t + 1)))
        key = jax.random.fold_in(jax.random.key(5), t + 1)
        (key,) = jax.random.split(key, 1)
        total = np.zeros(shape)
        for probe in jax.random.split(key, 2):
            v = s * np.asarray(jax.random.normal(probe, shape), np.float64)
            total += (exact(m + v) + exact(m - v)) / 2
        expected = 2 * exact(m) - total / 2
        np.testing.assert_allclose(step["w"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_bias_is_smaller():
    """The mean over the noise is nearer to the step without noise."""
    a = np.diag([1.0, 0.7, 0.5]) + 0.05 * np.random.default_rng(0).normal(size=(3, 3))
    std, count = 0.12, 20000
    noise = std * jax.random.normal(jax.random.key(0), (count, 3, 3))
    noisy = jnp.asarray(a, jnp.float32)[None] + noise

    def step(g, std, seed):
        rule = muon_with_noise(std, momentum=0.0, polar=polar, seed=seed)
        return rule.update({"w": g}, rule.init({"w": g}))[0]["w"]

    plain = jax.vmap(lambda g: step(g, 0.0, 0))(noisy).mean(0)
    corrected = jax.vmap(lambda g, seed: step(g, std, seed))(noisy, jnp.arange(count))
    bias = lambda mean: np.linalg.norm(np.asarray(mean, np.float64) - exact(a))
    assert bias(corrected.mean(0)) < 0.6 * bias(plain)


def test_vectors_keep_their_momentum_and_numbers_are_checked():
    rule = muon_with_noise(0.1, momentum=0.5)
    g = {"b": jnp.ones(3)}
    state = rule.init(g)
    _, state = rule.update(g, state)
    step, _ = rule.update(g, state)
    np.testing.assert_allclose(step["b"], 1.5)
    for bad in ({"noise_std": -1.0}, {"noise_std": 0.1, "momentum": 1.0}):
        with pytest.raises(ValueError, match="must"):
            muon_with_noise(**bad)
    with pytest.raises(ValueError, match="probes"):
        muon_with_noise(0.1, probes=0)
