"""The convolutional network of federated learning papers for (E)MNIST."""

from functools import partial

import flax.linen as nn
import jax
from jax.typing import DTypeLike

from fedjax_muon.models.convolution import Convolution, convolution, max_pool_2x2


class EmnistCNN(nn.Module):
    """Two 3 x 3 convolutions (32 and 64 channels), pooling, and two dense layers.

    It maps images [B, H, W, C] of at least 6 x 6 to logits [B, classes], and has
    1,199,882 parameters for 28 x 28 x 1 and 10 classes. It is the EMNIST network of
    "Adaptive Federated Optimization" (arXiv:2003.00295), without dropout.
    """

    classes: int = 10
    dtype: DTypeLike | None = None
    convolution: Convolution = convolution

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if x.ndim != 4 or min(x.shape[1:3]) < 6:
            raise ValueError(
                "EmnistCNN takes images [B, H, W, C] of at least 6 x 6, got shape "
                f"{x.shape}; use MLP for other data"
            )
        conv = partial(nn.Conv, dtype=self.dtype, conv_general_dilated=self.convolution)
        dense = partial(nn.Dense, dtype=self.dtype)
        x = conv(32, (3, 3), padding="VALID")(x)
        x = nn.relu(x)
        x = conv(64, (3, 3), padding="VALID")(x)
        # ReLU after pooling gives the same numbers at a quarter of the cost.
        x = nn.relu(max_pool_2x2(x))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(dense(128)(x))
        return dense(self.classes)(x)
