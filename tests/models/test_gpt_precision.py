"""Language models in bfloat16: angles, norms and places keep float32 inside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon.models.gpt import Rotary
from tests.models.test_gpt import KEY, SMALL, TOKENS, loss, shapes
from tests.support.jaxprs import products
from tests.support.parity import by_path


@pytest.mark.parametrize("name", SMALL)
def test_products_in_bfloat16(name):
    model = SMALL[name].clone(dtype=jnp.bfloat16)
    params = shapes(model)
    program, gradient = jax.make_jaxpr(
        jax.grad(lambda p: loss(model, p, TOKENS)[0].astype(float)), return_shape=True
    )(params)
    for equation in products(program.jaxpr):
        assert {v.aval.dtype for v in equation.invars} == {jnp.dtype(jnp.bfloat16)}
    for path, leaf in (by_path(params) | by_path(gradient)).items():
        assert leaf.dtype == jnp.float32, path


@pytest.mark.parametrize("factor", [1.0, 8.0])
def test_rotations_in_bfloat16_have_the_angles_of_all_places(factor):
    """bfloat16 has no odd places above 256: angles must not be rounded to it."""
    places, width = np.arange(1000), 16
    rotary = Rotary(500_000.0, factor, trained=512)
    x = np.random.default_rng(0).normal(size=(1000, 1, width)).astype(np.float32)
    exact = rotary(jnp.asarray(x), places)
    found = rotary(jnp.asarray(x, jnp.bfloat16), places)
    assert found.dtype == jnp.bfloat16
    # cos, sin, x, two products and their sum are each rounded by 2^-9
    error = np.abs(np.asarray(found, np.float32) - exact).max() / np.abs(x).max()
    assert error < 8 * 2**-9


@pytest.mark.parametrize("name", SMALL)
def test_logits_in_bfloat16_are_near_at_all_places(name):
    """Norms, angles, softmax and places keep float32 inside, at 300 tokens too."""
    model = SMALL[name].clone(context=300)
    tokens = np.random.default_rng(1).integers(61, size=(2, 300))
    params = model.init(KEY, tokens[:, :1])
    params = jax.tree.map(lambda p: 3 * p, params)  # attention that is not uniform
    exact = np.asarray(model.apply(params, tokens))
    found = np.asarray(model.clone(dtype=jnp.bfloat16).apply(params, tokens), float)
    errors = np.sqrt(((found - exact) ** 2).mean((0, 2)) / (exact**2).mean())
    early, late = errors[:50].mean(), errors[-50:].mean()
    assert late < 2 * early < 0.2, (early, late)
