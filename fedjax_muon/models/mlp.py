"""The multilayer perceptron."""

from collections.abc import Sequence

import flax.linen as nn
import jax
from jax.typing import DTypeLike


class MLP(nn.Module):
    """A multilayer perceptron with ReLU on the flattened example.

    It maps [B, ...] to logits [B, classes]. The default widths are those of the "2NN"
    of "Communication-Efficient Learning of Deep Networks from Decentralized Data"
    (arXiv:1602.05629), which has 199,210 parameters for 784 inputs and 10 classes.

    Attributes:
      features: Widths of the hidden layers.
    """

    classes: int = 10
    features: Sequence[int] = (200, 200)
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1)
        for width in self.features:
            x = nn.relu(nn.Dense(width, dtype=self.dtype)(x))
        return nn.Dense(self.classes, dtype=self.dtype)(x)
