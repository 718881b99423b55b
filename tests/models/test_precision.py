"""Models that compute in bfloat16: what is rounded, what stays float32, how far off."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxprs import equations, products
from parity import by_path, drawn, shapes

from fedjax_muon import models
from fedjax_muon.tasks.classification import logits_of

VIT = {"patch": 2, "width": 12, "depth": 1, "heads": 2, "head_width": 4, "hidden": 14}
SWIN = {"patch": 1, "window": 3, "width": 6, "depths": (1, 1), "heads": (2, 3)}
RNN = {"vocabulary_size": 11, "embedding": 6, "hidden": 7, "layers": 1}
RECURRENT = ("rnn", "lstm", "gru")
SMALL = {  # name: (options, shape of an example)
    "mlp": ({"features": (9, 8)}, (4, 4, 1)),
    "lenet": ({}, (12, 12, 1)),
    "emnist_cnn": ({}, (6, 6, 1)),
    "rnn": (RNN, (5,)),
    "lstm": (RNN, (5,)),
    "gru": (RNN, (5,)),
    "resnet18": ({"groups": 2, "widths": (4, 6)}, (6, 6, 3)),
    "vit": (VIT, (4, 6, 3)),
    "vit_tiny": (VIT, (4, 6, 3)),
    "swin_tiny": (SWIN, (6, 6, 3)),
}
# The input, kernel and output of a product are rounded to 8 bits: each by 2^-8 at most,
# and by 2^-8 / sqrt(3) in root mean square. So n products in a row, whose roundings are
# independent, make sqrt(n) 2^-8, if the layers between them do not magnify.
EPSILON = 2.0**-8


@functools.cache
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


@functools.cache
def gradient_program(name, dtype=None):
    params, x = prepared(name)
    model, key = model_of(name, dtype), jax.random.key(0)
    loss = lambda p: jnp.sum(jnp.sin(logits_of(model, p, x, key)))
    return jax.make_jaxpr(jax.grad(loss), return_shape=True)(params)


FAST = ("mlp", "lenet", "rnn", "vit_tiny")


def test_every_model_is_here():
    assert SMALL.keys() == models.ALL.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lenet", "lstm", "resnet18", "swin_tiny"])
def test_float32_is_the_default(name):
    """One program: the same operations in the same order."""
    text = lambda dtype: re.sub(r"0x\w+", "", str(gradient_program(name, dtype)[0]))
    assert text(None) == text(jnp.float32) != text(jnp.bfloat16)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST))
        for name in SMALL
    ],
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rnn", "swin_tiny"])
def test_gradients_of_tables_add_up_in_float32(name):
    """Where a row is looked up often, a sum in bfloat16 would stop growing."""
    program, _ = gradient_program(name, jnp.bfloat16)
    tables = {leaf.shape for leaf in jax.tree.leaves(prepared(name)[0])}
    sums = [e for e in equations(program.jaxpr) if e.primitive.name == "scatter-add"]
    found = [v for e in sums if (v := e.invars[0].aval).shape in tables]
    assert found
    assert all(table.dtype == jnp.float32 for table in found)
