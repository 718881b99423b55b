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
from fedjax_muon.models.checkpoint import check_finite, opened, single
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
IGNORED = ("lm_head.", "pooler.", "embeddings.position_ids")


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
        _shapes(RoBERTa(**sizes))
    return RoBERTa(classes, **sizes)


def _size(config: Mapping[str, Any], name: str, low: float, high: float) -> Any:
    value, kind = config[name], type(low)
    if type(value) not in (int, kind) or not low <= value <= high:
        what = "an integer" if kind is int else "a number"
        raise ValueError(f"{name} must be {what} from {low} to {high}")
    return kind(value)


def load_roberta(path: str | Path, model: RoBERTa) -> dict[str, Any]:
    """Reads the parameters of RoBERTa from a file `model.safetensors`.

    Names in the file are those of `RobertaForSequenceClassification`, with or without
    the prefix "roberta.". The head of masked words is ignored. Half precision becomes
    float32. The file is memory-mapped, and its tensors are copied to the device one by
    one. Requires the extra `roberta`.

    Returns:
      The parameters, without the head if the file has none, as after pretraining.
    """
    with opened(path, "roberta-base", URL) as (file, tensors):
        stored = tensors.keys()
        names = {name.removeprefix("roberta."): name for name in stored}
        if len(names) < len(stored):
            raise ValueError("a tensor with and without the prefix roberta.")
        shapes = _shapes(model)
        if not any(name.startswith("classifier.") for name in names):
            shapes = {p: s for p, s in shapes.items() if not p.startswith("head.")}
        wanted = {_name(place) for place in shapes}
        missing = sorted(wanted - names.keys())
        others = names.keys() - wanted
        unexpected = sorted(name for name in others if not name.startswith(IGNORED))
        if missing or unexpected:
            raise ValueError(
                f"{file} does not match a RoBERTa of depth {model.depth}: missing "
                f"{_some(missing)}; unexpected {_some(unexpected)}"
            )
        leaves = {}
        for place, shape in shapes.items():
            name = _name(place)
            tensor = tensors.get_tensor(names[name])
            leaves[place] = _leaf(tensor, place, shape, name)
    return unflatten_dict(leaves, sep=".")


def _shapes(model: RoBERTa) -> dict[str, tuple[int, ...]]:
    """Shapes by the path in the parameters. All layers have those of the first one."""
    first, ids = "layer_0.", jax.ShapeDtypeStruct((1, 1), jnp.int32)
    shallow = model.clone(depth=min(model.depth, 1))
    params = jax.eval_shape(shallow.init, jax.random.key(0), ids)["params"]
    shapes = {}
    for place, leaf in flatten_dict(params, sep=".").items():
        for i in range(model.depth if place.startswith(first) else 1):
            shapes[place.replace(first, f"layer_{i}.")] = leaf.shape
    return shapes


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
    check_finite(name, tensor)
    return single(turned)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(name[:NAME_LENGTH] for name in names[:3]) + more or "nothing"
