"""Maps of whole directions, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon.linalg.newton_schulz import polar
from fedjax_muon.transforms import biclip, normalize, unit_directions

G = {"w": jnp.array([[3.0, -0.5], [0.0, 1e-6]]), "b": jnp.array([-20.0, 4.0])}


def apply(rule, g):
    return rule.update(g, rule.init(g), g)[0]


def test_normalize_divides_by_the_norm_of_all_leaves_together():
    out = apply(normalize(), G)
    norm = np.sqrt(sum(float(np.sum(np.square(np.float64(v)))) for v in G.values()))
    for name, value in G.items():
        np.testing.assert_allclose(out[name], np.float64(value) / norm, rtol=1e-6)


def test_normalize_keeps_zero_and_every_scale():
    zero = jax.tree.map(jnp.zeros_like, G)
    jax.tree.map(np.testing.assert_array_equal, apply(normalize(), zero), zero)
    tiny = apply(normalize(), jax.tree.map(lambda v: v * 2.0**-50, G))
    jax.tree.map(np.testing.assert_array_equal, tiny, apply(normalize(), G))


def test_biclip_brings_sizes_into_the_interval_and_keeps_signs_and_zeros():
    out = apply(biclip(0.1, 5.0), G)
    np.testing.assert_allclose(out["w"], [[3.0, -0.5], [0.0, 0.1]], rtol=1e-7)
    np.testing.assert_allclose(out["b"], [-5.0, 4.0], rtol=1e-7)


def test_unit_directions_by_hand():
    g = {"w": G["w"], "b": G["b"], "s": jnp.array(-3.0), "zero": jnp.zeros(2)}
    out = apply(unit_directions(polar), g)
    u, _, vt = np.linalg.svd(np.float64(g["w"]))
    np.testing.assert_allclose(out["w"], u @ vt, atol=1e-5)
    np.testing.assert_allclose(out["b"], np.array([-20.0, 4.0]) / 416**0.5, rtol=1e-6)
    np.testing.assert_array_equal(out["s"], -1.0)
    np.testing.assert_array_equal(out["zero"], 0.0)
    column = polar(np.float32(g["b"])[:, None])[:, 0]  # a matrix of one column
    np.testing.assert_allclose(out["b"], column, rtol=1e-6)
    kept = apply(unit_directions(polar, normalize_vectors=False), g)
    np.testing.assert_array_equal(kept["b"], g["b"])
    np.testing.assert_array_equal(kept["w"], out["w"])
    np.testing.assert_array_equal(kept["s"], -1.0)


@pytest.mark.parametrize("rule", [normalize(), biclip(0.1, 5.0), unit_directions()])
def test_dtypes_stay(rule):
    half = jax.tree.map(lambda v: v.astype(jnp.bfloat16), G)
    assert {v.dtype for v in apply(rule, half).values()} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (-0.1, 1.0, r"low must lie in \[0, infinity\), got -0.1"),
        (0.1, -1.0, r"high must lie in \[0, infinity\), got -1.0"),
        (2.0, 1.0, r"low must lie in \[0, 1\], got 2.0"),
    ],
)
def test_biclip_refuses_an_empty_interval(low, high, message):
    with pytest.raises(ValueError, match=message):
        biclip(low, high)
