"""The pooling against flax, the networks against torch."""

import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packages import needs
from parity import differentiated, torch_leaves

from fedjax_muon import models
from fedjax_muon.models.convolution import max_pool_2x2

IMAGES = ["mlp", "lenet", "emnist_cnn"]  # the others have their own tests


def whole_numbers(seed, *shape):
    """Small integers: float32 sums of their products are exact in any order."""
    draw = np.random.default_rng(seed).integers(-4, 5, shape)
    return jnp.asarray(draw, jnp.float32)


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


def shapes(model, example_shape):
    x = jax.ShapeDtypeStruct((2, *example_shape), jnp.float32)
    logits, variables = jax.eval_shape(model.init_with_output, jax.random.key(0), x)
    assert set(variables) == {"params"}
    return logits.shape, variables["params"]


@pytest.mark.parametrize("name", IMAGES)
def test_parameters_of_each_layer(name):
    logits, params = shapes(models.ALL[name](classes=10), (28, 28, 1))
    counts = [sum(p.size for p in jax.tree.leaves(layer)) for layer in params.values()]
    assert logits == (2, 10)
    assert sorted(counts) == sorted(LAYERS[name])
    assert sum(counts) == TOTALS[name]


@pytest.mark.parametrize("name", IMAGES)
def test_classes(name):
    assert shapes(models.ALL[name](classes=62), (28, 28, 1))[0] == (2, 62)


def test_features_of_the_mlp():
    _, params = shapes(models.MLP(features=(7,), classes=3), (4, 2))
    kernels = [layer["kernel"].shape for layer in params.values()]
    assert kernels == [(8, 7), (7, 3)]


@pytest.mark.parametrize(
    ("model", "size", "width"),
    [
        (models.LeNet(), 32, 6 * 6 * 16),
        (models.LeNet(), 12, 1 * 1 * 16),
        (models.EmnistCNN(), 8, 2 * 2 * 64),  # scikit-learn's digits
        (models.EmnistCNN(), 6, 1 * 1 * 64),
    ],
)
def test_other_image_sizes(model, size, width):
    logits, params = shapes(model, (size, size, 3))
    assert logits == (2, 10)
    assert params["Dense_0"]["kernel"].shape[0] == width


@pytest.mark.parametrize("shape", [(8, 8, 1), (28, 11, 1), (28, 28)])
def test_lenet_refuses_other_data(shape):
    with pytest.raises(ValueError, match="at least 12 x 12, got shape"):
        shapes(models.LeNet(), shape)


@pytest.mark.parametrize("shape", [(5, 8, 1), (784,)])
def test_emnist_cnn_refuses_other_data(shape):
    with pytest.raises(ValueError, match="at least 6 x 6, got shape"):
        shapes(models.EmnistCNN(), shape)


def torch_network(name, params, x):
    """The network by torch's own operations, from our parameters, in float64."""
    functional = needs("torch").nn.functional

    def conv(layer, x, padding):
        return functional.conv2d(
            x, layer["kernel"].permute(3, 2, 0, 1), layer["bias"], padding=padding
        )

    def dense(layer, x):
        return x @ layer["kernel"] + layer["bias"]

    def pooled(x):
        return functional.max_pool2d(functional.relu(x), 2)

    if name != "mlp":
        x = x.permute(0, 3, 1, 2)
    if name == "lenet":
        x = pooled(conv(params["Conv_0"], x, "same"))
        x = pooled(conv(params["Conv_1"], x, "valid")).permute(0, 2, 3, 1)
    if name == "emnist_cnn":
        x = functional.relu(conv(params["Conv_0"], x, "valid"))
        x = pooled(conv(params["Conv_1"], x, "valid")).permute(0, 2, 3, 1)
    x = x.reshape(len(x), -1)
    count = sum(layer.startswith("Dense") for layer in params)
    for i in range(count - 1):
        x = functional.relu(dense(params[f"Dense_{i}"], x))
    return dense(params[f"Dense_{count - 1}"], x)


@pytest.mark.slow
@pytest.mark.parametrize("name", IMAGES)
def test_networks_equal_torch(name):
    torch = needs("torch")
    model = models.ALL[name](classes=4)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 15, 14, 2))
    params = jax.tree.map(
        lambda p: rng.normal(size=p.shape) / math.sqrt(p.size / p.shape[-1]),
        shapes(model, (15, 14, 2))[1],
    )
    logits, gradient = differentiated(model, params, x)
    leaves = torch_leaves(params)
    reference = torch_network(name, leaves, torch.tensor(x))
    torch.sin(reference).sum().backward()
    np.testing.assert_allclose(logits, reference.detach().numpy(), atol=1e-12)
    jax.tree.map(
        lambda g, leaf: np.testing.assert_allclose(g, leaf.grad.numpy(), atol=1e-12),
        gradient,
        leaves,
    )


def test_work_of_a_step_of_the_emnist_cnn():
    """1.43 GFLOP for 20 examples: two for each product, forward and two gradients."""
    first = 26 * 26 * 32 * (3 * 3 * 1)
    second = 24 * 24 * 64 * (3 * 3 * 32)
    dense = 12 * 12 * 64 * 128 + 128 * 10
    products = 20 * (2 * first + 3 * second + 3 * dense)  # images have no gradient
    assert math.isclose(2 * products, 1.43e9, rel_tol=0.01)

    model = models.EmnistCNN()
    x = jax.ShapeDtypeStruct((20, 28, 28, 1), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    step = jax.jit(jax.grad(lambda p, x: jnp.sum(model.apply(p, x))))
    counted = step.lower(params, x).compile().cost_analysis()["flops"]
    # what XLA counts beyond it are biases, maxima, comparisons
    assert 2 * products <= counted < 1.02 * 2 * products
