"""FedLADA: local AMSGrad mixed with the last round's mean displacement."""

import numpy as np

from .problem import add, each, mean, mean_direction, rate, sub, times, zeros


def fedlada(x, trace, lr, alpha=0.1, b1=0.9, b2=0.99, eps=1e-8, server_lr=1.0):
    """FedLADA (Sun et al. 2023, arXiv 2308.00522, Algorithm 3).

    Each round m = 0 and v_i = v_hat_i = v: ``m <- b1 m + (1-b1) g``; ``v_i <- b2 v_i +
    (1-b2) g^2``; ``v_hat_i <- max(v_hat_i, v_i)``; ``x_i <- x_i - lr (alpha
    m/sqrt(v_hat_i) + (1-alpha) d)``. Server: ``d = (x - mean x_i)/(lr K)``; ``x +=
    server_lr (mean x_i - x)``; ``v = mean v_hat_i``. v = eps^2 and d = 0 first; no bias
    correction, no eps in the denominator.
    """
    v, d = each(lambda leaf: np.full_like(leaf, eps**2), x), zeros(x)
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        K = len(data[0])
        points, seconds = [], []
        for batches in data:
            xi, m, vi, v_hat = x, zeros(x), v, v
            for batch in batches:
                g = trace.grad(xi, batch)
                m = each(lambda m, g: b1 * m + (1 - b1) * g, m, g)
                vi = each(lambda v, g: b2 * v + (1 - b2) * g**2, vi, g)
                v_hat = each(np.maximum, v_hat, vi)
                adaptive = each(lambda m, v: m / np.sqrt(v), m, v_hat)
                step = add(times(alpha, adaptive), times(1 - alpha, d))
                xi = sub(xi, times(eta, step))
            points.append(xi)
            seconds.append(v_hat)
        moved = sub(mean(points), x)
        d = mean_direction(moved, K, eta, d)
        x = add(x, times(server_lr, moved))
        v = mean(seconds)
        history.append(x)
    return history
