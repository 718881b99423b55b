"""Published weights of language models, as Hugging Face's transformers writes them."""

import json
from collections.abc import Callable, Mapping
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
from fedjax_muon.models.weights import check_target, opened

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
HEAD = "lm_head.weight"
WHOLE = -1  # of a tensor that is no third
OLDER = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5", "*.gguf", "*.onnx")
ORIGINS = {  # beginnings of the names of tensors, and what these are
    "_orig_mod.": "of torch.compile; save model._orig_mod",
    "module.": "of DistributedDataParallel; save model.module",
    "base_model.": "of PEFT; save model.merge_and_unload()",
    "score.": "the head of a classifier; use a model for causal language modeling",
    "classifier.": "the head of a classifier; use a model for causal language modeling",
}


def from_hugging_face(directory: str | Path) -> tuple[GPT, Params]:
    """Reads a model of GPT-2's or Llama's family that is published on Hugging Face.

    Requires the extra `export`. Half precision becomes float32. The model computes the
    same numbers as that of Hugging Face's transformers, and has no dropout:
    `model.clone(dropout=0.1, dtype=jnp.bfloat16)` has other options.

    Args:
      directory: Has config.json, and model.safetensors or its parts with
        model.safetensors.index.json.

    Returns:
      The model and its parameters.
    """
    folder = Path(directory)
    file = folder / "config.json"
    if not file.is_file() and (folder / "adapter_config.json").exists():
        raise ValueError(
            f"{folder} has adapters of PEFT, and no model; merge them into theirs with "
            "peft, and save that: model.merge_and_unload().save_pretrained(folder)"
        )
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist; give a directory with config.json and "
            f"model.safetensors, as downloaded from {URL}"
        )
    what = "the description of a GPT-2 or a Llama"
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


def to_hugging_face(
    directory: str | Path,
    model: GPT,
    params: Params,
    *,
    tokenizer: str | Path | None = None,
) -> Path:
    """Writes a model that Hugging Face's transformers and `from_hugging_face` read.

    Requires the extra `export`.

    Args:
      directory: A new one, which gets config.json and model.safetensors.
      model: `GPT` or `llama` with any sizes, and with the layers of these.
      params: Its parameters; of adapters, `tasks.lora.merged(task, params)`.
      tokenizer: A tokenizer.json that is copied there.

    Example:
      >>> weights = tasks.lora.merged(task, trained.state.params)  # doctest: +SKIP
      >>> to_hugging_face("tuned/", model, weights)  # doctest: +SKIP
    """
    folder, kind = Path(directory), "llama" if model.gated else "gpt2"
    target, family = folder / "model.safetensors", FAMILIES[kind]
    check_target(target, overwrite=False)
    from safetensors.numpy import save

    with named("transformers has no such model"):
        config = _config(kind, model)
        like = family.constructor(**_fields(config, family))
    free = ("hidden", "dropout", "kernel_init", "residual_init", "remat", "dtype")
    if like.clone(**{name: getattr(model, name) for name in free}) != model:
        raise ValueError(f"transformers has no {kind} with the layers of {model!r}")
    sizes = jax.tree.map(jnp.shape, _shapes(model))
    if jax.tree.map(jnp.shape, params) != sizes:
        raise ValueError(
            "params must be those of the model; for adapters, these are "
            "fm.tasks.lora.merged(task, params)"
        )
    parts: dict[str, dict[int, np.ndarray]] = {}
    for place, leaf in flatten_dict(params, sep=".").items():
        name, turned, third = _stored(place, family)
        name = name if name == HEAD else family.prefix + name
        tensor = np.asarray(leaf, np.float32)
        parts.setdefault(name, {})[third] = tensor.T if turned else tensor
    tensors = {
        name: np.ascontiguousarray(
            np.concatenate([thirds[i] for i in sorted(thirds)], axis=-1)
        )
        for name, thirds in parts.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    write(target, save(tensors, {"format": "pt"}))
    write(folder / "config.json", json.dumps(config, indent=2))
    if tokenizer is not None:
        write(folder / "tokenizer.json", Path(tokenizer).read_bytes())
    return folder


def _config(kind: str, model: GPT) -> dict[str, Any]:
    """What config.json says of a model, for versions 4 and 5 of transformers."""
    family = FAMILIES[kind]
    names = family.sizes | {field: name for field, (name, _) in family.others.items()}
    config = {name: getattr(model, field) for field, name in names.items()}
    words = {function: name for name, function in reversed(ACTIVATIONS.items())}
    config[names["activation"]] = words.get(model.activation)
    config |= {"model_type": kind, "bos_token_id": None, "eos_token_id": None}
    config["architectures"] = [
        {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}[kind]
    ]
    if kind == "llama" and model.rotary is not None:
        rope = {name: getattr(model.rotary, field) for name, field in ROPE.items()}
        rope["rope_type"] = "llama3"
        if model.rotary == Rotary(model.rotary.base):
            rope = {"rope_type": "default", "rope_theta": model.rotary.base}
        config["intermediate_size"] = model.width_of_network
        config |= {"rope_theta": model.rotary.base, "rope_parameters": rope}
        config["rope_scaling"] = {k: v for k, v in rope.items() if k != "rope_theta"}
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
    if family.constructor is llama:
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
    older = [path.name for mark in OLDER for path in sorted(folder.glob(mark))]
    if older and not (folder / parts[0]).exists():
        raise ValueError(
            f"{folder} has {older[0]}, and no model.safetensors; read it with "
            "transformers, and save it: "
            "model.save_pretrained(folder, safe_serialization=True)"
        )
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
        if missing == [HEAD]:
            remedy = "the model has no head; save one for causal language modeling"
        for begin, what in ORIGINS.items():
            if any(name.startswith(begin) for name in unexpected):
                remedy = f"{begin} is {what}"
        some = lambda names: ", ".join(names[:3]) + ", ..." * (len(names) > 3) or "none"
        raise ValueError(
            f"expected the tensors that config.json describes; missing {some(missing)};"
            f" unexpected {some(unexpected)}; {remedy}"
        )
    embedding = tensors[_name("tokens.embedding", family)]
    if model.tied and not np.array_equal(tensors.get(HEAD, embedding), embedding):
        raise ValueError(
            f"tie_word_embeddings is true, but {HEAD} is no copy of the embedding; "
            "set it to false in config.json"
        )


def _stored(place: str, family: Family) -> tuple[str, bool, int]:
    """The tensor of a parameter, whether it is turned, and which third it is."""
    name = _name(place, family)
    turned = name == HEAD or (family.transposed and place.endswith(".kernel"))
    thirds = [i for i, part in enumerate(family.thirds) if f".{part}." in place]
    return name, turned, thirds[0] if thirds else WHOLE


def _leaf(
    place: str,
    shape: tuple[int, ...],
    family: Family,
    tensors: Mapping[str, np.ndarray],
) -> jax.Array:
    name, turned, third = _stored(place, family)
    tensor = tensors[name]
    stored = shape[::-1] if turned else shape
    stored = stored if third == WHOLE else (*stored[:-1], 3 * stored[-1])
    if tensor.shape != stored or not jnp.issubdtype(tensor.dtype, jnp.floating):
        raise ValueError(
            f"{name} must be floating-point numbers {[*stored]}, got "
            f"{tensor.dtype}{[*tensor.shape]}; download all files again"
        )
    if third != WHOLE:
        tensor = np.split(tensor, 3, axis=-1)[third]
    return jnp.asarray(tensor.T if turned else tensor, jnp.float32)
