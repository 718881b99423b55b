"""Recurrent networks for sentences and characters."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fedjax_muon.core import check_count
from fedjax_muon.models.small import head


class RNN(nn.Module):
    """An embedding, recurrent layers, and a linear map of the last hidden state.

    It maps token ids [B, length], with 0 for padding, to logits [B, classes]. In every
    layer of the default cell, h starts at 0 and for each token

        h <- tanh(W x + b + U h)

    where x is the embedding of the token or the state of the layer below. Logits are a
    linear map of the state after the last token that is not padding, so padding has no
    effect; an example with padding alone counts as one token 0. Ids can be floats, as
    the zeros of the initialization are. Ids from vocabulary_size on give NaN.

    Parameters, with H = hidden:

        Embed_0/embedding    [vocabulary_size, embedding]
        SimpleCell_i/i       kernel W [embedding or H, H], bias b [H]
        SimpleCell_i/h       kernel U [H, H], orthogonal at first
        head                 kernel [H, classes], bias [classes]

    The default sizes are from "Federated Stochastic Minimax Optimization Under
    Heavy-Tailed Noises" (Zhang and Gao): 61,407,234 parameters. A size for laptops is
    `RNN(2, 2**15, 32, 64, 1)`. `lstm` and `gru` have other cells.

    Attributes:
      vocabulary_size: Number of token ids; the default holds all ids of `data.load`.
      cell: Cell of flax with the arguments `features` and `dtype`.
    """

    classes: int = 2
    vocabulary_size: int = 2**15
    embedding: int = 300
    hidden: int = 4096
    layers: int = 2
    cell: Callable[..., nn.RNNCellBase] = nn.SimpleCell
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        self._check(x)
        ids = x.astype(jnp.int32)
        place = jnp.arange(1, ids.shape[1] + 1)
        # 1 for padding alone, which the initialization has although no dataset does
        lengths = jnp.max(jnp.where(ids != 0, place[None], 1), axis=1)
        # Time is the first axis, whose slices are fast in a scan.
        states: Any = nn.Embed(self.vocabulary_size, self.embedding)(ids.T)
        # Cast after the lookup, since there the gradients of frequent tokens add up.
        states = jnp.asarray(states, self.dtype)
        # Inside `jax.shard_map` the carry must vary over the same axes as the states.
        start = jnp.zeros_like(states, shape=(len(ids), self.hidden))
        for _ in range(self.layers):
            cell = self.cell(self.hidden, dtype=self.dtype)
            layer = nn.RNN(cell, time_major=True)
            states = layer(states, initial_carry=_carry(cell, start))
        last = states[lengths - 1, jnp.arange(len(ids))]
        return head(self, self.classes, "Dense_0", self.dtype)(last)

    def _check(self, x: jax.Array) -> None:
        if x.ndim != 2 or not x.shape[1]:
            raise ValueError(
                f"RNN takes token ids [B, length], one or more, got shape {x.shape}; "
                "use MLP for other data"
            )
        for name in ("vocabulary_size", "embedding", "hidden", "layers"):
            check_count(f"RNN's {name}", getattr(self, name))


def _carry(cell: nn.RNNCellBase, start: jax.Array) -> Any:
    """The state of a cell before the first token: one array of zeros, or several."""
    init = lambda key: cell.initialize_carry(key, start.shape)
    carry = jax.eval_shape(init, jax.random.key(0))
    return jax.tree.map(lambda _: start, carry)


lstm = partial(RNN, embedding=8, hidden=256, layers=2, cell=nn.OptimizedLSTMCell)
"""`RNN` with LSTM cells and, by default, the size of LEAF's model for Shakespeare
(arXiv:1812.01097): an embedding of 8 numbers for each character, and two layers of 256.
"""

gru = partial(RNN, embedding=8, hidden=256, layers=2, cell=nn.GRUCell)
"""`RNN` with GRU cells and, by default, the size of `lstm`."""
