"""The small networks of federated papers: the multilayer perceptron and two LeNets."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
from jax.typing import DTypeLike

from fedjax_muon.models.convolution import Convolution, convolution, max_pool_2x2


def head(model: nn.Module, classes: int, drawn_as: str, dtype: Any) -> nn.Dense:
    """The last layer, named "head" as Muon's layouts expect.

    Flax draws a layer's first values from its name. A layer that would be named
    `drawn_as` has the same ones, so that seeds keep their numbers.
    """

    def init(key: jax.Array, *shape: Any) -> jax.Array:
        scope = model.scope
        if scope is not None and scope.has_rng("params"):  # not only for its shape
            key = scope.push(drawn_as, reuse=True).make_rng("params")
        return nn.initializers.lecun_normal()(key, *shape)

    return nn.Dense(classes, dtype=dtype, kernel_init=init, name="head")


class MLP(nn.Module):
    """A multilayer perceptron with ReLU on the flattened example.

    It maps [B, ...] to logits [B, classes]. The default widths are from the "2NN" of
    "Communication-Efficient Learning of Deep Networks from Decentralized Data"
    (arXiv:1602.05629), which has 199,210 parameters for 784 inputs and 10 classes.
    """

    classes: int = 10
    features: Sequence[int] = (200, 200)
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1)
        for width in self.features:
            x = nn.relu(nn.Dense(width, dtype=self.dtype)(x))
        last = f"Dense_{len(self.features)}"
        return head(self, self.classes, last, self.dtype)(x)


class LeNet(nn.Module):
    """Two 5 x 5 convolutions (6 and 16 channels), then layers of 120, 84 and `classes`.

    It maps images [B, H, W, C] of at least 12 x 12 to logits [B, classes], and has
    61,706 parameters for 28 x 28 x 1 and 10 classes. The first convolution keeps the
    size, so 28 x 28 images give 5 x 5 x 16 features, as images padded to 32 x 32 do in
    the original. Images of 32 x 32 are not padded and give 6 x 6 x 16.

    From "Gradient-Based Learning Applied to Document Recognition" (LeCun, Bottou,
    Bengio, Haffner, 1998), with ReLU, max pooling and dense layers instead of sigmoids,
    trained averages, partial connections and radial basis outputs.
    """

    classes: int = 10
    dtype: DTypeLike | None = None
    convolution: Convolution = convolution

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if x.ndim != 4 or min(x.shape[1:3]) < 12:
            raise ValueError(
                "LeNet takes images [B, H, W, C] of at least 12 x 12, got shape "
                f"{x.shape}; for smaller images use EmnistCNN or MLP"
            )
        conv = partial(nn.Conv, dtype=self.dtype, conv_general_dilated=self.convolution)
        dense = partial(nn.Dense, dtype=self.dtype)
        x = conv(6, (5, 5), padding="SAME")(x)
        # ReLU after pooling gives the same numbers at a quarter of the cost.
        x = nn.relu(max_pool_2x2(x))
        x = conv(16, (5, 5), padding="VALID")(x)
        x = nn.relu(max_pool_2x2(x))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(dense(120)(x))
        x = nn.relu(dense(84)(x))
        return head(self, self.classes, "Dense_2", self.dtype)(x)


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
        return head(self, self.classes, "Dense_1", self.dtype)(x)
