"""FedAvg and its relatives: one message (the displacement) up, the model down."""

from collections.abc import Callable

import numpy as np

from .problem import (
    Batch,
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

Local = Callable[[Params, list[Batch], float], Params]  # x, batches, lr: where it ends
Server = Callable[[Params, Params], Params]  # x, mean displacement: the next x


def replay(x, trace, lr, local: Local, server: Server):
    """x after every round: clients start from x and send x_i - x, the server has its
    mean."""
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        ends = [local(x, batches, rate(lr, r)) for batches in data]
        x = server(x, mean([sub(xi, x) for xi in ends]))
        history.append(x)
    return history


def plain_sgd(trace) -> Local:
    """``x_i <- x_i - lr grad_i(x_i)``."""

    def local(xi, batches, eta):
        for batch in batches:
            xi = sub(xi, times(eta, trace.grad(xi, batch)))
        return xi

    return local


def plain_server(server_lr: float) -> Server:
    """``x <- x + server_lr delta``."""
    return lambda x, delta: add(x, times(server_lr, delta))


def fedavg(x, trace, lr, server_lr=1.0):
    """FedAvg with plain local SGD (McMahan et al. 2017, Algorithm 1).

    With server_lr = S/N this is line 10 of Algorithm 3 in Takezawa et al. 2026.
    """
    return replay(x, trace, lr, plain_sgd(trace), plain_server(server_lr))


def fedexp(x, trace, lr, eps=1e-3):
    """FedExP (Jhunjhunwala et al. 2023): an extrapolated step along the mean."""
    local, history = plain_sgd(trace), []
    square = lambda change: sum(float(np.sum(np.square(v))) for v in change.values())
    for r, (_, data) in enumerate(trace.rounds):
        changes = [sub(local(x, batches, rate(lr, r)), x) for batches in data]
        delta = mean(changes)
        apart = sum(map(square, changes)) / len(changes)
        x = add(x, times(max(1.0, apart / (2 * (square(delta) + eps))), delta))
        history.append(x)
    return history


def fedadamw(
    x, trace, lr, b1=0.9, b2=0.999, eps=1e-8, align=0.5, decay=0.01, whole=False
):
    """FedAdamW (Liu et al. 2025, arXiv 2510.27486), with a block for each leaf.

    Every round: m = 0, v_i = v. ``m <- b1 m + (1-b1) g``, ``v_i <- b2 v_i + (1-b2)
    g^2``, ``x_i <- x_i - lr [m/(1-b1^k) / (sqrt(v_i/(1-b2^t)) + eps) + align Delta_G +
    decay x_i]``; then ``Delta_G = -mean(x_i - x)/(K lr)`` and ``v`` the mean over
    clients of the means of v_i over a leaf, or of v_i if ``whole``.
    """
    delta, v, t_before, history = zeros(x), zeros(x), 0, []
    for r, (_, data) in enumerate(trace.rounds):
        eta, K = rate(lr, r), len(data[0])
        ends, seconds = [], []
        for batches in data:
            xi, m, vi = x, zeros(x), v
            for k, batch in enumerate(batches, 1):
                g = trace.grad(xi, batch)
                moved = {}
                for name in x:
                    m[name] = b1 * m[name] + (1 - b1) * g[name]
                    second = b2 * vi[name] + (1 - b2) * g[name] ** 2
                    vi = {**vi, name: second}
                    hat = second / (1 - b2 ** (t_before + k))
                    u = m[name] / (1 - b1**k) / (np.sqrt(hat) + eps)
                    d = u + align * delta[name] + decay * xi[name]
                    moved[name] = xi[name] - eta * d
                xi = moved
            ends.append(xi)
            seconds.append(vi)
        change = mean([sub(xi, x) for xi in ends])
        delta = mean_direction(change, K, eta, delta)
        v = mean(seconds)
        if not whole:
            v = {name: np.full_like(x[name], v[name].mean()) for name in v}
        x, t_before = add(x, change), t_before + K
        history.append(x)
    return history


def feddyn(x, trace, lr, alpha=0.01):
    """FedDyn (Acar et al. 2021, algorithm 1), in the paper's own variables.

    Client i has the linear term h_i, and the server its mean over all N clients:
    ``x_i <- x_i - lr (g - h_i + alpha (x_i - x))``, ``h_i -= alpha (x_i - x)``,
    ``h -= alpha (1/N) sum_S(x_i - x)``, ``x <- mean_S(x_i) - h / alpha``.
    """
    N, history = trace.num_clients, []
    h, h_i = zeros(x), [zeros(x) for _ in range(N)]
    for r, (ids, data) in enumerate(trace.rounds):
        ends = []
        for i, batches in zip(ids, data, strict=True):
            xi = x
            for batch in batches:
                pull = add(times(alpha, sub(xi, x)), times(-1.0, h_i[i]))
                step = add(trace.grad(xi, batch), pull)
                xi = sub(xi, times(rate(lr, r), step))
            ends.append(xi)
            h_i[i] = sub(h_i[i], times(alpha, sub(xi, x)))
        h = sub(h, times(alpha / N, total([sub(xi, x) for xi in ends])))
        x = sub(mean(ends), times(1 / alpha, h))
        history.append(x)
    return history


def fedavg_weighted(x, trace, lr, server_lr=1.0):
    """FedAvg, displacements weighted by n_i / sum of n_j over the cohort.

    McMahan et al. 2017, Algorithm 1 (arXiv 1602.05629v4: m_t = the sum of n_k over
    the round's clients), the weights n_k / m_t.
    """
    local = plain_sgd(trace)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        present = sum(trace.sizes[i] for i in ids)
        weighted = [
            times(trace.sizes[i] / present, sub(local(x, batches, rate(lr, r)), x))
            for i, batches in zip(ids, data, strict=True)
        ]
        x = add(x, times(server_lr, total(weighted)))
        history.append(x)
    return history


def fedavg_momentum(x, trace, lr, momentum=0.9, server_lr=1.0):
    """FedAvg with heavy-ball SGD: ``m <- .9 m + g; x -= lr m``, m = 0 every round.

    The FedAvg baseline of Takezawa et al. 2026 (Algorithm 3 with Momentum SGD).
    """

    def local(xi, batches, eta):
        m = zeros(xi)
        for batch in batches:
            m = add(times(momentum, m), trace.grad(xi, batch))
            xi = sub(xi, times(eta, m))
        return xi

    return replay(x, trace, lr, local, plain_server(server_lr))


def fedavg_server_momentum(x, trace, lr, server_lr=1.0, beta=0.9):
    """FedAvgM (Hsu et al. 2019): ``v <- beta v + delta``, ``x <- x + server_lr v``.

    Delta is the mean displacement, v is 0 at first.
    """
    history, v, local = [], zeros(x), plain_sgd(trace)
    for r, (_, data) in enumerate(trace.rounds):
        ends = [local(x, batches, rate(lr, r)) for batches in data]
        v = add(times(beta, v), mean([sub(xi, x) for xi in ends]))
        x = add(x, times(server_lr, v))
        history.append(x)
    return history


def fedavg_adam(x, trace, lr, b1=0.9, b2=0.999, eps=1e-8, server_lr=1.0):
    """FedAvg with bias-corrected Adam, whose state starts anew every round.

    The FedAvg (Adam) baseline of Takezawa et al. 2026 (Algorithm 3 with Adam).
    """
    return local_adamw(x, trace, lr, b1, b2, eps, decay=0.0, server_lr=server_lr)


def local_adamw(x, trace, lr, b1=0.9, b2=0.999, eps=1e-8, decay=0.01, server_lr=1.0):
    """Local AdamW: ``x <- x - lr (adam + decay x)``, moments 0 at each round's start.

    Loshchilov & Hutter 2019, Algorithm 2 (decoupled decay), as the local optimiser
    of the baseline of Liu et al. 2025 (arXiv 2510.27403, section 7).
    """

    def local(xi, batches, eta):
        state = Moments(zeros(xi), zeros(xi), 0)
        for batch in batches:
            step, state = adam(trace.grad(xi, batch), state, b1, b2, eps)
            xi = sub(xi, times(eta, add(step, times(decay, xi))))
        return xi

    return replay(x, trace, lr, local, plain_server(server_lr))


# ----------------------------------------------------------- adaptive server steps
def adaptive_server(x, server_lr, b1, tau, second: Callable) -> Server:
    """Reddi et al. 2021, Algorithm 2: v_{-1} = tau^2, no bias correction.

    ``second(v, delta)`` is its line for v_t.
    """
    m, v = zeros(x), each(lambda leaf: np.full_like(leaf, tau**2), x)

    def server(x, delta):
        nonlocal m, v
        m = add(times(b1, m), times(1 - b1, delta))
        v = each(second, v, delta)
        step = each(lambda m, v: m / (np.sqrt(v) + tau), m, v)
        return add(x, times(server_lr, step))

    return server


def fedadam(x, trace, lr, server_lr, b1=0.9, b2=0.99, tau=1e-3):
    """FedAdam (Reddi et al. 2021, Algorithm 2)."""
    second = lambda v, d: b2 * v + (1 - b2) * d**2
    server = adaptive_server(x, server_lr, b1, tau, second)
    return replay(x, trace, lr, plain_sgd(trace), server)


def fedyogi(x, trace, lr, server_lr, b1=0.9, b2=0.99, tau=1e-3):
    """FedYogi (Reddi et al. 2021, Algorithm 2)."""
    second = lambda v, d: v - (1 - b2) * d**2 * np.sign(v - d**2)
    server = adaptive_server(x, server_lr, b1, tau, second)
    return replay(x, trace, lr, plain_sgd(trace), server)


def fedadagrad(x, trace, lr, server_lr, b1=0.0, tau=1e-3):
    """FedAdagrad (Reddi et al. 2021, Algorithm 2)."""
    server = adaptive_server(x, server_lr, b1, tau, lambda v, d: v + d**2)
    return replay(x, trace, lr, plain_sgd(trace), server)


def fadas(x, trace, lr, server_lr, b1=0.9, b2=0.99, eps=1e-8):
    """FADAS without delays (2407.18365): v = 0 at first, the largest v divides."""
    m, v, largest = zeros(x), zeros(x), zeros(x)

    def server(x, delta):
        nonlocal m, v, largest
        m = add(times(b1, m), times(1 - b1, delta))
        v = each(lambda v, d: b2 * v + (1 - b2) * d * d, v, delta)
        largest = each(lambda old, v: np.where(v > old, v, old), largest, v)
        step = each(lambda m, v: m / (np.sqrt(v) + eps), m, largest)
        return add(x, times(server_lr, step))

    return replay(x, trace, lr, plain_sgd(trace), server)


# -------------------------------------------------------------------- local Muon
def local_muon(
    x, trace, lr, momentum=0.98, decay=0.01, ratio=1.0, direction=polar, carry=False
):
    """Local Muon (Liu et al. 2025, section 4, eq. 2).

    ``M <- momentum M + g; x <- x - lr (U V^T + decay x)``, M = 0 at each round's start,
    or with ``carry`` the mean of the last cohort's final M. Vectors: ``ratio`` times
    Adam(.9, .95, 1e-10), started anew every round (the authors' code), never averaged.
    """
    m_bar, last = zeros(x), []

    def local(xi, batches, eta):
        m, moments = m_bar, Moments(zeros(xi), zeros(xi), 0)
        for batch in batches:
            g = trace.grad(xi, batch)
            m = add(times(momentum, m), g)
            by_adam, moments = adam(g, moments, 0.9, 0.95, 1e-10)
            mixed = {k: m[k] if xi[k].ndim > 1 else by_adam[k] for k in xi}
            step = direct(mixed, direction, ratio)
            xi = sub(xi, times(eta, add(step, times(decay, xi))))
        last.append(m)
        return xi

    def server(x, delta):
        nonlocal m_bar
        m_bar = mean(last) if carry else m_bar
        last.clear()
        return add(x, delta)

    return replay(x, trace, lr, local, server)


def local_muon_momentum(x, trace, lr, **settings):
    """Local Muon whose M starts a round at the mean of the last cohort's final M.

    "w/o Delta_G" of Table 5 in Liu et al. 2025: Algorithm 2 with alpha = 0.
    """
    return local_muon(x, trace, lr, **settings, carry=True)


def muonh(x, trace, lr, momentum=0.95, direction=polar):
    """MuonH (Wen et al. 2026, arXiv 2606.16899) in the local steps of FedAvg.

    ``M <- momentum M + g; U V^T of g + momentum M; W <- R N(W - lr R N(U V^T))`` with
    ``R = |W_0|, N(v) = v / |v|``, M = 0 at each round's start; vectors: Adam(.8, .95,
    1e-10). The server takes ``R N(mean W_i)``.
    """
    R = {k: np.sqrt(np.sum(x[k] ** 2)) for k in x}

    def on_sphere(k, w):
        return R[k] * w / np.sqrt(np.sum(w**2))

    def local(xi, batches, eta):
        m, moments = zeros(xi), Moments(zeros(xi), zeros(xi), 0)
        for batch in batches:
            g = trace.grad(xi, batch)
            m = add(times(momentum, m), g)
            ahead = add(g, times(momentum, m))
            by_adam, moments = adam(g, moments, 0.8, 0.95, 1e-10)
            moved = sub(xi, times(eta, by_adam))
            for k in x:
                if x[k].ndim > 1:
                    u = direction(ahead[k])
                    if np.any(u):
                        u = on_sphere(k, u)
                    moved[k] = on_sphere(k, xi[k] - eta * u)
            xi = moved
        return xi

    def server(x, delta):
        moved = add(x, delta)
        for k in x:
            if x[k].ndim > 1:
                moved[k] = on_sphere(k, moved[k])
        return moved

    return replay(x, trace, lr, local, server)


def dp_fedmuon(x, trace, lr, server_lr, momentum=0.9, direction=polar):
    """FedAvg, and Muon on the pseudo-gradient; vectors: Adam(.9, .95, 1e-10).

    ``M <- momentum M + (x - mean x_i); x <- x - server_lr U V^T``, never started anew.
    """
    m, moments = zeros(x), Moments(zeros(x), zeros(x), 0)

    def server(x, delta):
        nonlocal m, moments
        g = times(-1, delta)
        m = add(times(momentum, m), g)
        by_adam, moments = adam(g, moments, 0.9, 0.95, 1e-10)
        mixed = {k: m[k] if x[k].ndim > 1 else by_adam[k] for k in x}
        return sub(x, times(server_lr, direct(mixed, direction, 1.0)))

    return replay(x, trace, lr, plain_sgd(trace), server)


def ringmaster_lmo(x, trace, lr, server_lr, momentum=0.95, direction=polar):
    """Ringmaster LMO without delays (2605.18174): Muon of the mean gradient.

    ``m <- beta m + (1-beta) g``. Matrices step along U V^T of ``beta m + (1-beta) g``
    times sqrt(max(1, outputs / inputs)), where the first axis of a leaf is its inputs;
    vectors along the same sum.
    """
    m = zeros(x)

    def server(x, delta):
        nonlocal m
        g = times(-1, delta)
        m = add(times(momentum, m), times(1 - momentum, g))
        ahead = add(times(momentum, m), times(1 - momentum, g))
        moved = {}
        for name in x:
            step = ahead[name]
            if x[name].ndim > 1:
                inputs, outputs = x[name].shape
                step = max(1, outputs / inputs) ** 0.5 * direction(ahead[name])
            moved[name] = x[name] - server_lr * step
        return moved

    return replay(x, trace, lr, plain_sgd(trace), server)


# ------------------------------------------------- averaged momentum, clipped steps
def local_sgdm(x, trace, lr, momentum=0.9):
    """Local SGD with momentum (Yu et al. 2019, arXiv 1905.03817; from memory).

    ``m <- momentum m + g; x_i <- x_i - lr m`` (heavy ball); after the K steps of a
    round x and m are both averaged, and m is carried on.
    """
    m_bar = zeros(x)
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        points, last = [], []
        for batches in data:
            xi, m = x, m_bar
            for batch in batches:
                m = add(times(momentum, m), trace.grad(xi, batch))
                xi = sub(xi, times(eta, m))
            points.append(xi)
            last.append(m)
        x, m_bar = mean(points), mean(last)
        history.append(x)
    return history


def biclip(g: Params, low: float, high: float) -> Params:
    """Coordinate-wise BiClip: ``sign(g) clamp(|g|, low, high)``; 0 stays 0.

    Lee, Zaheer & Li, ICML 2025 (arXiv 2502.04164).
    """
    return each(lambda u: np.sign(u) * np.clip(np.abs(u), low, high), g)


def clipped_sgd(trace, low, high) -> Local:
    """``x_i <- x_i - lr BiClip(g)``."""

    def local(xi, batches, eta):
        for batch in batches:
            xi = sub(xi, times(eta, biclip(trace.grad(xi, batch), low, high)))
        return xi

    return local


def adam_biclip(x, trace, lr, low, high, server_lr, b1=0.9, b2=0.99, tau=1e-3):
    """Adam-BiClip (TailOPT; Lee, Zaheer & Li, ICML 2025, arXiv 2502.04164).

    BiClip inside with constant thresholds; outside FedAdam's step.
    """
    second = lambda v, d: b2 * v + (1 - b2) * d**2
    server = adaptive_server(x, server_lr, b1, tau, second)
    return replay(x, trace, lr, clipped_sgd(trace, low, high), server)


def bi2clip(x, trace, lr, low, high, server_low, server_high, server_lr):
    """Bi^2Clip (Lee, Zaheer & Li, ICML 2025): BiClip inside and outside.

    ``x <- x + server_lr BiClip(mean(x_i - x), server_low, server_high)``.
    """
    server = lambda x, delta: add(
        x, times(server_lr, biclip(delta, server_low, server_high))
    )
    return replay(x, trace, lr, clipped_sgd(trace, low, high), server)
