"""RoBERTa: attention between the tokens of a sentence, classified by the first one."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_muon.core import check_count, check_range

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
