"""Published weights: RoBERTa's of Hugging Face's transformers, and Swin's of timm.

    model = roberta_of("roberta-base", classes=2)
    params = load_roberta("roberta-base", model)

    model, params = load_swin("swin_tiny_patch4_window7_224.ms_in1k/model.safetensors")
    tuned = model.clone(classes=100)
    task = starting_at(classification(tuned, (32, 32, 3)), without_head(params))

They are files of safetensors. Requires the extra `roberta`.
"""

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_muon.files import DAMAGE, read_text, reading, reason
from fedjax_muon.models.roberta import RoBERTa
from fedjax_muon.models.swin import Swin
from fedjax_muon.versions import check_installed


@contextlib.contextmanager
def opened(path: str | Path, model: str, url: str) -> Iterator[tuple[Path, Any]]:
    """Opens a checkpoint: the file, and what reads its tensors by name, one by one.

    The file is memory-mapped.
    """
    check_installed("safetensors", f"a checkpoint of {model}")
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist; download model.safetensors of {model} from {url}"
        )
    wanted = "tensors in the format of safetensors that fit the model"
    with (
        reading(file, wanted, found="", errors=(SafetensorError,)),
        safe_open(file, framework="numpy") as tensors,
    ):
        yield file, tensors


def check_finite(name: str, tensor: np.ndarray) -> None:
    """Checks that a tensor has floating-point numbers, which are finite."""
    if not tensor.size or tensor.dtype.kind != "f" or not np.isfinite(tensor).all():
        raise ValueError(
            f"{name} must have finite numbers, got {tensor.dtype}{list(tensor.shape)}"
        )


def single(tensor: np.ndarray) -> jax.Array:
    """A tensor on the device, where half precision becomes float32."""
    half = tensor.dtype.itemsize < 4
    return jnp.asarray(tensor.astype(np.float32) if half else tensor)


# ----------------------------------------------------------------------- RoBERTa

ROBERTA_URL = "https://huggingface.co/FacebookAI/roberta-base"

# names of the layers of `RoBERTa` in a checkpoint, without "roberta."
ROBERTA_LAYERS = {
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "head.dense": "classifier.dense",
    "head.out": "classifier.out_proj",
}
ROBERTA_BLOCK = {  # layer_i, encoder.layer.i
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
# names of the sizes of `RoBERTa` in config.json, the least value, and the largest one:
# sizes above are those of no model, and take endless time or memory
SIZE, DEPTH = 2**20, 2**10
SIZES: dict[str, tuple[str, float, float]] = {
    "vocabulary_size": ("vocab_size", 1, SIZE),
    "position_count": ("max_position_embeddings", 1, SIZE),
    "width": ("hidden_size", 1, SIZE),
    "depth": ("num_hidden_layers", 1, DEPTH),
    "heads": ("num_attention_heads", 1, SIZE),
    "hidden": ("intermediate_size", 1, SIZE),
    "padding": ("pad_token_id", 0, SIZE),
    "dropout": ("hidden_dropout_prob", 0.0, 1.0),
    "epsilon": ("layer_norm_eps", 0.0, 1.0),
}
NAME_LENGTH = 80  # letters of a tensor's name in messages
# required values in config.json of what is fixed in `RoBERTa`
FIXED = {"model_type": "roberta", "hidden_act": "gelu", "type_vocab_size": 1}
# tensors of pretraining, or without weights
ROBERTA_IGNORED = ("lm_head.", "pooler.", "embeddings.position_ids")


def roberta_of(path: str | Path, classes: int = 2) -> RoBERTa:
    """Makes the module of a checkpoint from the `config.json` in its directory.

    Without a `config.json`, it has the sizes of roberta-base.
    """
    path = Path(path)
    file = (path if path.is_dir() else path.parent) / "config.json"
    if not file.is_file():
        return RoBERTa(classes)
    with reading(file, "the sizes of a RoBERTa", found=""):
        config = json.loads(read_text(file))
        sizes = {size: _size(config, *row) for size, row in SIZES.items()}
        fixed = {name: config[name] for name in FIXED}
        dropout = config.get("attention_probs_dropout_prob")
        if fixed != FIXED or dropout != sizes["dropout"]:
            raise ValueError(
                f"{file} must say {FIXED} and one dropout for hidden layers and "
                "attention; no other RoBERTa is supported"
            )
        _roberta_shapes(RoBERTa(**sizes))
    return RoBERTa(classes, **sizes)


def _size(config: Mapping[str, Any], name: str, low: float, high: float) -> Any:
    value, kind = config[name], type(low)
    if type(value) not in (int, kind) or not low <= value <= high:
        what = "an integer" if kind is int else "a number"
        raise ValueError(f"{name} must be {what} from {low} to {high}")
    return kind(value)


def load_roberta(path: str | Path, model: RoBERTa) -> dict[str, Any]:
    """Reads the parameters of RoBERTa from a file `model.safetensors`.

    Names in the file are as in `RobertaForSequenceClassification`, with or without the
    prefix "roberta.". The head of masked words is ignored. Half precision becomes
    float32. The file is memory-mapped, and its tensors are copied to the device one by
    one. Requires the extra `roberta`.

    Returns:
      The parameters, without the head if the file has none, as after pretraining.
    """
    with opened(path, "roberta-base", ROBERTA_URL) as (file, tensors):
        stored = tensors.keys()
        names = {name.removeprefix("roberta."): name for name in stored}
        if len(names) < len(stored):
            raise ValueError("a tensor with and without the prefix roberta.")
        shapes = _roberta_shapes(model)
        if not any(name.startswith("classifier.") for name in names):
            shapes = {p: s for p, s in shapes.items() if not p.startswith("head.")}
        wanted = {_roberta_name(place) for place in shapes}
        missing = sorted(wanted - names.keys())
        others = names.keys() - wanted
        unexpected = sorted(
            name for name in others if not name.startswith(ROBERTA_IGNORED)
        )
        if missing or unexpected:
            raise ValueError(
                f"{file} does not match a RoBERTa of depth {model.depth}: missing "
                f"{_some(missing)}; unexpected {_some(unexpected)}"
            )
        leaves = {}
        for place, shape in shapes.items():
            name = _roberta_name(place)
            tensor = tensors.get_tensor(names[name])
            leaves[place] = _roberta_leaf(tensor, place, shape, name)
    return unflatten_dict(leaves, sep=".")


def _roberta_shapes(model: RoBERTa) -> dict[str, tuple[int, ...]]:
    """Shapes by the path in the parameters. All layers have those of the first one."""
    first, ids = "layer_0.", jax.ShapeDtypeStruct((1, 1), jnp.int32)
    shallow = model.clone(depth=min(model.depth, 1))
    params = jax.eval_shape(shallow.init, jax.random.key(0), ids)["params"]
    shapes = {}
    for place, leaf in flatten_dict(params, sep=".").items():
        for i in range(model.depth if place.startswith(first) else 1):
            shapes[place.replace(first, f"layer_{i}.")] = leaf.shape
    return shapes


def _roberta_name(place: str) -> str:
    layer, leaf = place.rsplit(".", 1)
    end = "bias" if leaf == "bias" else "weight"
    if layer in ROBERTA_LAYERS:
        return f"{ROBERTA_LAYERS[layer]}.{end}"
    block, inner = layer.split(".", 1)
    number = block.removeprefix("layer_")
    return f"encoder.layer.{number}.{ROBERTA_BLOCK[inner]}.{end}"


def _roberta_leaf(
    tensor: np.ndarray, place: str, shape: tuple[int, ...], name: str
) -> jax.Array:
    turned = tensor.T if place.endswith(".kernel") else tensor  # torch's are (out, in)
    if turned.shape != shape:
        wanted = shape[::-1] if turned is not tensor else shape
        raise ValueError(
            f"{name} must have shape {wanted} for this model, got {tensor.shape}"
        )
    check_finite(name, tensor)
    return single(turned)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(name[:NAME_LENGTH] for name in names[:3]) + more or "nothing"


# -------------------------------------------------------------------------- Swin

SWIN_URL = "https://huggingface.co/timm/swin_tiny_patch4_window7_224.ms_in1k"
CHANNELS = 3

# names of the layers of `Swin` in a checkpoint
SWIN_LAYERS = {
    "patches": "patch_embed.proj",
    "LayerNorm_0": "patch_embed.norm",
    "LayerNorm_1": "norm",
    "head": "head.fc",
}
SWIN_BLOCK = {  # SwinBlock_n, layers.stage.blocks.i
    "LayerNorm_0": "norm1",
    "Attention_0.query": "attn.qkv",
    "Attention_0.key": "attn.qkv",
    "Attention_0.value": "attn.qkv",
    "Attention_0.out": "attn.proj",
    "LayerNorm_1": "norm2",
    "Dense_0": "mlp.fc1",
    "Dense_1": "mlp.fc2",
}
SWIN_TABLE = "attn.relative_position_bias_table"
# layers.stage.downsample
SWIN_MERGING = {"LayerNorm_0": "norm", "Dense_0": "reduction"}
THIRDS = ("Attention_0.query", "Attention_0.key", "Attention_0.value")
# Larger ones would take endless memory, which shapes alone do not need. Published are
# at most 4, 24, 192 and 24.
LARGEST = {"patch": 32, "window": 32, "map": 256, "blocks": 128}
SWIN_IGNORED = ("relative_position_index", "attn_mask")  # not weights


def load_swin(path: str | Path) -> tuple[Swin, dict[str, Any]]:
    """Reads a Swin transformer and its parameters from a file `model.safetensors`.

    The shapes of the tensors determine the sizes of the module. Its `side` is the side
    of images whose last map is one window, 224 for "patch4_window7_224", so images of
    any size are resized to it and use all relative positions as they were trained.
    Names in the file are as in timm since version 0.9. Half precision becomes float32.
    Requires the extra `roberta`.
    """
    with opened(path, "Swin-T", SWIN_URL) as (file, stored):
        names = stored.keys()
        weights = [name for name in names if not name.endswith(SWIN_IGNORED)]
        tensors = {name: stored.get_tensor(name) for name in weights}
        for name, tensor in tensors.items():
            check_finite(name, tensor)
    try:
        model = _swin_of(tensors)
        image = jax.ShapeDtypeStruct((1, model.side, model.side, CHANNELS), jnp.float32)
        shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
        return model, _swin_params(tensors, shapes, model.depths)
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


def _swin_of(tensors: Mapping[str, np.ndarray]) -> Swin:
    """The module with the sizes of the tensors; `KeyError` if one is missing."""
    blocks = re.compile(r"layers\.([0-9]{1,3})\.blocks\.([0-9]{1,3})\.norm1\.weight")
    places = [tuple(map(int, m.groups())) for m in map(blocks.fullmatch, tensors) if m]
    stages = 1 + max((stage for stage, _ in places), default=0)
    depths = tuple(sum(s == stage for s, _ in places) for stage in range(stages))
    expected = [(s, i) for s, depth in enumerate(depths) for i in range(depth)]
    if sorted(places) != expected or not all(depths):
        raise ValueError(f"blocks of the stages and numbers {sorted(places)[:9]}")
    tables = [tensors[f"layers.{s}.blocks.0.{SWIN_TABLE}"].shape for s in range(stages)]
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


def _swin_params(
    tensors: Mapping[str, np.ndarray], shapes: Any, depths: Sequence[int]
) -> dict[str, Any]:
    blocks = [(stage, i) for stage, depth in enumerate(depths) for i in range(depth)]
    leaves, used = {}, set()
    for place, leaf in flatten_dict(shapes, sep=".").items():
        name = _swin_name(place, blocks)
        used.add(name)
        leaves[place] = _swin_leaf(tensors[name], place, leaf.shape, name)
    unexpected = sorted(tensors.keys() - used)
    if unexpected:
        raise ValueError(f"unexpected {unexpected[0]}, and {len(unexpected) - 1} more")
    return unflatten_dict(leaves, sep=".")


def _swin_name(place: str, blocks: list[tuple[int, int]]) -> str:
    layer, leaf = place.rsplit(".", 1)
    end = "bias" if leaf == "bias" else "weight"
    if layer in SWIN_LAYERS:
        return f"{SWIN_LAYERS[layer]}.{end}"
    outer, inner = layer.split(".", 1)
    kind, number = outer.rsplit("_", 1)
    if kind == "PatchMerging":
        return f"layers.{int(number) + 1}.downsample.{SWIN_MERGING[inner]}.{end}"
    stage, i = blocks[int(number)]
    is_table = inner == "RelativePositions_0"
    rest = SWIN_TABLE if is_table else f"{SWIN_BLOCK[inner]}.{end}"
    return f"layers.{stage}.blocks.{i}.{rest}"


def _swin_leaf(
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
