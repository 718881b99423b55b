"""Reads weights of Swin transformers as timm saves them.

model, params = load_swin("swin_tiny_patch4_window7_224.ms_in1k/model.safetensors")
tuned = model.clone(classes=100)
task = starting_at(classification(tuned, (32, 32, 3)), without_head(params))
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_muon.models.swin import Swin

URL = "https://huggingface.co/timm/swin_tiny_patch4_window7_224.ms_in1k"
CHANNELS = 3

# where a layer of `Swin` is in a checkpoint
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
IGNORED = ("relative_position_index", "attn_mask")  # no weights


def load_swin(path: str | Path) -> tuple[Swin, dict[str, Any]]:
    """The module of a file `model.safetensors`, or of the one in a directory, and its
    parameters.

    The file says the sizes; `side` is that of images whose last map is one window, 224
    of "patch4_window7_224". So every relative position keeps the number that it was
    trained with, on images of whatever size. Names are timm's, of before its version
    0.9, which are the paper's authors', or since. Half precision becomes float32. Needs
    the extra `roberta`.

    Raises `FileNotFoundError` without the file, and `ValueError` for a file of another
    format, of another network, or of parts that do not go together, as of one that was
    made for several sizes of windows.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file  # an extra, `roberta`

    path = Path(path)
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist; download model.safetensors, of Swin-T from {URL}"
        )
    try:
        tensors = _renamed(load_file(file))
    except SafetensorError as error:
        raise ValueError(
            f"{file}: expected tensors in the format of safetensors ({error}); fetch "
            "it again"
        ) from error
    try:
        model = _model(tensors)
        image = jax.ShapeDtypeStruct((1, model.side, model.side, CHANNELS), jnp.float32)
        shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
        return model, _params(tensors, shapes, model.depths)
    except (KeyError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"{file} is no Swin transformer as timm saves them: {what}"
        ) from error


def without_head(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters but for the last layer, to start a task of other classes at."""
    return {name: part for name, part in params.items() if name != "head"}


def _renamed(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By the names since timm 0.9: before, a stage ended with what now begins the next,
    and the head was one layer."""
    old = any(name.startswith("layers.0.downsample.") for name in tensors)
    found = {}
    for name, tensor in tensors.items():
        if name.endswith(IGNORED):
            continue
        if old:
            later = lambda match: f"layers.{int(match[1]) + 1}.downsample."
            name = re.sub(r"^layers\.(\d+)\.downsample\.", later, name)
        name = re.sub(r"^head\.(weight|bias)$", r"head.fc.\1", name)
        found[name] = tensor
    return found


def _model(tensors: Mapping[str, np.ndarray]) -> Swin:
    """By the shapes. Raises `KeyError` where it needs what is not there."""
    blocks = re.compile(r"layers\.(\d+)\.blocks\.(\d+)\.norm1\.weight")
    places = [tuple(map(int, m.groups())) for m in map(blocks.fullmatch, tensors) if m]
    stages = 1 + max((stage for stage, _ in places), default=0)
    depths = tuple(sum(s == stage for s, _ in places) for stage in range(stages))
    tables = [tensors[f"layers.{s}.blocks.0.{TABLE}"].shape for s in range(stages)]
    width, _, patch, _ = tensors["patch_embed.proj.weight"].shape
    window = (math.isqrt(tables[0][0]) + 1) // 2
    return Swin(
        classes=len(tensors["head.fc.bias"]),
        patch=patch,
        window=window,
        width=width,
        depths=depths,
        heads=tuple(heads for _, heads in tables),
        expansion=len(tensors["layers.0.blocks.0.mlp.fc1.bias"]) // width,
        side=patch * window * 2 ** (stages - 1),
    )


def _params(tensors, shapes, depths):
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


def _name(place: str, blocks) -> str:
    layer, leaf = place.rsplit(".", 1)
    end = "bias" if leaf == "bias" else "weight"
    if layer in OUTSIDE:
        return f"{OUTSIDE[layer]}.{end}"
    outer, inner = layer.split(".", 1)
    kind, number = outer.rsplit("_", 1)
    if kind == "PatchMerging":
        return f"layers.{int(number) + 1}.downsample.{MERGING[inner]}.{end}"
    stage, i = blocks[int(number)]
    own = TABLE if inner == "RelativePositions_0" else f"{INSIDE[inner]}.{end}"
    return f"layers.{stage}.blocks.{i}.{own}"


def _leaf(tensor, place, shape, name):
    found = tensor
    for third, layer in enumerate(THIRDS):
        if f".{layer}." in place:
            found = np.split(tensor, 3)[third]
    if place == "patches.kernel":  # of a convolution: (out, channels, rows, columns)
        found = found.transpose(2, 3, 1, 0).reshape(-1, len(tensor))
    elif place.endswith(".kernel"):
        found = found.T  # torch's are (out, in)
    if found.shape != shape:
        raise ValueError(
            f"{name} has shape {tensor.shape}, which does not go with others"
        )
    half = found.dtype.itemsize < 4
    return jnp.asarray(found.astype(np.float32) if half else found)
