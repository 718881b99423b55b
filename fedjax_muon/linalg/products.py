"""Products of Newton-Schulz steps, with the precision that each of them needs."""

import jax
import jax.numpy as jnp
import numpy as np


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
    accumulator = jnp.promote_types(dtype, jnp.float32)

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(
            a.astype(dtype), b.astype(dtype), preferred_element_type=accumulator
        )

    def product_of_rounded(a: jax.Array, b: jax.Array) -> jax.Array:
        info = jnp.finfo(dtype)
        rounded = lambda x: jax.lax.reduce_precision(
            x.astype(accumulator), info.nexp, info.nmant
        )
        return jnp.matmul(rounded(a), rounded(b))

    if dtype == accumulator:
        return product(a, b)
    # XLA:CPU fails on products of 16-bit numbers in some layouts, such as those of tall
    # matrices. The product of two such numbers is exact in 32 bits.
    return jax.lax.platform_dependent(a, b, cpu=product_of_rounded, default=product)


def small_product(a: jax.Array, b: jax.Array, dtype: np.dtype) -> jax.Array:
    """Multiplies matrices on the short side, at least as precisely as `dtype`.

    By default, TPUs would round the factors to bfloat16 and GPUs to TF32, which is too
    coarse for several steps in a row in float32. A large matrix in 16 bits is no finer
    than TF32, or three passes in bfloat16. So GPUs use the first for it, and TPUs the
    second. On an H100, TF32 is three to six times as fast as float32.
    """
    coarse = jnp.finfo(dtype).bits < 32
    precision = jax.lax.Precision.HIGH if coarse else jax.lax.Precision.HIGHEST
    return jnp.matmul(a, b, precision=precision)
