"""Newton-Schulz orthogonalization of batches of matrices: the kernel of Muon.

With the singular value decomposition X = U S V^T, T steps with coefficients
(a_t, b_t, c_t) and a normalizing factor r <= 1 / ||X||_2 compute

    U p(r S) V^T,  p = p_T o ... o p_1,  p_t(s) = a_t s + b_t s^3 + c_t s^5,

which approaches the polar factor U V^T by matrix products alone (Jordan et al.,
"Muon: An optimizer for hidden layers in neural networks", 2024). Every step is
X <- W X with W = a I + b A + c A^2 and A = X X^T, on the shorter side of X. Since W
and A commute, k consecutive steps need the large matrix only at the first and the last
("Gram Newton-Schulz", Dao-AILab 2026):

    Q <- Q W,  A <- W A W  (k times),  then  X <- Q X.

These steps form a *stage*, and a *form* divides the schedule into stages: `plain` into
single steps, `gram` into the longest stages that rounding errors allow.
"""

import functools
import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from fedjax_muon.linalg.products import (
    default_on_cpus,
    large_product,
    outer_product,
    prescaled,
    row_major,
    small_product,
    way_in,
)

Coefficients = tuple[tuple[float, float, float], ...]
Form = Callable[[Coefficients, np.dtype], tuple[Coefficients, ...]]
Normalization = Callable[[jax.Array], jax.Array]

# Jordan et al. 2024. p is steepest at zero and does not converge: it stays below
# 1.2024, and most singular values end in [0.68, 1.13]. ||output||_2 <= 1 does not hold.
JORDAN: Coefficients = ((3.4445, -4.7750, 2.0315),)

# Takezawa et al., arXiv:2509.26337, Theorem 3: p increases from p(0) = 0 to p(1) = 1,
# so ||output||_2 <= 1 after any number of steps, and p -> 1 cubically.
QUINTIC: Coefficients = ((15 / 8, -5 / 4, 3 / 8),)

# The classical Newton-Schulz iteration (Higham, "Functions of Matrices", eq. 8.20).
CUBIC: Coefficients = ((1.5, -0.5, 0.0),)

# The five rows of Dion (arXiv:2504.05295), optax's preset "dion".
DION: Coefficients = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)

# Amsel et al., "The Polar Express", arXiv:2505.16932, Appendix A: the minimax optimal
# composition for singular values in [1e-3, 1]; the safety factor 1.01 divides the
# argument of every row but the last.
POLAR_EXPRESS: Coefficients = (
    *(
        (a / 1.01, b / 1.01**3, c / 1.01**5)
        for a, b, c in (
            (8.28721201814563, -23.595886519098837, 17.300387312530933),
            (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
            (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
            (3.3184196573706015, -2.488488024314874, 0.51004894012372),
            (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
            (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
            (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
        )
    ),
    (1.875, -1.25, 0.375),
)


def rows(coefficients: Coefficients, steps: int) -> Coefficients:
    """Selects the rows of the steps that are executed.

    One row is repeated. Several rows whose last row has p(1) = 1 are truncated, or
    continued with their last row. Any other set is a schedule of fixed length.

    Example:
      >>> rows(CUBIC, 2)
      ((1.5, -0.5, 0.0), (1.5, -0.5, 0.0))
    """
    if not isinstance(steps, int | np.integer) or steps < 0:
        raise ValueError(f"steps must be an integer >= 0, got {steps!r}")
    shapes = [np.shape(row) for row in coefficients]
    if set(shapes) != {(3,)} or not np.all(np.isfinite(coefficients)):
        raise ValueError(
            "coefficients must be one or more rows of three finite numbers (a, b, c), "
            f"got {coefficients!r}"
        )
    table = tuple((float(a), float(b), float(c)) for a, b, c in coefficients)
    converges = math.isclose(sum(table[-1]), 1.0, abs_tol=1e-9)
    if len(table) == 1 or converges:
        return (table + table[-1:] * steps)[:steps]
    if len(table) != steps:
        raise ValueError(
            f"these coefficients are a schedule of exactly {len(table)} steps, got "
            f"steps={steps}; pass steps={len(table)} or other coefficients"
        )
    return table


def plain(schedule: Coefficients, dtype: np.dtype) -> tuple[Coefficients, ...]:
    """Makes every step a stage: two products with the large matrix per step."""
    del dtype
    return tuple((row,) for row in schedule)


def gram(schedule: Coefficients, dtype: np.dtype) -> tuple[Coefficients, ...]:
    """Combines several steps in a stage, as many as rounding errors allow.

    Within a stage rounding makes A indefinite, and Q amplifies the error by the product
    of the a_t. A new stage, which starts from X, limits it. In float32 the first stage
    has two steps and later ones three, or two if there are more than five steps. This
    keeps the result within 1e-3 of the exact one in spectral norm for up to eight steps
    of all coefficients in this module. For 16-bit matrices the first stage has one step
    and later ones two.
    """
    low_precision = jnp.finfo(dtype).bits < 32
    first = 1 if low_precision else 2
    size = 3 if len(schedule) <= 5 and not low_precision else 2
    cuts = (0, *range(first, len(schedule), size), len(schedule))
    return tuple(schedule[i:j] for i, j in itertools.pairwise(cuts) if i < j)


def frobenius(outer: jax.Array) -> jax.Array:
    """Computes r = 1 / ||X||_F from A = X X^T.

    Returns:
      r, shape [...]; 0 for A = 0.
    """
    square = jnp.trace(outer, axis1=-2, axis2=-1)
    is_zero = square == 0
    return jnp.where(is_zero, 0, jax.lax.rsqrt(jnp.where(is_zero, 1, square)))


def schatten8(outer: jax.Array) -> jax.Array:
    """Computes r = 1 / ||X||_S8 = ||A^2||_F^(-1/4) from A = X X^T.

    The Schatten-8 norm is a tighter upper bound of ||X||_2 than the Frobenius norm: at
    most n^(1/8) times as large, instead of n^(1/2). In float32 it is free of cost,
    since the first step needs A^2 anyway.

    Returns:
      r, shape [...]; 0 for A = 0.
    """
    scale = frobenius(outer)
    # Relative to the trace, so that large matrices do not overflow.
    square = small_product(outer, outer, outer.dtype) * scale[..., None, None] ** 4
    total = jnp.sum(square**2, axis=(-2, -1))
    is_zero = total == 0
    root = jnp.where(is_zero, 1, total) ** -0.125
    # Rounding must not turn the bound into an underestimate.
    margin = 1 - 16 * float(jnp.finfo(outer.dtype).eps)
    return jnp.where(is_zero, 0, margin * scale * root)


def orthogonalize(
    x: ArrayLike,
    *,
    coefficients: Coefficients = JORDAN,
    steps: int = 5,
    form: Form | None = None,
    normalization: Normalization = frobenius,
    dtype: DTypeLike | None = None,
) -> jax.Array:
    """Computes U p(r S) V^T of every matrix U S V^T; see the module's docstring.

    Zero singular values stay zero, so a zero matrix gives zeros and padding with zeros
    changes nothing. The result does not depend on the scale of a matrix: it is
    bit-identical for powers of two, if no entry overflows or is subnormal. A NaN or an
    infinity makes its own matrix NaN; the other matrices of the batch are unaffected.

    Args:
      x: Floating-point array [..., m, n]; leading axes are batch axes.
      coefficients: Rows (a, b, c), expanded by `rows`.
      steps: T, the number of steps; 0 only normalizes.
      form: `plain`, `gram`, or any function that divides the rows into stages. The
        default is `gram` where it is faster and safe: on CPUs whose products are fast,
        for matrices more than 1.5 times as long as wide, and 4 times with AMX, which
        also takes the matrices of a stack one by one. On accelerators a
        product of small matrices in float32 costs up to six times as much as one of
        large matrices in the default precision, and the default is `plain`.
      normalization: `frobenius` (as in the papers), `schatten8`, or any function from
        X X^T to a factor r <= 1 / ||X||_2, where the largest entry of X is about 1.
      dtype: Type of the large matrix inside the products. The default is that of `x`,
        but at least float32. Products then have JAX's default precision: TF32 on GPUs,
        bfloat16 on TPUs, and also bfloat16 on CPUs that multiply it (features
        `amx_bf16` and `avx512_bf16`), for matrices of 64 rows and columns or more. So
        bits differ between processors. `dtype=jnp.float32` on CPUs, and
        `jax.default_matmul_precision("float32")` everywhere, keep float32.

        Accumulators, X X^T and its powers have float32 or better, except that with a
        16-bit type GPUs compute the powers in TF32, TPUs in three passes in bfloat16,
        and CPUs that multiply bfloat16 do so in stages of one step. Other CPUs round
        the large matrix and multiply in float32. Powers ignore
        `jax.default_matmul_precision`.
    """
    x = _checked(x)
    own = jnp.dtype(jnp.promote_types(x.dtype, jnp.float32))
    compute = own if dtype is None else jnp.dtype(dtype)
    if not jnp.issubdtype(compute, jnp.floating):
        raise TypeError(f"dtype must be a floating-point type, got {compute}")
    schedule = rows(coefficients, steps)
    short, long = sorted(x.shape[-2:])
    if x.size == 0:
        return x

    def run(form: Form, compute: np.dtype, x: jax.Array) -> jax.Array:
        return _newton_schulz(x, form(schedule, compute), normalization, compute)

    def one_by_one(form: Form, compute: np.dtype, x: jax.Array) -> jax.Array:
        one = functools.partial(run, form, compute)
        return jax.lax.map(one, x.reshape(-1, *x.shape[-2:])).reshape(x.shape)

    cpus = default_on_cpus(own, short) if dtype is None else compute
    way = way_in(cpus)
    long_stages = way is not None and long > way.aspect * short
    on_cpu = form or (gram if long_stages else plain), cpus
    default = form or plain, compute
    apart = way is not None and way.apart and math.prod(x.shape[:-2]) > 1
    if on_cpu == default and not apart:
        return run(*default, x)
    return jax.lax.platform_dependent(
        x,
        cpu=functools.partial(one_by_one if apart else run, *on_cpu),
        default=functools.partial(run, *default),
    )


def polar(x: ArrayLike) -> jax.Array:
    """Computes the exact polar factor U V^T over the non-zero singular values, by SVD.

    It is many times slower than `orthogonalize`. Use it for small problems and as a
    reference. Singular values below max(m, n) eps times the largest one count as zero,
    where eps is the machine epsilon.
    """
    x = _checked(x)
    if x.size == 0:
        return x
    work = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    u, s, vt = jnp.linalg.svd(work, full_matrices=False)
    noise = max(x.shape[-2:]) * jnp.finfo(work.dtype).eps * s[..., :1]
    kept = jnp.where(s > noise, 1, 0).astype(work.dtype)
    exact = jax.lax.Precision.HIGHEST
    return jnp.matmul(u * kept[..., None, :], vt, precision=exact).astype(x.dtype)


def _checked(x: ArrayLike) -> jax.Array:
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(
            f"only real floating-point matrices have this map, got {x.dtype}"
        )
    if x.ndim < 2:
        raise ValueError(
            f"needs matrices, shape (..., m, n), got shape {x.shape}; reshape it, or "
            "send vectors and scalars to another rule"
        )
    return x


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _newton_schulz(
    x: jax.Array,
    stages: tuple[Coefficients, ...],
    normalization: Normalization,
    dtype: np.dtype,
) -> jax.Array:
    is_tall = x.shape[-2] > x.shape[-1]
    wide = prescaled(row_major(x.mT if is_tall else x, dtype))
    outer = outer_product(wide, dtype)
    scale = normalization(outer)[..., None, None]
    if stages:
        first = _polynomial(outer, stages[0], scale, dtype)
        wide = large_product(first, wide, dtype)
    else:
        wide = scale * wide
    for stage in stages[1:]:
        outer = outer_product(wide, dtype)
        wide = large_product(_polynomial(outer, stage, 1.0, dtype), wide, dtype)
    return (wide.mT if is_tall else wide).astype(x.dtype)


def _polynomial(
    outer: jax.Array, stage: Coefficients, scale: jax.Array | float, dtype: np.dtype
) -> jax.Array:
    """Q such that Q X is X after the steps of `stage` on `scale` X; outer = X X^T."""
    n = outer.shape[-1]
    identity = jnp.eye(n, dtype=outer.dtype).reshape((1,) * (outer.ndim - 2) + (n, n))
    product = functools.partial(small_product, dtype=dtype, once=len(stage) == 1)
    factors: list[jax.Array] = []
    for a, b, c in stage:
        if factors:
            outer = product(factors[-1], product(outer, factors[-1]))
            outer = (outer + outer.mT) / 2  # halves the error of long stages
            scale = 1.0
        # p(r s) = (a r) s + (b r^3) s^3 + (c r^5) s^5 needs no pass over X to scale it.
        factor = a * scale * identity + b * scale**3 * outer
        if c != 0:
            factor += c * scale**5 * product(outer, outer)
        factors.append(factor)
    return functools.reduce(product, factors)
