"""The Swin transformer against torch, what Muon takes of it, and what it refuses."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packages import needs
from parity import (
    by_path,
    check_inside_shard_map,
    differentiated,
    drawn,
    shapes,
    torch_leaves,
)

from fedjax_muon import models
from fedjax_muon.transforms import by_rank, muon_dimension_numbers
from fedjax_muon.transforms.layout import fans

torch = needs("torch")
pytestmark = pytest.mark.slow

SIZES = {"patch": 2, "width": 6, "expansion": 2}
SMALL = {  # name: (model, shape of an image)
    # 12 x 6 places in 4 x 2 windows, shifted by 1 of 3
    "shifted": (
        models.Swin(5, window=3, depths=(2,), heads=(2,), **SIZES),
        (24, 12, 3),
    ),
    # 8 x 4 places in two windows, which are not shifted; then 4 x 2 in two of 2 x 2
    "whole": (
        models.Swin(5, window=4, depths=(2, 1), heads=(2, 3), **SIZES),
        (16, 8, 3),
    ),
}
PUBLISHED = models.swin_tiny(1000, patch=4, window=7)


# The network as the paper draws it, in torch: windows are cut from the map where they
# lie, smaller at its edges, so that nothing is rolled and nothing masked.


def torch_norm(layer, x):
    return torch.nn.functional.layer_norm(
        x, x.shape[-1:], layer["scale"], layer["bias"], 1e-5
    )


def torch_dense(layer, x):
    return torch.nn.functional.linear(x, layer["kernel"].T, layer.get("bias"))


def torch_attention(block, x, window, heads):
    """Of all places of x [B, h, w, F] to each other."""
    batch, height, width, features = x.shape
    places = [(i, j) for i in range(height) for j in range(width)]
    table = block["RelativePositions_0"]["bias"]
    at = lambda a, b: (a + window - 1) * (2 * window - 1) + b + window - 1
    offsets = [[at(i - k, j - m) for k, m in places] for i, j in places]
    split = lambda y: y.reshape(batch, -1, heads, features // heads).transpose(1, 2)
    layers = block["Attention_0"]
    q, k, v = (split(torch_dense(layers[n], x)) for n in ("query", "key", "value"))
    scores = q @ k.mT / math.sqrt(features // heads)
    scores = scores + table[torch.tensor(offsets)].permute(2, 0, 1)
    y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
    return torch_dense(layers["out"], y)


def cuts(length, window, shift):
    edges = [0, *range(shift or window, length, window), length]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def torch_block(block, x, window, shift, heads):
    y = torch_norm(block["LayerNorm_0"], x)
    rows = []
    for row in cuts(x.shape[1], window, shift):
        columns = cuts(x.shape[2], window, shift)
        pieces = [
            torch_attention(block, y[:, row, column], window, heads)
            for column in columns
        ]
        rows.append(torch.cat(pieces, 2))
    x = x + torch.cat(rows, 1)
    y = torch_dense(block["Dense_0"], torch_norm(block["LayerNorm_1"], x))
    return x + torch_dense(block["Dense_1"], torch.nn.functional.gelu(y))


def torch_merging(layer, x):
    """The order of the published code: below before right."""
    four = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
    return torch_dense(
        layer["Dense_0"], torch_norm(layer["LayerNorm_0"], torch.cat(four, -1))
    )


def torch_swin(model, params, x):
    side = model.patch
    kernel = params["patches"]["kernel"].reshape(side, side, 3, -1)
    x = torch.nn.functional.conv2d(
        x.permute(0, 3, 1, 2),
        kernel.permute(3, 2, 0, 1),
        params["patches"]["bias"],
        stride=side,
    )
    x, count = torch_norm(params["LayerNorm_0"], x.permute(0, 2, 3, 1)), 0
    for stage, depth in enumerate(model.depths):
        if stage:
            x = torch_merging(params[f"PatchMerging_{stage - 1}"], x)
        shorter = min(x.shape[1:3])
        window = min(shorter, model.window)
        for i in range(depth):
            shift = window // 2 if i % 2 == 1 and shorter > model.window else 0
            block = params[f"SwinBlock_{count}"]
            x = torch_block(block, x, window, shift, model.heads[stage])
            count += 1
    x = torch_norm(params["LayerNorm_1"], x).mean((1, 2))
    return torch_dense(params["head"], x)


@pytest.mark.parametrize("name", SMALL)
def test_logits_and_gradients_equal_torch(name):
    model, image = SMALL[name]
    params = drawn(shapes(model, image))
    x = np.random.default_rng(1).normal(size=(2, *image))
    logits, gradient = differentiated(model, params, x)
    leaves = torch_leaves(params)
    reference = torch_swin(model, leaves, torch.tensor(x))
    torch.sin(reference).sum().backward()
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11)
    close(logits, reference.detach().numpy())
    for path, leaf in by_path(leaves).items():
        close(by_path(gradient)[path], leaf.grad.numpy(), err_msg=path)


def count(classes, patch, windows):
    """Of `swin_tiny`, whose stages have these windows."""
    total = 3 * patch**2 * 96 + 96 + 2 * 96
    for stage, (window, depth) in enumerate(zip(windows, (2, 2, 6, 2), strict=True)):
        f, heads = 96 * 2**stage, 3 * 2**stage
        attention = 4 * (f * f + f) + (2 * window - 1) ** 2 * heads
        total += depth * (2 * 2 * f + attention + 2 * f * 4 * f + 4 * f + f)
        if stage:
            total += 2 * 2 * f + 2 * f * f  # four vectors of f / 2 to one of f
    return total + 2 * 768 + 768 * classes + classes


@pytest.mark.parametrize(
    ("model", "side", "formula", "total"),
    [
        (PUBLISHED, 224, count(1000, 4, (7, 7, 7, 7)), 28_288_354),
        (models.swin_tiny(), 32, count(10, 2, (4, 4, 4, 2)), 27_505_108),
        (models.swin_tiny(200), 64, count(200, 2, (4, 4, 4, 4)), None),
    ],
)
def test_parameters(model, side, formula, total):
    ours = sum(p.size for p in jax.tree.leaves(shapes(model, (side, side, 3))))
    assert ours == formula == (total or formula)


def test_relative_positions_are_no_matrices():
    tree = shapes(models.swin_tiny(), (32, 32, 3))
    params = by_path(tree)
    special = lambda n: n is None or hasattr(n, "reduction_axis")

    def matrices(**options):
        found = by_path(muon_dimension_numbers(tree, **options), special)
        return {k: fans(n, params[k]) for k, n in found.items() if n is not None}

    found = matrices()
    tables = {k for k in params if k.endswith("RelativePositions_0/bias")}
    assert len(tables) == 12
    assert all(params[k].ndim == 2 for k in tables)  # the trap for rules by rank
    assert found.keys() == {k for k in params if k.endswith("/kernel")}
    assert len(found) == 1 + 12 * 6 + 3 + 1  # patches, blocks, mergings, head
    assert found["patches/kernel"] == (2 * 2 * 3, 96)
    assert found["PatchMerging_0/Dense_0/kernel"] == (4 * 96, 2 * 96)
    assert found["SwinBlock_11/Attention_0/query/kernel"] == (768, 768)
    fewer = matrices(exclude=("bias", "scale", "patches", "head"))
    assert found.keys() - fewer.keys() == {"patches/kernel", "head/kernel"}
    assert matrices(exclude=("scale",)).keys() - found.keys() == tables


def test_the_rest_gets_what_is_no_matrix():
    gradient = jax.tree.map(jnp.float32, drawn(shapes(*SMALL["whole"])))
    rule = by_rank(optax.set_to_zero())
    step = jax.jit(lambda g: rule.update(g, rule.init(g))[0])(gradient)
    for path, leaf in by_path(step).items():
        expected = 0 if path.endswith("/kernel") else by_path(gradient)[path]
        np.testing.assert_array_equal(leaf, expected, err_msg=path)


def test_initial_scales():
    model = models.Swin(5, width=64, depths=(1,), heads=(8,))

    @jax.jit
    def some():  # the others cost time to compile
        params = model.init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))["params"]
        block = params["SwinBlock_0"]
        return (
            params["patches"]["kernel"],
            block["Attention_0"]["query"]["kernel"],
            block["RelativePositions_0"]["bias"],
            params["head"]["kernel"],
        )

    leaves = some()
    for leaf, scale in zip(leaves, (1 / math.sqrt(3 * 12), *[0.02] * 3), strict=True):
        error = 5 * math.sqrt(2 / leaf.size)  # of a mean of squares of normal numbers
        assert math.isclose(np.mean(leaf**2), scale**2, rel_tol=error)
    assert np.max(np.abs(leaves[0])) <= 1 / math.sqrt(12)  # uniform


def test_inside_shard_map():
    """Masks and positions do not vary there, images do: a matter of types."""
    model, image = SMALL["shifted"]
    check_inside_shard_map(model, image)


@pytest.mark.parametrize("image", [(3072,), (32, 32), (28, 28, 1), (32, 24, 3)])
def test_patches_and_mergings_fill_the_image(image):
    with pytest.raises(ValueError, match=r"multiples of patch .* = 16, got shape \(2,"):
        shapes(models.swin_tiny(), image)


@pytest.mark.parametrize(
    ("image", "window", "map_"),
    [((32, 32, 3), 7, "16 x 16"), ((48, 16, 3), 5, "24 x 8")],
)
def test_windows_fill_the_map(image, window, map_):
    with pytest.raises(ValueError, match=f"do not fill the map of {map_} .* stage 0"):
        shapes(models.swin_tiny(window=window), image)


@pytest.mark.parametrize("name", ["patch", "window", "width", "expansion"])
def test_sizes_are_positive(name):
    with pytest.raises(ValueError, match=f"Swin's {name} must be at least 1, got 0"):
        shapes(models.Swin(**{name: 0}), (32, 32, 3))


@pytest.mark.parametrize(
    "sizes",
    [
        {"depths": (), "heads": ()},
        {"depths": (2, 2)},
        {"depths": (2, 0), "heads": (3, 6)},
        {"depths": (2, 2), "heads": (3, 0)},
        {"depths": (2, 2), "heads": (3, 5)},
    ],
)
def test_heads_divide_the_features(sizes):
    with pytest.raises(ValueError, match="heads that divide the features"):
        shapes(models.Swin(**sizes), (32, 32, 3))
