"""Products of Newton-Schulz steps, with the precision that each of them needs."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Way(NamedTuple):
    """How a CPU orthogonalizes matrices fastest, as measured on one."""

    aspect: float  # long over short side, from which stages of several steps win
    apart: bool = False  # whether the matrices of a stack are faster one by one


# Features of x86 processors that multiply numbers in bfloat16, which XLA uses for
# products with results in float32: the first one that a CPU has decides.
WAYS = {"amx_bf16": Way(4.0, apart=True), "avx512_bf16": Way(1.5)}
PLAIN_CPU = Way(1.5)
HALF = 64  # rows from which these products save CPUs time
SPLIT = 512  # rows from which CPUs compute symmetric products by halves


@functools.cache
def way_of(features: Path = Path("/proc/cpuinfo")) -> Way | None:
    """The way of this machine's CPU; None without products of bfloat16 numbers.

    Programs for CPUs depend on it: `dtype=bfloat16` has other bits on other processors.
    """
    try:
        flags = re.search(r"^flags\s*:(.*)$", features.read_text("utf-8"), re.MULTILINE)
    except OSError:  # of systems without this file
        return None
    known = [] if flags is None else flags[1].split()
    return next((way for feature, way in WAYS.items() if feature in known), None)


def has_fast_products(dtype: np.dtype) -> bool:
    """Whether this machine's CPU multiplies 16-bit numbers faster than float32."""
    return jnp.finfo(dtype).bits < 32 and way_in(dtype) is not None


def way_in(dtype: np.dtype) -> Way | None:
    """The way of this machine's CPU in a type; None if it has no products in it."""
    if jnp.finfo(dtype).bits >= 32:
        return PLAIN_CPU
    return way_of() if dtype == jnp.bfloat16 else None


def default_on_cpus(dtype: np.dtype, rows: int) -> np.dtype:
    """The type in which CPUs multiply matrices of `dtype`, if no other is asked for.

    As TPUs do, CPUs with fast products round float32 to bfloat16, unless
    `jax.default_matmul_precision` is higher.
    """
    asked = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]  # added at run time
    if asked not in (None, "default", "fastest", "bfloat16") or rows < HALF:
        return dtype
    half = jnp.dtype(jnp.bfloat16)
    return half if dtype == jnp.float32 and has_fast_products(half) else dtype


def row_major(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """Lays matrices out for products in `dtype`; their values do not change.

    XLA:CPU keeps the layout of a transposed array until it is flat, and has no product
    of 16-bit numbers in it.
    """
    if not has_fast_products(dtype):
        return x
    laid_out = lambda x: jax.lax.optimization_barrier(x.reshape(-1)).reshape(x.shape)
    return jax.lax.platform_dependent(x, cpu=laid_out, default=lambda x: x)


def prescaled(x: jax.Array) -> jax.Array:
    """Multiplies every matrix by a power of two, so that its largest entry is near 1.

    This is exact, and squares then neither overflow nor underflow. A NaN or an infinity
    makes the matrix NaN.

    Returns:
      The scaled matrices, at least in float32.
    """
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    largest = jnp.max(jnp.abs(x), axis=(-2, -1), keepdims=True)
    # From the bits, since powers and quotients are not exact on every device.
    info = jnp.finfo(x.dtype)
    bits = jax.lax.bitcast_convert_type(largest, jnp.dtype(f"int{info.bits}"))
    exponent = 2 * (info.maxexp - 1) - (bits >> info.nmant)
    normal = jnp.maximum(exponent, 1) << info.nmant
    factor = jax.lax.bitcast_convert_type(normal, x.dtype)
    factor = jnp.where(jnp.isfinite(largest), factor, jnp.nan)
    return x * factor


def large_product(a: jax.Array, b: jax.Array, dtype: np.dtype) -> jax.Array:
    """Multiplies matrices of which one has the long side.

    Returns:
      The products, at least in float32.
    """
    return _product(a, b, dtype, -2)


def outer_product(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """Computes X X^T, at least in float32, of matrices with the long side last."""
    product = functools.partial(_product, dtype=dtype, axis=-1)
    if x.shape[-2] < SPLIT or jnp.finfo(dtype).bits < 32:
        return product(x, x)
    halves = functools.partial(_by_halves, product)
    return jax.lax.platform_dependent(x, x, cpu=halves, default=product)


def _by_halves(
    product: Callable[[jax.Array, jax.Array], jax.Array], a: jax.Array, b: jax.Array
) -> jax.Array:
    """A B^T, which is symmetric, from three of its four blocks."""
    half = a.shape[-2] // 2
    if 2 * half < SPLIT:
        return product(a, b)
    (a, lower_a), (b, lower_b) = (jnp.split(x, [half], axis=-2) for x in (a, b))
    first, last = _by_halves(product, a, b), _by_halves(product, lower_a, lower_b)
    corner = product(a, lower_b)
    rows = [[first, corner], [corner.mT, last]]
    return jnp.concatenate([jnp.concatenate(row, -1) for row in rows], -2)


def _product(a: jax.Array, b: jax.Array, dtype: np.dtype, axis: int) -> jax.Array:
    """Multiplies matrices along the last axis of `a` and this axis of `b`."""
    accumulator = jnp.promote_types(dtype, jnp.float32)

    def multiply(a: jax.Array, b: jax.Array) -> jax.Array:
        axes = ((a.ndim - 1,), (b.ndim + axis,))
        batch = tuple(range(a.ndim - 2))
        return jax.lax.dot_general(
            a, b, (axes, (batch, batch)), preferred_element_type=accumulator
        )

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return multiply(a.astype(dtype), b.astype(dtype))

    def product_apart(a: jax.Array, b: jax.Array) -> jax.Array:
        # XLA:CPU has no product of 16-bit numbers with transposed factors or results,
        # and fails where it moves a transpose into one.
        apart = jax.lax.optimization_barrier
        return apart(multiply(*apart((a.astype(dtype), b.astype(dtype)))))

    def product_of_rounded(a: jax.Array, b: jax.Array) -> jax.Array:
        # The product of two 16-bit numbers is exact in 32 bits.
        info = jnp.finfo(dtype)
        rounded = lambda x: jax.lax.reduce_precision(
            x.astype(accumulator), info.nexp, info.nmant
        )
        return multiply(rounded(a), rounded(b))

    if dtype == accumulator:
        return product(a, b)
    on_cpu = product_apart if has_fast_products(dtype) else product_of_rounded
    return jax.lax.platform_dependent(a, b, cpu=on_cpu, default=product)


def small_product(
    a: jax.Array, b: jax.Array, dtype: np.dtype, *, once: bool = False
) -> jax.Array:
    """Multiplies powers of X X^T, at least as precisely as `dtype`.

    They are symmetric, and so are their products.

    By default, TPUs would round the factors to bfloat16 and GPUs to TF32, which is too
    coarse for several steps in a row in float32. A large matrix in 16 bits is no finer
    than TF32, or three passes in bfloat16. So GPUs use the first for it, and TPUs the
    second. On an H100, TF32 is three to six times as fast as float32. On CPUs, three
    passes are no faster than float32.

    Args:
      once: Whether no other product of small matrices is in the stage. Then CPUs that
        multiply bfloat16 round the factors.
    """
    coarse = jnp.finfo(dtype).bits < 32
    precision = jax.lax.Precision.HIGH if coarse else jax.lax.Precision.HIGHEST
    product = functools.partial(jnp.matmul, precision=precision)
    if once and has_fast_products(dtype):
        on_cpu = functools.partial(large_product, dtype=dtype)
    elif a.shape[-1] >= SPLIT:
        turned = lambda a, b: product(a, b.mT)
        on_cpu = functools.partial(_by_halves, turned)
    else:
        return product(a, b)
    return jax.lax.platform_dependent(a, b, cpu=on_cpu, default=product)
