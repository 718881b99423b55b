"""The residual network of 18 layers for small images, without batch statistics."""

from collections.abc import Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fedjax_muon.models.convolution import convolution

# Scaled by the outputs, so that gradients keep their size through the layers: He et
# al. 2015 (arXiv:1502.01852), as in torchvision's networks.
_he = nn.initializers.variance_scaling(2.0, "fan_out", "normal")

# Padded on both sides: "SAME" would pad even sizes, at stride 2, on one side alone.
_convolution = partial(
    nn.Conv,
    use_bias=False,  # the normalisation that follows has one
    kernel_init=_he,
    conv_general_dilated=convolution,
)
_3x3 = partial(_convolution, kernel_size=(3, 3), padding=1)
_1x1 = partial(_convolution, kernel_size=(1, 1), padding=0)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and the way around them: [B, H, W, C] to [B, H', W', F].

    F = features, H' = ceil(H / stride). The way around is the identity for stride 1 and
    C = F, else a 1 x 1 convolution with the stride and its own normalisation.
    """

    features: int
    stride: int
    groups: int
    dtype: DTypeLike | None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        strides = (self.stride, self.stride)
        norm = partial(nn.GroupNorm, self.groups, epsilon=1e-5, dtype=self.dtype)
        inner = partial(_3x3, self.features, dtype=self.dtype)
        y = nn.relu(norm()(inner(strides=strides)(x)))
        y = norm()(inner()(y))
        if self.stride != 1 or x.shape[-1] != self.features:
            outer = partial(_1x1, self.features, dtype=self.dtype)
            x = outer(strides=strides, name="shortcut")(x)
            x = norm(name="shortcut_norm")(x)
        return nn.relu(x + y)


class ResNet18(nn.Module):
    """A 3 x 3 stem, four stages of two residual blocks, their mean over the image.

    Takes images [B, H, W, C] of any size, returns logits [B, classes]. Every stage but
    the first halves height and width; 32 x 32 x 3 images and 10 classes make 11,173,962
    parameters, as many as with batch normalisation:

        stem                 kernel [3, 3, C, 64]
        GroupNorm_0          scale, bias [64]: of the stem
        ResidualBlock_i      Conv_0, Conv_1, GroupNorm_0, GroupNorm_1; the first
                             of every stage but one also shortcut, a 1 x 1
                             convolution, and shortcut_norm
        head                 kernel [512, classes], bias [classes]

    From "Deep Residual Learning for Image Recognition" (arXiv:1512.03385), with the
    stem that small images ask for in place of one of 7 x 7 and stride 2 with a pooling,
    and with "Group Normalization" (arXiv:1803.08494) in place of batch normalisation.
    `groups` is its 32; federated work also takes 2 (arXiv:1910.00189). `widths` are the
    channels of the stages, the first also those of the stem.

    Muon's default layout takes all kernels for matrices, a convolution's as one of
    (height width in) x out, and nothing else. `exclude=("bias", "scale", "stem",
    "head")` of `muon_dimension_numbers` keeps the first and last layer from it.

    Raises ValueError for other ranks, for widths that `groups` does not divide, and for
    groups or widths below 1.
    """

    classes: int = 10
    groups: int = 32
    widths: Sequence[int] = (64, 128, 256, 512)
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        self._check(x)
        x = _3x3(self.widths[0], dtype=self.dtype, name="stem")(x)
        x = nn.relu(nn.GroupNorm(self.groups, epsilon=1e-5, dtype=self.dtype)(x))
        for stage, width in enumerate(self.widths):
            x = ResidualBlock(width, 2 if stage else 1, self.groups, self.dtype)(x)
            x = ResidualBlock(width, 1, self.groups, self.dtype)(x)
        head = nn.Dense(self.classes, dtype=self.dtype, name="head")
        return head(jnp.mean(x, axis=(1, 2)))

    def _check(self, x):
        if x.ndim != 4:
            raise ValueError(
                f"ResNet18 takes images [B, H, W, C], got shape {x.shape}; use MLP for "
                "other data"
            )
        if (
            self.groups < 1
            or not self.widths
            or any(w < 1 or w % self.groups for w in self.widths)
        ):
            raise ValueError(
                "widths must be positive multiples of groups, got widths "
                f"{tuple(self.widths)} and groups {self.groups}"
            )
