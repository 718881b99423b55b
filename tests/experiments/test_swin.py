"""Swin against torch as the paper draws it; its sizes, and what it refuses."""

import itertools
import math
from functools import partial

import jax
import pytest
from packages import needs
from parity import (
    check_against_torch,
    check_initial_scales,
    check_inside_shard_map,
    shapes,
)
from torch_layers import torch_attention, torch_dense, torch_norm, torch_patches

from experiments.papers.pretrained.swin import Swin, swin_tiny

pytestmark = pytest.mark.slow

torch = needs("torch")
functional = torch.nn.functional

swin = partial(Swin, 5, patch=2, width=6, expansion=2)
SMALL = {  # name: (model, shape of an image)
    # 12 x 6 places in 4 x 2 windows, shifted by 1 of 3
    "shifted": (swin(window=3, depths=(2,), heads=(2,)), (24, 12, 3)),
    # 8 x 4 places in two windows, which are not shifted; then 4 x 2 in two of 2 x 2
    "whole": (swin(window=4, depths=(2, 1), heads=(2, 3)), (16, 8, 3)),
}


# Windows are cut from the map where they lie, smaller at its edges, so that nothing is
# rolled and nothing masked.


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


@pytest.mark.parametrize("name", SMALL)
def test_logits_and_gradients_equal_torch(name):
    check_against_torch(*SMALL[name], torch_swin)


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
        # as published
        (swin_tiny(1000, patch=4, window=7), 224, (1000, 4, (7, 7, 7, 7)), 28_288_354),
        (swin_tiny(), 32, (10, 2, (4, 4, 4, 2)), 27_505_108),
        (swin_tiny(200), 64, (200, 2, (4, 4, 4, 4)), None),
    ],
)
def test_parameters(model, side, formula, total):
    ours = sum(p.size for p in jax.tree.leaves(shapes(model, (side, side, 3))))
    assert ours == swin_count(*formula) == (total or ours)


def test_initial_scales():
    """Of kernels and tables: torch's by their fan_in, or 0.02."""
    block = ("Attention_0/query/kernel", "RelativePositions_0/bias")
    leaves = (*(f"SwinBlock_0/{name}" for name in block), "head/kernel")
    scales = {"patches/kernel": 1 / math.sqrt(3 * 12)} | dict.fromkeys(leaves, 0.02)
    check_initial_scales(Swin(5, width=64, depths=(1,), heads=(8,)), 8, scales)


def test_inside_shard_map():
    """Masks do not vary there, images do: a matter of types."""
    check_inside_shard_map(*SMALL["shifted"])


# ----------------------------------------------------------------------- refusals

IMAGE = (32, 32, 3)
SIDES = r"multiples of patch .* = 16, got shape \(2,"
MAP = "do not fill the map"
DIVISORS = "heads that divide the features"


@pytest.mark.parametrize(
    ("model", "image", "message"),
    [
        # patches and mergings fill the image, and windows the map
        *(
            (swin_tiny(), image, SIDES)
            for image in ((3072,), (32, 32), (28, 28, 1), (32, 24, 3))
        ),
        (swin_tiny(window=7), IMAGE, f"{MAP} of 16 x 16 .* stage 0"),
        (swin_tiny(window=5), (48, 16, 3), f"{MAP} of 24 x 8 .* stage 0"),
        *(
            (
                Swin(**{name: 0}),
                IMAGE,
                f"Swin's {name} must be at least 1, got 0",
            )
            for name in ("patch", "window", "width", "expansion")
        ),
        (Swin(depths=(), heads=()), IMAGE, DIVISORS),
        (Swin(depths=(2, 2)), IMAGE, DIVISORS),
        (Swin(depths=(2, 0), heads=(3, 6)), IMAGE, DIVISORS),
        (Swin(depths=(2, 2), heads=(3, 0)), IMAGE, DIVISORS),
        (Swin(depths=(2, 2), heads=(3, 5)), IMAGE, DIVISORS),
    ],
)
def test_images_and_sizes_are_refused(model, image, message):
    with pytest.raises(ValueError, match=message):
        shapes(model, image)
