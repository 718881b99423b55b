"""Published weights of language models, as Hugging Face's transformers writes them."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_muon.core import Params, check_choice, check_count, check_range
from fedjax_muon.files import named, read_text, reading, write
from fedjax_muon.models.gpt import GPT, Rotary, llama
from fedjax_muon.models.weights import opened
from fedjax_muon.versions import check_installed

URL = "https://huggingface.co"
# values of config.json that this module has, by their names there
ACTIVATIONS = {"gelu_new": nn.gelu, "gelu_pytorch_tanh": nn.gelu, "silu": nn.silu}
DEEPEST = 2**10  # blocks: more are those of a damaged file, and take endless time
ROPE = {  # fields of `Rotary`
    "rope_theta": "base",
    "factor": "factor",
    "low_freq_factor": "low",
    "high_freq_factor": "high",
    "original_max_position_embeddings": "trained",
}


class Family(NamedTuple):
    """How Hugging Face's transformers names the parts of a model.

    Attributes:
      sizes: Fields of `GPT`, by what config.json must say.
      others: Fields of `GPT`, by what config.json may say, and their usual values.
      fixed: What config.json must say, if it says anything.
      layers: Layers of `GPT`, by their names without `prefix` and `block`.
      thirds: Layers that are one tensor, side by side.
      transposed: Whether kernels are [out, in].
      ignored: Ends of the names of tensors without weights.
    """

    constructor: Callable[..., GPT]
    sizes: dict[str, str]
    others: dict[str, tuple[str, Any]]
    fixed: dict[str, Any]
    prefix: str
    block: str
    layers: dict[str, str]
    thirds: tuple[str, ...]
    transposed: bool
    ignored: tuple[str, ...]


FAMILIES = {
    "gpt2": Family(
        constructor=GPT,
        sizes={
            "vocabulary": "vocab_size",
            "context": "n_positions",
            "width": "n_embd",
            "depth": "n_layer",
            "heads": "n_head",
        },
        others={
            "hidden": ("n_inner", None),
            "epsilon": ("layer_norm_epsilon", 1e-5),
            "activation": ("activation_function", "gelu_new"),
            "tied": ("tie_word_embeddings", True),
        },
        fixed={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
            "quantization_config": None,
        },
        prefix="transformer.",
        block="h",
        layers={
            "tokens": "wte",
            "positions": "wpe",
            "norm": "ln_f",
            "head": "lm_head",
            "attention_norm": "ln_1",
            "attention.query": "attn.c_attn",
            "attention.key": "attn.c_attn",
            "attention.value": "attn.c_attn",
            "attention.out": "attn.c_proj",
            "network_norm": "ln_2",
            "network.up": "mlp.c_fc",
            "network.down": "mlp.c_proj",
        },
        thirds=("attention.query", "attention.key", "attention.value"),
        transposed=False,
        ignored=(".attn.bias", ".attn.masked_bias"),
    ),
    "llama": Family(
        constructor=llama,
        sizes={
            "vocabulary": "vocab_size",
            "context": "max_position_embeddings",
            "width": "hidden_size",
            "depth": "num_hidden_layers",
            "heads": "num_attention_heads",
            "hidden": "intermediate_size",
        },
        others={
            "key_heads": ("num_key_value_heads", None),
            "head_width": ("head_dim", None),
            "epsilon": ("rms_norm_eps", 1e-6),
            "activation": ("hidden_act", "silu"),
            "tied": ("tie_word_embeddings", False),
        },
        fixed={
            "attention_bias": False,
            "mlp_bias": False,
            "quantization_config": None,
        },
        prefix="model.",
        block="layers",
        layers={
            "tokens": "embed_tokens",
            "norm": "norm",
            "head": "lm_head",
            "attention_norm": "input_layernorm",
            "attention.query": "self_attn.q_proj",
            "attention.key": "self_attn.k_proj",
            "attention.value": "self_attn.v_proj",
            "attention.out": "self_attn.o_proj",
            "network_norm": "post_attention_layernorm",
            "network.gate": "mlp.gate_proj",
            "network.up": "mlp.up_proj",
            "network.down": "mlp.down_proj",
        },
        thirds=(),
        transposed=True,
        ignored=(".rotary_emb.inv_freq",),
    ),
}
_OTHERS = FAMILIES["llama"].others
FAMILIES["qwen2"] = FAMILIES["llama"]._replace(
    constructor=partial(llama, query_biases=True),
    others={name: said for name, said in _OTHERS.items() if name != "head_width"},
    fixed={"use_sliding_window": False, "quantization_config": None},
)
ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
}
HEAD = "lm_head.weight"
OTHERS = (".bin", ".gguf", ".h5", ".msgpack", ".pt", ".pth", ".safetensors")
ORIGINS = {  # beginnings of the names of tensors, and what to do
    "_orig_mod.": "it is of torch.compile: save model._orig_mod",
    "module.": "it is of DistributedDataParallel: save model.module",
    "base_model.": "it is of PEFT: save model.merge_and_unload()",
    "score.": "it is of a classifier: use a causal language model",
    "classifier.": "it is of a classifier: use a causal language model",
}


def from_hugging_face(directory: str | Path) -> tuple[GPT, Params]:
    """Reads a model from the GPT-2, Llama (such as SmolLM2) or Qwen2 family.

    Requires the extra `export`. Half precision becomes float32. The model computes the
    same numbers as Hugging Face's transformers, and has no dropout:
    `model.clone(dropout=0.1, dtype=jnp.bfloat16)` has other options.

    Args:
      directory: Directory with config.json, and model.safetensors or its parts with
        model.safetensors.index.json.

    Returns:
      The model and its parameters.
    """
    folder = Path(directory)
    file = folder / "config.json"
    others = sorted(path.name for path in folder.glob("*") if path.suffix in OTHERS)
    if others and not any(folder.glob("model*.safetensors")):
        raise ValueError(
            f"{folder} has {', '.join(others)} and no model.safetensors; save the model"
            " with save_pretrained(folder, safe_serialization=True) of transformers, "
            "and one with adapters of PEFT after merge_and_unload()"
        )
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist; give a directory with config.json and "
            f"model.safetensors, as downloaded from {URL}"
        )
    what = "the description of a GPT-2, a Llama or a Qwen2"
    with reading(file, what, "use another model", found=""):
        config = json.loads(read_text(file))
        kind = check_choice("model_type", str(config["model_type"]), FAMILIES)
        family = FAMILIES[kind]
        model = family.constructor(**_fields(config, family))
        shapes = _shapes(model)
    tensors = _tensors(folder, family.prefix)
    places = flatten_dict(shapes, sep=".")
    with named(folder):
        _check_names({_name(place, family) for place in places}, tensors, model, family)
        leaves = {
            place: _leaf(place, leaf.shape, family, tensors)
            for place, leaf in places.items()
        }
    return model, unflatten_dict(leaves, sep=".")


def to_hugging_face(directory: str | Path, model: GPT, params: Params) -> Path:
    """Writes a model that Hugging Face's transformers and `from_hugging_face` read.

    Requires the extra `export`.

    Args:
      directory: A new directory for config.json and model.safetensors.
      model: A `GPT` or `llama` of any size, with their usual layers.
      params: Its parameters; for adapters, `tasks.lora.merged(task, params)`.
    """
    check_installed("safetensors", "a file of safetensors")
    from safetensors.numpy import save

    folder, kind = Path(directory), "llama" if model.gated else "gpt2"
    if model.gated and model.query_biases:
        kind = "qwen2"
    if folder.exists() and any(folder.glob("*")):
        raise ValueError(f"{folder} is not empty; choose another directory")
    family, config = FAMILIES[kind], _config(kind, model)
    like = family.constructor(**_fields(config, family))
    free = ("hidden", "dropout", "kernel_init", "residual_init", "remat", "dtype")
    if like.clone(**{name: getattr(model, name) for name in free}) != model:
        raise ValueError(f"transformers has no {kind} with the layers of {model!r}")
    if jax.tree.map(jnp.shape, params) != jax.tree.map(jnp.shape, _shapes(model)):
        raise ValueError(
            "params must be those of the model; for adapters, these are "
            "fm.tasks.lora.merged(task, params)"
        )
    flat = flatten_dict(params, sep=".")
    parts: dict[str, list[np.ndarray]] = {}
    order = lambda place: [f".{part}." in place for part in family.thirds]
    for place in sorted(flat, key=order, reverse=True):
        name, tensor = _name(place, family), np.asarray(flat[place], np.float32)
        if name == HEAD or (family.transposed and place.endswith(".kernel")):
            tensor = tensor.T
        full = name if name == HEAD else family.prefix + name
        parts.setdefault(full, []).append(tensor)
    tensors = {k: np.concatenate(v, axis=-1).copy("C") for k, v in parts.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "model.safetensors", save(tensors, {"format": "pt"}))
    write(folder / "config.json", json.dumps(config, indent=2))
    return folder


def _config(kind: str, model: GPT) -> dict[str, Any]:
    """What config.json says of a model."""
    family = FAMILIES[kind]
    names = family.sizes | {field: name for field, (name, _) in family.others.items()}
    config = {name: getattr(model, field) for field, name in names.items()}
    known = (name for name, f in ACTIVATIONS.items() if f == model.activation)
    config[names["activation"]] = next(known, "unknown")
    config |= {"model_type": kind, "bos_token_id": None, "eos_token_id": None}
    config["architectures"] = [ARCHITECTURES[kind]]
    if model.gated and model.rotary is not None:
        network = _shapes(model)["Block_0"]["network"]
        config["intermediate_size"] = network["up"]["kernel"].shape[1]
        rope = {name: getattr(model.rotary, field) for name, field in ROPE.items()}
        config["rope_theta"] = rope.pop("rope_theta")
        if model.rotary.factor != 1:
            config["rope_scaling"] = {"rope_type": "llama3", **rope}
    return config


def _fields(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The fields of `GPT` that config.json says."""
    for name, value in family.fixed.items():
        if config.get(name, value) != value:
            raise ValueError(f"{name} must be {value}, got {config[name]!r}")
    fields = {field: config[name] for field, name in family.sizes.items()}
    for field, (name, usual) in family.others.items():
        fields[field] = config.get(name, usual)
    check_count(family.sizes["depth"], fields["depth"], high=DEEPEST)
    check_range("epsilon", fields["epsilon"], high=1.0, schedules=False)
    if not isinstance(fields["tied"], bool):
        raise ValueError(f"tie_word_embeddings must be a bool, got {fields['tied']!r}")
    name, _ = family.others["activation"]
    fields["activation"] = ACTIVATIONS[
        check_choice(name, str(fields["activation"]), ACTIVATIONS)
    ]
    if family.constructor is not GPT:
        fields["rotary"] = _rotary(config)
    return fields


def _rotary(config: Mapping[str, Any]) -> Rotary:
    """From config.json as version 4 of transformers writes it, or as version 5 does."""
    said = {"rope_theta": config.get("rope_theta", Rotary().base)}
    for name in ("rope_scaling", "rope_parameters"):
        said |= config.get(name) or {}
    kinds = [said.pop(name) for name in ("rope_type", "type") if name in said]
    wanted = {"default": ["rope_theta"], "llama3": [*ROPE]}
    for kind in kinds or ["default"]:
        if said.keys() != {*wanted[check_choice("rope_type", str(kind), wanted)]}:
            raise ValueError(
                f"rotary positions of type {kind} need {', '.join(wanted[kind])}, got "
                f"{', '.join(said)}"
            )
    for name, value in said.items():
        check_range(name, value, open_low=True, schedules=False)
    rotary = Rotary(**{ROPE[name]: value for name, value in said.items()})
    if not rotary.low < rotary.high:
        raise ValueError("low_freq_factor must be below high_freq_factor")
    return rotary


def _shapes(model: GPT) -> Any:
    ids = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(model.init, jax.random.key(0), ids)["params"]


def _tensors(folder: Path, prefix: str) -> dict[str, np.ndarray]:
    """All tensors by their names without the prefix."""
    index = folder / "model.safetensors.index.json"
    parts = ["model.safetensors"]
    if not (folder / parts[0]).exists() and index.exists():
        with reading(index, "the names of files of tensors"):
            parts = sorted({*json.loads(read_text(index))["weight_map"].values()})
            if any(Path(part).name != part for part in parts):
                raise ValueError("a file in another directory")
    tensors = dict[str, np.ndarray]()
    for part in parts:
        with opened(folder / part, "download it again") as file:
            for name in file.keys():  # noqa: SIM118, a file is no dictionary
                bare = name.removeprefix(prefix)
                if bare in tensors:
                    raise ValueError(
                        f"{folder / part}: two tensors {bare}, maybe one with "
                        f"{prefix!r} in front; remove one"
                    )
                tensors[bare] = file.get_tensor(name)
    return tensors


def _name(place: str, family: Family) -> str:
    """The tensor of a parameter, without the prefix."""
    layer, leaf = place.rsplit(".", 1)
    block = ""
    if layer.startswith("Block_"):
        number, layer = layer.removeprefix("Block_").split(".", 1)
        block = f"{family.block}.{number}."
    end = "bias" if leaf == "bias" else "weight"
    return f"{block}{family.layers[layer]}.{end}"


def _check_names(
    wanted: set[str], tensors: Mapping[str, np.ndarray], model: GPT, family: Family
) -> None:
    missing = sorted(wanted - tensors.keys())
    ignored = (*family.ignored, HEAD) if model.tied else family.ignored
    unexpected = sorted(n for n in tensors.keys() - wanted if not n.endswith(ignored))
    if missing or unexpected:
        remedy = "download all files again"
        if missing == [HEAD] and not unexpected:
            remedy = "it is a model without a head: use a causal language model"
        for begin, what in ORIGINS.items():
            if any(name.startswith(begin) for name in unexpected):
                remedy = what
        some = lambda names: ", ".join(names[:3]) + ", ..." * (len(names) > 3) or "none"
        raise ValueError(
            f"expected the tensors that config.json describes; missing {some(missing)};"
            f" unexpected {some(unexpected)}; {remedy}"
        )
    embedding = tensors[_name("tokens.embedding", family)]
    if model.tied and not np.array_equal(tensors.get(HEAD, embedding), embedding):
        raise ValueError(
            f"tie_word_embeddings is true, but {HEAD} is not a copy of the embedding; "
            "set it to false in config.json"
        )


def _leaf(
    place: str,
    shape: tuple[int, ...],
    family: Family,
    tensors: Mapping[str, np.ndarray],
) -> jax.Array:
    name = _name(place, family)
    tensor = tensors[name]
    turned = name == HEAD or (family.transposed and place.endswith(".kernel"))
    stored = shape[::-1] if turned else shape
    third = [i for i, part in enumerate(family.thirds) if f".{part}." in place]
    stored = (*stored[:-1], 3 * stored[-1]) if third else stored
    if tensor.shape != stored or not jnp.issubdtype(tensor.dtype, jnp.floating):
        raise ValueError(
            f"{name} must be floating-point numbers {[*stored]}, got "
            f"{tensor.dtype}{[*tensor.shape]}; download all files again"
        )
    if third:
        tensor = np.split(tensor, 3, axis=-1)[third[0]]
    return jnp.asarray(tensor.T if turned else tensor, jnp.float32)
