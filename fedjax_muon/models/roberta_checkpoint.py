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
FIXED = {"model_type": "roberta", "hidden_act": "gelu", "type_vocab_size": 1}
# tensors of pretraining, or without weights
IGNORED = ("lm_head.", "pooler.", "embeddings.position_ids")


def roberta_of(path: str | Path, classes: int = 2) -> RoBERTa:
    """Makes the module of a checkpoint from the `config.json` in its directory.

    Args:
      path: Directory of the checkpoint, or a file in it.
      classes: Number of classes.

    Returns:
      The module; without a `config.json`, it has the sizes of roberta-base.

    Raises:
      ValueError: If the file is not a configuration of transformers for RoBERTa, or
        differs from `RoBERTa`, for example in the activation.

    Example:
      >>> model = roberta_of("roberta-base", classes=2)  # doctest: +SKIP
    """
    path = Path(path)
    file = (path if path.is_dir() else path.parent) / "config.json"
    if not file.is_file():
        return RoBERTa(classes)
    try:
        found = json.loads(file.read_text())
        sizes: dict[str, Any] = {size: int(found[n]) for size, n in SIZES.items()}
        sizes |= {rate: float(found[name]) for rate, name in RATES.items()}
        fixed = {name: found[name] for name in FIXED}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file}: expected the sizes of a RoBERTa ({error!r}); download it again"
        ) from error
    if fixed != FIXED or found.get("attention_probs_dropout_prob") != sizes["dropout"]:
        raise ValueError(
            f"{file} must say {FIXED} and one dropout for hidden layers and attention; "
            "no other RoBERTa is supported"
        )
    return RoBERTa(classes, **sizes)


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
      ValueError: If the file has another format, or its tensors differ from the model's
        in names or shapes.

    Example:
      >>> params = load_roberta("roberta-base", RoBERTa(2))  # doctest: +SKIP
    """
    from safetensors import SafetensorError, safe_open  # in the extra `roberta`

    path = Path(path)
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist; download model.safetensors, that of roberta-base "
            f"from {URL}"
        )
    try:
        with safe_open(file, framework="numpy") as tensors:
            found = {
                name.removeprefix("roberta."): name
                for name in tensors.keys()  # noqa: SIM118 - no mapping
            }
            wanted = _wanted(model, found, file)
            leaves = {
                place: _leaf(tensors.get_tensor(found[name]), place, shape, name)
                for place, (name, shape) in wanted.items()
            }
    except SafetensorError as error:
        raise ValueError(
            f"{file}: expected tensors in the format of safetensors ({error}); "
            "download it again"
        ) from error
    return unflatten_dict(leaves, sep=".")


def _wanted(
    model: RoBERTa, found: Mapping[str, str], file: Path
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """{path in the parameters: (name in the file, shape)} of the tensors to read."""
    ids = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), ids)["params"]
    places = {
        place: (_name(place), leaf.shape)
        for place, leaf in flatten_dict(shapes, sep=".").items()
    }
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
    half = tensor.dtype.itemsize < 4
    return jnp.asarray(turned.astype(np.float32) if half else turned)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more or "nothing"
