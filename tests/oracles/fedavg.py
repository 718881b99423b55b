"""FedAvg and its relatives: one message (the displacement) up, the model down."""

from collections.abc import Callable

import numpy as np

from .problem import (
    Batch,
    Moments,
    Params,
    Rate,
    Trace,
    adam,
    add,
    direct,
    each,
    mean,
    polar,
    rate,
    sub,
    times,
    total,
    zeros,
)


def fedavg(x: Params, trace: Trace, lr: Rate, server_lr: float = 1.0) -> list[Params]:
    """FedAvg with plain local SGD (McMahan et al. 2017, Algorithm 1).

    ``x_i <- x_i - lr grad_i(x_i)``; ``x <- x + server_lr mean_i(x_i - x)``. With
    server_lr = S/N this is line 10 of Algorithm 3 in Takezawa et al. 2025.
    """
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        deltas = []
        for batches in data:
            xi = x
            for batch in batches:
                xi = sub(xi, times(eta, trace.grad(xi, batch)))
            deltas.append(sub(xi, x))
        x = add(x, times(server_lr, mean(deltas)))
        history.append(x)
    return history


def fedavg_weighted(
    x: Params, trace: Trace, lr: Rate, server_lr: float = 1.0
) -> list[Params]:
    """FedAvg, displacements weighted by n_i / sum of n_j over the cohort.

    McMahan et al. 2017, Algorithm 1 (arXiv 1602.05629v4: m_t = the sum of n_k over
    the round's clients), the weights n_k / m_t.
    """
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        present = sum(trace.sizes[i] for i in ids)
        weighted = []
        for i, batches in zip(ids, data, strict=True):
            xi = x
            for batch in batches:
                xi = sub(xi, times(eta, trace.grad(xi, batch)))
            weighted.append(times(trace.sizes[i] / present, sub(xi, x)))
        x = add(x, times(server_lr, total(weighted)))
        history.append(x)
    return history


def fedavg_momentum(
    x: Params, trace: Trace, lr: Rate, momentum: float = 0.9, server_lr: float = 1.0
) -> list[Params]:
    """FedAvg with heavy-ball SGD: ``m <- .9 m + g; x -= lr m``, m = 0 every round.

    The FedAvg baseline of Takezawa et al. 2025 (Algorithm 3 with Momentum SGD).
    """
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        deltas = []
        for batches in data:
            xi, m = x, zeros(x)
            for batch in batches:
                m = add(times(momentum, m), trace.grad(xi, batch))
                xi = sub(xi, times(eta, m))
            deltas.append(sub(xi, x))
        x = add(x, times(server_lr, mean(deltas)))
        history.append(x)
    return history


def fedavg_adam(
    x: Params,
    trace: Trace,
    lr: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    server_lr: float = 1.0,
) -> list[Params]:
    """FedAvg with bias-corrected Adam, whose state starts anew every round.

    The FedAvg (Adam) baseline of Takezawa et al. 2025 (Algorithm 3 with Adam).
    """
    return local_adamw(x, trace, lr, b1, b2, eps, decay=0.0, server_lr=server_lr)


def local_adamw(
    x: Params,
    trace: Trace,
    lr: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.01,
    server_lr: float = 1.0,
) -> list[Params]:
    """Local AdamW: ``x <- x - lr (adam + decay x)``, moments 0 at each round's start.

    Loshchilov & Hutter 2019, Algorithm 2 (decoupled decay), as the local optimiser
    of the baseline of Liu et al. 2025 (arXiv 2510.27403, section 7).
    """
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        deltas = []
        for batches in data:
            xi, state = x, Moments(zeros(x), zeros(x), 0)
            for batch in batches:
                step, state = adam(trace.grad(xi, batch), state, b1, b2, eps)
                xi = sub(xi, times(eta, add(step, times(decay, xi))))
            deltas.append(sub(xi, x))
        x = add(x, times(server_lr, mean(deltas)))
        history.append(x)
    return history


# ----------------------------------------------------------- adaptive server steps


def _adaptive_server(
    x: Params,
    trace: Trace,
    lr: Rate,
    server_lr: float,
    b1: float,
    tau: float,
    second: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> list[Params]:
    """Reddi et al. 2021, Algorithm 2; ``second(v, delta)`` is its line for v_t."""
    m, v = zeros(x), each(lambda leaf: np.full_like(leaf, tau**2), x)
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        deltas = []
        for batches in data:
            xi = x
            for batch in batches:
                xi = sub(xi, times(eta, trace.grad(xi, batch)))
            deltas.append(sub(xi, x))
        delta = mean(deltas)
        m = add(times(b1, m), times(1 - b1, delta))
        v = each(second, v, delta)
        step = each(lambda m, v: m / (np.sqrt(v) + tau), m, v)
        x = add(x, times(server_lr, step))
        history.append(x)
    return history


def fedadam(
    x: Params,
    trace: Trace,
    lr: Rate,
    server_lr: float,
    b1: float = 0.9,
    b2: float = 0.99,
    tau: float = 1e-3,
) -> list[Params]:
    """FedAdam (Reddi et al. 2021, Algorithm 2), v_{-1} = tau^2, no bias correction."""
    second = lambda v, d: b2 * v + (1 - b2) * d**2
    return _adaptive_server(x, trace, lr, server_lr, b1, tau, second)


def fedyogi(
    x: Params,
    trace: Trace,
    lr: Rate,
    server_lr: float,
    b1: float = 0.9,
    b2: float = 0.99,
    tau: float = 1e-3,
) -> list[Params]:
    """FedYogi (Reddi et al. 2021, Algorithm 2), v_{-1} = tau^2, no bias correction."""
    second = lambda v, d: v - (1 - b2) * d**2 * np.sign(v - d**2)
    return _adaptive_server(x, trace, lr, server_lr, b1, tau, second)


def fedadagrad(
    x: Params,
    trace: Trace,
    lr: Rate,
    server_lr: float,
    b1: float = 0.0,
    tau: float = 1e-3,
) -> list[Params]:
    """FedAdagrad (Reddi et al. 2021, Algorithm 2), v_{-1} = tau^2."""
    second = lambda v, d: v + d**2
    return _adaptive_server(x, trace, lr, server_lr, b1, tau, second)


# -------------------------------------------------------------------- local Muon


def local_muon(
    x: Params,
    trace: Trace,
    lr: Rate,
    momentum: float = 0.98,
    decay: float = 0.01,
    ratio: float = 1.0,
    direction: Callable[[np.ndarray], np.ndarray] = polar,
) -> list[Params]:
    """Local Muon (Liu et al. 2025, section 4, eq. 2 with M = 0 at each round's start).

    ``M <- momentum M + g; x <- x - lr (U V^T + decay x)``. Vectors: ``ratio`` times
    Adam(.9, .95, 1e-10), also started anew (the authors' code).
    """
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        deltas = []
        for batches in data:
            xi, m, moments = x, zeros(x), Moments(zeros(x), zeros(x), 0)
            for batch in batches:
                g = trace.grad(xi, batch)
                m = add(times(momentum, m), g)
                by_adam, moments = adam(g, moments, 0.9, 0.95, 1e-10)
                mixed = {k: m[k] if x[k].ndim > 1 else by_adam[k] for k in x}
                step = direct(mixed, direction, ratio)
                xi = sub(xi, times(eta, add(step, times(decay, xi))))
            deltas.append(sub(xi, x))
        x = add(x, mean(deltas))
        history.append(x)
    return history


def local_muon_momentum(
    x: Params,
    trace: Trace,
    lr: Rate,
    momentum: float = 0.98,
    decay: float = 0.01,
    ratio: float = 1.0,
    direction: Callable[[np.ndarray], np.ndarray] = polar,
) -> list[Params]:
    """Local Muon whose M starts a round at the mean of the last cohort's final M.

    "w/o Delta_G" of Table 5 in Liu et al. 2025: Algorithm 2 with alpha = 0. Vectors:
    ``ratio`` times Adam(.9, .95, 1e-10), started anew every round, never averaged.
    """
    m_bar = zeros(x)
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        deltas, last = [], []
        for batches in data:
            xi, m, moments = x, m_bar, Moments(zeros(x), zeros(x), 0)
            for batch in batches:
                g = trace.grad(xi, batch)
                m = add(times(momentum, m), g)
                by_adam, moments = adam(g, moments, 0.9, 0.95, 1e-10)
                mixed = {k: m[k] if x[k].ndim > 1 else by_adam[k] for k in x}
                step = direct(mixed, direction, ratio)
                xi = sub(xi, times(eta, add(step, times(decay, xi))))
            deltas.append(sub(xi, x))
            last.append(m)
        x = add(x, mean(deltas))
        m_bar = mean(last)
        history.append(x)
    return history


# ------------------------------------------------- averaged momentum, clipped steps


def local_sgdm(
    x: Params, trace: Trace, lr: Rate, momentum: float = 0.9
) -> list[Params]:
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


def _biclip_displacement(
    x: Params,
    data: list[list[Batch]],
    trace: Trace,
    eta: float,
    low: float,
    high: float,
) -> Params:
    """The mean of x_i - x after local steps ``x_i <- x_i - eta BiClip(g)``."""
    deltas = []
    for batches in data:
        xi = x
        for batch in batches:
            xi = sub(xi, times(eta, biclip(trace.grad(xi, batch), low, high)))
        deltas.append(sub(xi, x))
    return mean(deltas)


def adam_biclip(
    x: Params,
    trace: Trace,
    lr: Rate,
    low: float,
    high: float,
    server_lr: float,
    b1: float = 0.9,
    b2: float = 0.99,
    tau: float = 1e-3,
) -> list[Params]:
    """Adam-BiClip (TailOPT; Lee, Zaheer & Li, ICML 2025, arXiv 2502.04164).

    BiClip inside with constant thresholds; outside FedAdam's step (Reddi et al. 2021,
    Algorithm 2): v_{-1} = tau^2, no bias correction.
    """
    m, v = zeros(x), each(lambda leaf: np.full_like(leaf, tau**2), x)
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        delta = _biclip_displacement(x, data, trace, rate(lr, r), low, high)
        m = each(lambda m, d: b1 * m + (1 - b1) * d, m, delta)
        v = each(lambda v, d: b2 * v + (1 - b2) * d**2, v, delta)
        step = each(lambda m, v: m / (np.sqrt(v) + tau), m, v)
        x = add(x, times(server_lr, step))
        history.append(x)
    return history


def bi2clip(
    x: Params,
    trace: Trace,
    lr: Rate,
    low: float,
    high: float,
    server_low: float,
    server_high: float,
    server_lr: float,
) -> list[Params]:
    """Bi^2Clip (Lee, Zaheer & Li, ICML 2025): BiClip inside and outside.

    ``x <- x + server_lr BiClip(mean(x_i - x), server_low, server_high)``.
    """
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        delta = _biclip_displacement(x, data, trace, rate(lr, r), low, high)
        x = add(x, times(server_lr, biclip(delta, server_low, server_high)))
        history.append(x)
    return history
