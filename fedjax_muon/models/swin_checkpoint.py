"""Weights of Swin transformers in checkpoints of timm.

model, params = load_swin("swin_tiny_patch4_window7_224.ms_in1k/model.safetensors")
tuned = model.clone(classes=100)
task = starting_at(classification(tuned, (32, 32, 3)), without_head(params))
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_muon.core.reading import DAMAGE, reason
from fedjax_muon.models.checkpoint import check_finite, opened, single
from fedjax_muon.models.swin import Swin

URL = "https://huggingface.co/timm/swin_tiny_patch4_window7_224.ms_in1k"
CHANNELS = 3

# names of the layers of `Swin` in a checkpoint
OUTSIDE = {
    "patches": "patch_embed.proj",
    "LayerNorm_0": "patch_embed.norm",
    "LayerNorm_1": "norm",
    "head": "head.fc",
}
INSIDE = {  # SwinBlock_n, layers.stage.blocks.i
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
MERGING = {"LayerNorm_0": "norm", "Dense_0": "reduction"}  # layers.stage.downsample
THIRDS = ("Attention_0.query", "Attention_0.key", "Attention_0.value")
# Larger ones would take endless memory, which shapes alone do not need. Published are
# at most 4, 24, 192 and 24.
LARGEST = {"patch": 32, "window": 32, "map": 256, "blocks": 128}
IGNORED = ("relative_position_index", "attn_mask")  # not weights


def load_swin(path: str | Path) -> tuple[Swin, dict[str, Any]]:
    """Reads a Swin transformer and its parameters from a file `model.safetensors`.

    The shapes of the tensors determine the sizes of the module. Its `side` is that of
    images whose last map is one window, 224 for "patch4_window7_224", so images of any
    size are resized to it and use all relative positions as they were trained. Names in
    the file are those of timm, before version 0.9 (the paper's names) or since. Half
    precision becomes float32. Requires the extra `roberta`.
    """
    with opened(path, "Swin-T", URL) as (file, stored):
        names = stored.keys()
        tensors = _renamed({name: stored.get_tensor(name) for name in names})
    try:
        model = _model(tensors)
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


def _renamed(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors by their names since timm 0.9.

    Before, a merging belonged to the end of a stage, not to the beginning of the next
    one, and the head was a single layer.
    """
    old = any(name.startswith("layers.0.downsample.") for name in tensors)
    renamed: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        if name.endswith(IGNORED):
            continue
        if old:
            later = lambda match: f"layers.{int(match[1]) + 1}.downsample."
            name = re.sub(r"^layers\.(\d+)\.downsample\.", later, name)
        name = re.sub(r"^head\.(weight|bias)$", r"head.fc.\1", name)
        if name in renamed:
            raise ValueError(f"{name} by two names")
        check_finite(name, tensor)
        renamed[name] = tensor
    return renamed


def _model(tensors: Mapping[str, np.ndarray]) -> Swin:
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
    if layer in OUTSIDE:
        return f"{OUTSIDE[layer]}.{end}"
    outer, inner = layer.split(".", 1)
    kind, number = outer.rsplit("_", 1)
    if kind == "PatchMerging":
        return f"layers.{int(number) + 1}.downsample.{MERGING[inner]}.{end}"
    stage, i = blocks[int(number)]
    is_table = inner == "RelativePositions_0"
    rest = TABLE if is_table else f"{INSIDE[inner]}.{end}"
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
