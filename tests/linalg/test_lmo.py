"""The oracles against their definition, and the theory of inexact orthogonalization."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon.linalg.lmo import euclidean, max_norm, spectral
from fedjax_muon.linalg.newton_schulz import JORDAN, QUINTIC, orthogonalize, polar

exact_spectral = functools.partial(spectral, orthogonalize=polar)

# oracle, norm of its ball, dual norm
ORACLES = {
    "spectral": (
        exact_spectral,
        lambda d: np.linalg.norm(d, 2),
        lambda g: np.linalg.norm(g, "nuc"),
    ),
    "euclidean": (euclidean, np.linalg.norm, np.linalg.norm),
    "max norm": (max_norm, lambda d: np.abs(d).max(), lambda g: np.abs(g).sum()),
}


def gaussian(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("name", ORACLES)
def test_minimizes_over_the_unit_ball(name):
    oracle, norm, dual = ORACLES[name]
    with jax.enable_x64(True):
        g = gaussian((5, 8))
        d = np.asarray(oracle(g))
        np.testing.assert_allclose(norm(d), 1, rtol=1e-12)
        np.testing.assert_allclose(np.sum(g * d), -dual(g), rtol=1e-12)
        for seed in range(1, 50):
            other = gaussian((5, 8), seed)
            assert np.sum(g * other) / norm(other) >= np.sum(g * d)


@pytest.mark.parametrize("oracle", [spectral, exact_spectral, euclidean, max_norm])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_zero_scale_and_type(oracle, dtype):
    g = jnp.asarray(gaussian((5, 8)), dtype)
    d = oracle(g)
    assert d.dtype == dtype
    assert not np.any(oracle(0 * g))
    # A power of two near the end of the range, where squares overflow.
    scaled = oracle(jnp.ldexp(g, 120))
    np.testing.assert_allclose(
        scaled.astype(jnp.float32), d.astype(jnp.float32), atol=1e-6
    )
    tiny = oracle(jnp.ldexp(g, -100))
    np.testing.assert_allclose(
        tiny.astype(jnp.float32), d.astype(jnp.float32), atol=1e-6
    )


@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 4), (0,), (0, 3)])
def test_euclidean_and_max_norm_take_any_rank(shape):
    g = jnp.asarray(gaussian(shape), jnp.float32)
    expected = -g / (np.linalg.norm(g.ravel()) if g.size else 1)
    np.testing.assert_allclose(euclidean(g), expected, rtol=1e-6)
    np.testing.assert_array_equal(max_norm(g), -np.sign(g))


def test_euclidean_never_hides_a_non_finite_entry():
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        assert np.all(np.isnan(euclidean(jnp.array([1.0, bad, 0.0]))))


def test_spectral_wants_matrices():
    with pytest.raises(ValueError, match=r"got shape \(3,\)"):
        spectral(jnp.ones(3))


def test_spectral_is_minus_orthogonalize_by_default():
    g = jnp.asarray(gaussian((5, 8)), jnp.float32)
    np.testing.assert_array_equal(spectral(g), -orthogonalize(g))


def test_zero_newton_schulz_steps_are_the_euclidean_oracle():
    # Muon with T = 0 is normalised gradient descent (arXiv:2509.26337).
    g = jnp.asarray(gaussian((5, 8)), jnp.float32)
    none = functools.partial(orthogonalize, steps=0)
    np.testing.assert_allclose(spectral(g, none), euclidean(g), atol=1e-6)


# ------------------------------------------------------------------ theory


def matrices():
    """Random 5 x 8 matrices: all ranks, condition numbers from 1 to 1e6."""
    rng = np.random.default_rng(0)
    batch = []
    for rank in range(1, 6):
        for decades in (0, 0.5, 2, 6):
            u = np.linalg.qr(rng.normal(size=(5, 5)))[0][:, :rank]
            v = np.linalg.qr(rng.normal(size=(8, 8)))[0][:, :rank]
            s = 10 ** (-decades * rng.uniform(size=rank))
            batch.append(rng.normal() * (u * s) @ v.T)
    return np.stack(batch)


def nonzero_singular_values(x):
    s = np.linalg.svd(x, compute_uv=False)
    return s[s > 1e-12 * s[0]]


def exponent(kappa, steps):
    """p of arXiv:2509.26337, Lemma 12, from kappa = s_min / s_max over non-zero s."""
    if kappa > 1 - 1e-9:
        return 1.0
    return 1 + np.log(1 - (1 - kappa) ** (1.5**steps)) / np.log(kappa)


def alignment(x, y):
    return np.sum(x * y)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1, 2, 4, 8])
def test_inexact_orthogonalization_is_between_two_schatten_norms(steps):
    # arXiv:2509.26337, Lemma 12: ||G||_p <= <G, G^(T)> <= ||G||_1, ||G^(T)||_2 <= 1.
    with jax.enable_x64(True):
        batch = matrices()
        results = np.asarray(orthogonalize(batch, coefficients=QUINTIC, steps=steps))
    for g, result in zip(batch, results, strict=True):
        s = nonzero_singular_values(g)
        tolerance = 1e-8 * s.sum()
        # The Frobenius norm stands in for the spectral one, hence its kappa.
        lower = np.linalg.norm(s, exponent(s[-1] / np.linalg.norm(s), steps))
        assert lower - tolerance <= alignment(g, result) <= s.sum() + tolerance
        assert np.linalg.norm(result, 2) <= 1 + 1e-12


def test_the_upper_bounds_fail_with_jordan_coefficients():
    # All singular values equal 1 / sqrt(n) after normalisation; p exceeds 1 at some.
    for n in range(2, 13):
        result = orthogonalize(jnp.eye(n), coefficients=JORDAN)
        if np.linalg.norm(result, 2) > 1.1:
            assert alignment(np.eye(n), result) > n * 1.1 - 1e-4
            return
    pytest.fail("no identity matrix left the unit ball")


def test_the_quintic_lies_between_the_identity_and_one():
    # arXiv:2509.26337, proof of Theorem 3: 1 - p(s) = (1 - s)^3 (1 + 9/8 s + 3/8 s^2)
    a, b, c = QUINTIC[0]
    s = np.linspace(0, 1, 1001)
    p = a * s + b * s**3 + c * s**5
    np.testing.assert_allclose(
        1 - p, (1 - s) ** 3 * (1 + 9 / 8 * s + 3 / 8 * s**2), atol=1e-15
    )
    assert np.all(p >= s)
    assert np.all(1 - p <= (1 - s) ** 1.5 + 1e-15)
    assert np.all(np.diff(p) >= -1e-15)


def test_the_exact_oracle_attains_the_nuclear_norm_and_counts_the_rank():
    with jax.enable_x64(True):
        batch = matrices()
        factors = np.asarray(polar(batch))
    for g, factor in zip(batch, factors, strict=True):
        s = nonzero_singular_values(g)
        np.testing.assert_allclose(alignment(g, factor), s.sum(), rtol=1e-10)
        np.testing.assert_allclose(np.sum(factor**2), len(s), rtol=1e-10)
        assert np.linalg.norm(s) <= s.sum() * (1 + 1e-12)
        assert s.sum() <= np.sqrt(min(g.shape)) * np.linalg.norm(s) * (1 + 1e-12)
