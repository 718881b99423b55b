"""ResNet-18 and the vision transformers against torch, and what Muon takes of them."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packages import needs
from parity import by_path, differentiated, drawn, shapes, torch_leaves

from fedjax_muon import models
from fedjax_muon.linalg.newton_schulz import polar
from fedjax_muon.transforms import by_rank, muon_dimension_numbers, scale_by_muon
from fedjax_muon.transforms.layout import fans

torch = needs("torch")
pytestmark = pytest.mark.slow

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
    return {f"{k}.{part}": v for k, parts in names.items() for part, v in parts.items()}


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
    state = {
        f"{k}.{part}": v for k, parts in names.items() for part, v in parts.items()
    }
    state["positions"] = params["positions"]["embedding"][None]
    state["token"] = params["class_token"][None, None]
    return state


@pytest.mark.parametrize("name", SMALL)
def test_logits_and_gradients_equal_torch(name):
    model, image = SMALL[name]
    params = drawn(shapes(model, image))
    x = np.random.default_rng(1).normal(size=(2, *image))
    logits, gradient = differentiated(model, params, x)
    leaves = torch_leaves(params)
    named = torch_state_of_resnet if name == "resnet18" else torch_state_of_vit
    reference = torch.func.functional_call(
        torch_small(name).double(),
        named(leaves),
        torch.tensor(x).permute(0, 3, 1, 2),
        strict=True,  # each of torch's parameters is one of ours, and conversely
    )
    torch.sin(reference).sum().backward()
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11)
    close(logits, reference.detach().numpy())
    for path, leaf in by_path(leaves).items():
        close(by_path(gradient)[path], leaf.grad.numpy(), err_msg=path)


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
SIZES = [  # model, side, formula, torch, total
    (
        models.ResNet18(),
        32,
        resnet_count(10),
        lambda: TorchResNet(10),
        11_173_962,
    ),
    (
        models.ResNet18(100, groups=2),
        32,
        resnet_count(100),
        lambda: TorchResNet(100, 2),
        11_220_132,
    ),
    (
        models.ViT(),
        32,
        vit_count(10, *BASE),
        lambda: TorchViT(10, (32, 32), 4, 512, 6, 8, 64, 512, False, epsilon=1e-5),
        9_523_722,
    ),
    (
        models.vit_tiny(),
        32,
        vit_count(10, 4, 64, *TINY),
        lambda: TorchViT(10, (32, 32), 4, 192, 12, 3, 64, 768, True, epsilon=1e-6),
        5_362_762,
    ),
    (  # DeiT-Tiny as published
        models.vit_tiny(1000, patch=16),
        224,
        vit_count(1000, 16, 14 * 14, *TINY),
        lambda: TorchViT(1000, (224, 224), 16, 192, 12, 3, 64, 768, True, epsilon=1e-6),
        5_717_416,
    ),
]


@pytest.mark.parametrize(("model", "side", "formula", "theirs", "total"), SIZES)
def test_parameters(model, side, formula, theirs, total):
    ours = sum(p.size for p in jax.tree.leaves(shapes(model, (side, side, 3))))
    with torch.device("meta"):
        counted = sum(p.numel() for p in theirs().parameters())
    assert ours == formula == counted == total


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


@pytest.mark.parametrize("name", ["resnet18", "vit"])
def test_muon_makes_matrices_orthogonal_and_leaves_the_rest(name):
    gradient = jax.tree.map(jnp.float32, drawn(shapes(*SMALL[name])))
    rule = by_rank(scale_by_muon(0.0, polar=polar))
    step = jax.jit(lambda g: rule.update(g, rule.init(g))[0])(gradient)
    names = matrices(gradient)
    for path, leaf in by_path(step).items():
        if path in names:
            values = np.linalg.svd(np.float64(leaf).reshape(names[path]))[1]
            np.testing.assert_allclose(values, 1.0, atol=1e-5)
        else:
            np.testing.assert_array_equal(leaf, by_path(gradient)[path])


@pytest.mark.parametrize("name", ["resnet18", "vit", "vit_tiny"])
@pytest.mark.parametrize("shape", [(3072,), (32, 32)])
def test_other_ranks_are_refused(name, shape):
    with pytest.raises(ValueError, match=r"takes images \[B, H, W, C\].*got shape"):
        shapes(models.ALL[name](), shape)


@pytest.mark.parametrize(
    "sizes",
    [{"groups": 0}, {"groups": 3}, {"widths": ()}, {"groups": 2, "widths": (4, 0)}],
)
def test_groups_divide_the_channels(sizes):
    with pytest.raises(ValueError, match="widths must be positive multiples of groups"):
        shapes(models.ResNet18(**sizes), (32, 32, 3))
