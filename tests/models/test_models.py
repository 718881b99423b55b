"""Pooling and dropout, networks against torch, and models that compute in bfloat16."""

import math
import re
from functools import cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon import models
from fedjax_muon.models.convolution import max_pool_2x2
from fedjax_muon.tasks.classification import logits_of
from tests.support.jaxprs import equations, products
from tests.support.parity import by_path, drawn, dropouts, shapes

IMAGES = ["mlp", "lenet", "emnist_cnn"]  # the others have their own tests


@pytest.mark.parametrize("size", [(6, 4), (7, 5)])
def test_pooling_equals_flax(size):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, *size, 3))
    g = rng.normal(size=(2, size[0] // 2, size[1] // 2, 3))

    def value_and_gradient(pool):
        y, pullback = jax.vjp(pool, jnp.asarray(x))
        return y, pullback(jnp.asarray(g, jnp.float32))

    ours = jax.jit(partial(value_and_gradient, max_pool_2x2))()
    flax_pool = partial(nn.max_pool, window_shape=(2, 2), strides=(2, 2))
    theirs = jax.jit(partial(value_and_gradient, flax_pool))()
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_equal_maxima_share_the_gradient():
    x = jnp.array([[3.0, 1.0], [3.0, 2.0]])[None, :, :, None]
    gradient = jax.grad(lambda x: jnp.sum(max_pool_2x2(x)))(x)
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[0.5, 0.0], [0.5, 0.0]])


LAYERS = {  # name: (weights and biases of each layer, for 28 x 28 x 1 and 10 classes)
    "mlp": [784 * 200 + 200, 200 * 200 + 200, 200 * 10 + 10],
    "lenet": [
        5 * 5 * 1 * 6 + 6,  # 28 x 28, pooled to 14 x 14
        5 * 5 * 6 * 16 + 16,  # 10 x 10, pooled to 5 x 5
        5 * 5 * 16 * 120 + 120,
        120 * 84 + 84,
        84 * 10 + 10,
    ],
    "emnist_cnn": [
        3 * 3 * 1 * 32 + 32,  # 26 x 26
        3 * 3 * 32 * 64 + 64,  # 24 x 24, pooled to 12 x 12
        12 * 12 * 64 * 128 + 128,
        128 * 10 + 10,
    ],
}
TOTALS = {"mlp": 199_210, "lenet": 61_706, "emnist_cnn": 1_199_882}


@pytest.mark.parametrize("name", IMAGES)
def test_parameters_of_each_layer(name):
    params = shapes(models.ALL[name](classes=10), (28, 28, 1))
    counts = [sum(p.size for p in jax.tree.leaves(layer)) for layer in params.values()]
    assert sorted(counts) == sorted(LAYERS[name])
    assert sum(counts) == TOTALS[name]


# ---------------------- the vision transformer, whose numbers test_models_large checks

PATCHES = {"patch": 2, "heads": 3, "head_width": 4, "hidden": 14}
SMALL_VIT = {"width": 10, "depth": 2, **PATCHES}


def test_where_dropout_acts():
    model, image = models.ViT(5, **SMALL_VIT), (4, 6, 3)
    tokens = (2, 1 + 2 * 3)
    seen = dropouts(lambda: shapes(model, image))
    block = [(*tokens, 10), (*tokens, 14), (*tokens, 10)]
    assert seen == [(shape, 0.1) for shape in [(*tokens, 10), *block, *block]]


# ------------------------------- in bfloat16: what is rounded, and how far off

VIT = PATCHES | {"width": 12, "depth": 1, "heads": 2}
RNN = {"vocabulary_size": 11, "embedding": 6, "hidden": 7, "layers": 1}
RECURRENT = ("rnn", "lstm", "gru")
SMALL = {  # name: (options, shape of an example)
    "mlp": ({"features": (9, 8)}, (4, 4, 1)),
    "lenet": ({}, (12, 12, 1)),
    "emnist_cnn": ({}, (6, 6, 1)),
    **dict.fromkeys(RECURRENT, (RNN, (5,))),
    "resnet18": ({"groups": 2, "widths": (4, 6)}, (6, 6, 3)),
    **dict.fromkeys(("vit", "vit_tiny"), (VIT, (4, 6, 3))),
}
# The input, kernel and output of a product are rounded to 8 bits: each by 2^-8 at most,
# and by 2^-8 / sqrt(3) in root mean square. So n products in a row, whose roundings are
# independent, make sqrt(n) 2^-8, if the layers between them do not magnify.
EPSILON = 2.0**-8


@cache
def prepared(name):
    """Parameters and examples."""
    options, example = SMALL[name]
    params = drawn(shapes(models.ALL[name](5, **options), example))
    rng = np.random.default_rng(1)
    if name in RECURRENT:
        x = jnp.asarray(rng.integers(1, 11, (4, *example)), jnp.int32)
    else:
        x = jnp.float32(rng.normal(size=(4, *example)))
    return jax.tree.map(jnp.float32, params), x


def model_of(name, dtype=None):
    return models.ALL[name](5, dtype=dtype, **SMALL[name][0])


@cache
def gradient_program(name, dtype=None):
    params, x = prepared(name)
    model, key = model_of(name, dtype), jax.random.key(0)
    loss = lambda p: jnp.sum(jnp.sin(logits_of(model, p, x, key)))
    return jax.make_jaxpr(jax.grad(loss), return_shape=True)(params)


def test_every_model_is_here():
    assert SMALL.keys() == models.ALL.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_float32_is_the_default(name):
    """One program: the same operations in the same order."""
    text = lambda dtype: re.sub(r"0x\w+", "", str(gradient_program(name, dtype)[0]))
    assert text(None) == text(jnp.float32) != text(jnp.bfloat16)


FAST = ("mlp", "lenet", "rnn", "vit_tiny")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in FAST)) for n in SMALL]
)
def test_products_are_of_bfloat16_and_gradients_of_float32(name):
    program, gradient = gradient_program(name, jnp.bfloat16)
    found = products(program.jaxpr)
    assert len(found) >= 3
    for equation in found:
        assert {v.aval.dtype for v in equation.invars} == {jnp.dtype(jnp.bfloat16)}
    params = shapes(model_of(name, jnp.bfloat16), SMALL[name][1])
    for path, leaf in (by_path(params) | by_path(gradient)).items():
        assert leaf.dtype == jnp.float32, path


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_logits_are_near_those_of_float32(name):
    params, x = prepared(name)

    def logits(dtype):
        model = model_of(name, dtype)
        traced = jax.jit(lambda params: logits_of(model, params, x)).trace(params)
        return traced.jaxpr, traced.lower().compile()(params)

    (_, exact), (program, rounded) = logits(None), logits(jnp.bfloat16)
    assert exact.dtype == rounded.dtype == jnp.float32
    for equation in equations(program):  # of softmax and of normalisation
        if equation.primitive.name in ("exp", "rsqrt"):
            assert equation.invars[0].aval.dtype == jnp.float32
    length = x.shape[1] if name in RECURRENT else 1  # a scan's products come in a row
    chain = length * sum(path.endswith("kernel") for path in by_path(params))
    error = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
    assert EPSILON / 8 < error < 2 * math.sqrt(chain) * EPSILON


def test_gradients_of_tables_add_up_in_float32():
    """Where a row is looked up often, a sum in bfloat16 would stop growing."""
    program, _ = gradient_program("rnn", jnp.bfloat16)
    tables = {leaf.shape for leaf in jax.tree.leaves(prepared("rnn")[0])}
    sums = [e for e in equations(program.jaxpr) if e.primitive.name == "scatter-add"]
    found = [v for e in sums if (v := e.invars[0].aval).shape in tables]
    assert found
    assert all(table.dtype == jnp.float32 for table in found)
