"""Products of Newton-Schulz steps, with the precision that each of them needs."""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

# Features of x86 processors that multiply numbers in bfloat16, which XLA uses for
# products with results in float32.
BFLOAT16 = {"amx_bf16", "avx512_bf16"}


@functools.cache
def multiplies_bfloat16(features: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this machine's CPU has products of bfloat16 numbers.

    Programs for CPUs depend on it: `dtype=bfloat16` has other bits on other processors.
    """
    try:
        flags = re.search(r"^flags\s*:(.*)$", features.read_text(), re.MULTILINE)
    except OSError:  # of systems without this file
        return False
    return flags is not None and not BFLOAT16.isdisjoint(flags[1].split())


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
    return _product(x, x, dtype, -1)


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
        return apart(product(*apart((a, b))))

    def product_of_rounded(a: jax.Array, b: jax.Array) -> jax.Array:
        # The product of two 16-bit numbers is exact in 32 bits.
        info = jnp.finfo(dtype)
        rounded = lambda x: jax.lax.reduce_precision(
            x.astype(accumulator), info.nexp, info.nmant
        )
        return multiply(rounded(a), rounded(b))

    if dtype == accumulator:
        return product(a, b)
    is_fast = dtype == jnp.bfloat16 and multiplies_bfloat16()
    on_cpu = product_apart if is_fast else product_of_rounded
    return jax.lax.platform_dependent(a, b, cpu=on_cpu, default=product)


def small_product(
    a: jax.Array, b: jax.Array, dtype: np.dtype, *, once: bool = False
) -> jax.Array:
    """Multiplies matrices on the short side, at least as precisely as `dtype`.

    By default, TPUs would round the factors to bfloat16 and GPUs to TF32, which is too
    coarse for several steps in a row in float32. A large matrix in 16 bits is no finer
    than TF32, or three passes in bfloat16. So GPUs use the first for it, and TPUs and
    CPUs that multiply bfloat16 the second. On an H100, TF32 is three to six times as
    fast as float32.

    Args:
      once: Whether no other product of small matrices is in the stage. Then one pass is
        enough on CPUs.
    """
    coarse = jnp.finfo(dtype).bits < 32
    precision = jax.lax.Precision.HIGH if coarse else jax.lax.Precision.HIGHEST
    product = functools.partial(jnp.matmul, precision=precision)
    if dtype != jnp.bfloat16 or not multiplies_bfloat16():
        return product(a, b)
    passes = large_product if once else _three_passes
    return jax.lax.platform_dependent(
        a, b, cpu=functools.partial(passes, dtype=dtype), default=product
    )


def _three_passes(a: jax.Array, b: jax.Array, dtype: np.dtype) -> jax.Array:
    """The product of float32 matrices as those of their parts in 16 bits."""

    def split(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        info = jnp.finfo(dtype)
        high = jax.lax.reduce_precision(x, info.nexp, info.nmant)
        return high, x - high

    multiply = functools.partial(large_product, dtype=dtype)
    (a, a_low), (b, b_low) = split(a), split(b)
    return multiply(a, b) + (multiply(a, b_low) + multiply(a_low, b))
