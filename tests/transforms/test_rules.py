"""Rules of servers, and maps of whole directions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon import transforms
from fedjax_muon.linalg.newton_schulz import polar
from fedjax_muon.transforms import (
    biclip,
    normalize,
    scale_by_fedadagrad,
    scale_by_fedadam,
    scale_by_fedyogi,
    unit_directions,
)


def adaptive(second, gradients, b1, tau):
    """Algorithm 2 of Reddi et al., lines 9 to 13, of one leaf in float64."""
    m, v = np.zeros_like(gradients[0]), np.full_like(gradients[0], tau**2)
    for g in gradients:
        m = b1 * m + (1 - b1) * g
        v = second(v, g**2)
        yield m / (np.sqrt(v) + tau)


SECOND = {
    scale_by_fedadagrad: lambda v, g2, b2: v + g2,
    scale_by_fedadam: lambda v, g2, b2: b2 * v + (1 - b2) * g2,
    scale_by_fedyogi: lambda v, g2, b2: (
        v - (1 - b2) * np.where(v > g2, g2, np.where(v < g2, -g2, 0))
    ),
}
DEFAULTS = {"b1": 0.9, "b2": 0.99, "tau": 1e-3}
UNUSUAL = {"b1": 0.8, "b2": 0.6, "tau": 0.5}  # a start of v that is felt for long


@pytest.mark.parametrize("factory", SECOND)
@pytest.mark.parametrize("given", [{}, UNUSUAL])
def test_adaptive_rules(factory, given):
    values = DEFAULTS | given
    if factory is scale_by_fedadagrad:
        values = {"b1": 0.0} | given | {"b2": None, "tau": values["tau"]}
        given = {k: v for k, v in given.items() if k != "b2"}
    second = lambda v, g2: SECOND[factory](v, g2, values["b2"])
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        draw = lambda: {"kernel": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)}
        gradients = [draw() for _ in range(6)]
        gradients[0]["bias"][:2] = 0
        tx = factory(**given)
        state, update, ours = tx.init(gradients[0]), jax.jit(tx.update), []
        for g in gradients:
            u, state = update(g, state)
            ours.append(u)
        for name in ("kernel", "bias"):
            leaf = [g[name] for g in gradients]
            theirs = list(adaptive(second, leaf, values["b1"], values["tau"]))
            found = np.stack([u[name] for u in ours])
            np.testing.assert_allclose(found, theirs, rtol=1e-12, atol=1e-15)


# ------------------------------------------------------- maps of whole directions

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


HALF = {
    "biclip": lambda: biclip(1e-5, 0.1),
    "normalize_axes": lambda: transforms.normalize_axes("out", "in"),
}
RULES = [
    *HALF,
    *("equilibrate", "input_direction", "muon", "normalize", "orthogonalize"),
    *("output_direction", "rms_direction", "scale_by_adamuon", "scale_by_fadas"),
    *("scale_by_fedadam", "scale_by_mars", "scale_by_muon", "scale_by_muon2"),
    *("scale_by_normuon", "scale_by_scion", "scale_by_soap", "unit_directions"),
]


@pytest.mark.parametrize("name", RULES)
def test_16_bit_parameters_get_finite_steps_of_any_gradient(name):
    """A zero gradient is one of a client without a class, or of a head of zeros."""
    rule = HALF.get(name, getattr(transforms, name))()
    for dtype in (jnp.bfloat16, jnp.float16):
        params = {"k": jnp.full((8, 4), 0.1, dtype), "b": jnp.ones(4, dtype)}
        for size in (0.0, 1e-4, 1.0):
            g = jax.tree.map(lambda x, s=size: s * jnp.cos(jnp.arange(x.size)), params)
            g = jax.tree.map(lambda g, x: g.reshape(x.shape).astype(x.dtype), g, params)
            state = rule.init(params)
            for _ in range(2):
                u, state = rule.update(g, state, params)
            for x in jax.tree.leaves(u):
                assert x.dtype == dtype
                assert bool(jnp.isfinite(x.astype(jnp.float32)).all()), (dtype, size)
