"""Causal language models with the layers of GPT-2 or Llama, and sampling from them.

    model = models.GPT(256, context=128, width=128, depth=4, heads=4)
    model = models.llama(256, context=128, width=128, depth=4, heads=4, key_heads=2)
    params = model.init(jax.random.key(0), jnp.zeros((1, 1)))["params"]
    tokens = models.generate(model, params, prompt, 100, jax.random.key(1))

Published weights are read by `from_hugging_face`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from fedjax_muon.core import Params, check_count, check_range
from fedjax_muon.models.dropout import Dropout
from fedjax_muon.models.vit import Attention, Initializer, rows

_normal = nn.initializers.normal(0.02)
# The fast variance, a difference of means, is inexact where the mean is large.
_layer_norm = partial(nn.LayerNorm, use_fast_variance=False)


@dataclass(frozen=True)
class Rotary:
    """Rotates queries and keys by angles that grow with the places of their tokens.

    With W = head_width, the numbers j and j + W / 2 of a token at place p are a pair,
    which rotates by p base^(-2 j / W). So scores depend on differences of places.

    A `factor` above 1 is that of Llama 3 for long texts, a model that was trained with
    `trained` tokens before: rotations with fewer than `low` turns in these are
    `factor` times as slow, those with more than `high` turns as before, and the ones
    between interpolated.
    """

    base: float = 10_000.0
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    trained: int = 8192

    def __call__(self, x: jax.Array, places: jax.Array) -> jax.Array:
        half = x.shape[-1] // 2
        speed = self.base ** (-np.arange(half) / half)
        turns = self.trained * speed / (2 * math.pi)
        share = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        speed = speed * (share + (1 - share) / self.factor)
        # In float32 at least: bfloat16 has no odd places above 256.
        angles = places[:, None, None] * jnp.float32(speed)[None, None]
        angles = angles[(None,) * (x.ndim - 3)]
        cos, sin = (f(angles).astype(x.dtype) for f in (jnp.cos, jnp.sin))
        first, second = x[..., :half], x[..., half:]
        turned = first * cos - second * sin, second * cos + first * sin
        return jnp.concatenate(turned, axis=-1)


class Network(nn.Module):
    """One hidden layer for each token, which may have a gate: [..., width] to itself.

    It is down(activation(up(x))), or with a gate down(activation(gate(x)) * up(x)).
    """

    hidden: int
    gated: bool
    activation: Callable[[jax.Array], jax.Array]
    biases: bool
    kernel_init: Initializer
    out_init: Initializer
    dtype: DTypeLike | None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dense = partial(nn.Dense, use_bias=self.biases, dtype=self.dtype)
        inner = partial(dense, self.hidden, kernel_init=self.kernel_init)
        y = inner(name="up")(rows(x))
        if self.gated:
            y = self.activation(inner(name="gate")(rows(x))) * y
        else:
            y = self.activation(y)
        out = dense(x.shape[-1], kernel_init=self.out_init, name="down")
        return out(y).reshape(x.shape)


class Block(nn.Module):
    """Attention, then a network: [B, N, width] to [B, N, width].

    Each reads its normalized input and is added to the input (pre-norm).
    """

    norm: Callable[..., nn.Module]
    attention: Callable[..., nn.Module]
    network: Callable[..., nn.Module]
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, start: int | jax.Array) -> jax.Array:
        y = self.norm(name="attention_norm")(x)
        y = self.attention(name="attention")(y, start=start)
        x = x + Dropout(self.dropout)(y)
        y = self.network(name="network")(self.norm(name="network_norm")(x))
        return x + Dropout(self.dropout)(y)


class GPT(nn.Module):
    """A causal language model: each token predicts the next one.

    It maps token ids [B, N], N up to `context`, to logits [B, N, vocabulary], and those
    at a place depend on the tokens up to there alone. Ids can be floats, as the zeros
    of the initialization are. Ids from vocabulary on give NaN. If the module gets a
    stream "dropout", there is dropout on the first tokens, on the weights of attention,
    and on the outputs of attention and of the network in each block:

        tokens               embedding [vocabulary, width]
        positions            embedding [context, width], unless rotary
        Block_i
          attention_norm     scale, bias [width]
          attention          query: kernel [width, heads head_width], bias
                             key, value: kernel [width, key_heads head_width], bias
                             out: kernel [heads head_width, width], bias
          network_norm       scale, bias [width]
          network            up: kernel [width, hidden], bias
                             gate: kernel [width, hidden], bias, if gated
                             down: kernel [hidden, width], bias
        norm                 scale, bias [width]
        head                 kernel [width, vocabulary], unless tied

    The defaults are those of GPT-2 ("Language Models are Unsupervised Multitask
    Learners", Radford et al. 2019), without dropout: 124,439,808 parameters. `llama`
    has the layers of Llama. `from_hugging_face` reads both.

    Muon is for the kernels of the blocks: give it `layout=transforms.hidden_matrices`.

    Attributes:
      context: Largest number of tokens.
      key_heads: Number of heads of keys and values, each of which heads / key_heads
        consecutive heads of queries share; by default, all have their own.
      head_width: By default width / heads.
      hidden: Width of the hidden layer; by default 4 width, and if gated 8 / 3 width,
        rounded up to a multiple of 8.
      norm: Constructor of the normalization, with the arguments of `nn.RMSNorm`.
      biases: Whether all kernels but the head have a bias.
      query_biases: Whether query, key and value have one; by default, as `biases`.
      gated: Whether the activation of a kernel of its own multiplies the hidden layer.
      rotary: Rotation of queries and keys; by default, there are learned positions.
      tied: Whether the embedding of the tokens is the head too.
      residual_init: Initializer of the kernels out and down; by default, a normal
        distribution with standard deviation 0.02 / sqrt(2 depth).
      remat: Whether the backward pass computes each block anew, to keep the memory of
        one block alone. The compiler of CPUs undoes this, and only takes longer.
    """

    vocabulary: int = 50_257
    context: int = 1024
    width: int = 768
    depth: int = 12
    heads: int = 12
    key_heads: int | None = None
    head_width: int | None = None
    hidden: int | None = None
    norm: Callable[..., nn.Module] = _layer_norm
    epsilon: float = 1e-5
    biases: bool = True
    query_biases: bool | None = None
    gated: bool = False
    activation: Callable[[jax.Array], jax.Array] = nn.gelu  # the one with tanh
    rotary: Rotary | None = None
    tied: bool = True
    dropout: float = 0.0
    kernel_init: Initializer = _normal
    residual_init: Initializer | None = None
    remat: bool = False
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, x: jax.Array, start: int | jax.Array = 0) -> jax.Array:
        """Computes logits.

        Args:
          x: Token ids [B, N].
          start: Place of the first of them, if the collection "cache" has the keys and
            values of those before.
        """
        self._check(x)
        embed = partial(nn.Embed, features=self.width, embedding_init=self.kernel_init)
        tokens = embed(self.vocabulary, name="tokens")
        y = tokens(x.astype(jnp.int32))
        if self.rotary is None:
            table = embed(self.context, name="positions").embedding
            y = y + jax.lax.dynamic_slice_in_dim(table, start, x.shape[1])[None]
        # Cast after the lookup, since there the gradients of frequent tokens add up.
        y = Dropout(self.dropout)(jnp.asarray(y, self.dtype))
        block = nn.remat(Block) if self.remat else Block
        parts = self._norm(), self._attention(), self._network()
        for i in range(self.depth):
            y = block(*parts, self.dropout, name=f"Block_{i}")(y, start)
        y = rows(self._norm()(name="norm")(y))
        if self.tied:
            logits = jnp.dot(y, jnp.asarray(tokens.embedding, y.dtype).T)
        else:
            head = partial(nn.Dense, use_bias=False, kernel_init=self.kernel_init)
            logits = head(self.vocabulary, dtype=self.dtype, name="head")(y)
        return logits.reshape(*x.shape, self.vocabulary)

    @property
    def width_of_heads(self) -> int:
        return self.head_width or self.width // self.heads

    def _norm(self) -> Callable[..., nn.Module]:
        return partial(self.norm, epsilon=self.epsilon, dtype=self.dtype)

    def _attention(self) -> Callable[..., nn.Module]:
        return partial(
            Attention,
            self.heads,
            self.width_of_heads,
            self.biases if self.query_biases is None else self.query_biases,
            self.kernel_init,
            self.dtype,
            key_heads=self.key_heads,
            out_bias=self.biases,
            out_init=self._residual_init(),
            rotary=self.rotary,
            causal=True,
            dropout=self.dropout,
        )

    def _network(self) -> Callable[..., nn.Module]:
        usual = -(-8 * self.width // 24) * 8 if self.gated else 4 * self.width
        return partial(
            Network,
            self.hidden or usual,
            self.gated,
            self.activation,
            self.biases,
            self.kernel_init,
            self._residual_init(),
            self.dtype,
        )

    def _residual_init(self) -> Initializer:
        scale = 0.02 / math.sqrt(2 * self.depth)
        return self.residual_init or nn.initializers.normal(scale)

    def _check(self, x: jax.Array) -> None:
        for name in ("vocabulary", "context", "width", "depth", "heads"):
            check_count(f"GPT's {name}", getattr(self, name))
        for name in ("key_heads", "head_width", "hidden"):
            if getattr(self, name) is not None:
                check_count(f"GPT's {name}", getattr(self, name))
        check_range("dropout", self.dropout, high=1.0, open_high=True, schedules=False)
        if self.head_width is None and self.width % self.heads:
            raise ValueError(
                f"GPT's heads must divide its width {self.width}, got {self.heads}; "
                "change one, or set head_width"
            )
        if self.heads % (self.key_heads or self.heads):
            raise ValueError(
                f"GPT's key_heads must divide its heads {self.heads}, got "
                f"{self.key_heads}"
            )
        if self.rotary and self.width_of_heads % 2:
            raise ValueError(
                "GPT's rotary needs heads of an even width, got "
                f"{self.width_of_heads}; set head_width"
            )
        if x.ndim != 2 or not 1 <= x.shape[1] <= self.context:
            raise ValueError(
                f"GPT takes token ids [B, N], N from 1 to its context {self.context}, "
                f"got shape {x.shape}; cut them, or change context"
            )


llama = partial(
    GPT,
    norm=nn.RMSNorm,
    biases=False,
    gated=True,
    activation=nn.silu,
    rotary=Rotary(),
    tied=False,
    residual_init=_normal,
)
"""`GPT` with the layers of Llama (arXiv:2302.13971): RMS normalization, rotary
positions, a gate in the network, no biases, and a head of its own.
"""


# ---------------------------------------------------------------------------- sampling


def generate(
    model: GPT,
    params: Params,
    prompt: ArrayLike,
    length: int,
    key: jax.Array,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> jax.Array:
    """Samples tokens one by one, each from the model's distribution after all before.

    Args:
      prompt: Token ids [B, N] or [N], one or more.
      length: Number of tokens to draw; with the prompt, at most the model's context.
      temperature: Logits are divided by it; below 1, likely tokens become likelier.
      top_k: Tokens are drawn from the `top_k` likeliest ones, by default from all; with
        1, the likeliest token is taken.

    Returns:
      The prompt and the drawn tokens, [B, N + length] or [N + length].
    """
    ids = _checked(model, prompt, length)
    if "adapters" in params:
        raise ValueError(
            "these are parameters of adapters; give those of the model, "
            "fm.tasks.lora.merged(task, params)"
        )
    check_range("temperature", temperature, open_low=True, schedules=False)
    if top_k is not None:
        limit = "the model's vocabulary"
        check_count("top_k", top_k, high=model.vocabulary, limit=limit)
    batch = jnp.atleast_2d(ids)
    drawn = _drawn(model, length, top_k, params, batch, key, temperature)
    return jnp.concatenate([batch, drawn], axis=1).reshape(*ids.shape[:-1], -1)


def _checked(model: GPT, prompt: ArrayLike, length: int) -> jax.Array:
    ids = np.asarray(prompt)
    if ids.ndim not in (1, 2) or not ids.size or ids.dtype.kind not in "iu":
        raise ValueError(
            "a prompt must be token ids, integers [B, N] or [N], one or more, got "
            f"{ids.dtype}{list(ids.shape)}; encode text first"
        )
    check_count("length", length)
    if ids.shape[-1] + length > model.context:
        raise ValueError(
            f"a prompt and length together have at most {model.context} tokens, the "
            f"model's context, got {ids.shape[-1]} and {length}; give the end of the "
            "prompt, or draw fewer"
        )
    low, high = ids.min(), ids.max()
    if low < 0 or high >= model.vocabulary:
        raise ValueError(
            f"token ids must be from 0 to {model.vocabulary - 1}, got "
            f"{low if low < 0 else high}; encode the prompt like the model's data"
        )
    return jnp.asarray(ids, jnp.int32)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _drawn(
    model: GPT,
    length: int,
    top_k: int | None,
    params: Params,
    prompt: jax.Array,
    key: jax.Array,
    temperature: jax.Array,
) -> jax.Array:
    def draw(logits: jax.Array, i: int | jax.Array) -> jax.Array:
        if top_k is not None:
            least = jax.lax.top_k(logits, top_k)[0][:, -1:]
            logits = jnp.where(logits < least, -jnp.inf, logits)
        drawn = jax.random.categorical(jax.random.fold_in(key, i), logits / temperature)
        return drawn.astype(jnp.int32)

    def step(state: Any, i: jax.Array) -> tuple[Any, jax.Array]:
        cache, last = state
        logits, cache = _continued(model, params, cache, last[:, None], size + i)
        return (cache, token := draw(logits, i + 1)), token

    batch, size = prompt.shape
    cache = _empty_cache(model, params, batch, size + length)
    logits, cache = _continued(model, params, cache, prompt, 0)
    first = draw(logits, 0)
    _, rest = jax.lax.scan(step, (cache, first), jnp.arange(length - 1))
    return jnp.concatenate([first[None], rest]).T


def _empty_cache(model: GPT, params: Params, batch: int, size: int) -> dict[str, Any]:
    dtype = model.dtype or params["tokens"]["embedding"].dtype
    heads, width = model.key_heads or model.heads, model.width_of_heads
    empty = jnp.zeros((batch, size, heads, width), dtype)
    one = {"attention": {"keys": empty, "values": empty}}
    return {f"Block_{i}": one for i in range(model.depth)}


def _continued(
    model: GPT, params: Params, cache: Any, tokens: jax.Array, start: int | jax.Array
) -> tuple[jax.Array, Any]:
    """Logits after the last of some tokens, and the cache with them."""
    variables = {"params": params, "cache": cache}
    logits, new = model.apply(variables, tokens, start, mutable=["cache"])
    return logits[:, -1], new["cache"]
