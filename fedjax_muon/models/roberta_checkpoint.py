"""RoBERTa's weights in checkpoints of Hugging Face's transformers.

model = roberta_of("roberta-base", classes=2)
params = load_roberta("roberta-base", model)
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_muon.core.reading import read_text, reading
from fedjax_muon.models.roberta import RoBERTa

URL = "https://huggingface.co/FacebookAI/roberta-base"

# names of the layers of `RoBERTa` in a checkpoint, without "roberta."
OUTSIDE = {
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "head.dense": "classifier.dense",
    "head.out": "classifier.out_proj",
}
INSIDE = {  # layer_i, encoder.layer.i
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
# names of the sizes of `RoBERTa` in config.json
SIZES = {
    "vocabulary_size": "vocab_size",
    "position_count": "max_position_embeddings",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
    "padding": "pad_token_id",
}
RATES = {"dropout": "hidden_dropout_prob", "epsilon": "layer_norm_eps"}
# required values in config.json of what is fixed in `RoBERTa`
# Sizes above these are those of no model, and take endless time or memory.
SIZE_LIMIT, DEPTH_LIMIT = 2**20, 2**10
NAME_LENGTH = 80  # letters of a tensor's name in messages
FIXED = {"model_type": "roberta", "hidden_act": "gelu", "type_vocab_size": 1}
# tensors of pretraining, or without weights
IGNORED = ("lm_head.", "pooler.", "embeddings.position_ids")


def roberta_of(path: str | Path, classes: int = 2) -> RoBERTa:
    """Makes the module of a checkpoint from the `config.json` in its directory.

    Args:
      path: Directory of the checkpoint, or a file in it.

    Returns:
      The module; without a `config.json`, it has the sizes of roberta-base.
    """
    path = Path(path)
    file = (path if path.is_dir() else path.parent) / "config.json"
    if not file.is_file():
        return RoBERTa(classes)
    with reading(file, "the sizes of a RoBERTa", found=""):
        found = json.loads(read_text(file))
        sizes: dict[str, Any] = {s: _size(found, n, s) for s, n in SIZES.items()}
        sizes |= {rate: _rate(found, name) for rate, name in RATES.items()}
        fixed = {name: found[name] for name in FIXED}
    if fixed != FIXED or found.get("attention_probs_dropout_prob") != sizes["dropout"]:
        raise ValueError(
            f"{file} must say {FIXED} and one dropout for hidden layers and attention; "
            "no other RoBERTa is supported"
        )
    with reading(file, "the sizes of a RoBERTa", found=""):
        _shapes(RoBERTa(**sizes))
    return RoBERTa(classes, **sizes)


def _size(config: Mapping[str, Any], name: str, size: str) -> int:
    value, low = config[name], 0 if size == "padding" else 1
    high = DEPTH_LIMIT if size == "depth" else SIZE_LIMIT
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} must be an integer from {low} to {high}")
    return value


def _rate(config: Mapping[str, Any], name: str) -> float:
    value = config[name]
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise ValueError(f"{name} must be a number in [0, 1)")
    return float(value)


def load_roberta(path: str | Path, model: RoBERTa) -> dict[str, Any]:
    """Reads the parameters of RoBERTa from a file `model.safetensors`.

    Names in the file are those of `RobertaForSequenceClassification`, with or without
    the prefix "roberta.". The head of masked words is ignored. Half precision becomes
    float32. The file is memory-mapped, and its tensors are copied to the device one by
    one. Requires the extra `roberta`.

    Args:
      path: Path of the file, or of its directory.
      model: Module whose parameters are read.

    Returns:
      The parameters, without the head if the file has none, as after pretraining.

    Raises:
      FileNotFoundError: If the file is missing.
    """
    from safetensors import SafetensorError, safe_open  # in the extra `roberta`

    path = Path(path)
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist; download model.safetensors, that of roberta-base "
            f"from {URL}"
        )
    shapes = _shapes(model)
    wanted = "tensors in the format of safetensors that fit the model"
    with (
        reading(file, wanted, found="", errors=(SafetensorError,)),
        safe_open(file, framework="numpy") as tensors,
    ):
        names = list(tensors.keys())
        found = {name.removeprefix("roberta."): name for name in names}
        if len(found) < len(names):
            raise ValueError("a tensor with and without the prefix roberta.")
        leaves = {
            place: _leaf(tensors.get_tensor(found[name]), place, shape, name)
            for place, (name, shape) in _wanted(shapes, found, model, file).items()
        }
    return unflatten_dict(leaves, sep=".")


def _shapes(model: RoBERTa) -> dict[str, tuple[int, ...]]:
    """Shapes by the path in the parameters. All layers have those of the first one."""
    first, ids = "layer_0.", jax.ShapeDtypeStruct((1, 1), jnp.int32)
    shallow = model.clone(depth=min(model.depth, 1))
    found = jax.eval_shape(shallow.init, jax.random.key(0), ids)["params"]
    shapes = {}
    for place, leaf in flatten_dict(found, sep=".").items():
        for i in range(model.depth if place.startswith(first) else 1):
            shapes[place.replace(first, f"layer_{i}.")] = leaf.shape
    return shapes


def _wanted(
    shapes: Mapping[str, tuple[int, ...]],
    found: Mapping[str, str],
    model: RoBERTa,
    file: Path,
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """{path in the parameters: (name in the file, shape)} of the tensors to read."""
    places = {place: (_name(place), shape) for place, shape in shapes.items()}
    if not any(name.startswith("classifier.") for name in found):
        places = {p: row for p, row in places.items() if not p.startswith("head.")}
    names = {name for name, _ in places.values()}
    missing = sorted(names - found.keys())
    unexpected = sorted(n for n in found.keys() - names if not n.startswith(IGNORED))
    if missing or unexpected:
        raise ValueError(
            f"{file} does not match a RoBERTa of depth {model.depth}: missing "
            f"{_some(missing)}; unexpected {_some(unexpected)}"
        )
    return places


def _name(place: str) -> str:
    layer, leaf = place.rsplit(".", 1)
    end = "bias" if leaf == "bias" else "weight"
    if layer in OUTSIDE:
        return f"{OUTSIDE[layer]}.{end}"
    block, inner = layer.split(".", 1)
    number = block.removeprefix("layer_")
    return f"encoder.layer.{number}.{INSIDE[inner]}.{end}"


def _leaf(
    tensor: np.ndarray, place: str, shape: tuple[int, ...], name: str
) -> jax.Array:
    turned = tensor.T if place.endswith(".kernel") else tensor  # torch's are (out, in)
    if turned.shape != shape:
        wanted = shape[::-1] if turned is not tensor else shape
        raise ValueError(
            f"{name} must have shape {wanted} for this model, got {tensor.shape}"
        )
    if tensor.dtype.kind != "f" or not np.isfinite(tensor).all():
        raise ValueError(f"{name} must have finite numbers, got {tensor.dtype}")
    half = tensor.dtype.itemsize < 4
    return jnp.asarray(turned.astype(np.float32) if half else turned)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(name[:NAME_LENGTH] for name in names[:3]) + more or "nothing"
