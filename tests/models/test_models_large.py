"""Networks of images against torch; large ones: sizes, and what Muon takes of them."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
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
from fedjax_muon.transforms import muon_dimension_numbers
from fedjax_muon.transforms.layout import fans

pytestmark = pytest.mark.slow

torch = needs("torch")
functional = torch.nn.functional

VIT = {"patch": 2, "width": 10, "depth": 2, "heads": 3, "head_width": 4, "hidden": 14}
swin = partial(models.Swin, 5, patch=2, width=6, expansion=2)
SMALL = {  # name: (model, shape of an image)
    "mlp": (models.MLP(4), (15, 14, 2)),
    "lenet": (models.LeNet(4), (15, 14, 2)),
    "emnist_cnn": (models.EmnistCNN(4), (15, 14, 2)),
    "resnet18": (models.ResNet18(5, groups=2, widths=(4, 6)), (7, 6, 3)),
    "vit": (models.ViT(5, **VIT), (4, 6, 3)),
    "vit_tiny": (models.vit_tiny(5, **VIT), (4, 6, 3)),
    # 12 x 6 places in 4 x 2 windows, shifted by 1 of 3
    "shifted": (swin(window=3, depths=(2,), heads=(2,)), (24, 12, 3)),
    # 8 x 4 places in two windows, which are not shifted; then 4 x 2 in two of 2 x 2
    "whole": (swin(window=4, depths=(2, 1), heads=(2, 3)), (16, 8, 3)),
}


# The networks by torch's functions, of our parameters.


def torch_small(model, params, x):
    def conv(name, x, padding="valid"):
        kernel, bias = params[name]["kernel"].permute(3, 2, 0, 1), params[name]["bias"]
        return functional.conv2d(x, kernel, bias, padding=padding).relu()

    if not isinstance(model, models.MLP):
        x = x.permute(0, 3, 1, 2)
        if isinstance(model, models.LeNet):
            x = functional.max_pool2d(conv("Conv_0", x, "same"), 2)
        else:
            x = conv("Conv_0", x)
        x = functional.max_pool2d(conv("Conv_1", x), 2).permute(0, 2, 3, 1)
    x, last = x.flatten(1), sum(name.startswith("Dense") for name in params) - 1
    for i in range(last):
        x = torch_dense(params[f"Dense_{i}"], x).relu()
    return torch_dense(params[f"Dense_{last}"], x)


def torch_resnet(model, params, x):
    def conv(layer, x, stride=1):
        kernel = layer["kernel"].permute(3, 2, 0, 1)
        return functional.conv2d(x, kernel, None, stride, padding=kernel.shape[-1] // 2)

    def norm(layer, x):
        return functional.group_norm(x, model.groups, layer["scale"], layer["bias"])

    x = conv(params["stem"], x.permute(0, 3, 1, 2))
    x = norm(params["GroupNorm_0"], x).relu()
    for i in range(2 * len(model.widths)):
        block, stride = params[f"ResidualBlock_{i}"], 2 if i and i % 2 == 0 else 1
        y = norm(block["GroupNorm_0"], conv(block["Conv_0"], x, stride)).relu()
        y = norm(block["GroupNorm_1"], conv(block["Conv_1"], y))
        if "shortcut" in block:
            x = norm(block["shortcut_norm"], conv(block["shortcut"], x, stride))
        x = (x + y).relu()
    return torch_dense(params["head"], x.mean((2, 3)))


def torch_norm(layer, x, epsilon=1e-5):
    scale, bias = layer["scale"], layer["bias"]
    return functional.layer_norm(x, x.shape[-1:], scale, bias, epsilon)


def torch_dense(layer, x):
    return functional.linear(x, layer["kernel"].T, layer.get("bias"))


def torch_patches(layer, x, side):
    """[B, H, W, C] to [B, H / side, W / side, F]."""
    kernel = layer["kernel"].reshape(side, side, 3, -1).permute(3, 2, 0, 1)
    x = functional.conv2d(x.permute(0, 3, 1, 2), kernel, layer["bias"], stride=side)
    return x.permute(0, 2, 3, 1)


def torch_attention(layers, x, heads, bias=0):
    """Of all places of x [B, N, F] to each other."""
    split = lambda y: y.unflatten(-1, (heads, -1)).transpose(1, 2)
    q, k, v = (split(torch_dense(layers[n], x)) for n in ("query", "key", "value"))
    weights = (q @ k.mT / math.sqrt(q.shape[-1]) + bias).softmax(-1)
    return torch_dense(layers["out"], (weights @ v).transpose(1, 2).flatten(2))


def torch_vit(model, params, x, epsilon):
    norm = partial(torch_norm, epsilon=epsilon)
    x = torch_patches(params["patches"], x, model.patch).flatten(1, 2)
    token = params["class_token"].expand(len(x), 1, -1)
    x = torch.cat([token, x], 1) + params["positions"]["embedding"]
    for i in range(model.depth):
        block = params[f"Block_{i}"]
        y = norm(block["LayerNorm_0"], x)
        x = x + torch_attention(block["Attention_0"], y, model.heads)
        y = torch_dense(block["Dense_0"], norm(block["LayerNorm_1"], x))
        x = x + torch_dense(block["Dense_1"], functional.gelu(y))
    return torch_dense(params["head"], norm(params["LayerNorm_0"], x)[:, 0])


# Swin as the paper draws it: windows are cut from the map where they lie, smaller at
# its edges, so that nothing is rolled and nothing masked.


def torch_window(block, x, window, heads):
    """The attention of all places of x [B, h, w, F] to each other."""
    places = [(i, j) for i in range(x.shape[1]) for j in range(x.shape[2])]
    at = lambda a, b: (a + window - 1) * (2 * window - 1) + b + window - 1
    offsets = [[at(i - k, j - m) for k, m in places] for i, j in places]
    bias = block["RelativePositions_0"]["bias"][torch.tensor(offsets)].permute(2, 0, 1)
    y = torch_attention(block["Attention_0"], x.flatten(1, 2), heads, bias)
    return y.reshape(x.shape)


def cuts(length, window, shift):
    edges = [0, *range(shift or window, length, window), length]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def torch_block(block, x, window, shift, heads):
    y = torch_norm(block["LayerNorm_0"], x)
    rows = []
    for row in cuts(x.shape[1], window, shift):
        columns = cuts(x.shape[2], window, shift)
        pieces = [
            torch_window(block, y[:, row, column], window, heads) for column in columns
        ]
        rows.append(torch.cat(pieces, 2))
    x = x + torch.cat(rows, 1)
    y = torch_dense(block["Dense_0"], torch_norm(block["LayerNorm_1"], x))
    return x + torch_dense(block["Dense_1"], functional.gelu(y))


def torch_merging(layer, x):
    """The order of the published code: below before right."""
    four = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
    normalized = torch_norm(layer["LayerNorm_0"], torch.cat(four, -1))
    return torch_dense(layer["Dense_0"], normalized)


def torch_swin(model, params, x):
    x = torch_patches(params["patches"], x, model.patch)
    x, count = torch_norm(params["LayerNorm_0"], x), 0
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


TORCH = {
    **dict.fromkeys(("mlp", "lenet", "emnist_cnn"), torch_small),
    "resnet18": torch_resnet,
    "vit": partial(torch_vit, epsilon=1e-5),
    "vit_tiny": partial(torch_vit, epsilon=1e-6),
    "shifted": torch_swin,
    "whole": torch_swin,
}


@pytest.mark.parametrize("name", SMALL)
def test_logits_and_gradients_equal_torch(name):
    model, image = SMALL[name]
    params = drawn(shapes(model, image))
    x = np.random.default_rng(1).normal(size=(2, *image))
    logits, gradient = differentiated(model, params, x)
    leaves = torch_leaves(params)
    reference = TORCH[name](model, leaves, torch.tensor(x))
    torch.sin(reference).sum().backward()
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)
    close(logits, reference.detach().numpy())
    for path, leaf in by_path(leaves).items():
        close(by_path(gradient)[path], leaf.grad.numpy(), err_msg=path)


# ------------------------------------------------------------------------- sizes
def resnet_count(classes):
    """Stage by stage: 3 x 3 kernels, normalisations (five), the way around."""
    count = 3 * 3 * 3 * 64
    for before, width in ((64, 64), (64, 128), (128, 256), (256, 512)):
        count += 3 * 3 * (before * width + 3 * width * width) + 5 * 2 * width
        count += before * width if before != width else 0
    return count + 512 * classes + classes


def vit_count(classes, patch, places, width, depth, inner, hidden, qkv_biases):
    attention = 3 * (width * inner + qkv_biases * inner) + inner * width + width
    network = width * hidden + hidden + hidden * width + width
    tokens = (patch * patch * 3 * width + width) + (1 + places) * width + width
    blocks = depth * (2 * width + attention + 2 * width + network)
    return tokens + blocks + 2 * width + width * classes + classes


BASE = (4, 64, 512, 6, 512, 512, 0)
TINY = (192, 12, 3 * 64, 768, 1)
DEIT = models.vit_tiny(1000, patch=16)
SWIN = models.swin_tiny(1000, patch=4, window=7)


def swin_count(classes, patch, windows):
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
        (models.ResNet18(), 32, resnet_count(10), 11_173_962),
        (models.ResNet18(100, groups=2), 32, resnet_count(100), 11_220_132),
        (models.ViT(), 32, vit_count(10, *BASE), 9_523_722),
        (models.vit_tiny(), 32, vit_count(10, 4, 64, *TINY), 5_362_762),
        # DeiT-Tiny and Swin-T as published
        (DEIT, 224, vit_count(1000, 16, 14 * 14, *TINY), 5_717_416),
        (SWIN, 224, swin_count(1000, 4, (7, 7, 7, 7)), 28_288_354),
        (models.swin_tiny(), 32, swin_count(10, 2, (4, 4, 4, 2)), 27_505_108),
        (models.swin_tiny(200), 64, swin_count(200, 2, (4, 4, 4, 4)), None),
    ],
)
def test_parameters(model, side, formula, total):
    ours = sum(p.size for p in jax.tree.leaves(shapes(model, (side, side, 3))))
    assert ours == formula == (total or formula)


# ----------------------------------------------------------------- what Muon takes
def matrices(params, **options):
    """{path: (fan_in, fan_out)} of what Muon takes."""
    numbers = muon_dimension_numbers(params, **options)
    leaves = by_path(params)
    pairs = by_path(numbers, lambda n: n is None or hasattr(n, "reduction_axis"))
    return {k: fans(n, leaves[k]) for k, n in pairs.items() if n is not None}


@pytest.mark.parametrize(("constructor", "depth"), [("vit", 6), ("vit_tiny", 12)])
def test_matrices_of_the_transformers(constructor, depth):
    params = shapes(models.ALL[constructor](classes=10), (32, 32, 3))
    found, width = matrices(params), len(params["class_token"])
    kernels = {k for k in by_path(params) if k.endswith("/kernel")}
    assert found.keys() == kernels | {"positions/embedding"}
    assert len(kernels) == 1 + 6 * depth + 1
    assert all(by_path(params)[k].ndim == 2 for k in kernels)
    for name in ("query", "key", "value", "out"):
        assert found[f"Block_0/Attention_0/{name}/kernel"] == (width, width)
    fewer = matrices(params, exclude=("bias", "scale", "embedding", "head"))
    assert found.keys() - fewer.keys() == {"positions/embedding", "head/kernel"}


SIZES = {"width": 128, "heads": 2, "depth": 1}
LEAVES = ("patches/kernel", "Block_0/Attention_0/query/kernel", "positions/embedding")
SCALES = (1 / math.sqrt(3 * 48), 1 / math.sqrt(3 * 128), 1.0)
SWIN_BLOCK = ("Attention_0/query/kernel", "RelativePositions_0/bias")
SWIN_LEAVES = (*(f"SwinBlock_0/{name}" for name in SWIN_BLOCK), "head/kernel")


@pytest.mark.parametrize(
    ("model", "side", "scales"),
    [
        (models.ViT(**SIZES), 16, dict(zip(LEAVES, SCALES, strict=True))),
        (models.vit_tiny(**SIZES), 16, dict.fromkeys(LEAVES, 0.02)),
        (
            models.Swin(5, width=64, depths=(1,), heads=(8,)),
            8,
            {"patches/kernel": 1 / math.sqrt(3 * 12)}
            | dict.fromkeys(SWIN_LEAVES, 0.02),
        ),
    ],
)
def test_initial_scales(model, side, scales):
    """Of kernels and tables: torch's by their fan_in, or 0.02 as in DeiT."""

    @jax.jit
    def some():  # the others cost time to compile
        params = model.init(jax.random.key(0), jnp.zeros((1, side, side, 3)))["params"]
        return {name: by_path(params)[name] for name in scales}

    leaves = some()
    for name, scale in scales.items():
        # an entry's square strays from its mean by sqrt(2) of it at most
        error = 5 * math.sqrt(2 / leaves[name].size)
        mean = np.mean(leaves[name] ** 2)
        assert math.isclose(mean, scale**2, rel_tol=error), name
    if scales["patches/kernel"] != 0.02:
        bound = math.sqrt(3) * scales["patches/kernel"]
        assert np.max(np.abs(leaves["patches/kernel"])) <= bound  # uniform


@pytest.mark.parametrize("name", ["vit", "shifted"])
def test_inside_shard_map(name):
    """Masks, class tokens and positions do not vary there, images do: a matter of
    types."""
    check_inside_shard_map(*SMALL[name])


# ----------------------------------------------------------------------- refusals

IMAGE = (32, 32, 3)
RANKS = r"takes images \[B, H, W, C\].*got shape"
GROUPS = "widths must be positive multiples of groups"
SIDES = r"multiples of patch .* = 16, got shape \(2,"
MAP = "do not fill the map"
DIVISORS = "heads that divide the features"


@pytest.mark.parametrize(
    ("model", "image", "message"),
    [
        *(
            (models.ALL[name](), image, RANKS)
            for name in ("resnet18", "vit", "vit_tiny")
            for image in ((3072,), (32, 32))
        ),
        (models.ResNet18(groups=0), IMAGE, GROUPS),
        (models.ResNet18(groups=3), IMAGE, GROUPS),
        (models.ResNet18(widths=()), IMAGE, GROUPS),
        (models.ResNet18(groups=2, widths=(4, 0)), IMAGE, GROUPS),
        # patches and mergings fill the image, and windows the map
        *(
            (models.swin_tiny(), image, SIDES)
            for image in ((3072,), (32, 32), (28, 28, 1), (32, 24, 3))
        ),
        (models.swin_tiny(window=7), IMAGE, f"{MAP} of 16 x 16 .* stage 0"),
        (models.swin_tiny(window=5), (48, 16, 3), f"{MAP} of 24 x 8 .* stage 0"),
        *(
            (
                models.Swin(**{name: 0}),
                IMAGE,
                f"Swin's {name} must be at least 1, got 0",
            )
            for name in ("patch", "window", "width", "expansion")
        ),
        (models.Swin(depths=(), heads=()), IMAGE, DIVISORS),
        (models.Swin(depths=(2, 2)), IMAGE, DIVISORS),
        (models.Swin(depths=(2, 0), heads=(3, 6)), IMAGE, DIVISORS),
        (models.Swin(depths=(2, 2), heads=(3, 0)), IMAGE, DIVISORS),
        (models.Swin(depths=(2, 2), heads=(3, 5)), IMAGE, DIVISORS),
    ],
)
def test_images_and_sizes_are_refused(model, image, message):
    with pytest.raises(ValueError, match=message):
        shapes(model, image)
