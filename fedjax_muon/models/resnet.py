"""The residual network with 18 layers for small images."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fedjax_muon.core import check_choice
from fedjax_muon.models.convolution import Convolution, convolution

# Scaled by the number of outputs, so that gradients keep their size through the layers:
# He et al. 2015 (arXiv:1502.01852), as in torchvision's networks.
_he = nn.initializers.variance_scaling(2.0, "fan_out", "normal")

# Padded on both sides, since "SAME" with stride 2 pads even sizes on one side only.
_convolution = partial(
    nn.Conv,
    use_bias=False,  # the normalization that follows has one
    kernel_init=_he,
)
Norm = Literal["group", "layer", "batch"]
_3x3 = partial(_convolution, kernel_size=(3, 3), padding=1)
_1x1 = partial(_convolution, kernel_size=(1, 1), padding=0)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut: [B, H, W, C] to [B, H', W', features].

    H' = ceil(H / stride). The shortcut is the identity for stride 1 and C = features,
    else a 1 x 1 convolution with the stride and its own normalization.
    """

    features: int
    stride: int
    norm: Callable[..., nn.Module]
    dtype: DTypeLike | None
    convolution: Convolution

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        strides = (self.stride, self.stride)
        how: dict[str, Any] = {
            "dtype": self.dtype,
            "conv_general_dilated": self.convolution,
        }
        inner = partial(_3x3, self.features, **how)
        y = nn.relu(self.norm()(inner(strides=strides)(x)))
        y = self.norm()(inner()(y))
        if self.stride != 1 or x.shape[-1] != self.features:
            outer = partial(_1x1, self.features, **how)
            x = outer(strides=strides, name="shortcut")(x)
            x = self.norm(name="shortcut_norm")(x)
        return nn.relu(x + y)


class ResNet18(nn.Module):
    """A 3 x 3 stem, four stages of two residual blocks, and the mean over the image.

    It maps images [B, H, W, C] of any size to logits [B, classes]. Every stage except
    the first halves height and width. For 32 x 32 x 3 and 10 classes it has 11,173,962
    parameters, as many as with batch normalization:

        stem                 kernel [3, 3, C, 64]
        GroupNorm_0          scale, bias [64], after the stem
        ResidualBlock_i      Conv_0, Conv_1, GroupNorm_0, GroupNorm_1; the first
                             of every stage but one also shortcut, a 1 x 1
                             convolution, and shortcut_norm
        head                 kernel [512, classes], bias [classes]

    From "Deep Residual Learning for Image Recognition" (arXiv:1512.03385), with the
    usual stem for small images instead of 7 x 7, stride 2 and pooling, and by default
    with "Group Normalization" (arXiv:1803.08494) instead of batch normalization. With
    "batch", the layers are called BatchNorm_i, and there are running statistics.

    Muon's default layout treats all kernels as matrices, with convolutions as (height
    width in) x out, and nothing else. `exclude=("bias", "scale", "stem", "head")` of
    `muon_dimension_numbers` also excludes the first and the last layer.

    Attributes:
      groups: Groups of each normalization, 32 in its paper; federated work also uses 2
        (arXiv:1910.00189).
      norm: Normalization, "group", "batch" with PyTorch's momentum, or "layer" over
        height, width and channels, which is one group.
      widths: Channels of the stages; the stem has as many as the first stage.
    """

    classes: int = 10
    groups: int = 32
    widths: Sequence[int] = (64, 128, 256, 512)
    dtype: DTypeLike | None = None
    convolution: Convolution = convolution
    norm: Norm = "group"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        self._check(x)
        norms: dict[str, Callable[..., nn.Module]] = {
            "group": partial(nn.GroupNorm, self.groups),
            "layer": partial(nn.GroupNorm, 1),
            "batch": partial(nn.BatchNorm, use_running_average=not train, momentum=0.9),
        }
        made = norms[check_choice("norm", self.norm, norms)]
        norm = partial(made, epsilon=1e-5, dtype=self.dtype)
        how: dict[str, Any] = {
            "dtype": self.dtype,
            "conv_general_dilated": self.convolution,
        }
        x = _3x3(self.widths[0], **how, name="stem")(x)
        x = nn.relu(norm()(x))
        for stage, width in enumerate(self.widths):
            rest = norm, self.dtype, self.convolution
            x = ResidualBlock(width, 2 if stage else 1, *rest)(x)
            x = ResidualBlock(width, 1, *rest)(x)
        head = nn.Dense(self.classes, dtype=self.dtype, name="head")
        return head(jnp.mean(x, axis=(1, 2)))

    def _check(self, x: jax.Array) -> None:
        if x.ndim != 4:
            raise ValueError(
                f"ResNet18 takes images [B, H, W, C], got shape {x.shape}; use MLP for "
                "other data"
            )
        groups = self.groups if self.norm == "group" else 1
        fit = all(w >= 1 and groups >= 1 and w % groups == 0 for w in self.widths)
        if not self.widths or not fit:
            raise ValueError(
                "widths must be positive multiples of groups, got widths "
                f"{tuple(self.widths)} and groups {self.groups}"
            )
