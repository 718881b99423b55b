"""Convolutions as products of patches."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_muon import models
from fedjax_muon.models.patches import by_patches
from fedjax_muon.runs.build import CONVOLUTIONAL

pytestmark = pytest.mark.slow

CASES = [
    # space, kernel, strides, padding, dilation
    ((8, 9), (3, 3), (1, 1), "SAME", (1, 1)),
    ((8, 9), (3, 3), (2, 2), "SAME", (1, 1)),
    ((9, 8), (3, 2), (2, 3), "VALID", (2, 1)),
    ((7, 7), (1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1)),
    ((6, 6), (3, 3), (1, 2), ((1, 1), (0, 2)), (1, 1)),
    ((7,), (4,), (2,), "SAME", (1,)),
    ((2, 2), (5, 5), (1, 1), ((2, 2), (2, 2)), (1, 1)),
    ((4, 3, 5), (2, 2, 3), (1, 1, 2), "SAME", (1, 1, 1)),
]


def gaussian(shape, seed):
    values = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(values, jnp.float32)


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_lax(case):
    space, window, strides, padding, dilation = case
    letters = "HWD"[: len(space)]
    layout = f"N{letters}C", f"{letters}IO", f"N{letters}C"
    x, kernel = gaussian((2, *space, 3), 0), gaussian((*window, 3, 4), 1)
    options = {"rhs_dilation": dilation, "dimension_numbers": layout}

    def results(convolve):
        f = lambda x, w: convolve(x, w, strides, padding, **options)
        value, pullback = jax.vjp(f, x, kernel)
        return value, *pullback(jnp.cos(value))

    ours, theirs = results(by_patches), results(lax.conv_general_dilated)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"feature_group_count": 3},
        {"lhs_dilation": (2, 2)},
        {"dimension_numbers": ("NCHW", "OIHW", "NCHW")},
        {"batch_group_count": 2},
    ],
)
def test_other_convolutions_are_refused(options):
    given = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")} | options
    with pytest.raises(ValueError, match="by_patches is for data"):
        by_patches(
            jnp.ones((2, 5, 5, 3)), jnp.ones((3, 3, 3, 3)), (1, 1), "SAME", **given
        )


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_models_of_two_clients_compute_the_same_with_products_alone(name):
    size = {"widths": (4, 4), "groups": 2} if name == "resnet18" else {}
    images = gaussian((2, 3, 14, 14, 3), 2)
    make = partial(models.ALL[name], classes=4, **size)
    init = make().init
    params = jax.vmap(init, (0, None))(jax.random.split(jax.random.key(0)), images[0])

    def gradients(model):
        loss = lambda params, x: jnp.sum(jnp.cos(model.apply(params, x)))
        return jax.vmap(jax.grad(loss))

    ours, theirs = gradients(make(convolution=by_patches)), gradients(make())
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    lowered = jax.jit(ours).lower(params, images)
    assert "convolution" not in lowered.as_text()
    found, expected = lowered.compile()(params, images), jax.jit(theirs)(params, images)
    jax.tree.map(close, found, expected)


def test_models_without_convolutions_have_no_such_option():
    for name in set(models.ALL) - set(CONVOLUTIONAL):
        with pytest.raises(TypeError, match="convolution"):
            models.ALL[name](classes=4, convolution=by_patches)
