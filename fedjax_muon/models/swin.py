"""The Swin transformer: attention within windows, shifted in every second block."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fedjax_muon.core import check_count
from fedjax_muon.models.vit import Attention, squares

# torch's default for convolutions, which the published code uses for the patches.
_patches_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
_normal = nn.initializers.normal(0.02)


class RelativePositions(nn.Module):
    """A learned number for each head and each offset between two places of a window.

    The result is [heads, N, N] for queries and keys, with N = window^2. It is read from
    a table "bias" [(2 window - 1)^2, heads], in row (2 window - 1) (dy + window - 1) +
    dx + window - 1 for a query dy rows below and dx columns right of its key.
    """

    window: int
    heads: int

    @nn.compact
    def __call__(self) -> jax.Array:
        offsets = 2 * self.window - 1
        table = self.param("bias", _normal, (offsets**2, self.heads))
        places = np.indices((self.window, self.window)).reshape(2, -1)
        below, right = places[:, :, None] - places[:, None] + self.window - 1
        return jnp.moveaxis(table[offsets * below + right], -1, 0)


class SwinBlock(nn.Module):
    """Attention within windows, then a network with one hidden layer.

    [B, H, W, width] to [B, H, W, width]. Each of the two reads its normalized input and
    is added to the input (pre-norm). `window` divides H and W. The windows are shifted
    by `shift` rows and columns. The shift is cyclic, and a mask separates places from
    opposite edges of the map.
    """

    heads: int
    window: int
    shift: int
    hidden: int
    dtype: DTypeLike | None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        norm = partial(nn.LayerNorm, epsilon=1e-5, dtype=self.dtype)
        dense = partial(nn.Dense, kernel_init=_normal, dtype=self.dtype)
        *_, height, width, features = x.shape
        head_width = features // self.heads
        attention = Attention(self.heads, head_width, True, _normal, self.dtype)
        bias = RelativePositions(self.window, self.heads)()[None, None]
        mask = _together(height, width, self.window, self.shift) if self.shift else None
        y = jnp.roll(norm()(x), (-self.shift, -self.shift), axis=(1, 2))
        y = attention(_windows(y, self.window), bias, mask)
        y = _map(y, self.window, height, width)
        x = x + jnp.roll(y, (self.shift, self.shift), axis=(1, 2))
        y = nn.gelu(dense(self.hidden)(norm()(x)), approximate=False)
        return x + dense(features)(y)


class PatchMerging(nn.Module):
    """Merges 2 x 2 places into one: [B, H, W, C] to [B, H / 2, W / 2, 2 C].

    The four vectors, column by column, are normalized as one vector of 4 C numbers.
    """

    dtype: DTypeLike | None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, height, width, features = x.shape
        x = x.reshape(batch, height // 2, 2, width // 2, 2, features)
        x = x.transpose(0, 1, 3, 4, 2, 5)
        x = x.reshape(batch, height // 2, width // 2, 4 * features)
        x = nn.LayerNorm(epsilon=1e-5, dtype=self.dtype)(x)
        dense = partial(nn.Dense, use_bias=False, kernel_init=_normal)
        return dense(2 * features, dtype=self.dtype)(x)


class Swin(nn.Module):
    """Stages of blocks; each stage halves the sides and doubles the features.

    It maps images [B, H, W, C] to logits [B, classes]. The first map has H / patch x
    W / patch places with `width` features. Windows are shifted by window // 2 in every
    second block. If a side of the map is not longer than a window, the shorter side is
    the window, and there is no shift. The mean over the normalized last map gives the
    logits:

        patches              kernel [patch^2 C, width], bias [width]
        LayerNorm_0          scale, bias [width], after the patches
        SwinBlock_i          LayerNorm_0, LayerNorm_1: scale, bias [F]
          RelativePositions_0  bias [(2 window - 1)^2, heads]
          Attention_0        query, key, value, out: kernel [F, F], bias [F]
          Dense_0            kernel [F, expansion F], bias
          Dense_1            kernel [expansion F, F], bias
        PatchMerging_s       LayerNorm_0: scale, bias [4 F]
                             Dense_0: kernel [4 F, 2 F]
        LayerNorm_1          scale, bias, after the last stage
        head                 kernel, bias [classes]

    The default patch and window are for images of 32 x 32, whose maps have sides of 16,
    8, 4 and 2, and of 64 x 64. The published ones, 4 and 7, are for 224 x 224; with
    these, the windows in the last two stages of a 32 x 32 image would have four places
    and one place.

    Muon's default layout treats all kernels as matrices, but not the relative
    positions, which are biases: rows of their table are looked up, never multiplied
    with features. `exclude=("bias", "scale", "patches", "head")` of
    `muon_dimension_numbers` also excludes the first and the last layer.

    From "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows"
    (arXiv:2103.14030), in the form of https://github.com/microsoft/Swin-Transformer,
    which has one kernel for query, key and value together, without its stochastic
    depth. Kernels and relative positions are initialized as there, biases with 0.

    Attributes:
      expansion: Size of a hidden layer, divided by the number of features.
      side: If given, images are first resized linearly to side x side pixels, for
        models that were pretrained on larger images (`load_swin`).
    """

    classes: int = 10
    patch: int = 2
    window: int = 4
    width: int = 96
    depths: Sequence[int] = (2, 2, 6, 2)
    heads: Sequence[int] = (3, 6, 12, 24)
    expansion: int = 4
    dtype: DTypeLike | None = None
    side: int | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.side is not None and x.ndim == 4:
            shape = (len(x), self.side, self.side, x.shape[-1])
            x = jax.image.resize(x, shape, "linear")
        self._check(x)
        batch, height, width, _ = x.shape
        x = nn.Dense(
            self.width, kernel_init=_patches_init, dtype=self.dtype, name="patches"
        )(squares(x, self.patch))
        norm = partial(nn.LayerNorm, epsilon=1e-5, dtype=self.dtype)
        x = norm()(x).reshape(batch, height // self.patch, width // self.patch, -1)
        for stage, depth in enumerate(self.depths):
            if stage:
                x = PatchMerging(self.dtype)(x)
            window, shift = _window(self.window, *x.shape[1:3])
            hidden = self.expansion * x.shape[-1]
            for i in range(depth):
                moved = shift if i % 2 else 0
                x = SwinBlock(self.heads[stage], window, moved, hidden, self.dtype)(x)
        x = jnp.mean(norm()(x), axis=(1, 2))
        head = partial(nn.Dense, kernel_init=_normal, dtype=self.dtype, name="head")
        return head(self.classes)(x)

    def _check(self, x: jax.Array) -> None:
        for name in ("patch", "window", "width", "expansion"):
            check_count(f"Swin's {name}", getattr(self, name))
        features = [self.width * 2**stage for stage in range(len(self.depths))]
        if (
            len(self.heads) != len(self.depths)
            or not self.depths
            or min(*self.depths, *self.heads) < 1
            or any(f % h for f, h in zip(features, self.heads, strict=True))
        ):
            raise ValueError(
                "Swin takes depths and heads of at least 1, one of each for every "
                f"stage, heads that divide the features {features}; got depths "
                f"{tuple(self.depths)} and heads {tuple(self.heads)}"
            )
        unit = self.patch * 2 ** (len(self.depths) - 1)
        if x.ndim != 4 or any(side < 1 or side % unit for side in x.shape[1:3]):
            raise ValueError(
                "Swin takes images [B, H, W, C], H and W multiples of "
                f"patch 2^(stages - 1) = {unit}, got shape {x.shape}; change patch, "
                "or use another model"
            )
        for stage in range(len(self.depths)):
            sides = [side // (self.patch * 2**stage) for side in x.shape[1:3]]
            window, _ = _window(self.window, *sides)
            if any(side % window for side in sides):
                raise ValueError(
                    f"windows of {window} x {window} do not fill the map of "
                    f"{sides[0]} x {sides[1]} of Swin's stage {stage}, of an image "
                    f"{x.shape[1:3]}; change window or patch"
                )


swin_tiny = partial(Swin, width=96, depths=(2, 2, 6, 2), heads=(3, 6, 12, 24))
"""`Swin` with the size of the paper's Swin-T: 27,505,108 parameters for 32 x 32 x 3 and
10 classes. `swin_tiny(1000, patch=4, window=7)`, for 224 x 224 x 3, has the published
28,288,354.
"""


def _window(window: int, height: int, width: int) -> tuple[int, int]:
    """The side of a map's windows, and their shift."""
    shorter = min(height, width)
    return (shorter, 0) if shorter <= window else (window, window // 2)


def _windows(x: Any, side: int) -> Any:
    """[B, H, W, C] to [B, H W / side^2, side^2, C], both in row-major order."""
    batch, height, width, features = x.shape
    x = x.reshape(batch, height // side, side, width // side, side, features)
    return x.swapaxes(2, 3).reshape(batch, -1, side * side, features)


def _map(x: jax.Array, side: int, height: int, width: int) -> jax.Array:
    """The inverse of `_windows`."""
    batch, _, _, features = x.shape
    x = x.reshape(batch, height // side, width // side, side, side, features)
    return x.swapaxes(2, 3).reshape(batch, height, width, features)


def _together(height: int, width: int, window: int, shift: int) -> jax.Array:
    """Mask of a shifted map's windows [1, windows, 1, N, N].

    It is false between places that the cyclic shift brought from the other edge and the
    rest of the window.
    """
    rows, columns = np.arange(height) < shift, np.arange(width) < shift
    region = np.roll(2 * rows[:, None] + columns[None], (-shift, -shift), (0, 1))
    region = _windows(region[None, :, :, None], window)[..., 0]
    return jnp.asarray(region[..., :, None] == region[..., None, :])[:, :, None]
