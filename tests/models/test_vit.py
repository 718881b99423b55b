"""The vision transformer: where it drops, how it starts, what it refuses.

Its numbers are held against torch in test_models_large.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity import check_inside_shard_map, dropouts

from fedjax_muon import models, tasks

KEY = jax.random.key(0)
SMALL = {"patch": 2, "width": 10, "depth": 2, "heads": 3, "head_width": 4, "hidden": 14}


def shapes(model, image):
    x = jax.ShapeDtypeStruct((2, *image), jnp.float32)
    return jax.eval_shape(model.init, KEY, x)["params"]


def drawn(shapes):
    """Normal parameters, all away from where they start."""
    rng = np.random.default_rng(0)
    scale = lambda p: math.sqrt(p.size / p.shape[-1])
    return jax.tree.map(
        lambda p: jnp.float32(rng.normal(size=p.shape) / scale(p)), shapes
    )


@pytest.mark.slow
def test_dropout_acts_with_a_key_alone():
    image, sizes = (4, 4, 3), SMALL | {"depth": 1}
    model, without = models.ViT(5, **sizes), models.ViT(5, **sizes, dropout=0.0)
    params, y = drawn(shapes(model, image)), jnp.zeros(2, jnp.int32)
    x = jnp.float32(np.random.default_rng(1).normal(size=(2, *image)))
    task = tasks.classification(model, image)

    @jax.jit
    def results(params, x, key):
        never = tasks.logits_of(without, params, x)
        same = [tasks.logits_of(model, params, x)]
        same.append(tasks.logits_of(without, params, x, key))
        drops = tasks.logits_of(model, params, x, key)
        return never, same, drops, task.evaluate(params, x, y)["loss"]

    never, same, once, loss = results(params, x, KEY)
    again, other = results(params, x, KEY)[2], results(params, x, jax.random.key(1))[2]
    for logits in same:
        np.testing.assert_array_equal(logits, never)
    np.testing.assert_array_equal(once, again)
    for different in (never, other):
        assert np.all(np.abs(once - different) > 1e-4)
    losses = np.log(np.exp(np.float64(never)).sum(axis=1)) - never[:, 0]
    np.testing.assert_allclose(loss, losses, rtol=1e-5)


def test_where_dropout_acts():
    model, image = models.ViT(5, **SMALL), (4, 6, 3)
    tokens = (2, 1 + 2 * 3)
    seen = dropouts(lambda: shapes(model, image))
    block = [(*tokens, 10), (*tokens, 14), (*tokens, 10)]
    assert seen == [(shape, 0.1) for shape in [(*tokens, 10), *block, *block]]


@pytest.mark.slow
def test_initial_scales():
    """Of kernels (fan_in 48 and 128) and tokens: torch's, or 0.02 as in DeiT."""
    sizes = {"width": 128, "heads": 2, "depth": 1}

    @partial(jax.jit, static_argnums=0)
    def some(model):  # the others cost time to compile
        params = model.init(KEY, jnp.zeros((1, 16, 16, 3)))["params"]
        query = params["Block_0"]["Attention_0"]["query"]["kernel"]
        return params["patches"]["kernel"], query, params["positions"]["embedding"]

    wide, tiny = some(models.ViT(**sizes)), some(models.vit_tiny(**sizes))
    torch_scales = (1 / math.sqrt(3 * 48), 1 / math.sqrt(3 * 128), 1.0)
    for leaves, scales in ((wide, torch_scales), (tiny, (0.02, 0.02, 0.02))):
        for leaf, scale in zip(leaves, scales, strict=True):
            # an entry's square strays from its mean by sqrt(2) of it at most
            error = 5 * math.sqrt(2 / leaf.size)
            assert math.isclose(np.mean(leaf**2), scale**2, rel_tol=error)
    assert np.max(wide[0]) <= 1 / math.sqrt(48)  # uniform


@pytest.mark.slow
def test_inside_shard_map():
    """Class tokens and positions do not vary there, images do: a matter of types."""
    model, image = models.ViT(5, **SMALL), (4, 4, 3)
    check_inside_shard_map(model, image)


@pytest.mark.parametrize("image", [(30, 32, 3), (32, 30, 3)])
def test_patches_fill_the_image(image):
    with pytest.raises(ValueError, match=r"multiples of patch = 4, got shape \(2, 3"):
        shapes(models.ViT(), image)


@pytest.mark.parametrize(
    "name", ["patch", "width", "depth", "heads", "head_width", "hidden"]
)
def test_sizes_of_transformers_are_positive(name):
    with pytest.raises(ValueError, match=f"ViT's {name} must be at least 1, got 0"):
        shapes(models.ViT(**{name: 0}), (32, 32, 3))


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_dropout_is_a_probability_below_one(dropout):
    with pytest.raises(ValueError, match=r"dropout must lie in \[0, 1\)"):
        shapes(models.ViT(dropout=dropout), (32, 32, 3))
