"""ResNet-18 and transformers of images against torch, and what Muon takes of them."""

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
from fedjax_muon.linalg.newton_schulz import polar
from fedjax_muon.transforms import by_rank, muon_dimension_numbers, scale_by_muon
from fedjax_muon.transforms.layout import fans

pytestmark = pytest.mark.slow


torch = needs("torch")

HEADS, HEAD_WIDTH = 3, 4
SMALL_VIT = {"patch": 2, "width": 10, "depth": 2, "heads": HEADS, "hidden": 14}
SMALL = {  # name: (model, shape of an image)
    "resnet18": (models.ResNet18(5, groups=2, widths=(4, 6)), (7, 6, 3)),
    "vit": (models.ViT(5, **SMALL_VIT, head_width=HEAD_WIDTH), (4, 6, 3)),
    "vit_tiny": (models.vit_tiny(5, **SMALL_VIT, head_width=HEAD_WIDTH), (4, 6, 3)),
}


# The networks by torch's own layers, NCHW.


class TorchResidual(torch.nn.Module):
    def __init__(self, before, width, stride, groups):
        super().__init__()
        conv = partial(torch.nn.Conv2d, bias=False)
        self.conv1 = conv(before, width, 3, stride, 1)
        self.norm1 = torch.nn.GroupNorm(groups, width)
        self.conv2 = conv(width, width, 3, 1, 1)
        self.norm2 = torch.nn.GroupNorm(groups, width)
        self.shortcut = None
        if stride != 1 or before != width:
            self.shortcut = conv(before, width, 1, stride)
            self.shortcut_norm = torch.nn.GroupNorm(groups, width)

    def forward(self, x):
        y = self.norm1(self.conv1(x)).relu()
        y = self.norm2(self.conv2(y))
        if self.shortcut is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return (x + y).relu()


class TorchResNet(torch.nn.Module):
    def __init__(self, classes, groups=32, widths=(64, 128, 256, 512)):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.norm = torch.nn.GroupNorm(groups, widths[0])
        blocks = []
        for stage, width in enumerate(widths):
            before = widths[max(stage - 1, 0)]
            blocks.append(TorchResidual(before, width, 2 if stage else 1, groups))
            blocks.append(TorchResidual(width, width, 1, groups))
        self.blocks = torch.nn.Sequential(*blocks)
        self.head = torch.nn.Linear(widths[-1], classes)

    def forward(self, x):
        x = self.blocks(self.norm(self.stem(x)).relu())
        return self.head(torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class TorchTransformer(torch.nn.Module):
    def __init__(self, width, heads, head_width, hidden, attention_bias, epsilon):
        super().__init__()
        self.heads, inner = heads, heads * head_width
        self.norm1 = torch.nn.LayerNorm(width, epsilon)
        self.qkv = torch.nn.Linear(width, 3 * inner, bias=attention_bias)
        self.out = torch.nn.Linear(inner, width)
        self.norm2 = torch.nn.LayerNorm(width, epsilon)
        self.up = torch.nn.Linear(width, hidden)
        self.down = torch.nn.Linear(hidden, width)

    def forward(self, x):
        batch, tokens, _ = x.shape
        three = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, -1)
        q, k, v = three.permute(2, 0, 3, 1, 4)  # each [B, heads, N, head_width]
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, tokens, -1))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class TorchViT(torch.nn.Module):
    def __init__(self, classes, image, patch, width, depth, *block, epsilon):
        super().__init__()
        self.patches = torch.nn.Conv2d(3, width, patch, patch)
        places = 1 + math.prod(side // patch for side in image[:2])
        self.positions = torch.nn.Parameter(torch.empty(1, places, width))
        self.token = torch.nn.Parameter(torch.empty(1, 1, width))
        blocks = [TorchTransformer(width, *block, epsilon) for _ in range(depth)]
        self.blocks = torch.nn.Sequential(*blocks)
        self.norm = torch.nn.LayerNorm(width, epsilon)
        self.head = torch.nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x)[:, 0]))


def torch_small(name):
    sizes = (5, (4, 6), 2, 10, 2, HEADS, HEAD_WIDTH, 14)
    return {
        "resnet18": lambda: TorchResNet(5, 2, (4, 6)),
        "vit": lambda: TorchViT(*sizes, False, epsilon=1e-5),
        "vit_tiny": lambda: TorchViT(*sizes, True, epsilon=1e-6),
    }[name]()


def conv(layer):
    return {"weight": layer["kernel"].permute(3, 2, 0, 1)}


def dense(layer):
    return {"weight": layer["kernel"].T, "bias": layer["bias"]}


def norm(layer):
    return {"weight": layer["scale"], "bias": layer["bias"]}


def joined(names):
    return {f"{k}.{part}": v for k, parts in names.items() for part, v in parts.items()}


def torch_state_of_resnet(params):
    """Our parameters by the names that torch gives to its own."""
    names = {"stem": conv(params["stem"]), "norm": norm(params["GroupNorm_0"])}
    names["head"] = dense(params["head"])
    for i in range(4):
        block, prefix = params[f"ResidualBlock_{i}"], f"blocks.{i}."
        for j in range(2):
            names[f"{prefix}conv{j + 1}"] = conv(block[f"Conv_{j}"])
            names[f"{prefix}norm{j + 1}"] = norm(block[f"GroupNorm_{j}"])
        if "shortcut" in block:
            names[f"{prefix}shortcut"] = conv(block["shortcut"])
            names[f"{prefix}shortcut_norm"] = norm(block["shortcut_norm"])
    return joined(names)


def torch_state_of_vit(params):
    kernel = params["patches"]["kernel"]
    square = kernel.reshape(2, 2, 3, -1).permute(3, 2, 0, 1)
    names = {
        "patches": {"weight": square, "bias": params["patches"]["bias"]},
        "norm": norm(params["LayerNorm_0"]),
        "head": dense(params["head"]),
    }
    for i in range(2):
        block, prefix = params[f"Block_{i}"], f"blocks.{i}."
        attention = block["Attention_0"]
        three = [attention[name] for name in ("query", "key", "value")]
        qkv = {"weight": torch.cat([layer["kernel"].T for layer in three])}
        if "bias" in three[0]:
            qkv["bias"] = torch.cat([layer["bias"] for layer in three])
        names[f"{prefix}qkv"] = qkv
        names[f"{prefix}out"] = dense(attention["out"])
        names[f"{prefix}up"] = dense(block["Dense_0"])
        names[f"{prefix}down"] = dense(block["Dense_1"])
        for j in range(2):
            names[f"{prefix}norm{j + 1}"] = norm(block[f"LayerNorm_{j}"])
    positions, token = params["positions"]["embedding"], params["class_token"]
    return joined(names) | {"positions": positions[None], "token": token[None, None]}


swin = partial(models.Swin, 5, patch=2, width=6, expansion=2)
SMALL_SWIN = {  # name: (model, shape of an image)
    # 12 x 6 places in 4 x 2 windows, shifted by 1 of 3
    "shifted": (swin(window=3, depths=(2,), heads=(2,)), (24, 12, 3)),
    # 8 x 4 places in two windows, which are not shifted; then 4 x 2 in two of 2 x 2
    "whole": (swin(window=4, depths=(2, 1), heads=(2, 3)), (16, 8, 3)),
}
PUBLISHED = models.swin_tiny(1000, patch=4, window=7)


# The network as the paper draws it, in torch: windows are cut from the map where they
# lie, smaller at its edges, so that nothing is rolled and nothing masked.


def torch_norm(layer, x):
    scale, bias = layer["scale"], layer["bias"]
    return torch.nn.functional.layer_norm(x, x.shape[-1:], scale, bias, 1e-5)


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
    normalized = torch_norm(layer["LayerNorm_0"], torch.cat(four, -1))
    return torch_dense(layer["Dense_0"], normalized)


def torch_swin(model, params, x):
    side = model.patch
    kernel = params["patches"]["kernel"].reshape(side, side, 3, -1)
    x, kernel = x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1)
    x = torch.nn.functional.conv2d(x, kernel, params["patches"]["bias"], stride=side)
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


def torch_logits(name, model, leaves, x):
    if name in SMALL_SWIN:
        return torch_swin(model, leaves, x)
    named = torch_state_of_resnet if name == "resnet18" else torch_state_of_vit
    return torch.func.functional_call(
        torch_small(name).double(),
        named(leaves),
        x.permute(0, 3, 1, 2),
        strict=True,  # each of torch's parameters is one of ours, and conversely
    )


@pytest.mark.parametrize("name", SMALL | SMALL_SWIN)
def test_logits_and_gradients_equal_torch(name):
    model, image = (SMALL | SMALL_SWIN)[name]
    params = drawn(shapes(model, image))
    x = np.random.default_rng(1).normal(size=(2, *image))
    logits, gradient = differentiated(model, params, x)
    leaves = torch_leaves(params)
    reference = torch_logits(name, model, leaves, torch.tensor(x))
    torch.sin(reference).sum().backward()
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11)
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
GROUPED = models.ResNet18(100, groups=2)
DEIT = models.vit_tiny(1000, patch=16)  # DeiT-Tiny as published
torch_vit = partial(TorchViT, 10, (32, 32), 4, 512, 6, 8, 64, 512, False, epsilon=1e-5)
torch_tiny, torch_deit = (
    partial(TorchViT, *sizes, 192, 12, 3, 64, 768, True, epsilon=1e-6)
    for sizes in ((10, (32, 32), 4), (1000, (224, 224), 16))
)
SIZES = [  # model, side, formula, torch, total
    (models.ResNet18(), 32, resnet_count(10), lambda: TorchResNet(10), 11_173_962),
    (GROUPED, 32, resnet_count(100), lambda: TorchResNet(100, 2), 11_220_132),
    (models.ViT(), 32, vit_count(10, *BASE), torch_vit, 9_523_722),
    (models.vit_tiny(), 32, vit_count(10, 4, 64, *TINY), torch_tiny, 5_362_762),
    (DEIT, 224, vit_count(1000, 16, 14 * 14, *TINY), torch_deit, 5_717_416),
]


@pytest.mark.parametrize(("model", "side", "formula", "theirs", "total"), SIZES)
def test_parameters(model, side, formula, theirs, total):
    ours = sum(p.size for p in jax.tree.leaves(shapes(model, (side, side, 3))))
    with torch.device("meta"):
        counted = sum(p.numel() for p in theirs().parameters())
    assert ours == formula == counted == total


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
        (PUBLISHED, 224, swin_count(1000, 4, (7, 7, 7, 7)), 28_288_354),
        (models.swin_tiny(), 32, swin_count(10, 2, (4, 4, 4, 2)), 27_505_108),
        (models.swin_tiny(200), 64, swin_count(200, 2, (4, 4, 4, 4)), None),
    ],
)
def test_parameters_of_swin(model, side, formula, total):
    ours = sum(p.size for p in jax.tree.leaves(shapes(model, (side, side, 3))))
    assert ours == formula == (total or formula)


# ----------------------------------------------------------------- what Muon takes


def matrices(params, **options):
    """{path: (fan_in, fan_out)} of what Muon takes."""
    numbers = muon_dimension_numbers(params, **options)
    leaves = by_path(params)
    pairs = by_path(numbers, lambda n: n is None or hasattr(n, "reduction_axis"))
    return {k: fans(n, leaves[k]) for k, n in pairs.items() if n is not None}


def test_matrices_of_the_resnet():
    params = shapes(models.ResNet18(), (32, 32, 3))
    found = matrices(params)
    assert found.keys() == {k for k in by_path(params) if k.endswith("/kernel")}
    assert len(found) == 1 + 4 * 4 + 3 + 1  # stem, blocks, shortcuts, head
    assert found["stem/kernel"] == (27, 64)
    assert found["ResidualBlock_2/Conv_0/kernel"] == (9 * 64, 128)
    assert found["ResidualBlock_2/shortcut/kernel"] == (64, 128)
    fewer = matrices(params, exclude=("bias", "scale", "stem", "head"))
    assert found.keys() - fewer.keys() == {"stem/kernel", "head/kernel"}


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


@pytest.mark.parametrize("name", ["resnet18", "vit", "whole"])
def test_muon_makes_matrices_orthogonal_and_leaves_the_rest(name):
    gradient = jax.tree.map(jnp.float32, drawn(shapes(*(SMALL | SMALL_SWIN)[name])))
    rule = by_rank(scale_by_muon(0.0, polar=polar))
    step = jax.jit(lambda g: rule.update(g, rule.init(g))[0])(gradient)
    names = matrices(gradient)
    for path, leaf in by_path(step).items():
        if path in names:
            values = np.linalg.svd(np.float64(leaf).reshape(names[path]))[1]
            np.testing.assert_allclose(values, 1.0, atol=1e-5)
        else:
            np.testing.assert_array_equal(leaf, by_path(gradient)[path])


def test_relative_positions_are_no_matrices():
    tree = shapes(models.swin_tiny(), (32, 32, 3))
    params = by_path(tree)
    found = matrices(tree)
    tables = {k for k in params if k.endswith("RelativePositions_0/bias")}
    assert len(tables) == 12
    assert all(params[k].ndim == 2 for k in tables)  # the trap for rules by rank
    assert found.keys() == {k for k in params if k.endswith("/kernel")}
    assert len(found) == 1 + 12 * 6 + 3 + 1  # patches, blocks, mergings, head
    assert found["patches/kernel"] == (2 * 2 * 3, 96)
    assert found["PatchMerging_0/Dense_0/kernel"] == (4 * 96, 2 * 96)
    assert found["SwinBlock_11/Attention_0/query/kernel"] == (768, 768)
    fewer = matrices(tree, exclude=("bias", "scale", "patches", "head"))
    assert found.keys() - fewer.keys() == {"patches/kernel", "head/kernel"}
    assert matrices(tree, exclude=("scale",)).keys() - found.keys() == tables


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
    model, image = SMALL_SWIN["shifted"]
    check_inside_shard_map(model, image)


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
