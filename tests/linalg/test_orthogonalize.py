"""Values of the kernel against SVD, SciPy, optax and linear programming; oracles."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax.contrib._muon as optax_muon
import pytest
import scipy.linalg
import scipy.optimize

from fedjax_muon.linalg import products as linalg_products
from fedjax_muon.linalg.lmo import euclidean, max_norm, spectral
from fedjax_muon.linalg.newton_schulz import (
    CUBIC,
    DION,
    JORDAN,
    POLAR_EXPRESS,
    QUINTIC,
    frobenius,
    gram,
    orthogonalize,
    plain,
    polar,
    rows,
    schatten8,
)
from fedjax_muon.linalg.products import WAYS, way_of
from tests.support import jaxprs


def gaussian(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def with_spectrum(values, long, seed=0):
    """A matrix of len(values) rows and `long` columns with these singular values."""
    n = len(values)
    u, _ = np.linalg.qr(gaussian((n, n), seed))
    v, _ = np.linalg.qr(gaussian((long, n), seed + 1))
    return (u * values) @ v.T


def scalar_map(s, schedule):
    for a, b, c in schedule:
        s = a * s + b * s**3 + c * s**5
    return s


def exact(x, schedule, power):
    """U p(S / ||S||_power) V^T in float64."""
    u, s, vt = np.linalg.svd(np.asarray(x, np.float64), full_matrices=False)
    return (u * scalar_map(s / np.linalg.norm(s, power), schedule)) @ vt


def distance(a, b):
    return np.linalg.norm(np.asarray(a, np.float64) - np.asarray(b, np.float64), 2)


def scipy_polar(x):
    x = np.asarray(x, np.float64)
    wide = x.shape[0] < x.shape[1]
    return scipy.linalg.polar(x.T)[0].T if wide else scipy.linalg.polar(x)[0]


# ------------------------------------------------------------------ exact results


SPECTRA = {
    "gaussian": gaussian((48, 160)),
    "1 to 1e-2": with_spectrum(np.logspace(0, -2, 48), 160),
    "1 to 1e-8": with_spectrum(np.logspace(0, -8, 48), 160),
    "half rank": with_spectrum(np.repeat([1.0, 0.0], 24), 160),
    "rank one": with_spectrum(np.eye(48)[0], 160),
}


@pytest.mark.parametrize(
    ("coefficients", "form", "normalization", "tolerance"),
    [
        (JORDAN, plain, frobenius, 1e-4),
        (DION, plain, frobenius, 1e-4),
        (QUINTIC, plain, frobenius, 1e-5),
        (CUBIC, plain, frobenius, 1e-5),
        (JORDAN, gram, frobenius, 1e-3),
        (DION, gram, frobenius, 1e-3),
        (POLAR_EXPRESS, gram, frobenius, 1e-3),
        (CUBIC, gram, frobenius, 2e-5),
        (JORDAN, plain, schatten8, 1e-4),
        (POLAR_EXPRESS, gram, schatten8, 1e-3),
        (QUINTIC, gram, schatten8, 2e-5),
    ],
)
def test_the_polynomial_acts_on_the_singular_values(
    coefficients, form, normalization, tolerance
):
    power = {frobenius: 2, schatten8: 8}[normalization]
    batch = np.stack([x.astype(np.float32) for x in SPECTRA.values()])
    found = orthogonalize(
        batch, coefficients=coefficients, form=form, normalization=normalization
    )
    for x, y in zip(batch, found, strict=True):
        assert distance(y, exact(x, rows(coefficients, 5), power)) <= tolerance


@pytest.mark.parametrize("form", [plain, gram])
def test_float64_is_computed_in_float64(form):
    with jax.enable_x64(True):
        x = SPECTRA["1 to 1e-2"]
        found = orthogonalize(jnp.asarray(x), form=form)
        assert found.dtype == jnp.float64
        assert distance(found, exact(x, JORDAN * 5, 2)) <= 1e-11


@pytest.mark.parametrize("shape", [(7, 12), (12, 7), (6, 6)])
def test_polar_equals_scipy(shape):
    x = jnp.asarray(gaussian((2, *shape)), jnp.float32)
    for matrix, found in zip(x, polar(x), strict=True):
        assert distance(found, scipy_polar(matrix)) <= 3e-6


@pytest.mark.slow
def test_the_derivative_is_that_of_the_function():
    options = {"form": gram, "normalization": schatten8, "steps": 2}
    with jax.enable_x64(True):
        x, direction = jnp.asarray(gaussian((2, 3, 5)))

        @jax.jit
        def along(t, x):
            y = orthogonalize(x + t * direction, **options)
            return jnp.sum(y * jnp.sin(jnp.arange(15.0).reshape(3, 5)))

        difference = (along(1e-5, x) - along(-1e-5, x)) / 2e-5
        slope, gradient = jax.jit(jax.grad(along, argnums=(0, 1)))(0.0, x)
        np.testing.assert_allclose(slope, difference, rtol=1e-7)
        np.testing.assert_allclose(jnp.sum(gradient * direction), slope, rtol=1e-12)
        at_zero = jax.grad(along, argnums=1)(0.0, 0 * x)
        assert np.all(np.isfinite(at_zero))


# ------------------------------------------------------------------ precision
def relative(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize(
    ("dtype", "form", "tolerance"),
    [
        (jnp.bfloat16, plain, 0.06),
        (jnp.bfloat16, gram, 0.02),
        (jnp.float16, plain, 0.01),
        (jnp.float16, gram, 0.01),
    ],
)
def test_sixteen_bits_stay_near_float32(dtype, form, tolerance):
    x = jnp.asarray(gaussian((64, 256)), jnp.float32)
    found = orthogonalize(x, dtype=dtype, form=form)
    assert found.dtype == jnp.float32
    error = relative(found, orthogonalize(x, dtype=jnp.float32))
    assert 1e-4 < error <= tolerance  # the lower bound: 16 bits were used at all


def test_small_matrices_of_the_gram_form_are_never_rounded_to_sixteen_bits():
    # Q and X X^T in bfloat16 give spectral norms of 40 here.
    x = with_spectrum(np.logspace(0, -8, 64), 256).astype(np.float32)
    found = orthogonalize(x, coefficients=POLAR_EXPRESS, dtype=jnp.bfloat16, form=gram)
    assert np.linalg.norm(found, 2) < 1.4


@pytest.fixture
def processor(request, monkeypatch):
    """A CPU with products of bfloat16 numbers, or without them."""
    jax.clear_caches()
    way = WAYS["avx512_bf16"] if request.param else None
    monkeypatch.setattr(linalg_products, "way_of", lambda: way)
    yield request.param
    jax.clear_caches()


@pytest.mark.skipif(
    jax.default_backend() != "cpu" or way_of() is None,
    reason="needs a CPU that multiplies bfloat16",
)
def test_tall_matrices_have_as_many_products_in_bfloat16_as_wide_ones():
    """XLA computes some in float32 if a transposed array keeps its layout."""

    def count(*shape):
        x = jax.ShapeDtypeStruct(shape, jnp.float32)
        text = jax.jit(orthogonalize).lower(x).compile().as_text()
        before = [part.partition(" dot(") for part in text.split("\n\n")]
        return sum(" dot(" in sep and "bf16[" in head for head, sep, _ in before)

    assert count(160, 80) == count(80, 160) > 0
    assert count(2, 160, 80) == count(2, 80, 160)


@pytest.mark.parametrize("processor", [True, False], indirect=True)
def test_products_in_bfloat16_on_cpus(processor):
    """Real ones where the processor has them, but for powers in longer stages. Results
    differ by rounding."""
    x = jnp.asarray(gaussian((16, 40)), jnp.float32)
    for form, fast, every in ((plain, 15, 15), (gram, 2 * 3 + 1, 17)):
        run = functools.partial(orthogonalize, dtype=jnp.bfloat16, form=form)
        found = jaxprs.products(jax.make_jaxpr(run)(x).jaxpr, "cpu")
        types = [equation.invars[0].aval.dtype for equation in found]
        assert types.count(jnp.bfloat16) == (fast if processor else 0)
        assert len(types) == every
        assert relative(run(x), orthogonalize(x, form=form)) < 0.05
        if form is (gram if processor else plain):  # the default
            given = orthogonalize(x, dtype=jnp.bfloat16)
            np.testing.assert_array_equal(given, run(x))
        for turned in (x.T, x.T[None], jnp.stack([x, 2 * x])):
            again = jax.jit(lambda x, run=run: run(x.mT).mT)(turned)
            assert again.shape == turned.shape
            np.testing.assert_allclose(again, run(turned), rtol=0, atol=0.02)


@pytest.mark.parametrize("processor", [True, False], indirect=True)
def test_the_default_type_on_cpus(processor):
    """Products of float32 matrices are in bfloat16 where they are fast, unless you ask
    for more."""

    def halves(shape, platform="cpu", dtype=jnp.float32, **options):
        run = functools.partial(orthogonalize, **options)
        traced = jax.make_jaxpr(run)(jnp.ones(shape, dtype)).jaxpr
        found = jaxprs.products(traced, platform)
        types = [equation.invars[0].aval.dtype for equation in found]
        assert set(types) <= {jnp.dtype(jnp.bfloat16), jnp.dtype(dtype)}
        return types.count(jnp.bfloat16)

    assert halves((64, 64)) == (15 if processor else 0)
    assert halves((3, 200, 64)) == (7 if processor else 0)
    assert halves((63, 200)) == halves((64, 64), "tpu") == 0
    assert halves((64, 64), steps=3) == (9 if processor else 0)
    for asked in ("float32", "highest", "tensorfloat32"):
        with jax.default_matmul_precision(asked):
            assert halves((64, 64)) == 0
    with jax.default_matmul_precision("bfloat16"):
        assert halves((64, 64)) == (15 if processor else 0)
    run = functools.partial(orthogonalize, dtype=jnp.float32)
    types = jaxprs.products(jax.make_jaxpr(run)(jnp.ones((64, 64))).jaxpr, "cpu")
    assert {one.invars[0].aval.dtype for one in types} == {jnp.dtype(jnp.float32)}
    with jax.enable_x64(True):
        assert halves((64, 64), dtype=jnp.float64) == 0


@pytest.mark.parametrize(
    ("shape", "form"),
    [((513, 515), plain), ((1024, 1030), gram), ((2, 512, 512), None)],
)
def test_symmetric_products_by_halves(shape, form):
    """From 512 rows on, on CPUs, whose corner is computed once at every level."""
    run = functools.partial(orthogonalize, steps=2, form=form, dtype=jnp.float32)
    traced = jax.make_jaxpr(run)(jnp.ones(shape)).jaxpr
    count = {
        platform: len(jaxprs.products(traced, platform)) for platform in ("cpu", "tpu")
    }
    blocks, symmetric, other = {513: (3, 4, 2), 1024: (7, 6, 1), 2: (3, 4, 2)}[shape[0]]
    assert count == {"cpu": blocks * symmetric + other, "tpu": symmetric + other}
    with jax.enable_x64(True):
        x = gaussian(shape)
        found = np.asarray(orthogonalize(jnp.asarray(x), steps=2, form=form))
        whole = np.asarray(exact(x[0] if x.ndim > 2 else x, rows(JORDAN, 2), 2))
        np.testing.assert_allclose(found[0] if x.ndim > 2 else found, whole, atol=1e-12)


def test_features_of_processors(tmp_path):
    """The first row of flags; no file, as on macOS, or no such row, as on Arm."""
    path = tmp_path / "cpuinfo"
    assert way_of(path) is None
    for number, (row, expected) in enumerate(
        {
            "flags\t\t: fpu avx512_bf16 amx_tile": WAYS["avx512_bf16"],
            "flags : fpu avx512_bf16 amx_bf16": WAYS["amx_bf16"],
            "flags : fpu avx512f avx_vnni": None,
            "Features : fp asimd bf16": None,
        }.items()
    ):
        path = tmp_path / str(number)
        path.write_text(f"processor : 0\n{row}\nbugs :\n")
        assert way_of(path) is expected


@pytest.mark.parametrize("shape", [(2, 3, 200, 66), (5, 90, 70), (300, 64)])
def test_amx_takes_matrices_one_by_one_in_single_steps(shape, monkeypatch):
    """With the numbers that they have alone; up to an aspect of 4, stages are short."""
    x = jnp.asarray(gaussian(shape), jnp.float32)
    way = WAYS["avx512_bf16"]  # also where the products of this machine are slow
    monkeypatch.setattr(linalg_products, "way_of", lambda: way)
    jax.clear_caches()
    plain_on_cpu = functools.partial(orthogonalize, form=plain)
    matrices = [*x.reshape(-1, *shape[-2:])]
    alone = jnp.stack([*map(jax.jit(plain_on_cpu), matrices)]).reshape(shape)
    gram_alone = jax.jit(functools.partial(orthogonalize, form=gram))(x)
    monkeypatch.setattr(linalg_products, "way_of", lambda: WAYS["amx_bf16"])
    jax.clear_caches()
    found = jax.jit(lambda x: orthogonalize(x))(x)
    jax.clear_caches()
    long_stages = shape[-2] > 4 * shape[-1]
    expected = gram_alone if long_stages else alone
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sixteen_bit_matrices_are_computed_in_float32_by_default(dtype):
    x = jnp.asarray(gaussian((6, 20)), dtype)
    found = orthogonalize(x)
    assert found.dtype == dtype
    expected = orthogonalize(x.astype(jnp.float32)).astype(dtype)
    np.testing.assert_array_equal(found, expected)


# ------------------------------------------------------------------ coefficients
def test_dion_is_optax_preset():
    preset = optax_muon._NS_COEFFS_PRESET_DICT
    assert np.array_equal(DION, preset["dion"])
    assert np.array_equal(JORDAN[0], preset["standard"])


def test_dion_brings_singular_values_above_a_hundredth_near_one():
    range_ = scalar_map(np.linspace(1e-2, 1, 100_001), DION)
    assert np.abs(range_ - 1).max() < 0.033


def minimax_quintic(low, high):
    """The odd quintic nearest to 1 on [low, high], by linear programming."""
    s = np.linspace(low, high, 4000)
    powers = np.stack([s, s**3, s**5], axis=1)
    error = np.ones((len(s), 1))
    result = scipy.optimize.linprog(
        [0, 0, 0, 1],
        A_ub=np.block([[powers, -error], [-powers, -error]]),
        b_ub=np.concatenate([np.ones(len(s)), -np.ones(len(s))]),
        bounds=[(None, None)] * 4,
    )
    return result.x[:3]


def test_polar_express_rows_are_the_minimax_polynomials():
    # arXiv:2505.16932, Algorithm 1 with l = 1e-3: each row is optimal on the interval
    # that the previous ones map to, cushioned below (Section 3.4) and then centred.
    low, high = 1e-3, 1.0
    uncushioned = lambda row: np.multiply(row, 1.01 ** np.arange(1, 6, 2))
    for row in POLAR_EXPRESS[:5]:
        best = minimax_quintic(max(low, 0.02407327424182761 * high), high)
        ends = scalar_map(np.array([low, high]), [best])
        best *= 2 / ends.sum()
        np.testing.assert_allclose(uncushioned(row), best, 1e-3)
        low = ends[0] * 2 / ends.sum()
        high = 2 - low
    # Nearly converged, the optimum is the quintic that is flat at 1.
    np.testing.assert_allclose(uncushioned(POLAR_EXPRESS[6]), QUINTIC[0], 1e-5)
    assert POLAR_EXPRESS[7] == QUINTIC[0]


def test_rows():
    assert rows(JORDAN, 3) == JORDAN * 3
    assert rows(JORDAN, 0) == ()
    assert rows(DION, 5) == DION
    assert rows(POLAR_EXPRESS, 3) == POLAR_EXPRESS[:3]
    assert rows(POLAR_EXPRESS, np.int64(10)) == POLAR_EXPRESS + QUINTIC * 2
    assert rows([np.array(JORDAN[0])], 1) == JORDAN


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 2, 3), (2, 0, 0)])
def test_empty_matrices_are_returned(shape):
    assert orthogonalize(jnp.ones(shape)).shape == shape
    assert polar(jnp.ones(shape)).shape == shape


# ------------------------------------------- the oracles, against their definition

exact_spectral = functools.partial(spectral, orthogonalize=polar)

# oracle, norm of its ball, dual norm
ORACLES = {
    "spectral": (
        exact_spectral,
        lambda d: np.linalg.norm(d, 2),
        lambda g: np.linalg.norm(g, "nuc"),
    ),
    "euclidean": (euclidean, np.linalg.norm, np.linalg.norm),
    "max norm": (max_norm, lambda d: np.abs(d).max(), lambda g: np.abs(g).sum()),
}


@pytest.mark.parametrize("name", ORACLES)
def test_minimizes_over_the_unit_ball(name):
    oracle, norm, dual = ORACLES[name]
    with jax.enable_x64(True):
        g = gaussian((5, 8))
        d = np.asarray(oracle(g))
        np.testing.assert_allclose(norm(d), 1, rtol=1e-12)
        np.testing.assert_allclose(np.sum(g * d), -dual(g), rtol=1e-12)
        for seed in range(1, 50):
            other = gaussian((5, 8), seed)
            assert np.sum(g * other) / norm(other) >= np.sum(g * d)


@pytest.mark.parametrize("oracle", [spectral, exact_spectral, euclidean, max_norm])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_zero_scale_and_type(oracle, dtype):
    g = jnp.asarray(gaussian((5, 8)), dtype)
    d = oracle(g)
    assert d.dtype == dtype
    assert not np.any(oracle(0 * g))
    # Powers of two near the ends of the range, where squares overflow or vanish.
    for exponent in (120, -100):
        scaled = oracle(jnp.ldexp(g, exponent)).astype(jnp.float32)
        np.testing.assert_allclose(scaled, d.astype(jnp.float32), atol=1e-6)


@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 4), (0,), (0, 3)])
def test_euclidean_and_max_norm_take_any_rank(shape):
    g = jnp.asarray(gaussian(shape), jnp.float32)
    expected = -g / (np.linalg.norm(g.ravel()) if g.size else 1)
    np.testing.assert_allclose(euclidean(g), expected, rtol=1e-6)
    np.testing.assert_array_equal(max_norm(g), -np.sign(g))


def test_euclidean_never_hides_a_non_finite_entry():
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        assert np.all(np.isnan(euclidean(jnp.array([1.0, bad, 0.0]))))


def test_spectral_is_minus_orthogonalize_and_with_zero_steps_the_euclidean_oracle():
    g = jnp.asarray(gaussian((5, 8)), jnp.float32)
    np.testing.assert_array_equal(spectral(g), -orthogonalize(g))
    # Muon with T = 0 is normalised gradient descent (arXiv:2509.26337).
    none = functools.partial(orthogonalize, steps=0)
    np.testing.assert_allclose(spectral(g, none), euclidean(g), atol=1e-6)


# ------------------------------------- the theory of inexact orthogonalization
def matrices():
    """Random 5 x 8 matrices: all ranks, condition numbers from 1 to 1e6."""
    rng = np.random.default_rng(0)
    batch = []
    for rank in range(1, 6):
        for decades in (0, 0.5, 2, 6):
            u = np.linalg.qr(rng.normal(size=(5, 5)))[0][:, :rank]
            v = np.linalg.qr(rng.normal(size=(8, 8)))[0][:, :rank]
            s = 10 ** (-decades * rng.uniform(size=rank))
            batch.append(rng.normal() * (u * s) @ v.T)
    return np.stack(batch)


def nonzero_singular_values(x):
    s = np.linalg.svd(x, compute_uv=False)
    return s[s > 1e-12 * s[0]]


def exponent(kappa, steps):
    """p of arXiv:2509.26337, Lemma 12, from kappa = s_min / s_max over non-zero s."""
    if kappa > 1 - 1e-9:
        return 1.0
    return 1 + np.log(1 - (1 - kappa) ** (1.5**steps)) / np.log(kappa)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1, 2, 4, 8])
def test_inexact_orthogonalization_is_between_two_schatten_norms(steps):
    # arXiv:2509.26337, Lemma 12: ||G||_p <= <G, G^(T)> <= ||G||_1, ||G^(T)||_2 <= 1.
    with jax.enable_x64(True):
        batch = matrices()
        results = np.asarray(orthogonalize(batch, coefficients=QUINTIC, steps=steps))
    for g, result in zip(batch, results, strict=True):
        s = nonzero_singular_values(g)
        tolerance = 1e-8 * s.sum()
        # The Frobenius norm stands in for the spectral one, hence its kappa.
        lower = np.linalg.norm(s, exponent(s[-1] / np.linalg.norm(s), steps))
        assert lower - tolerance <= np.sum(g * result) <= s.sum() + tolerance
        assert np.linalg.norm(result, 2) <= 1 + 1e-12


def test_the_quintic_lies_between_the_identity_and_one():
    # arXiv:2509.26337, proof of Theorem 3: 1 - p(s) = (1 - s)^3 (1 + 9/8 s + 3/8 s^2)
    a, b, c = QUINTIC[0]
    s = np.linspace(0, 1, 1001)
    p = a * s + b * s**3 + c * s**5
    formula = (1 - s) ** 3 * (1 + 9 / 8 * s + 3 / 8 * s**2)
    np.testing.assert_allclose(1 - p, formula, atol=1e-15)
    assert np.all(p >= s)
    assert np.all(1 - p <= (1 - s) ** 1.5 + 1e-15)
    assert np.all(np.diff(p) >= -1e-15)
