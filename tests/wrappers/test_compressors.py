"""Compressors of single arrays against NumPy in float64, and their bytes."""

import math
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon.core import tree
from fedjax_muon.wrappers.compression import (
    bins,
    chunked_top_k,
    memory_share,
    no_compression,
    power_iteration,
    quantize,
    rank_share,
    top_k,
    truncated_svd,
)
from tests.oracles.compression import (
    blockwise,
    grid_codes,
    into_bins,
    largest,
    low_rank,
    memory_rank,
    on_grid,
    packed,
    rank_rank,
)
from tests.support.traces import precision

KEY = jax.random.key(3)
KEYS = list(jax.random.split(KEY, 300))
OF_MATRICES = {"svd": truncated_svd, "power": power_iteration}


def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def across(compressor, x, key=KEY):
    """What arrives of x."""
    return compressor.decode(compressor.encode(x, key), like(x))


@partial(jax.jit, static_argnums=0)
def compiled(compressor, x, key=KEY):
    """What travels, and what arrives."""
    sent = compressor.encode(x, key)
    return sent, compressor.decode(sent, like(x))


def as_matrix(x):
    return x.reshape(-1, x.shape[-1])


def normal(shape, seed=0):
    return np.asarray(np.random.default_rng(seed).normal(size=shape))


def with_spectrum(shape, spectrum, seed=0):
    """A matrix of random singular vectors with these singular values."""
    u = np.linalg.qr(normal((shape[0], len(spectrum)), seed))[0]
    v = np.linalg.qr(normal((shape[1], len(spectrum)), seed + 1))[0]
    return (u * spectrum) @ v.T


def apart(got, want):
    """Relative error in the Euclidean norm; absolute where `want` is 0."""
    got, size = np.asarray(got, np.float64), np.linalg.norm(want)
    assert got.shape == want.shape
    return np.linalg.norm(got - want) / (size if size > 0 else 1)


# ----------------------------------------------------------------------- low rank
@pytest.mark.parametrize(
    ("shape", "rank"),
    [((40, 6), 1), ((40, 6), 6), ((5, 30), 2), ((1, 7), 1), ((3, 3, 4, 9), 4)],
    ids=str,
)
def test_svd_is_the_nearest_matrix_of_its_rank(shape, rank):
    x = normal(shape) * 0.7 ** np.arange(shape[-1])  # no two values are close
    m, n = as_matrix(x).shape
    (u, s, v), got = compiled(truncated_svd(rank), jnp.asarray(x, jnp.float32))
    assert apart(got, low_rank(x, rank)) <= 1e-5
    assert (u.shape, s.shape, v.shape) == ((m, rank), (rank,), (n, rank))
    values = np.linalg.svd(as_matrix(x), compute_uv=False)
    np.testing.assert_allclose(s, values[:rank], rtol=1e-5)
    assert (apart(got, x) <= 1e-5) == (rank == min(m, n))


@pytest.mark.parametrize("make", OF_MATRICES.values(), ids=OF_MATRICES)
def test_matrices_of_no_more_than_the_rank_arrive_whole(make):
    for room in (2, 7):
        for rank in range(3):
            x = normal((12, rank), 1) @ normal((rank, 7), 2)
            got = across(make(room), jnp.asarray(x.reshape(2, 6, 7), jnp.float32))
            assert apart(got, x.reshape(2, 6, 7)) <= 1e-5


@pytest.mark.slow
def test_power_iteration_is_almost_nearest():
    # in units of what the nearest matrix loses, the mean over starts
    x = with_spectrum((20, 30), 0.5 ** np.arange(10))
    best = np.linalg.norm(x - low_rank(x, 3))
    losses = []
    for iterations in (1, 2, 3, 6):
        send = partial(across, power_iteration(3, iterations=iterations))
        got = [send(jnp.asarray(x, jnp.float32), key) for key in KEYS[:50]]
        lost = np.linalg.norm(np.asarray(got, np.float64) - x, axis=(1, 2)) / best
        assert np.all(lost >= 1 - 1e-5)
        losses.append(lost.mean())
    assert losses == sorted(losses, reverse=True)
    assert losses[1] <= 1.15
    assert losses[2] <= 1.05
    assert losses[3] <= 1.001


@pytest.mark.parametrize("iterations", [1, 2])
def test_power_iteration_projects_on_an_orthonormal_basis(iterations):
    x = jnp.asarray(normal((3, 3, 4, 9)), jnp.float32)
    compressor = power_iteration(5, iterations=iterations)
    p, q = compressor.encode(x, KEY)
    assert (p.shape, q.shape) == ((36, 5), (9, 5))
    np.testing.assert_allclose(p.T @ p, np.eye(5), atol=1e-5)
    near = np.asarray(p, np.float64) @ np.asarray(p, np.float64).T @ as_matrix(x)
    assert apart(across(compressor, x), near.reshape(x.shape)) <= 1e-5


def test_every_iteration_applies_the_matrix_twice():
    with jax.enable_x64(True):
        x = normal((9, 6))
        basis = lambda k: power_iteration(2, iterations=k).encode(jnp.asarray(x), KEY)
        first = np.asarray(basis(1)[0])
        for k in (2, 3, 4):
            spanned = np.linalg.qr(np.linalg.matrix_power(x @ x.T, k - 1) @ first)[0]
            got = np.asarray(basis(k)[0])
            np.testing.assert_allclose(got @ got.T, spanned @ spanned.T, atol=1e-10)


# ------------------------------------------------------------------------- ranks

SIZES = [*range(1, 34), 64, 100, 256, 400, 512, 784, 1000, 4608]


@pytest.mark.parametrize("share", ["0.01", "0.05", "0.1", "0.25", "0.5", "1"])
def test_ranks_are_those_of_the_paper(share):
    memory, rank = memory_share(float(share)), rank_share(float(share))
    part = Fraction(share)
    for m in SIZES:
        for n in SIZES:
            q = memory(m, n)
            assert q == max(1, math.floor(part * m * n / (m + n + 1)))
            assert q == 1 or q * (m + n + 1) <= part * m * n
            assert rank(m, n) == max(1, math.ceil(part * min(m, n)))
            assert 1 <= q <= min(m, n)
            if max(m, n) <= 33:
                assert q == memory_rank(share, m, n)
                assert rank(m, n) == rank_rank(share, m, n)


@pytest.mark.parametrize("make", OF_MATRICES.values(), ids=OF_MATRICES)
def test_a_rank_may_depend_on_the_shape(make):
    for shape in [(24, 10), (3, 4, 10)]:
        x = jnp.asarray(normal(shape), jnp.float32)
        m, n = as_matrix(x).shape
        for rank in (memory_share(0.5), rank_share(0.3), lambda rows, cols: cols // 5):
            first, *_ = jax.eval_shape(make(rank).encode, x, KEY)
            assert first.shape == (m, rank(m, n))


# --------------------------------------------------------------- the largest entries
@pytest.mark.parametrize("shape", [(3, 4, 9), (11,), ()], ids=str)
@pytest.mark.parametrize("share", [1e-6, 0.13, 0.72, 1.0])
def test_top_k_keeps_the_largest_magnitudes(shape, share):
    x = normal(shape).astype(np.float32)
    _, got = compiled(top_k(share), jnp.asarray(x))
    np.testing.assert_array_equal(got, largest(share)(x))
    if share == 1:
        np.testing.assert_array_equal(got, x)


def test_top_k_at_ties():
    x = np.array([[2.0, -2, 1, 2], [-3, 0.5, -2, 2]], np.float32)
    for count in (1, 2, 4, 5, 8):
        (values, places), got = compiled(top_k(count / 8), jnp.asarray(x))
        assert np.count_nonzero(got) == len(values) == count
        assert len(set(places.tolist())) == count
        assert np.all((got == x) | (got == 0))
        assert np.abs(got).sum() == np.abs(largest(count / 8)(x)).sum()
    assert not compiled(top_k(0.5), jnp.zeros((2, 4)))[1].any()


@pytest.mark.parametrize("shape", [(3, 4, 9), (130, 6), (11,), (67,), ()], ids=str)
@pytest.mark.parametrize(("k", "chunk"), [(1, 4), (3, 5), (64, 64)])
def test_chunked_top_k_keeps_the_largest_of_every_block(shape, k, chunk):
    x = normal(shape).astype(np.float32)
    (_, places), got = compiled(chunked_top_k(k, chunk), jnp.asarray(x))
    np.testing.assert_array_equal(got, blockwise(k, chunk)(x))
    assert places.dtype == jnp.uint16
    values = compiled(chunked_top_k(k, chunk, values=quantize(3)), jnp.asarray(x))[1]
    np.testing.assert_allclose(values, blockwise(k, chunk, on_grid(3))(x), atol=1e-6)


def test_chunked_top_k_sends_a_large_prime_side_whole():
    x = normal((67, 71)).astype(np.float32)
    np.testing.assert_array_equal(across(chunked_top_k(1, 64), jnp.asarray(x)), x)
    one = across(chunked_top_k(1, 71), jnp.asarray(x))
    assert np.count_nonzero(one) == 1
    largest_block = jnp.arange(256.0 * 256).reshape(256, 256)
    _, places = chunked_top_k(1, 256).encode(largest_block, KEY)
    assert int(places[0, 0]) == 256 * 256 - 1


def test_chunked_top_k_at_ties_and_zeros():
    (_, places), got = compiled(chunked_top_k(2, 4), jnp.full((4, 4), -1.0))
    assert (np.count_nonzero(got), sorted(places[0].tolist())) == (2, [0, 1])
    assert not compiled(chunked_top_k(2, 4, values=bins(2)), jnp.zeros((4, 4)))[1].any()


# ----------------------------------------------------------------------- quantized
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_bins_send_their_means(bits):
    for x in (normal((31, 3)), normal((7,)) ** 3, np.float64(2.5), np.full(5, 0.7)):
        with jax.enable_x64(True):
            sent = jax.device_get(compiled(bins(bits), jnp.asarray(x)))
        (packed, means), got = sent
        np.testing.assert_allclose(got, into_bins(bits)(np.asarray(x)), atol=1e-14)
        assert (packed.size, means.size) == (-(-bits * np.size(x) // 8), 2**bits)
        assert np.mean(got) == pytest.approx(np.mean(x))  # of every bin, and so of all
    far = np.array([100.0, *normal(99)])
    assert compiled(bins(2), jnp.asarray(far))[1][0] > 50


@pytest.mark.parametrize(
    ("shape", "bits"), [*(((7,), b) for b in range(1, 9)), ((2, 4, 2), 3), ((), 5)]
)
def test_quantize_rounds_to_the_grid_and_packs_it(shape, bits):
    x = normal(shape)
    with jax.enable_x64(True):
        sent, got = jax.device_get(compiled(quantize(bits), jnp.asarray(x)))
    codes, least, step = grid_codes(x, bits)
    np.testing.assert_array_equal(sent[0], packed(codes, bits))
    np.testing.assert_allclose(sent[1:], (least, step), rtol=1e-14)
    np.testing.assert_allclose(got, on_grid(bits)(x), rtol=0, atol=1e-14)
    assert np.max(np.abs(got - x)) <= step / 2 + 1e-14
    for end in (np.argmin, np.argmax):
        assert got.ravel()[end(x)] == pytest.approx(x.ravel()[end(x)], abs=1e-14)


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_quantize_in_float32_errs_by_half_a_step(bits):
    compressor = quantize(bits)
    for scale, shift in [(1, 0), (1e-6, 0), (1, 10), (3e30, 0)]:
        x = (scale * normal((21, 13)) + shift).astype(np.float32)
        step = (float(x.max()) - float(x.min())) / (2**bits - 1)
        got = np.asarray(compiled(compressor, jnp.asarray(x))[1], np.float64)
        rounding = 4 * np.finfo(np.float32).eps * np.abs(x).max()
        assert np.max(np.abs(got - x)) <= step / 2 + rounding
        assert len(np.unique(got)) == len(np.unique(on_grid(bits)(x)))


# ------------------------------------------------------------------- of all of them

# the compressor and the bytes of an array of m x n, of numbers of `item` bytes
EVERY = {
    "no_compression": (no_compression(), lambda m, n, item: m * n * item),
    "svd": (truncated_svd(2), lambda m, n, item: 2 * (m + n + 1) * item),
    "power": (power_iteration(3), lambda m, n, item: 3 * (m + n) * item),
    "top_k": (top_k(0.3), lambda m, n, item: round(0.3 * m * n) * (item + 4)),
    "chunked_top_k": (
        chunked_top_k(2, 7),
        lambda m, n, item: 2 * (item + 2) * {42: 1, 25: 1, 51: 17}[m * n],
    ),
    "bins 3": (bins(3), lambda m, n, item: -(-3 * m * n // 8) + 8 * item),
    "quantize 3": (quantize(3), lambda m, n, item: -(-3 * m * n // 8) + 2 * item),
}
every = pytest.mark.parametrize("name", EVERY)


@every
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64])
def test_dtypes_stay_and_bytes_are_counted(name, dtype):
    compressor, nbytes = EVERY[name]
    with precision(dtype):
        for m, n in [(6, 7), (5, 5), (17, 3)]:
            x = jnp.asarray(normal((m, n)), dtype)
            sent = jax.eval_shape(compressor.encode, x, KEY)
            assert tree.nbytes(sent) == nbytes(m, n, x.dtype.itemsize)
        one = jax.eval_shape(partial(across, compressor), x)
        assert (one.shape, one.dtype) == (x.shape, x.dtype)


def test_infinities_do_not_reach_the_decomposition(monkeypatch):
    # LAPACK's never returns if the first entry is one
    given = []
    fake = lambda x, full_matrices: given.append(x) or (x, x[0], x)
    monkeypatch.setattr(jnp.linalg, "svd", fake)
    for value in (jnp.inf, -jnp.inf):
        truncated_svd(1).encode(jnp.ones((3, 3)).at[0, 0].set(value), KEY)
        assert jnp.isnan(given[-1][0, 0])
    assert len(given) == 2


@pytest.mark.parametrize("make", OF_MATRICES.values(), ids=OF_MATRICES)
def test_vectors_go_to_the_rest(make):
    compressor = make(1, rest=top_k(0.5))
    for x in (normal(9), normal(())):
        x = x.astype(np.float32) if x.shape else np.float32(x)
        np.testing.assert_array_equal(across(compressor, x), largest(0.5)(np.array(x)))
        assert compressor.encode(x, KEY)[1].shape == (max(1, round(0.5 * x.size)),)
    low = jnp.asarray(normal((6, 1)) @ normal((1, 4)), jnp.float32)
    assert apart(across(compressor, low), np.asarray(low)) <= 1e-5


# ------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("make", OF_MATRICES.values(), ids=OF_MATRICES)
def test_ranks_that_a_matrix_cannot_have_and_vectors_without_a_rest_are_refused(make):
    for rank in (4, lambda m, n: 0, lambda m, n: m, lambda m, n: 2.5):
        told = rank(6, 3) if callable(rank) else rank
        with pytest.raises(ValueError, match=rf"a matrix \(6, 3\) must .*, got {told}"):
            jax.eval_shape(make(rank).encode, jnp.zeros((2, 3, 3)), KEY)
    message = r"an array \(.*\) is not a matrix; pass a compressor for arrays of"
    for shape in ((5,), ()):
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(make(1).encode, jnp.zeros(shape), KEY)
