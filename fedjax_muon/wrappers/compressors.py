"""Compressors of one array: low rank, the largest entries, a few bits, or signs.

`compression` applies them to what clients send and receive.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_muon import core

Rank = int | Callable[[int, int], int]  # (rows, columns) -> rank


class Compressor(NamedTuple):
    """Encoding and decoding of one array: pure functions, which may be jitted."""

    encode: Callable[[jax.Array, jax.Array], Any]  # (array, key) -> what is sent
    decode: Callable[[Any, jax.ShapeDtypeStruct], jax.Array]
    # (what was sent, shape and dtype of the array) -> array


def check_compressor(name: str, compressor: Any) -> None:
    """Raises `TypeError` for what is no compressor."""
    if not isinstance(compressor, Compressor):
        function = getattr(compressor, "__name__", "")
        called = f"; call it first: {function}(...)" if callable(compressor) else ""
        raise TypeError(
            f"{name} must be a Compressor, such as quantize(8), got "
            f"{function or repr(compressor)}{called}"
        )


def no_compression() -> Compressor:
    """Sends arrays unchanged.

    Example:
      >>> method = fm.compress(fm.fedavg(lr=0.1), fm.top_k(0.1))
      >>> rest = fm.truncated_svd(2, rest=fm.no_compression())
    """
    return Compressor(lambda x, key: x, lambda sent, like: sent)


def memory_share(share: float = 0.05) -> Rank:
    """Returns the largest rank whose factors U, s, V have a share of the entries.

    It is floor(share m n / (m + n + 1)), at least 1.

    Source: Liu et al. 2025, arXiv:2510.27403, as in their code, in which the factor of
    a small matrix may have rank 0.

    Example:
      >>> fm.memory_share(0.1)(200, 100)
      6
    """
    core.check_range("share", share, 0.0, 1.0, open_low=True, schedules=False)
    exact = Fraction(str(share))  # the decimal number, not its binary approximation
    return lambda m, n: max(1, exact * m * n // (m + n + 1))


def rank_share(share: float = 0.05) -> Rank:
    """Returns a rank in proportion to the shorter side: ceil(share min(m, n)).

    Source: Liu et al. 2025, arXiv:2510.27403, as in their text.
    """
    core.check_range("share", share, 0.0, 1.0, open_low=True, schedules=False)
    return lambda m, n: math.ceil(Fraction(str(share)) * min(m, n))


def truncated_svd(rank: Rank, *, rest: Compressor | None = None) -> Compressor:
    """Sends the nearest matrix of rank q as U [m, q], s [q] and V [n, q].

    All axes of an array but the last are its rows, as in `muon_dimension_numbers`.

    Args:
      rank: q, or a function of the numbers of rows and columns that returns it, such
        as `memory_share(0.05)` or `rank_share(0.05)`.
      rest: Compressor of arrays with fewer than two axes; an error by default.

    Returns:
      A compressor. When it is used, it raises `ValueError` for a rank that a matrix
      cannot have, and for an array that is not a matrix if there is no `rest`.

    Example:
      >>> few = fm.truncated_svd(4, rest=fm.quantize(8))
      >>> method = fm.compress(fm.fedavg(lr=0.1), few)
    """

    def encode(matrix, key):
        del key
        q, wide = _rank(rank, matrix), _wide(matrix)
        wide = jnp.where(jnp.isfinite(wide), wide, jnp.nan)  # LAPACK hangs on infinity
        u, s, vt = jnp.linalg.svd(wide, full_matrices=False)
        return tuple(x.astype(matrix.dtype) for x in (u[:, :q], s[:q], vt[:q].T))

    def decode(sent):
        u, s, v = sent
        return (u * s[None, :]) @ v.T

    _check_rank(rank)
    return _of_matrices(encode, decode, rest)


def power_iteration(
    rank: Rank, *, iterations: int = 2, rest: Compressor | None = None
) -> Compressor:
    """Sends an almost nearest matrix of rank q as P [m, q] and Q [n, q].

    P is an orthonormal basis of (M M^T)^(iterations - 1) M G, with a new Gaussian G
    [n, q] in every call, and Q = M^T P. This takes products with M and QR
    decompositions of q columns, while `truncated_svd` decomposes all of M.

    Source: Halko, Martinsson and Tropp 2011, arXiv:0909.4061, Algorithm 4.4.

    Args:
      iterations: Number of products with M M^T or M, at least 1.

    Example:
      >>> few = fm.power_iteration(4, rest=fm.quantize(8))
      >>> method = fm.compress(fm.fedavg(lr=0.1), few, feedback=1.0)
    """
    core.check_count("iterations", iterations)

    def encode(matrix, key):
        q, wide = _rank(rank, matrix), _wide(matrix)
        basis = lambda x: jnp.linalg.qr(x)[0]
        p = basis(wide @ jax.random.normal(key, (wide.shape[1], q), wide.dtype))
        for _ in range(iterations - 1):
            p = basis(wide @ basis(wide.T @ p))
        return p.astype(matrix.dtype), (wide.T @ p).astype(matrix.dtype)

    def decode(sent):
        p, q = sent
        return p @ q.T

    _check_rank(rank)
    return _of_matrices(encode, decode, rest)


def _wide(matrix: jax.Array) -> jax.Array:
    """The array in a dtype for which decompositions exist, and sums are accurate."""
    return matrix.astype(jnp.promote_types(matrix.dtype, jnp.float32))


def _check_rank(rank: Rank) -> None:
    if not callable(rank):
        core.check_count("rank", rank)


def _rank(rank: Rank, matrix: jax.Array) -> int:
    q = rank(*matrix.shape) if callable(rank) else rank
    if q not in range(1, min(matrix.shape) + 1):
        raise ValueError(
            f"the rank for a matrix {matrix.shape} must be in 1..{min(matrix.shape)}, "
            f"got {q}"
        )
    return q


def _of_matrices(
    encode: Callable[[jax.Array, jax.Array], Any],
    decode: Callable[[Any], jax.Array],
    rest: Compressor | None,
) -> Compressor:
    """A compressor of arrays from one of matrices."""
    if rest is not None:
        check_compressor("rest", rest)

    def encode_array(x, key):
        if x.ndim >= 2:
            return encode(x.reshape(-1, x.shape[-1]), key)
        if rest is None:
            raise ValueError(
                f"an array {x.shape} is not a matrix; pass a compressor for arrays of "
                "fewer axes as `rest`"
            )
        return rest.encode(x, key)

    def decode_array(sent, like):
        if len(like.shape) >= 2:
            return decode(sent).reshape(like.shape)
        assert rest is not None  # `encode_array` raises otherwise
        return rest.decode(sent, like)

    return Compressor(encode_array, decode_array)


def top_k(share: float) -> Compressor:
    """Sends the entries of largest magnitude and their indices; the others become 0.

    For every array, round(share size) entries are sent, at least one, in the dtype of
    the array, each with an int32 index.

    Args:
      share: Share of the entries of an array that is sent, in (0, 1].

    Example:
      >>> top = fm.top_k(0.5)
      >>> x = jnp.array([3.0, 1.0, -4.0, 2.0])
      >>> top.decode(top.encode(x, jax.random.key(0)), x).tolist()
      [3.0, 0.0, -4.0, 0.0]
    """
    core.check_range("share", share, 0.0, 1.0, open_low=True, schedules=False)

    def encode(x, key):
        del key
        flat = x.reshape(-1)
        count = max(1, round(share * flat.size))
        indices = jax.lax.top_k(jnp.abs(flat), count)[1]
        return flat[indices], indices

    def decode(sent, like):
        values, indices = sent
        zeros = jnp.zeros(math.prod(like.shape), like.dtype)
        return zeros.at[indices].set(values).reshape(like.shape)

    return Compressor(encode, decode)


def chunked_top_k(
    k: int, chunk: int = 64, *, values: Compressor | None = None
) -> Compressor:
    """Sends the k entries of largest magnitude of every block, and their positions.

    A matrix is cut into blocks, whose sides are the largest divisors of its own that
    are at most `chunk`. All axes of an array but the last are its rows. A position has
    16 bits. A side without such divisors, such as a large prime number, is cut into
    single entries, all of which are sent.

    Source: SparseLoCo, Sarfi et al. 2025, arXiv:2508.15706, as in their code.

    Args:
      k: Entries of a block that are sent; all of them if there are fewer.
      chunk: Largest side of a block, at most 256.
      values: Compressor of the entries that are sent, an array [blocks, k]; by default
        they are sent unchanged.

    Example:
      >>> few = fm.chunked_top_k(8, values=fm.bins(2))
      >>> method = fm.compress(fm.fedavg(lr=0.1), few)
    """
    core.check_count("k", k)
    core.check_count("chunk", chunk, high=256, limit="since a position has 16 bits")
    values = no_compression() if values is None else values
    check_compressor("values", values)

    def sides(shape):
        m, n = math.prod(shape[:-1]), math.prod(shape[-1:])
        a, b = (max(d for d in range(1, chunk + 1) if side % d == 0) for side in (m, n))
        return m // a, a, n // b, b

    def encode(x, key):
        m, a, n, b = sides(x.shape)
        blocks = x.reshape(m, a, n, b).swapaxes(1, 2).reshape(m * n, a * b)
        places = jax.lax.top_k(jnp.abs(blocks), min(k, a * b))[1]
        kept = jnp.take_along_axis(blocks, places, 1)
        return values.encode(kept, key), places.astype(jnp.uint16)

    def decode(sent, like):
        m, a, n, b = sides(like.shape)
        kept, places = sent
        kept = values.decode(kept, jax.ShapeDtypeStruct(places.shape, like.dtype))
        zeros = jnp.zeros((m * n, a * b), like.dtype)
        blocks = jnp.put_along_axis(zeros, places, kept, 1, inplace=False)
        return blocks.reshape(m, n, a, b).swapaxes(1, 2).reshape(like.shape)

    return Compressor(encode, decode)


def _check_bits(bits: int) -> None:
    if type(bits) is not int or bits not in range(1, 9):
        raise ValueError(f"bits must be an integer from 1 to 8, got {bits}")


def _packed(code: jax.Array, bits: int) -> jax.Array:
    """The digits of codes uint8 [size], without gaps."""
    places = jnp.arange(bits, dtype=jnp.uint8)
    return jnp.packbits(code[:, None] >> places[None, :] & 1)


def _unpacked(packed: jax.Array, bits: int, size: int) -> jax.Array:
    """The codes, int32 [size]."""
    places = jnp.arange(bits, dtype=jnp.uint8)
    digits = jnp.unpackbits(packed, count=bits * size).reshape(-1, bits)
    return jnp.sum(digits.astype(jnp.int32) << places[None, :], axis=1)


def quantize(bits: int) -> Compressor:
    """Rounds each entry to one of 2^bits values, evenly spaced over the array's range.

    Codes are packed: ceil(bits size / 8) bytes and two numbers.

    Source: Therien et al. 2025, arXiv:2505.23725, linear quantization with one scale
    for each array.

    Args:
      bits: Bits of a code, an integer from 1 to 8.

    Example:
      >>> method = fm.compress(fm.fedmuon(lr=0.01), fm.quantize(8))
    """
    _check_bits(bits)
    levels = 2**bits - 1

    def encode(x, key):
        del key
        low, high = jnp.min(x), jnp.max(x)
        step = (high - low) / levels
        code = jnp.round((x.reshape(-1) - low) / jnp.where(step > 0, step, 1))
        code = jnp.clip(code, 0, levels).astype(jnp.uint8)
        return _packed(code, bits), low, step

    def decode(sent, like):
        packed, low, step = sent
        code = _unpacked(packed, bits, math.prod(like.shape))
        return (low + code * step).astype(like.dtype).reshape(like.shape)

    return Compressor(encode, decode)


def bins(bits: int) -> Compressor:
    """Replaces each entry by the mean of its bin, of 2^bits bins around the mean.

    The bins cover six standard deviations of an array's entries; those farther out are
    in the first and the last. The means are sent with the packed codes.

    Source: SparseLoCo, Sarfi et al. 2025, arXiv:2508.15706, as in their code.

    Args:
      bits: Bits of a code, an integer from 1 to 8.

    Example:
      >>> method = fm.compress(fm.fedavg(lr=0.1), fm.bins(2), feedback=1.0)
    """
    _check_bits(bits)
    number = 2**bits

    def encode(x, key):
        del key
        flat = _wide(x).reshape(-1)
        center = flat - jnp.mean(flat)
        spread = jnp.sqrt(jnp.sum(center**2) / max(flat.size - 1, 1))
        step = 6 * spread / number
        code = jnp.round(center / jnp.where(step > 0, step, 1) + number // 2)
        code = jnp.clip(code, 0, number - 1).astype(jnp.uint8)
        # XLA may compute codes twice, and round them differently: a bin without entries
        code = jax.lax.optimization_barrier(code)
        sums = jax.ops.segment_sum(flat, code, number)
        count = jax.ops.segment_sum(jnp.ones_like(flat), code, number)
        means = sums / jnp.where(count > 0, count, 1)
        return _packed(code, bits), means.astype(x.dtype)

    def decode(sent, like):
        packed, means = sent
        code = _unpacked(packed, bits, math.prod(like.shape))
        return means[code].reshape(like.shape)

    return Compressor(encode, decode)


def signs() -> Compressor:
    """Sends the sign of each entry, one bit, and the mean magnitude of all entries.

    The sign of zero is drawn at random.

    Source: Smirnova and Kravatskiy 2026, arXiv:2607.29674, as in their code.

    Example:
      >>> sign = fm.signs()
      >>> x = jnp.array([3.0, -1.0])
      >>> sign.decode(sign.encode(x, jax.random.key(0)), x).tolist()
      [2.0, -2.0]
    """

    def encode(x, key):
        coin = jax.random.bernoulli(key, shape=x.shape)
        bits = jnp.packbits(jnp.where(x == 0, coin, x > 0).reshape(-1))
        return bits, jnp.mean(jnp.abs(x))

    def decode(sent, like):
        bits, size = sent
        up = jnp.unpackbits(bits, count=math.prod(like.shape)).reshape(like.shape)
        return (2 * up.astype(like.dtype) - 1) * size

    return Compressor(encode, decode)
