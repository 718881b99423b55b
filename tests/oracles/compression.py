"""Compressed messages: low rank, the largest entries, a grid of values; and what the
algorithms that send them become, with the errors that clients keep."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from .problem import (
    Moments,
    Params,
    adam,
    add,
    direct,
    each,
    mean,
    mean_direction,
    polar,
    rate,
    sub,
    times,
    total,
    zeros,
)

Compress = Callable[[np.ndarray], np.ndarray]  # an array -> what its receiver has


# ------------------------------------------------------------------------ one array
def low_rank(x: np.ndarray, rank: int) -> np.ndarray:
    """The sum of the ``rank`` leading triples sigma u v^T of x as a matrix.

    All axes but the last are its rows (Eckart & Young 1936: the nearest matrix).
    """
    u, s, vt = np.linalg.svd(x.reshape(-1, x.shape[-1]), full_matrices=False)
    near = np.zeros((u.shape[0], vt.shape[1]))
    for k in range(rank):
        near += s[k] * np.outer(u[:, k], vt[k])
    return near.reshape(x.shape)


def memory_rank(share: str, rows: int, cols: int) -> int:
    """The largest q whose U, s, V hold at most ``share`` of the entries, or 1.

    Liu et al. 2025 (arXiv 2510.27403) as in their code, but for the 1; ``share`` is a
    decimal, taken exactly.
    """
    fits = 0
    while (fits + 1) * (rows + 1 + cols) <= Fraction(share) * (rows * cols):
        fits += 1
    return fits or 1


def rank_rank(share: str, rows: int, cols: int) -> int:
    """The smallest q with at least ``share`` of the full rank (as in their text)."""
    q = 1
    while q < Fraction(share) * min(rows, cols):
        q += 1
    return q


def by_memory(share: str) -> Compress:
    """`low_rank` with `memory_rank`; vectors as they are."""
    return lambda x: low_rank(x, memory_rank(share, *x.shape)) if x.ndim > 1 else x


def by_rank(share: str) -> Compress:
    """`low_rank` with `rank_rank`; vectors as they are."""
    return lambda x: low_rank(x, rank_rank(share, *x.shape)) if x.ndim > 1 else x


def largest(share: float) -> Compress:
    """The round(share size) entries of largest magnitude, but one at least, else 0."""

    def compress(x: np.ndarray) -> np.ndarray:
        flat, kept = x.ravel(), np.zeros(x.size)
        order = np.argsort(-np.abs(flat), kind="stable")
        for place in order[: max(1, round(share * x.size))]:
            kept[place] = flat[place]
        return kept.reshape(x.shape)

    return compress


def blockwise(k: int, chunk: int, values: Compress = lambda v: v) -> Compress:
    """The k entries of largest magnitude of every block, passed through ``values``.

    Sarfi et al. 2025 (arXiv 2508.15706): the sides of a block are the largest divisors
    of the matrix's that are at most ``chunk``.
    """

    def compress(x: np.ndarray) -> np.ndarray:
        matrix = x.reshape(-1, x.shape[-1]) if x.ndim else x.reshape(1, 1)
        (m, n), kept = matrix.shape, []
        a = next(d for d in range(chunk, 0, -1) if m % d == 0)
        b = next(d for d in range(chunk, 0, -1) if n % d == 0)
        for top in range(0, m, a):
            for left in range(0, n, b):
                block = [(top + i, left + j) for i in range(a) for j in range(b)]
                kept += sorted(block, key=lambda at: -abs(matrix[at]))[:k]
        out, rows = np.zeros_like(matrix), [at[0] for at in kept]
        columns = [at[1] for at in kept]
        out[rows, columns] = values(matrix[rows, columns])
        return out.reshape(x.shape)

    return compress


def into_bins(bits: int) -> Compress:
    """Each entry replaced by the mean of its bin (Sarfi et al. 2025, as in their code).

    2^bits bins, each of six unbiased standard deviations / 2^bits, with number 2^bits /
    2 around the mean; the first and the last have what is farther out.
    """

    def compress(x: np.ndarray) -> np.ndarray:
        flat, count = x.ravel(), 2**bits
        width = 6 * np.std(flat, ddof=1) / count if flat.size > 1 else 0
        place = np.round((flat - flat.mean()) / (width or 1) + count // 2)
        place = np.clip(place, 0, count - 1)
        return np.array([flat[place == p].mean() for p in place]).reshape(x.shape)

    return compress


def grid_codes(x: np.ndarray, bits: int) -> tuple[list[int], float, float]:
    """For each entry the number of the nearest value, the least value, the distance.

    Linear quantization (Thérien et al. 2025, arXiv 2505.23725): 2^bits values, the
    first at the least entry and the last at the largest.
    """
    least, gaps = float(x.min()), 2**bits - 1
    apart = (float(x.max()) - least) / gaps
    values = least + apart * np.arange(gaps + 1)
    return [int(np.argmin(np.abs(values - v))) for v in x.ravel()], least, apart


def on_grid(bits: int) -> Compress:
    """Each entry replaced by the nearest of 2^bits values."""

    def compress(x: np.ndarray) -> np.ndarray:
        codes, least, apart = grid_codes(x, bits)
        return np.array([least + apart * code for code in codes]).reshape(x.shape)

    return compress


def packed(codes: list[int], bits: int) -> np.ndarray:
    """The bytes of the codes: the digits of each, the lowest first, without gaps."""
    digits = [(code >> place) & 1 for code in codes for place in range(bits)]
    return np.packbits(np.array(digits, np.uint8))


# ---------------------------------------------------------------------- algorithms
def send(message: Params, compress: Compress, feedback, errors, i) -> Params:
    """What the server has of client i's message; replaces errors[i].

    Error feedback (Thérien et al. 2025; Karimireddy et al. 2019, arXiv 1901.09847, for
    feedback = 1): ``e_i <- feedback e_i + message; send C(e_i); e_i <- e_i - C(e_i)``.
    """
    if feedback is None:
        return each(compress, message)
    whole = add(times(feedback, errors[i]), message)
    sent = each(compress, whole)
    errors[i] = sub(whole, sent)
    return sent


def fedavg(
    x,
    trace,
    lr,
    compress: Compress,
    feedback: float | None = None,
    lost: frozenset[tuple[int, int]] = frozenset(),
) -> tuple[list[Params], list[list[Params]]]:
    """FedAvg weighted by n_i, whose clients send C(x - x_i); x and all e_i by round.

    A pair (round, client) in ``lost`` is not heard, and its e_i stays as it was.
    """
    errors = [zeros(x) for _ in range(trace.num_clients)]
    history, kept = [], []
    for r, (ids, data) in enumerate(trace.rounds):
        heard, weights = [], []
        for i, batches in zip(ids, data, strict=True):
            if (r, i) in lost:
                continue
            xi = x
            for batch in batches:
                xi = sub(xi, times(rate(lr, r), trace.grad(xi, batch)))
            got = send(sub(x, xi), compress, feedback, errors, i)
            heard.append(times(trace.sizes[i], got))
            weights.append(trace.sizes[i])
        x = sub(x, times(1 / sum(weights), total(heard)))
        history.append(x)
        kept.append(list(errors))
    return history, kept


def fedavg_from_copies(
    x, trace, lr, compress: Compress
) -> tuple[list[Params], list[Params]]:
    """FedAvg whose clients have w, not x (Gruntkowska et al. 2022, arXiv 2209.15218).

    ``w <- w + C(x - w)`` for all clients, w = x at first; x_i starts at w, and
    ``x <- x + mean(x_i - w)``. x and w after each round.
    """
    w, history, copies = x, [], []
    for r, (_, data) in enumerate(trace.rounds):
        w = add(w, each(compress, sub(x, w)))
        changes = []
        for batches in data:
            xi = w
            for batch in batches:
                xi = sub(xi, times(rate(lr, r), trace.grad(xi, batch)))
            changes.append(sub(xi, w))
        x = add(x, mean(changes))
        history.append(x)
        copies.append(w)
    return history, copies


def sparseloco(
    x, trace, lr, k=64, chunk=64, bits=2, feedback=0.95, decay=0.1, outer_lr=1.0
):
    """SparseLoCo (Sarfi et al. 2025, arXiv 2508.15706), averaged over all workers.

    Inner: AdamW (.9, .999, 1e-8), whose moments stay with the worker. ``e_i <- feedback
    e_i + x - x_i; Q_i = C(e_i); e_i <- e_i - Q_i; x <- x - outer_lr mean(Q_i)``.
    """
    values = (lambda v: v) if bits is None else into_bins(bits)
    compress = blockwise(k, chunk, values)
    errors = [zeros(x)] * trace.num_clients
    moments = [Moments(zeros(x), zeros(x), 0)] * trace.num_clients
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        got, eta = [], rate(lr, r)
        for i, batches in zip(ids, data, strict=True):
            xi = x
            for batch in batches:
                g = trace.grad(xi, batch)
                step, moments[i] = adam(g, moments[i], 0.9, 0.999, 1e-8)
                xi = sub(times(1 - eta * decay, xi), times(eta, step))
            got.append(send(sub(x, xi), compress, feedback, errors, i))
        x = sub(x, times(outer_lr, mean(got)))
        history.append(x)
    return history


def muloco(
    x,
    trace,
    lr,
    compress: Compress,
    feedback,
    momentum=0.9,
    outer_lr=0.8,
    outer_momentum=0.9,
    direction=polar,
) -> tuple[list[Params], list[list[Params]]]:
    """MuLoCo (Thérien et al. 2025) with compression; x and all e_i after each round.

    Inner: heavy ball, ``x_i <- x_i - lr U V^T``, vectors Adam(.9, .99, 1e-8), whose
    states stay with the client. Outer, on the mean of what was sent of x - x_i: ``u <-
    outer_momentum u + d; x <- x - outer_lr (d + outer_momentum u)``.
    """
    n = trace.num_clients
    balls, moments = [zeros(x)] * n, [Moments(zeros(x), zeros(x), 0)] * n
    errors, u = [zeros(x)] * n, zeros(x)
    history, kept = [], []
    for r, (ids, data) in enumerate(trace.rounds):
        got = []
        for i, batches in zip(ids, data, strict=True):
            xi = x
            for batch in batches:
                g = trace.grad(xi, batch)
                balls[i] = add(times(momentum, balls[i]), g)
                by_adam, moments[i] = adam(g, moments[i], 0.9, 0.99, 1e-8)
                mixed = {k: balls[i][k] if x[k].ndim > 1 else by_adam[k] for k in x}
                xi = sub(xi, times(rate(lr, r), direct(mixed, direction)))
            got.append(send(sub(x, xi), compress, feedback, errors, i))
        d = mean(got)
        u = add(times(outer_momentum, u), d)
        x = sub(x, times(outer_lr, add(d, times(outer_momentum, u))))
        history.append(x)
        kept.append(list(errors))
    return history, kept


def fedmuon_svd(
    x,
    trace,
    lr,
    compress: Compress,
    compress_move: Compress = lambda v: v,
    feedback: float | None = None,
    momentum=0.98,
    align=0.5,
    decay=0.01,
    direction=polar,
):
    """FedMuon of Liu et al. 2025 (Algorithm 2), whose clients send C(M_i).

    "FedMuon_SVD" of their Table 7. The server averages what it reconstructs, and sends
    the mean as it is. Vectors: Adam(.9, .95, 1e-10), started anew every round. The
    moves x_i - x may have another compressor, and ``feedback`` is theirs.
    """
    errors = [zeros(x)] * trace.num_clients
    m_bar, delta_g = zeros(x), zeros(x)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta, moves, last = rate(lr, r), [], []
        for i, batches in zip(ids, data, strict=True):
            xi, m, moments = x, m_bar, Moments(zeros(x), zeros(x), 0)
            for batch in batches:
                g = trace.grad(xi, batch)
                m = add(times(momentum, m), g)
                by_adam, moments = adam(g, moments, 0.9, 0.95, 1e-10)
                mixed = {k: m[k] if x[k].ndim > 1 else by_adam[k] for k in x}
                pull = add(times(align, delta_g), times(decay, xi))
                step = add(times(1 - align, direct(mixed, direction)), pull)
                xi = sub(xi, times(eta, step))
            moves.append(send(sub(xi, x), compress_move, feedback, errors, i))
            last.append(each(compress, m))
        delta_g = mean_direction(mean(moves), len(data[0]), eta, delta_g)
        x, m_bar = add(x, mean(moves)), mean(last)
        history.append(x)
    return history
