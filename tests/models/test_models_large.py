"""Networks of images against torch; large ones: sizes, and what Muon takes of them."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_muon import models
from fedjax_muon.transforms import muon_dimension_numbers
from fedjax_muon.transforms.layout import fans
from tests.support.packages import needs
from tests.support.parity import (
    by_path,
    check_against_torch,
    check_initial_scales,
    check_inside_shard_map,
    drawn,
    shapes,
)
from tests.support.torch_layers import (
    torch_attention,
    torch_dense,
    torch_norm,
    torch_patches,
)

pytestmark = pytest.mark.slow

torch = needs("torch")
functional = torch.nn.functional

VIT = {"patch": 2, "width": 10, "depth": 2, "heads": 3, "head_width": 4, "hidden": 14}
SMALL = {  # name: (model, shape of an image)
    "mlp": (models.MLP(4), (15, 14, 2)),
    "lenet": (models.LeNet(4), (15, 14, 2)),
    "emnist_cnn": (models.EmnistCNN(4), (15, 14, 2)),
    "resnet18": (models.ResNet18(5, groups=2, widths=(4, 6)), (7, 6, 3)),
    "resnet18_layer": (models.ResNet18(5, widths=(4, 6), norm="layer"), (7, 6, 3)),
    "vit": (models.ViT(5, **VIT), (4, 6, 3)),
    "vit_tiny": (models.vit_tiny(5, **VIT), (4, 6, 3)),
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
    x = x.flatten(1)
    for i in range(sum(name.startswith("Dense") for name in params)):
        x = torch_dense(params[f"Dense_{i}"], x).relu()
    return torch_dense(params["head"], x)


def torch_resnet(model, params, x, norm=None, kind="GroupNorm"):
    def conv(layer, x, stride=1):
        kernel = layer["kernel"].permute(3, 2, 0, 1)
        return functional.conv2d(x, kernel, None, stride, padding=kernel.shape[-1] // 2)

    def in_groups(layer, x):
        groups = 1 if model.norm == "layer" else model.groups
        return functional.group_norm(x, groups, layer["scale"], layer["bias"])

    norm = norm or in_groups
    x = conv(params["stem"], x.permute(0, 3, 1, 2))
    x = norm(params[f"{kind}_0"], x).relu()
    for i in range(2 * len(model.widths)):
        block, stride = params[f"ResidualBlock_{i}"], 2 if i and i % 2 == 0 else 1
        y = norm(block[f"{kind}_0"], conv(block["Conv_0"], x, stride)).relu()
        y = norm(block[f"{kind}_1"], conv(block["Conv_1"], y))
        if "shortcut" in block:
            x = norm(block["shortcut_norm"], conv(block["shortcut"], x, stride))
        x = (x + y).relu()
    return torch_dense(params["head"], x.mean((2, 3)))


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


TORCH = {
    **dict.fromkeys(("mlp", "lenet", "emnist_cnn"), torch_small),
    "resnet18": torch_resnet,
    "resnet18_layer": torch_resnet,
    "vit": partial(torch_vit, epsilon=1e-5),
    "vit_tiny": partial(torch_vit, epsilon=1e-6),
}


@pytest.mark.parametrize("name", SMALL)
def test_logits_and_gradients_equal_torch(name):
    check_against_torch(*SMALL[name], TORCH[name])


@pytest.mark.parametrize("train", [False, True])
def test_batch_normalization_equals_torch(train):
    """The logits, and the statistics after a pass, whose variance divides by n."""
    model = models.ResNet18(5, widths=(4, 6), norm="batch")
    begun = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 7, 6, 3)))
    params, stats = drawn(begun["params"]), drawn(begun["batch_stats"])
    stats = jax.tree.map(lambda a: a**2 + 0.1, stats)
    x = np.random.default_rng(1).normal(size=(3, 7, 6, 3))
    with jax.enable_x64(True):
        given = {"params": params, "batch_stats": stats}
        how = {"mutable": ["batch_stats"]} if train else {}
        found = model.apply(given, jnp.asarray(x), train=train, **how)
    tensor = lambda a: torch.tensor(a, dtype=torch.float64)
    joined = jax.tree.map(tensor, flatten_dict(params) | flatten_dict(stats))
    after = {}

    def norm(layer, x):
        pair, weights = (layer["mean"], layer["var"]), (layer["scale"], layer["bias"])
        of_batch = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        both = zip(pair, of_batch, strict=True)
        after[id(layer)] = layer, [0.9 * old + 0.1 * new for old, new in both]
        return functional.batch_norm(x, *pair, *weights, training=train, momentum=0.0)

    tensors = unflatten_dict(joined)
    expected = torch_resnet(model, tensors, torch.tensor(x), norm, "BatchNorm")
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)
    close(found[0] if train else found, expected)
    if train:
        for layer, (mean, var) in after.values():
            layer["mean"], layer["var"] = mean, var
        wanted = flatten_dict(tensors)
        for path, leaf in flatten_dict(found[1]["batch_stats"]).items():
            close(leaf, wanted[path], err_msg=path)


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


@pytest.mark.parametrize(
    ("model", "side", "formula", "total"),
    [
        (models.ResNet18(), 32, resnet_count(10), 11_173_962),
        (models.ResNet18(100, groups=2), 32, resnet_count(100), 11_220_132),
        (models.ViT(), 32, vit_count(10, *BASE), 9_523_722),
        (models.vit_tiny(), 32, vit_count(10, 4, 64, *TINY), 5_362_762),
        # DeiT-Tiny as published
        (DEIT, 224, vit_count(1000, 16, 14 * 14, *TINY), 5_717_416),
    ],
)
def test_parameters(model, side, formula, total):
    ours = sum(p.size for p in jax.tree.leaves(shapes(model, (side, side, 3))))
    assert ours == formula == total


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


@pytest.mark.parametrize(
    ("model", "side", "scales"),
    [
        (models.ViT(**SIZES), 16, dict(zip(LEAVES, SCALES, strict=True))),
        (models.vit_tiny(**SIZES), 16, dict.fromkeys(LEAVES, 0.02)),
    ],
)
def test_initial_scales(model, side, scales):
    """Of kernels: torch's by their fan_in, or 0.02 as in DeiT."""
    check_initial_scales(model, side, scales)


def test_inside_shard_map():
    """Class tokens and positions do not vary there, images do: a matter of types."""
    check_inside_shard_map(*SMALL["vit"])
