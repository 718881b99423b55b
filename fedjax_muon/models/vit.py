"""The vision transformer, in two sizes that federated work trains from scratch."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fedjax_muon.core import check_count, check_range
from fedjax_muon.models.dropout import Dropout

Initializer = nn.initializers.Initializer

# Uniform within 1 / sqrt(fan_in), as torch initializes linear layers.
_torch_linear = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


class Attention(nn.Module):
    """Softmax attention of each token to all: [..., N, width] to [..., N, width].

    `bias` is added to the inputs of the softmax, and tokens do not attend where `mask`
    is false. Both broadcast to [..., heads, N, N] and have as many axes. The softmax is
    computed in float32 or a wider type.

    The kernels of query, key and value, [width, heads head_width], and the transposed
    one of out are plain matrices: Muon orthogonalizes each of the four as one matrix,
    all heads together.

    If the collection "cache" has `keys` and `values` [..., M, key_heads, head_width],
    those of the tokens are written there from place `start` on, and the tokens attend
    to all M.

    Attributes:
      bias: Whether query, key and value have a bias.
      key_heads: Number of heads of keys and values, each of which heads / key_heads
        consecutive heads of queries share; by default, all have their own.
      out_bias: Whether out has a bias.
      out_init: Initializer of the kernel of out, if not `kernel_init`.
      rotary: Function of queries or keys [..., N, heads, head_width] and the places of
        their tokens [N] that rotates each by its place.
      causal: Whether tokens attend only to themselves and those before.
      dropout: Rate of dropout of the attention weights.
    """

    heads: int
    head_width: int
    bias: bool
    kernel_init: Initializer
    dtype: DTypeLike | None
    key_heads: int | None = None
    out_bias: bool = True
    out_init: Initializer | None = None
    rotary: Callable[[jax.Array, jax.Array], jax.Array] | None = None
    causal: bool = False
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        bias: jax.Array | None = None,
        mask: jax.Array | None = None,
        start: int | jax.Array = 0,
    ) -> jax.Array:
        *outer, width = x.shape
        dense = partial(nn.Dense, kernel_init=self.kernel_init, dtype=self.dtype)

        def project(name: str, heads: int) -> jax.Array:
            inner = heads * self.head_width
            y = dense(inner, use_bias=self.bias, name=name)(rows(x))
            return y.reshape(*outer, heads, self.head_width)

        fewer = self.key_heads or self.heads
        query = project("query", self.heads)
        key, value = (project(name, fewer) for name in ("key", "value"))
        places = start + jnp.arange(outer[-1])
        if self.rotary:
            query, key = (self.rotary(y, places) for y in (query, key))
        key, value = self._all("keys", key, start), self._all("values", value, start)
        if fewer != self.heads:
            key, value = (
                jnp.repeat(y, self.heads // fewer, axis=-2) for y in (key, value)
            )
        weights = _weights(query, key, bias, self._seen(mask, places, key))
        if self.dropout:
            weights = Dropout(self.dropout)(weights)
        y = jnp.einsum("...hqk,...khd->...qhd", weights, value)
        y = y.reshape(*outer, self.heads * self.head_width)
        out_init = self.out_init or self.kernel_init
        out = dense(width, use_bias=self.out_bias, kernel_init=out_init, name="out")
        return out(rows(y)).reshape(x.shape)

    def _seen(
        self, mask: jax.Array | None, places: jax.Array, key: jax.Array
    ) -> jax.Array | None:
        """Which tokens each token attends to; None for all."""
        if not self.causal:
            return mask
        seen = places[:, None] >= jnp.arange(key.shape[-3])[None]
        seen = seen[(None,) * (key.ndim - 2)]
        return seen if mask is None else seen & mask

    def _all(self, name: str, new: jax.Array, start: int | jax.Array) -> jax.Array:
        """The keys or values of these tokens, or those of all in the cache."""
        if not self.has_variable("cache", name):
            return new
        kept: Any = self.get_variable("cache", name)
        kept = jax.lax.dynamic_update_slice_in_dim(kept, new, start, axis=-3)
        self.put_variable("cache", name, kept)
        return kept


def _weights(
    query: jax.Array, key: jax.Array, bias: jax.Array | None, seen: jax.Array | None
) -> jax.Array:
    """`nn.dot_product_attention_weights` with a softmax in float32 or a wider type.

    It takes less time and memory: the gradient needs no mask, and of the softmax its
    result alone.
    """
    wide = jnp.promote_types(query.dtype, jnp.float32)
    scaled = query / jnp.sqrt(query.shape[-1]).astype(query.dtype)
    scores = jnp.einsum("...qhd,...khd->...hqk", scaled, key).astype(wide)
    if bias is not None:
        scores = scores + bias
    if seen is not None:
        scores = scores + jnp.where(seen, 0, jnp.finfo(wide).min).astype(wide)
    return _softmax(scores).astype(query.dtype)


@jax.custom_jvp
def _softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x)


@_softmax.defjvp
def _softmax_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    y, (change,) = _softmax(*primals), tangents
    return y, y * (change - jnp.sum(y * change, axis=-1, keepdims=True))


def _gelu(x: jax.Array) -> jax.Array:
    """The exact one; as in PyTorch by erf, which is faster than the erfc of JAX."""
    return x * (0.5 + 0.5 * jax.lax.erf(x * math.sqrt(0.5)))


class Block(nn.Module):
    """Attention, then a network with one hidden layer: [B, N, width] to [B, N, width].

    Each reads its normalized input and is added to the input (pre-norm).
    """

    heads: int
    head_width: int
    hidden: int
    dropout: float
    attention_bias: bool
    epsilon: float
    kernel_init: Initializer
    dtype: DTypeLike | None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        norm = partial(nn.LayerNorm, epsilon=self.epsilon, dtype=self.dtype)
        dense = partial(nn.Dense, kernel_init=self.kernel_init, dtype=self.dtype)
        drop = partial(Dropout, self.dropout)
        shape = self.heads, self.head_width, self.attention_bias
        attention = Attention(*shape, self.kernel_init, self.dtype)
        x = x + drop()(attention(norm()(x)))
        width = x.shape[-1]
        y = _gelu(dense(self.hidden)(rows(norm()(x))))
        y = drop()(y.reshape(*x.shape[:-1], self.hidden))
        return x + drop()(dense(width)(rows(y)).reshape(x.shape))


def rows(x: jax.Array) -> jax.Array:
    """All tokens as the rows of one matrix, whose products are faster on CPUs."""
    return x.reshape(-1, x.shape[-1])


class ViT(nn.Module):
    """Attention between the patches of an image, classified by an additional token.

    It maps images [B, H, W, C], with H and W multiples of `patch`, to logits
    [B, classes]. Each of the H W / patch^2 patches is a vector of patch^2 C numbers,
    which is mapped to a token. A learned class token is prepended, and a learned vector
    is added to the token of each position. After `depth` blocks, the normalized class
    token gives the logits. If the module gets a stream "dropout", there is dropout on
    the first tokens, on the output of attention, and on both layers of the network in
    each block:

        patches              kernel [patch^2 C, width], bias [width]
        positions            embedding [1 + H W / patch^2, width]
        class_token          [width]
        Block_i              LayerNorm_0, LayerNorm_1: scale, bias [width]
          Attention_0        query, key, value: kernel [width, heads head_width]
                             out: kernel [heads head_width, width], bias [width]
          Dense_0            kernel [width, hidden], bias [hidden]
          Dense_1            kernel [hidden, width], bias [width]
        LayerNorm_0          scale, bias [width]
        head                 kernel [width, classes], bias [classes]

    Muon's default layout treats all kernels and `positions`, like every embedding, as
    matrices, but not scales, biases and the class token. `exclude=("bias", "scale",
    "embedding", "head")` of `muon_dimension_numbers` also excludes the positions and
    the head.

    From "An Image is Worth 16x16 Words" (arXiv:2010.11929). The defaults are from
    https://github.com/kentaroy47/vision-transformers-cifar10, which has one kernel for
    query, key and value together: 9,523,722 parameters for 32 x 32 x 3 and 10 classes.
    Kernels are initialized as torch's linear layers, biases with 0. `vit_tiny` is a
    second size.

    Attributes:
      token_init: Initializer of the class token and the positions.
    """

    classes: int = 10
    patch: int = 4
    width: int = 512
    depth: int = 6
    heads: int = 8
    head_width: int = 64
    hidden: int = 512
    dropout: float = 0.1
    attention_bias: bool = False
    epsilon: float = 1e-5
    kernel_init: Initializer = _torch_linear
    token_init: Initializer = nn.initializers.normal(1.0)
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        self._check(x)
        dense = partial(nn.Dense, kernel_init=self.kernel_init, dtype=self.dtype)
        x = dense(self.width, name="patches")(squares(x, self.patch))
        token = self.param("class_token", self.token_init, (self.width,))
        token = jnp.broadcast_to(token, (len(x), 1, self.width))
        x = jnp.concatenate([token, x], axis=1)
        # An `nn.Embed`, so that rules that exclude embeddings by name apply to it.
        positions = nn.Embed(
            x.shape[1], self.width, embedding_init=self.token_init, name="positions"
        )
        # Cast after the sum, since there the gradients of the batch add up.
        x = jnp.asarray(x + positions.embedding[None], self.dtype)
        x = Dropout(self.dropout)(x)
        sizes = self.heads, self.head_width, self.hidden, self.dropout
        rest = self.attention_bias, self.epsilon, self.kernel_init, self.dtype
        for _ in range(self.depth):
            x = Block(*sizes, *rest)(x)
        x = nn.LayerNorm(epsilon=self.epsilon, dtype=self.dtype)(x[:, 0])
        return dense(self.classes, name="head")(x)

    def _check(self, x: jax.Array) -> None:
        for name in ("patch", "width", "depth", "heads", "head_width", "hidden"):
            check_count(f"ViT's {name}", getattr(self, name))
        check_range("dropout", self.dropout, high=1.0, open_high=True, schedules=False)
        if x.ndim != 4 or any(side % self.patch for side in x.shape[1:3]):
            raise ValueError(
                "ViT takes images [B, H, W, C], H and W multiples of patch = "
                f"{self.patch}, got shape {x.shape}; change patch, or use another model"
            )


vit_tiny = partial(
    ViT,
    width=192,
    depth=12,
    heads=3,
    hidden=768,
    dropout=0.0,
    attention_bias=True,
    epsilon=1e-6,
    kernel_init=nn.initializers.normal(0.02),
    token_init=nn.initializers.normal(0.02),
)
"""`ViT` with the size of DeiT-Tiny, "Training data-efficient image transformers &
distillation through attention" (arXiv:2012.12877), for 32 x 32 images: patches of 4 in
place of 16. It has 5,362,762 parameters for 10 classes, no dropout, as in the paper,
and no stochastic depth or distillation.
"""


def squares(x: jax.Array, side: int) -> jax.Array:
    """Divides images [B, H, W, C] into squares [B, H W / side^2, side^2 C].

    Squares and their pixels are in row-major order.
    """
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // side, side, width // side, side, channels)
    return x.swapaxes(2, 3).reshape(batch, -1, side * side * channels)
