"""MuLoCo: Muon as the inner, Nesterov SGD as the outer optimiser."""

from collections.abc import Callable

import numpy as np

from .problem import (
    Moments,
    Params,
    Rate,
    Trace,
    adam,
    add,
    direct,
    mean,
    polar,
    rate,
    sub,
    times,
    zeros,
)


def muloco(
    x: Params,
    trace: Trace,
    lr: Rate,
    momentum: float = 0.9,
    decay: float = 0.0,
    outer_lr: float = 0.8,
    outer_momentum: float = 0.9,
    scale: Callable[[int, int], float] = lambda rows, cols: 1.0,
    ratio: float = 1.0,
    direction: Callable[[np.ndarray], np.ndarray] = polar,
) -> list[Params]:
    """MuLoCo (Thérien et al. 2025, arXiv 2505.23725), without compression.

    Inner: ``M_i <- momentum M_i + g; x_i <- x_i - lr (scale(rows, cols) U V^T + decay
    x_i)``, heavy ball without Nesterov. Vectors: ``ratio`` times Adam(.9, .99, 1e-8).
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
                m_i[i] = add(times(momentum, m_i[i]), g)
                by_adam, moments_i[i] = adam(g, moments_i[i], 0.9, 0.99, 1e-8)
                mixed = {k: m_i[i][k] if x[k].ndim > 1 else by_adam[k] for k in x}
                step = direct(mixed, scaled, ratio)
                xi = sub(xi, times(eta, add(step, times(decay, xi))))
            deltas.append(sub(x, xi))
        delta = mean(deltas)
        u = add(times(outer_momentum, u), delta)
        x = sub(x, times(outer_lr, add(delta, times(outer_momentum, u))))
        history.append(x)
    return history
