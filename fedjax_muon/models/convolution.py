"""Convolutions and pooling that are fast inside a scan, with their gradients.

XLA:CPU converts convolutions to its fast layout (NHWC data, HWIO kernels) only in the
entry computation of a program (https://github.com/jax-ml/jax/issues/12868). JAX writes
the gradients of a convolution in other layouts. So inside a scan, as in every loop over
local steps, they run as naive loops, up to 20 times slower. `convolution` writes them
in the fast layout instead. Likewise, the gradient of `max_pool_2x2` consists of
comparisons and products, while `flax.linen.max_pool` uses XLA's slow
select-and-scatter.

On CPUs, `chosen_form` chooses how a convolution is computed by its shapes. `python -m
benchmarks convolutions` measures all forms, see docs/speed.md.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_muon.models import winograd

# with the arguments of `lax.conv_general_dilated`
Convolution = Callable[..., jax.Array]


class Windows(NamedTuple):
    """Where the entries of a kernel meet the data, for each spatial dimension."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # low and high
    dilation: tuple[int, ...]  # of the kernel

    def reach(self, kernel: Sequence[int]) -> list[int]:
        """Places between the first and the last entry of a kernel of this size."""
        return _reach(kernel, self.dilation)


def windows_of(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    **options: Any,
) -> Windows | None:
    """Reads the arguments of `lax.conv_general_dilated`.

    Returns:
      The windows of data [B, *space, I] and a kernel [*space, I, O]; None for all other
      layouts, dilated data, groups of channels, and further options.
    """
    layout = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    is_dilated = any(dilation != 1 for dilation in lhs_dilation or ())
    is_plain = layout == _dimension_numbers(lhs.ndim) and not is_dilated
    if not is_plain or feature_group_count != 1 or options:
        return None
    strides = tuple(window_strides)
    dilation = tuple(rhs_dilation or (1,) * len(strides))
    if isinstance(padding, str):
        window = [r + 1 for r in _reach(rhs.shape[:-2], dilation)]
        padding = lax.padtype_to_pads(lhs.shape[1:-1], window, strides, padding)
    pads = tuple((int(low), int(high)) for low, high in padding)
    return Windows(strides, pads, dilation)


def convolution(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *,
    precision: Any = None,
    **options: Any,
) -> jax.Array:
    """`lax.conv_general_dilated` with faster gradients on CPUs.

    Values are the same, and gradients are the same up to rounding. The faster gradients
    are for data [B, *space, I] and kernels [*space, I, O] with any strides, padding and
    kernel dilation, as in flax's convolutions. All other calls (groups, dilated inputs,
    other layouts, further options, empty results) are passed to lax unchanged.

    Reverse mode can be repeated (`grad` of `grad`). Forward mode (`jax.jvp`, and
    `jax.hessian`, which is forward over reverse) raises JAX's TypeError about
    `custom_vjp`; models that need it must use a plain `nn.Conv`.
    """

    def reference(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x, w, window_strides, padding, precision=precision, **options
        )

    result = jax.eval_shape(reference, lhs, rhs)  # lax checks the arguments
    windows = windows_of(lhs, rhs, window_strides, padding, **options)
    if windows is None or not result.size:
        return reference(lhs, rhs)
    lhs, rhs = _equally_varying(lhs, rhs)
    return _convolution(lhs, rhs, windows, precision)


def max_pool_2x2(x: jax.Array) -> jax.Array:
    """Max pooling of 2 x 2 squares: [B, H, W, C] to [B, H // 2, W // 2, C].

    It equals `flax.linen.max_pool(x, (2, 2), strides=(2, 2))`, which also drops the
    last row and column of odd sizes. If several entries of a square are the largest,
    each gets an equal part of the gradient; in flax the first one gets all of it.
    """
    batch, height, width, channels = x.shape
    height, width = height // 2, width // 2
    x = x[:, : 2 * height, : 2 * width]
    return jnp.max(x.reshape(batch, height, 2, width, 2, channels), axis=(2, 4))


def _dimension_numbers(ndim: int) -> lax.ConvDimensionNumbers:
    space = range(1, ndim - 1)
    data = (0, ndim - 1, *space)  # positions of batch, features, space: NHWC
    kernel = (ndim - 1, ndim - 2, *range(ndim - 2))  # positions of O, I, space: HWIO
    return lax.ConvDimensionNumbers(data, kernel, data)


def _reach(kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """The distance between a kernel's first and last entry, in places of the input."""
    return [(size - 1) * d for size, d in zip(kernel, dilation, strict=True)]


def _equally_varying(*arrays: jax.Array) -> list[jax.Array]:
    """Makes all arrays vary over the same axes of a `jax.shard_map`.

    JAX does this for its own operations. A `custom_vjp` has to do it too, since its
    gradients would otherwise vary where its arguments do not. Outside of `shard_map`
    nothing varies.
    """
    axes = [jax.typeof(a).manual_axis_type.varying for a in arrays]
    everywhere = frozenset().union(*axes)
    return [
        lax.pcast(a, tuple(sorted(everywhere - varying)), to="varying")
        for a, varying in zip(arrays, axes, strict=True)
    ]


def _run(
    x: jax.Array,
    w: jax.Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    spread: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    *,
    precision: Any,
) -> jax.Array:
    return lax.conv_general_dilated(
        x,
        w,
        strides,
        padding,
        lhs_dilation=spread,
        rhs_dilation=dilation,
        dimension_numbers=_dimension_numbers(x.ndim),
        precision=precision,
    )


def _run_canonical(
    x: jax.Array,
    w: jax.Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    spread: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    *,
    precision: Any,
) -> jax.Array:
    """`_run` in the fast layout, also if the kernel has more places than the data.

    In this case XLA would swap the two and leave the layout. Data that is padded first
    has at least as many places as the kernel. The barrier keeps XLA from moving the
    padding back into the convolution.
    """
    if math.prod(w.shape[:-2]) > math.prod(x.shape[1:-1]):
        inner = [d - 1 for d in spread or (1,) * len(strides)]
        space = [(*p, i) for p, i in zip(padding, inner, strict=True)]
        none = (0, 0, 0)
        x = lax.pad(x, jnp.zeros((), x.dtype), [none, *space, none])
        x = lax.optimization_barrier(x)
        padding, spread = [(0, 0)] * len(strides), None
    return _run(x, w, strides, padding, spread, dilation, precision=precision)


def _blockwise(
    x: jax.Array,
    w: jax.Array,
    padding: Sequence[tuple[int, int]],
    precision: Any,
) -> jax.Array:
    """The convolution with strides of 1, computed on squares of places.

    The places of a square become channels. A square of outputs is a linear map of the
    squares of inputs that it depends on, so there are fewer and wider patches, and the
    kernel contains zeros.
    """
    side = 4 if w.shape[-1] <= 8 else 2
    window = [-(-(k + side - 1) // side) for k in w.shape[:2]]  # in squares
    low, high = zip(*padding, strict=True)
    reach = _reach(w.shape[:2], (1, 1))
    size = [
        n + a + b - r for n, a, b, r in zip(x.shape[1:3], low, high, reach, strict=True)
    ]
    squares = [-(-n // side) for n in size]
    space = [
        (a, side * (have + k - 1) - n - a, 0)
        for n, a, have, k in zip(x.shape[1:3], low, squares, window, strict=True)
    ]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *space, (0, 0, 0)])
    (batch, height, width, inputs), outputs = x.shape, w.shape[-1]
    height, width = height // side, width // side
    x = x.reshape(batch, height, side, width, side, inputs).swapaxes(2, 3)
    x = x.reshape(batch, height, width, -1)
    # The output at place p has the kernel's entry r for the input at place p + r.
    rows, columns = (
        jnp.stack(
            [jnp.eye(side * n, k, -p, dtype=w.dtype) for p in range(side)]
        ).reshape(side, n, side, k)
        for n, k in zip(window, w.shape[:2], strict=True)
    )
    squared = jnp.einsum("ahpr,bwqs,rsio->hwpqiabo", rows, columns, w)
    kernel = squared.reshape(*window, x.shape[-1], side * side * outputs)
    plain = Windows((1, 1), ((0, 0), (0, 0)), (1, 1))
    y = _convolution(x, kernel, plain, precision)
    y = y.reshape(batch, *squares, side, side, outputs).swapaxes(2, 3)
    y = y.reshape(batch, squares[0] * side, squares[1] * side, outputs)
    return y[:, : size[0], : size[1]]


class Form(NamedTuple):
    """A way to compute a convolution: its value and its gradients."""

    value: Callable[[jax.Array, jax.Array], jax.Array]
    gradients: Callable[..., tuple[jax.Array, jax.Array]]  # of data, kernel, and g


def lax_form(windows: Windows, precision: Any) -> Form:
    """XLA's convolution, with JAX's gradients."""
    return _differentiated(partial(_run, **windows._asdict(), precision=precision))


def canonical_form(windows: Windows, precision: Any) -> Form:
    """XLA's convolution, with gradients in the fast layout."""
    return Form(
        partial(_run_canonical, **windows._asdict(), precision=precision),
        partial(_canonical_gradients, windows, precision),
    )


def squares_form(windows: Windows, precision: Any) -> Form:
    """`_blockwise`, for two dimensions and strides of 1."""
    how = {"padding": windows.padding, "precision": precision}
    return _differentiated(partial(_blockwise, **how))


def products_form(windows: Windows, precision: Any) -> Form:
    """Products of patches, which are not stored for the gradients."""
    form = _differentiated(partial(_products, windows=windows, precision=precision))

    def gradients(*saved: jax.Array) -> tuple[jax.Array, jax.Array]:
        return form.gradients(*lax.optimization_barrier(saved))  # against sharing

    return form._replace(gradients=gradients)


def winograd_form(windows: Windows, precision: Any) -> Form:
    """Winograd's algorithm, for kernels of 3 x 3 and strides of 1."""
    how = {"padding": windows.padding, "precision": precision}
    return Form(partial(winograd.convolve, **how), partial(winograd.gradients, **how))


def _differentiated(value: Callable[[jax.Array, jax.Array], jax.Array]) -> Form:
    return Form(value, lambda x, w, g: jax.vjp(value, x, w)[1](g))


def chosen_form(
    x: jax.Array, w: jax.Array, windows: Windows
) -> Callable[[Windows, Any], Form]:
    """The form that was the fastest on CPUs for such shapes.

    - Winograd's algorithm for float32, kernels of 3 x 3, and 32 or more channels. Its
      sums of the kernel must not be larger than the sums of the data.
    - Products of patches for wide kernels that meet few places, and for kernels with
      one place. The patches are at most four times as large as the kernel, or as large
      as the data.
    - Squares of places for large kernels with few channels. LeNet's first convolution
      takes a third of the time, its second 0.6.
    - XLA's convolution in the fast layout for everything else.
    """
    *window, inputs, outputs = w.shape
    narrow, wide = sorted((inputs, outputs))
    alone = all(one == 1 for one in (*windows.strides, *windows.dilation))
    if window == [3, 3] and alone and x.dtype == w.dtype == jnp.float32:
        tiles = len(x) * math.prod(winograd.tiles_of(x, windows.padding))
        if narrow >= 32 and 64 <= wide <= tiles:
            return winograd_form
    if math.prod(window) == 1 and narrow >= 32:
        return products_form
    places = jax.eval_shape(lax_form(windows, None).value, x, w).size // outputs
    if narrow >= 256 and places <= 4 * outputs:
        return products_form
    if len(window) == 2 and min(window) >= 5 and alone and wide <= 16:
        return squares_form
    return canonical_form


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolution(
    x: jax.Array, w: jax.Array, windows: Windows, precision: Any
) -> jax.Array:
    # The forms were measured on CPUs only.
    forms = chosen_form(x, w, windows), lax_form
    fast, plain = (form(windows, precision) for form in forms)
    return lax.platform_dependent(x, w, cpu=fast.value, default=plain.value)


def _forward(x: jax.Array, w: jax.Array, *how: Any) -> tuple[jax.Array, Any]:
    return _convolution(x, w, *how), (x, w)


def _backward(
    windows: Windows, precision: Any, saved: tuple[jax.Array, jax.Array], g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    forms = chosen_form(*saved, windows), lax_form
    fast, plain = (form(windows, precision) for form in forms)
    return lax.platform_dependent(
        *saved, g, cpu=fast.gradients, default=plain.gradients
    )


def _canonical_gradients(
    windows: Windows, precision: Any, x: jax.Array, w: jax.Array, g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    strides, padding, dilation = windows
    low, padded_high = zip(*padding, strict=True)
    del padded_high  # can exceed what the windows cover
    reach = _reach(w.shape[:-2], dilation)
    # the distance between the first and the last window, in places of the input
    span = _reach(g.shape[1:-1], strides)
    covered = [r + s + 1 for r, s in zip(reach, span, strict=True)]
    space = x.shape[1:-1]
    high = [c - n - p for c, n, p in zip(covered, space, low, strict=True)]

    # dw[k] = sum over o of x[o stride + k dilation] g[o]: a convolution with kernel g,
    # which sums over the batch and whose batch is the channels of x.
    outer = (*range(1, x.ndim - 1), 0, x.ndim - 1)  # the batch after space
    pads = list(zip(low, high, strict=True))
    x, kernel = x.swapaxes(0, -1), g.transpose(outer)
    run = partial(_run_canonical, precision=precision)
    dw = run(x, kernel, dilation, pads, dilation=strides)

    # dx: the convolution of g, spread by the strides, with the mirrored kernel.
    mirror = lax.rev(w, range(w.ndim - 2)).swapaxes(-1, -2)
    pads = [(r - p, r - h) for r, p, h in zip(reach, low, high, strict=True)]
    one = (1,) * len(strides)
    dx = run(g, mirror, one, pads, spread=strides, dilation=dilation)
    return dx, dw.transpose(outer)


_convolution.defvjp(_forward, _backward)


def by_patches(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *,
    precision: Any = None,
    **options: Any,
) -> jax.Array:
    """`lax.conv_general_dilated` as one product of patches by the kernel.

    Under `jax.vmap` over clients, whose kernels differ, lax's convolution becomes one
    with groups, which accelerators may run slowly; this becomes a batched product of
    matrices. Its patches take as many times the memory of the data as the kernel has
    places. `fedjax_muon.tune` measures which of the two is faster. The result is the
    same up to rounding. Data are [B, *space, I], neither dilated nor of several groups
    of channels, and kernels [*space, I, O].
    """
    windows = windows_of(lhs, rhs, window_strides, padding, **options)
    if windows is None:
        raise ValueError(
            "by_patches is for data [B, *space, I] and kernels [*space, I, O] without "
            "groups and without dilation of the data; use lax.conv_general_dilated"
        )
    return _products(lhs, rhs, windows, precision)


def _products(
    x: jax.Array, w: jax.Array, windows: Windows, precision: Any
) -> jax.Array:
    *window, inputs, outputs = w.shape
    pads = [(0, 0, 0), *((*pad, 0) for pad in windows.padding), (0, 0, 0)]
    x = lax.pad(x, jnp.zeros((), x.dtype), pads)
    # from the first to the last place that an entry of the kernel meets
    span = [
        (n - r - 1) // s * s + 1
        for n, r, s in zip(
            x.shape[1:-1], windows.reach(window), windows.strides, strict=True
        )
    ]
    parts = []
    for entry in itertools.product(*map(range, window)):
        start = [k * d for k, d in zip(entry, windows.dilation, strict=True)]
        stop = [a + n for a, n in zip(start, span, strict=True)]
        every = zip(start, stop, windows.strides, strict=True)
        parts.append(x[:, *(slice(*one) for one in every)])
    patches = jnp.concatenate(parts, axis=-1)
    kernel = w.reshape(math.prod(window) * inputs, outputs)
    return jnp.matmul(patches, kernel, precision=precision)
