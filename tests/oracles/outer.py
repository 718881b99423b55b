"""Workers with states of their own: DiLoCo and MuLoCo, with Nesterov SGD outside;
HeLoCo, which looks ahead; EF21-Muon, whose clients take no steps."""

from collections.abc import Callable

import numpy as np

from .problem import (
    Moments,
    adam,
    add,
    direct,
    each,
    first_gradient,
    mean,
    polar,
    rate,
    sub,
    times,
    total,
    zeros,
)


def diloco(
    x,
    trace,
    lr,
    b1=0.9,
    b2=0.999,
    eps=1e-8,
    decay=0.0,
    outer_lr=0.7,
    outer_momentum=0.9,
):
    """DiLoCo (Douillard et al. 2023, arXiv 2311.08105), Algorithm 1.

    Line 3: every worker starts from the last outer parameters. Lines 4-7, H times:
    AdamW with decoupled ``decay`` (the paper trains with 0.1). Its moments and their
    step count are the worker's own and outlive the round. Line 8: ``delta = mean(x -
    x_i)``. Line 9, OuterOpt, Nesterov SGD as the authors and PyTorch write it:
    ``u <- outer_momentum u + delta; x <- x - outer_lr (delta + outer_momentum u)``.

    Workers that a round leaves out, which the paper has none of, keep their moments.
    """
    moments = [Moments(zeros(x), zeros(x), 0) for _ in range(trace.num_clients)]
    u = zeros(x)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        outer_gradients = []
        for i, batches in zip(ids, data, strict=True):
            xi = x
            for batch in batches:
                step, moments[i] = adam(trace.grad(xi, batch), moments[i], b1, b2, eps)
                xi = sub(times(1 - eta * decay, xi), times(eta, step))
            outer_gradients.append(sub(x, xi))
        delta = mean(outer_gradients)
        u = add(times(outer_momentum, u), delta)
        x = sub(x, times(outer_lr, add(delta, times(outer_momentum, u))))
        history.append(x)
    return history


def heloco_corrected(d, m, c_ok=0.2, k_s=0.5, k_d=1.0, beta_max=0.5, kappa=3.0):
    """One array of a message after HeLoCo's correction against the momentum.

    ``c = cos(d, m); conf = |d| / (|d| + kappa |m| + 1e-8)``. From c_ok on, d. Below 0,
    ``d - beta c |d| m/|m|, beta = min(-k_s c conf, beta_max)``. Else ``|d| N(w), w =
    (1 - l) d/|d| + l m/|m|, l = min(k_d (1 - c) conf, 1)``.
    """
    size, length = np.sqrt(np.sum(d**2)), np.sqrt(np.sum(m**2))
    if size == 0 or length == 0:
        return d
    u, v = d / size, m / length
    c, conf = np.sum(u * v), size / (size + kappa * length + 1e-8)
    if c >= c_ok:
        return d
    if c < 0:
        return d - min(-k_s * c * conf, beta_max) * c * size * v
    share = min(k_d * (1 - c) * conf, 1.0)
    w = (1 - share) * u + share * v
    return size * w / max(np.sqrt(np.sum(w**2)), 1e-8)


def heloco(x, trace, lr, decay=0.1, outer_lr=0.7, mu=0.9, rho=1.0, **correction):
    """HeLoCo (arXiv 2606.00271) in synchronous rounds.

    Workers start from the look-ahead point ``y = x - outer_lr mu m``, with DiLoCo's
    AdamW. ``G = rho corrected(mean(y - x_i), m); m <- mu m + (1 - mu) G;
    x <- x - outer_lr (G + mu m)``, m = 0 at first.
    """
    moments = [Moments(zeros(x), zeros(x), 0) for _ in range(trace.num_clients)]
    m = zeros(x)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        y = sub(x, times(outer_lr * mu, m))
        changes = []
        for i, batches in zip(ids, data, strict=True):
            xi = y
            for batch in batches:
                g = trace.grad(xi, batch)
                step, moments[i] = adam(g, moments[i], 0.9, 0.999, 1e-8)
                xi = sub(times(1 - eta * decay, xi), times(eta, step))
            changes.append(sub(y, xi))
        d = each(lambda d, m: heloco_corrected(d, m, **correction), mean(changes), m)
        G = times(rho, d)
        m = add(times(mu, m), times(1 - mu, G))
        x = sub(x, times(outer_lr, add(G, times(mu, m))))
        history.append(x)
    return history


def streaming_diloco(
    x,
    trace,
    lr,
    fragments=3,
    own_share=0.0,
    decay=0.1,
    outer_lr=0.7,
    outer_momentum=0.9,
):
    """Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512), without a delay.

    Fragments are equal ranges of the entries of all leaves in the order of their names.
    Exchange r sends ``D_i = snap_i - x_i`` of fragment p = r mod P after the local
    steps; ``u <- outer_momentum u + mean(D_i); snap <- snap - outer_lr (mean(D_i) +
    outer_momentum u)`` of this fragment; and at the start of the next ``x_i <-
    own_share x_i + (1 - own_share) snap``. Returns x and all x_i after each round.
    """
    N, names = trace.num_clients, sorted(x)
    flat = lambda x: np.concatenate([x[name].ravel() for name in names])
    ends = np.cumsum([x[name].size for name in names])
    length = -(-ends[-1] // fragments)

    def tree(v):
        parts = np.split(v, ends[:-1])
        pairs = zip(names, parts, strict=True)
        return {name: part.reshape(x[name].shape) for name, part in pairs}

    def part(p):
        return slice(p * length, (p + 1) * length)

    snap, u = flat(x), np.zeros(ends[-1])
    snap_i, x_i = [flat(x) for _ in range(N)], [flat(x) for _ in range(N)]
    moments = [Moments(zeros(x), zeros(x), 0) for _ in range(N)]
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        p, last, D = part(r % fragments), part((r - 1) % fragments), []
        for i, batches in zip(ids, data, strict=True):
            snap_i[i][last] = snap[last]
            x_i[i][last] = own_share * x_i[i][last] + (1 - own_share) * snap[last]
            xi = tree(x_i[i])
            for batch in batches:
                g = trace.grad(xi, batch)
                step, moments[i] = adam(g, moments[i], 0.9, 0.999, 1e-8)
                eta = rate(lr, r)
                xi = sub(times(1 - eta * decay, xi), times(eta, step))
            x_i[i] = flat(xi)
            D.append(snap_i[i][p] - x_i[i][p])
        mean_D = np.mean(D, axis=0)
        u[p] = outer_momentum * u[p] + mean_D
        snap[p] -= outer_lr * (mean_D + outer_momentum * u[p])
        history.append((tree(snap.copy()), [tree(v.copy()) for v in x_i]))
    return history


def muloco(
    x,
    trace,
    lr,
    momentum=0.9,
    decay=0.0,
    outer_lr=0.8,
    outer_momentum=0.9,
    scale: Callable[[int, int], float] = lambda rows, cols: 1.0,
    nesterov=False,
    b2=0.99,
    direction=polar,
):
    """MuLoCo (Thérien et al. 2025, arXiv 2505.23725), without compression.

    Inner: ``M_i <- momentum M_i + g; x_i <- x_i - lr (scale(rows, cols) U V^T + decay
    x_i)``, heavy ball; with ``nesterov``, the average ``M_i <-
    momentum M_i + (1 - momentum) g`` and its look-ahead ``(1 - momentum) g + momentum
    M_i``. Vectors: AdamW(.9, b2, 1e-8).
    Neither state is reset, averaged or sent; Adam's bias correction counts the
    client's own steps over all its rounds. Clients that are absent keep theirs.

    Outer (DiLoCo, Douillard et al. 2023, Algorithm 1, with Nesterov SGD):
    ``delta = mean(x - x_i); u <- outer_momentum u + delta;
    x <- x - outer_lr (delta + outer_momentum u)``, u = 0 at first.
    """
    m_i = [zeros(x) for _ in range(trace.num_clients)]
    moments_i = [Moments(zeros(x), zeros(x), 0) for _ in range(trace.num_clients)]
    scaled = lambda m: scale(*m.shape) * direction(m)
    u = zeros(x)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        deltas = []
        for i, batches in zip(ids, data, strict=True):
            xi = x
            for batch in batches:
                g = trace.grad(xi, batch)
                new = times(1 - momentum, g) if nesterov else g
                m_i[i] = add(times(momentum, m_i[i]), new)
                m = add(new, times(momentum, m_i[i])) if nesterov else m_i[i]
                by_adam, moments_i[i] = adam(g, moments_i[i], 0.9, b2, 1e-8)
                mixed = {k: m[k] if x[k].ndim > 1 else by_adam[k] for k in x}
                step = add(direct(mixed, scaled), times(decay, xi))
                xi = sub(xi, times(eta, step))
            deltas.append(sub(x, xi))
        delta = mean(deltas)
        u = add(times(outer_momentum, u), delta)
        x = sub(x, times(outer_lr, add(delta, times(outer_momentum, u))))
        history.append(x)
    return history


def ef21_muon(
    x,
    trace,
    lr,
    compress: Callable[[np.ndarray], np.ndarray],
    broadcast: Callable[[np.ndarray], np.ndarray],
    b=0.1,
    direction=polar,
):
    """EF21-Muon (Gruntkowska et al. 2025, arXiv 2510.00643), in the paper's variables.

    Before: ``M_j = G_j = grad f_j(X)`` is sent whole, ``G = mean(G_j)``. Iterations:
    ``X <- X - t d``, with d = U V^T of matrices in G and the signs of vectors, ``S =
    C(X - W); W <- W + S``; clients that take part ``M_j <- (1-b) M_j + b grad f_j(W)``,
    ``R_j = C(M_j - G_j); G_j <- G_j + R_j``; ``G <- G + sum(R_j) / N``. A round of the
    library ends with the step of the next iteration. Returns X, W, G and all G_j.
    """
    N = trace.num_clients

    def moved(x, G, r):
        step = each(lambda g: direction(g) if g.ndim > 1 else np.sign(g), G)
        return sub(x, times(rate(lr, r), step))

    M = [first_gradient(trace, x, i) for i in range(N)]
    G_j = list(M)
    G, W = mean(G_j), x
    X, history = moved(x, G, 0), []
    for r, (ids, data) in enumerate(trace.rounds):
        W = add(W, each(broadcast, sub(X, W)))
        R = []
        for i, batches in zip(ids, data, strict=True):
            g = mean([trace.grad(W, batch) for batch in batches])
            M[i] = add(times(1 - b, M[i]), times(b, g))
            R.append(each(compress, sub(M[i], G_j[i])))
            G_j[i] = add(G_j[i], R[-1])
        G = add(G, times(1 / N, total(R)))
        X = moved(X, G, r)
        history.append((X, W, G, list(G_j)))
    return history
