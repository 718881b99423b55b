"""RoBERTa: attention between the tokens of a sentence, classified by the first one.

    model = roberta_of("roberta-base", classes=2)
    params = load_roberta("roberta-base", model)

The weights are those of Hugging Face's transformers.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from experiments.papers.pretrained.tensors import check_finite, opened, single
from fedjax_muon.core import check_count, check_range
from fedjax_muon.files import read_text, reading

_normal = nn.initializers.normal(0.02)
_dense = partial(nn.Dense, kernel_init=_normal)


def _dropped(module: nn.Module, rate: float, x: jax.Array) -> jax.Array:
    return nn.Dropout(rate, deterministic=not module.has_rng("dropout"))(x)


class Attention(nn.Module):
    """Softmax attention: [B, N, width] to [B, N, width].

    Tokens attend to those that are `real` [B, N], not padding. Each of the four kernels
    is [width, width] for all heads together.
    """

    heads: int
    dropout: float  # of the attention weights

    @nn.compact
    def __call__(self, x: jax.Array, real: jax.Array) -> jax.Array:
        batch, tokens, width = x.shape
        split = (batch, tokens, self.heads, width // self.heads)
        names = ("query", "key", "value")
        query, key, value = (_dense(width, name=n)(x).reshape(split) for n in names)
        dropping = self.has_rng("dropout")
        y = nn.dot_product_attention(
            query,
            key,
            value,
            mask=real[:, None, None, :],
            broadcast_dropout=False,
            dropout_rng=self.make_rng("dropout") if dropping else None,
            dropout_rate=self.dropout,
            deterministic=not dropping,
        )
        return _dense(width, name="out")(y.reshape(x.shape))


class Layer(nn.Module):
    """Attention, then a network with one hidden layer: [B, N, width] to [B, N, width].

    The sum of the input and output of each is normalized (post-norm).
    """

    heads: int
    hidden: int
    dropout: float
    epsilon: float

    @nn.compact
    def __call__(self, x: jax.Array, real: jax.Array) -> jax.Array:
        norm = partial(nn.LayerNorm, epsilon=self.epsilon, use_fast_variance=False)
        y = Attention(self.heads, self.dropout, name="attention")(x, real)
        x = norm(name="attention_norm")(x + _dropped(self, self.dropout, y))
        y = nn.gelu(_dense(self.hidden, name="intermediate")(x), approximate=False)
        y = _dense(x.shape[-1], name="output")(y)
        return norm(name="output_norm")(x + _dropped(self, self.dropout, y))


class Head(nn.Module):
    """A network with one hidden layer: [B, width] to logits [B, classes]."""

    classes: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = _dropped(self, self.dropout, x)
        x = jnp.tanh(_dense(x.shape[-1], name="dense")(x))
        return _dense(self.classes, name="out")(_dropped(self, self.dropout, x))


class RoBERTa(nn.Module):
    """RoBERTa for the classification of sentences.

    It computes the same numbers as `RobertaForSequenceClassification` of Hugging Face's
    transformers, whose checkpoints `load_roberta` reads. It maps token ids [B, N] to
    logits [B, classes]. A sentence starts with the token <s>, which the head reads, and
    ends with padding, to which no token attends and which has no positions. Ids can be
    floats, as the zeros of the initialization are. Ids from vocabulary_size on give
    NaN. If the module gets a stream "dropout", there is dropout on the embedded tokens,
    the attention weights, the outputs of both parts of a layer, and the inputs of both
    layers of the head:

        words                embedding [vocabulary_size, width]
        positions            embedding [position_count, width], from padding + 1 on
        types                embedding [1, width]
        norm                 scale, bias [width]
        layer_i
          attention          query, key, value, out: kernel [width, width], bias
          attention_norm     scale, bias [width]
          intermediate       kernel [width, hidden], bias
          output             kernel [hidden, width], bias
          output_norm        scale, bias [width]
        head
          dense              kernel [width, width], bias
          out                kernel [width, classes], bias

    From "RoBERTa: A Robustly Optimized BERT Pretraining Approach" (arXiv:1907.11692).
    The defaults are the sizes of roberta-base: 124,647,170 parameters for 2 classes.
    Its weights need the ids of its own tokenizer, with <s> 0, padding 1, </s> 2 and
    unknown 3. The ids of `data.load` without an encoder need `padding=0` and training
    from scratch.

    Attributes:
      position_count: Number of positions; sentences have at most position_count -
        padding - 1 tokens.
    """

    classes: int = 2
    vocabulary_size: int = 50265
    position_count: int = 514
    width: int = 768
    depth: int = 12
    heads: int = 12
    hidden: int = 3072
    padding: int = 1
    dropout: float = 0.1
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        self._check(x)
        ids = x.astype(jnp.int32)
        real = ids != self.padding
        places = jnp.cumsum(real, axis=1, dtype=jnp.int32) * real + self.padding
        embed = partial(nn.Embed, features=self.width, embedding_init=_normal)
        types = embed(1, name="types").embedding
        y: Any = embed(self.vocabulary_size, name="words")(ids) + types[None]
        y = y + embed(self.position_count, name="positions")(places)
        norm = nn.LayerNorm(self.epsilon, use_fast_variance=False, name="norm")
        y = _dropped(self, self.dropout, norm(y))
        for i in range(self.depth):
            layer = Layer(
                self.heads, self.hidden, self.dropout, self.epsilon, name=f"layer_{i}"
            )
            y = layer(y, real)
        return Head(self.classes, self.dropout, name="head")(y[:, 0])

    def _check(self, x: jax.Array) -> None:
        sizes = ("classes", "vocabulary_size", "width", "depth", "heads", "hidden")
        for name in sizes:
            check_count(f"RoBERTa's {name}", getattr(self, name))
        if self.width % self.heads:
            raise ValueError(
                f"RoBERTa's heads must divide its width {self.width}, got {self.heads}"
            )
        if not 0 <= self.padding < self.vocabulary_size:
            raise ValueError(
                "RoBERTa's padding must be an id from 0 to "
                f"{self.vocabulary_size - 1}, got {self.padding}"
            )
        check_range("dropout", self.dropout, high=1.0, open_high=True, schedules=False)
        longest = self.position_count - self.padding - 1
        if x.ndim != 2 or not 1 <= x.shape[1] <= longest:
            raise ValueError(
                f"RoBERTa takes token ids [B, N], N from 1 to {longest}, got shape "
                f"{x.shape}; cut sentences off, or change position_count"
            )


# ------------------------------------------------------------------- published weights

URL = "https://huggingface.co/FacebookAI/roberta-base"

# names of the layers of `RoBERTa` in a checkpoint, without "roberta."
LAYERS = {
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "head.dense": "classifier.dense",
    "head.out": "classifier.out_proj",
}
BLOCK = {  # layer_i, encoder.layer.i
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

    Names in the file are as in `RobertaForSequenceClassification`, with or without the
    prefix "roberta.". The head of masked words is ignored. Half precision becomes
    float32. The file is memory-mapped, and its tensors are copied to the device one by
    one.

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
    if layer in LAYERS:
        return f"{LAYERS[layer]}.{end}"
    block, inner = layer.split(".", 1)
    number = block.removeprefix("layer_")
    return f"encoder.layer.{number}.{BLOCK[inner]}.{end}"


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
