"""The recurrent network for sentences."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


class RNN(nn.Module):
    """Embeds tokens, runs tanh layers over them, and classifies the last hidden state.

    Takes token ids [B, length], 0 for padding, returns logits [B, classes]. With h = 0
    before the first token, layer after layer and token after token

        h <- tanh(W x + b + U h),

    x the token's embedding or the state of the layer below. Logits are a linear map of
    the state after the last token that is no padding, so that longer padding changes
    nothing; an example of padding alone counts as one token 0. Ids may come as floats,
    as zeros do for the initialisation; those of vocabulary_size or more give NaN.

    Parameters, H = hidden, W of the first layer having `embedding` rows, others H:

        Embed_0/embedding    [vocabulary_size, embedding]
        SimpleCell_i/i       kernel W [embedding or H, H], bias b [H]
        SimpleCell_i/h       kernel U [H, H], orthogonal at first
        Dense_0              kernel [H, classes], bias [classes]

    The default sizes are those of "Federated Stochastic Minimax Optimization Under
    Heavy-Tailed Noises" (Zhang and Gao): 61,407,234 parameters. `RNN(2, 2**15, 32, 64,
    1)` is one for a laptop. The default vocabulary holds all ids of `data.load`.

    Raises ValueError for other ranks, and for sizes below 1.
    """

    classes: int = 2
    vocabulary_size: int = 2**15
    embedding: int = 300
    hidden: int = 4096
    layers: int = 2
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        self._check(x)
        ids = x.astype(jnp.int32)
        place = jnp.arange(1, ids.shape[1] + 1)
        # 1 for padding alone, which no data set holds but every initialisation does
        lengths = jnp.max(jnp.where(ids != 0, place[None], 1), axis=1)
        # time leads: slices of the first axis are the scan's fast ones
        states: Any = nn.Embed(self.vocabulary_size, self.embedding)(ids.T)
        # not in the table's lookup: there a frequent token's gradients add up
        states = jnp.asarray(states, self.dtype)
        # like them: inside `jax.shard_map` it has to vary over the same axes
        start = jnp.zeros_like(states, shape=(len(ids), self.hidden))
        for _ in range(self.layers):
            cell = nn.SimpleCell(self.hidden, dtype=self.dtype)
            layer = nn.RNN(cell, time_major=True)
            states = layer(states, initial_carry=start)
        last = states[lengths - 1, jnp.arange(len(ids))]
        return nn.Dense(self.classes, dtype=self.dtype)(last)

    def _check(self, x):
        if x.ndim != 2 or not x.shape[1]:
            raise ValueError(
                f"RNN takes token ids [B, length], one or more, got shape {x.shape}; "
                "use MLP for other data"
            )
        for name in ("vocabulary_size", "embedding", "hidden", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"RNN's {name} must be at least 1, got {getattr(self, name)}"
                )
