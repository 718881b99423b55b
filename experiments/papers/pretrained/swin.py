"""The Swin transformer: attention within windows, shifted in every second block.

    model, params = load_swin("swin_tiny_patch4_window7_224.ms_in1k/model.safetensors")
    tuned = model.clone(classes=100)
    task = starting_at(classification(tuned, (32, 32, 3)), without_head(params))

The weights are those of timm.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from experiments.papers.pretrained.tensors import check_finite, opened, single
from fedjax_muon.core import check_count
from fedjax_muon.files import DAMAGE, reason
from fedjax_muon.models.vit import Attention, squares

# torch's default for convolutions, which the published code uses for the patches.
_patches_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
_normal = nn.initializers.normal(0.02)


class RelativePositions(nn.Module):
    """A learned number for each head and each offset between two places of a window.

    The result is [heads, N, N] for queries and keys, with N = window^2. It is read from
    a table "bias" [(2 window - 1)^2, heads], in row (2 window - 1) (dy + window - 1) +
    dx + window - 1 for a query dy rows below and dx columns right of its key.
    """

    window: int
    heads: int

    @nn.compact
    def __call__(self) -> jax.Array:
        offsets = 2 * self.window - 1
        table = self.param("bias", _normal, (offsets**2, self.heads))
        places = np.indices((self.window, self.window)).reshape(2, -1)
        below, right = places[:, :, None] - places[:, None] + self.window - 1
        return jnp.moveaxis(table[offsets * below + right], -1, 0)


class SwinBlock(nn.Module):
    """Attention within windows, then a network with one hidden layer.

    [B, H, W, width] to [B, H, W, width]. Each of the two reads its normalized input and
    is added to the input (pre-norm). `window` divides H and W. The windows are shifted
    by `shift` rows and columns. The shift is cyclic, and a mask separates places from
    opposite edges of the map.
    """

    heads: int
    window: int
    shift: int
    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        norm = partial(nn.LayerNorm, epsilon=1e-5)
        dense = partial(nn.Dense, kernel_init=_normal)
        *_, height, width, features = x.shape
        head_width = features // self.heads
        attention = Attention(self.heads, head_width, True, _normal, None)
        bias = RelativePositions(self.window, self.heads)()[None, None]
        mask = _together(height, width, self.window, self.shift) if self.shift else None
        y = jnp.roll(norm()(x), (-self.shift, -self.shift), axis=(1, 2))
        y = attention(_windows(y, self.window), bias, mask)
        y = _map(y, self.window, height, width)
        x = x + jnp.roll(y, (self.shift, self.shift), axis=(1, 2))
        y = nn.gelu(dense(self.hidden)(norm()(x)), approximate=False)
        return x + dense(features)(y)


class PatchMerging(nn.Module):
    """Merges 2 x 2 places into one: [B, H, W, C] to [B, H / 2, W / 2, 2 C].

    The four vectors, column by column, are normalized as one vector of 4 C numbers.
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, height, width, features = x.shape
        x = x.reshape(batch, height // 2, 2, width // 2, 2, features)
        x = x.transpose(0, 1, 3, 4, 2, 5)
        x = x.reshape(batch, height // 2, width // 2, 4 * features)
        x = nn.LayerNorm(epsilon=1e-5)(x)
        return nn.Dense(2 * features, use_bias=False, kernel_init=_normal)(x)


class Swin(nn.Module):
    """Stages of blocks; each stage halves the sides and doubles the features.

    It maps images [B, H, W, C] to logits [B, classes]. The first map has H / patch x
    W / patch places with `width` features. Windows are shifted by window // 2 in every
    second block. If a side of the map is not longer than a window, the shorter side is
    the window, and there is no shift. The mean over the normalized last map gives the
    logits:

        patches              kernel [patch^2 C, width], bias [width]
        LayerNorm_0          scale, bias [width], after the patches
        SwinBlock_i          LayerNorm_0, LayerNorm_1: scale, bias [F]
          RelativePositions_0  bias [(2 window - 1)^2, heads]
          Attention_0        query, key, value, out: kernel [F, F], bias [F]
          Dense_0            kernel [F, expansion F], bias
          Dense_1            kernel [expansion F, F], bias
        PatchMerging_s       LayerNorm_0: scale, bias [4 F]
                             Dense_0: kernel [4 F, 2 F]
        LayerNorm_1          scale, bias, after the last stage
        head                 kernel, bias [classes]

    The default patch and window are for images of 32 x 32, whose maps have sides of 16,
    8, 4 and 2, and of 64 x 64. The published ones, 4 and 7, are for 224 x 224; with
    these, the windows in the last two stages of a 32 x 32 image would have four places
    and one place.

    Muon's default layout treats all kernels as matrices, but not the relative
    positions, which are biases: rows of their table are looked up, never multiplied
    with features. `exclude=("bias", "scale", "patches", "head")` of
    `muon_dimension_numbers` also excludes the first and the last layer.

    From "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows"
    (arXiv:2103.14030), in the form of https://github.com/microsoft/Swin-Transformer,
    which has one kernel for query, key and value together, without its stochastic
    depth. Kernels and relative positions are initialized as there, biases with 0.

    Attributes:
      expansion: Size of a hidden layer, divided by the number of features.
      side: If given, images are first resized linearly to side x side pixels, for
        models that were pretrained on larger images (`load_swin`).
    """

    classes: int = 10
    patch: int = 2
    window: int = 4
    width: int = 96
    depths: Sequence[int] = (2, 2, 6, 2)
    heads: Sequence[int] = (3, 6, 12, 24)
    expansion: int = 4
    side: int | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.side is not None and x.ndim == 4:
            shape = (len(x), self.side, self.side, x.shape[-1])
            x = jax.image.resize(x, shape, "linear")
        self._check(x)
        batch, height, width, _ = x.shape
        patches = nn.Dense(self.width, kernel_init=_patches_init, name="patches")
        x = patches(squares(x, self.patch))
        norm = partial(nn.LayerNorm, epsilon=1e-5)
        x = norm()(x).reshape(batch, height // self.patch, width // self.patch, -1)
        for stage, depth in enumerate(self.depths):
            if stage:
                x = PatchMerging()(x)
            window, shift = _window(self.window, *x.shape[1:3])
            hidden = self.expansion * x.shape[-1]
            for i in range(depth):
                moved = shift if i % 2 else 0
                x = SwinBlock(self.heads[stage], window, moved, hidden)(x)
        x = jnp.mean(norm()(x), axis=(1, 2))
        return nn.Dense(self.classes, kernel_init=_normal, name="head")(x)

    def _check(self, x: jax.Array) -> None:
        for name in ("patch", "window", "width", "expansion"):
            check_count(f"Swin's {name}", getattr(self, name))
        features = [self.width * 2**stage for stage in range(len(self.depths))]
        if (
            len(self.heads) != len(self.depths)
            or not self.depths
            or min(*self.depths, *self.heads) < 1
            or any(f % h for f, h in zip(features, self.heads, strict=True))
        ):
            raise ValueError(
                "Swin takes depths and heads of at least 1, one of each for every "
                f"stage, heads that divide the features {features}; got depths "
                f"{tuple(self.depths)} and heads {tuple(self.heads)}"
            )
        unit = self.patch * 2 ** (len(self.depths) - 1)
        if x.ndim != 4 or any(side < 1 or side % unit for side in x.shape[1:3]):
            raise ValueError(
                "Swin takes images [B, H, W, C], H and W multiples of "
                f"patch 2^(stages - 1) = {unit}, got shape {x.shape}; change patch, "
                "or use another model"
            )
        for stage in range(len(self.depths)):
            sides = [side // (self.patch * 2**stage) for side in x.shape[1:3]]
            window, _ = _window(self.window, *sides)
            if any(side % window for side in sides):
                raise ValueError(
                    f"windows of {window} x {window} do not fill the map of "
                    f"{sides[0]} x {sides[1]} of Swin's stage {stage}, of an image "
                    f"{x.shape[1:3]}; change window or patch"
                )


swin_tiny = partial(Swin, width=96, depths=(2, 2, 6, 2), heads=(3, 6, 12, 24))
"""`Swin` with the size of the paper's Swin-T: 27,505,108 parameters for 32 x 32 x 3 and
10 classes. `swin_tiny(1000, patch=4, window=7)`, for 224 x 224 x 3, has the published
28,288,354.
"""


def _window(window: int, height: int, width: int) -> tuple[int, int]:
    """The side of a map's windows, and their shift."""
    shorter = min(height, width)
    return (shorter, 0) if shorter <= window else (window, window // 2)


def _windows(x: Any, side: int) -> Any:
    """[B, H, W, C] to [B, H W / side^2, side^2, C], both in row-major order."""
    batch, height, width, features = x.shape
    x = x.reshape(batch, height // side, side, width // side, side, features)
    return x.swapaxes(2, 3).reshape(batch, -1, side * side, features)


def _map(x: jax.Array, side: int, height: int, width: int) -> jax.Array:
    """The inverse of `_windows`."""
    batch, _, _, features = x.shape
    x = x.reshape(batch, height // side, width // side, side, side, features)
    return x.swapaxes(2, 3).reshape(batch, height, width, features)


def _together(height: int, width: int, window: int, shift: int) -> jax.Array:
    """Mask of a shifted map's windows [1, windows, 1, N, N].

    It is false between places that the cyclic shift brought from the other edge and the
    rest of the window.
    """
    rows, columns = np.arange(height) < shift, np.arange(width) < shift
    region = np.roll(2 * rows[:, None] + columns[None], (-shift, -shift), (0, 1))
    region = _windows(region[None, :, :, None], window)[..., 0]
    return jnp.asarray(region[..., :, None] == region[..., None, :])[:, :, None]


# ------------------------------------------------------------------- published weights

URL = "https://huggingface.co/timm/swin_tiny_patch4_window7_224.ms_in1k"
CHANNELS = 3

# names of the layers of `Swin` in a checkpoint
LAYERS = {
    "patches": "patch_embed.proj",
    "LayerNorm_0": "patch_embed.norm",
    "LayerNorm_1": "norm",
    "head": "head.fc",
}
BLOCK = {  # SwinBlock_n, layers.stage.blocks.i
    "LayerNorm_0": "norm1",
    "Attention_0.query": "attn.qkv",
    "Attention_0.key": "attn.qkv",
    "Attention_0.value": "attn.qkv",
    "Attention_0.out": "attn.proj",
    "LayerNorm_1": "norm2",
    "Dense_0": "mlp.fc1",
    "Dense_1": "mlp.fc2",
}
TABLE = "attn.relative_position_bias_table"
# layers.stage.downsample
MERGING = {"LayerNorm_0": "norm", "Dense_0": "reduction"}
THIRDS = ("Attention_0.query", "Attention_0.key", "Attention_0.value")
# Larger ones would take endless memory, which shapes alone do not need. Published are
# at most 4, 24, 192 and 24.
LARGEST = {"patch": 32, "window": 32, "map": 256, "blocks": 128}
IGNORED = ("relative_position_index", "attn_mask")  # not weights


def load_swin(path: str | Path) -> tuple[Swin, dict[str, Any]]:
    """Reads a Swin transformer and its parameters from a file `model.safetensors`.

    The shapes of the tensors determine the sizes of the module. Its `side` is the side
    of images whose last map is one window, 224 for "patch4_window7_224", so images of
    any size are resized to it and use all relative positions as they were trained.
    Names in the file are as in timm since version 0.9. Half precision becomes float32.
    """
    with opened(path, "Swin-T", URL) as (file, stored):
        names = stored.keys()
        weights = [name for name in names if not name.endswith(IGNORED)]
        tensors = {name: stored.get_tensor(name) for name in weights}
        for name, tensor in tensors.items():
            check_finite(name, tensor)
    try:
        model = _model_of(tensors)
        image = jax.ShapeDtypeStruct((1, model.side, model.side, CHANNELS), jnp.float32)
        shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
        return model, _params(tensors, shapes, model.depths)
    except DAMAGE as error:
        missing = isinstance(error, KeyError)
        what = f"{error} is missing" if missing else reason(error)
        raise ValueError(
            f"{file} is not a Swin transformer as saved by timm: {what}; download it "
            "again"
        ) from error


def without_head(params: Mapping[str, Any]) -> dict[str, Any]:
    """Removes the last layer, for a task with other classes (`tasks.starting_at`)."""
    return {name: part for name, part in params.items() if name != "head"}


def _model_of(tensors: Mapping[str, np.ndarray]) -> Swin:
    """The module with the sizes of the tensors; `KeyError` if one is missing."""
    blocks = re.compile(r"layers\.([0-9]{1,3})\.blocks\.([0-9]{1,3})\.norm1\.weight")
    places = [tuple(map(int, m.groups())) for m in map(blocks.fullmatch, tensors) if m]
    stages = 1 + max((stage for stage, _ in places), default=0)
    depths = tuple(sum(s == stage for s, _ in places) for stage in range(stages))
    expected = [(s, i) for s, depth in enumerate(depths) for i in range(depth)]
    if sorted(places) != expected or not all(depths):
        raise ValueError(f"blocks of the stages and numbers {sorted(places)[:9]}")
    tables = [tensors[f"layers.{s}.blocks.0.{TABLE}"].shape for s in range(stages)]
    width, _, patch, _ = tensors["patch_embed.proj.weight"].shape
    window = (math.isqrt(tables[0][0]) + 1) // 2
    places_per_side = window * 2 ** (stages - 1)
    sizes = {"patch": patch, "window": window, "map": places_per_side}
    for what, size in (sizes | {"blocks": len(places)}).items():
        if size > LARGEST[what]:
            raise ValueError(f"its {what} has {size}, more than {LARGEST[what]}")
    return Swin(
        classes=len(tensors["head.fc.bias"]),
        patch=patch,
        window=window,
        width=width,
        depths=depths,
        heads=tuple(heads for _, heads in tables),
        expansion=len(tensors["layers.0.blocks.0.mlp.fc1.bias"]) // width,
        side=patch * places_per_side,
    )


def _params(
    tensors: Mapping[str, np.ndarray], shapes: Any, depths: Sequence[int]
) -> dict[str, Any]:
    blocks = [(stage, i) for stage, depth in enumerate(depths) for i in range(depth)]
    leaves, used = {}, set()
    for place, leaf in flatten_dict(shapes, sep=".").items():
        name = _name(place, blocks)
        used.add(name)
        leaves[place] = _leaf(tensors[name], place, leaf.shape, name)
    unexpected = sorted(tensors.keys() - used)
    if unexpected:
        raise ValueError(f"unexpected {unexpected[0]}, and {len(unexpected) - 1} more")
    return unflatten_dict(leaves, sep=".")


def _name(place: str, blocks: list[tuple[int, int]]) -> str:
    layer, leaf = place.rsplit(".", 1)
    end = "bias" if leaf == "bias" else "weight"
    if layer in LAYERS:
        return f"{LAYERS[layer]}.{end}"
    outer, inner = layer.split(".", 1)
    kind, number = outer.rsplit("_", 1)
    if kind == "PatchMerging":
        return f"layers.{int(number) + 1}.downsample.{MERGING[inner]}.{end}"
    stage, i = blocks[int(number)]
    is_table = inner == "RelativePositions_0"
    rest = TABLE if is_table else f"{BLOCK[inner]}.{end}"
    return f"layers.{stage}.blocks.{i}.{rest}"


def _leaf(
    tensor: np.ndarray, place: str, shape: tuple[int, ...], name: str
) -> jax.Array:
    leaf = tensor
    for third, layer in enumerate(THIRDS):
        if f".{layer}." in place:
            leaf = np.split(tensor, 3)[third]
    if place == "patches.kernel":  # of a convolution: (out, channels, rows, columns)
        leaf = leaf.transpose(2, 3, 1, 0).reshape(-1, len(tensor))
    elif place.endswith(".kernel"):
        leaf = leaf.T  # torch's are (out, in)
    if leaf.shape != shape:
        raise ValueError(
            f"{name} has shape {tensor.shape}, which does not match the others"
        )
    return single(leaf)
