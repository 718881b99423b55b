"""FedCoMuon of Yan and Huang, for a scalar inner function: the loss of a client."""

import numpy as np

from .problem import (
    add,
    first_gradient,
    mean,
    normalise,
    polar,
    rate,
    sub,
    times,
    zeros,
)


def unit(m, direction=polar):
    """The rule of all leaves: polar factors of matrices, unit vectors of the others."""
    return {k: direction(v) if v.ndim > 1 else normalise(v) for k, v in m.items()}


def slope_of(temperature, most):
    """f' of f(u) = t exp(u / t), in [-most, most]."""
    return lambda u: np.clip(np.exp(min(u / temperature, 700.0)), -most, most)


def fedcomuon(
    x, trace, lr, b=0.1, a=0.1, temperature=0.5, most=100.0, direction=polar, slope=None
):
    """FedCoMuon (2026, arXiv 2608.12710v2), Algorithm 1, for min (1/K) sum f(E g_k).

    Each step: ``x <- x - lr orth(M)``; at the new x, ``u <- a g(x) + (1-a) u``; ``Z =
    grad g(x) f'(u)``; ``M <- b Z + (1-b) M``. After a round the means of x and M; u
    stays. Before round 0: ``u_i = g_i(x_0)``, ``M = mean f'(u_i) grad g_i(x_0)``.
    """
    slope = slope or slope_of(temperature, most)
    u_i, m_0 = [], []
    for i in range(trace.num_clients):
        u = np.mean([trace.loss(x, batch) for batch in trace.first[i]])
        u_i.append(u)
        m_0.append(times(slope(u), first_gradient(trace, x, i)))
    m_bar = mean(m_0)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        last_x, last_m = [], []
        for i, batches in zip(ids, data, strict=True):
            xi, m, u = x, m_bar, u_i[i]
            for batch in batches:
                xi = sub(xi, times(eta, unit(m, direction)))
                u = a * trace.loss(xi, batch) + (1 - a) * u
                z = times(slope(u), trace.grad(xi, batch))
                m = add(times(b, z), times(1 - b, m))
            u_i[i] = u
            last_x.append(xi)
            last_m.append(m)
        x = mean(last_x)
        m_bar = mean(last_m)
        history.append(x)
    return history


def fedcomuon_vr(
    x,
    trace,
    lr,
    rho=0.1,
    a=0.1,
    gamma=0.1,
    temperature=0.5,
    most=100.0,
    radius=10.0,
    direction=polar,
    slope=None,
):
    """FedCoMuon-VR (the same, Algorithm 2), all clients in every round.

    Iteration t at x_i, and x_i^- before: ``u <- g(x_i) + (1-a)(u - g(x_i^-))``; ``H <-
    Pi[grad g(x_i) + (1-gamma)(H - grad g(x_i^-))]`` on the ball of radius C_g; ``v =
    f'(u)``; ``M <- (1-rho) M + rho H v``; ``x_i <- x_i - lr orth(M)``. At t = 0, u and
    H are the loss and the gradient, and M = H v. If K divides t, x is averaged before
    the samples, and M after them; x_i^- stays the client's own.
    """
    slope = slope or slope_of(temperature, most)
    N = trace.num_clients
    x_prev, u, H, M = [x] * N, [0.0] * N, [zeros(x)] * N, [zeros(x)] * N

    def sample(i, xi, batch, t):
        past = 1.0 if t else 0.0
        u[i] = trace.loss(xi, batch) + past * (1 - a) * (
            u[i] - trace.loss(x_prev[i], batch)
        )
        old = sub(H[i], trace.grad(x_prev[i], batch))
        H[i] = add(trace.grad(xi, batch), times(past * (1 - gamma), old))
        norm = np.sqrt(sum(np.sum(h**2) for h in H[i].values()))
        H[i] = times(min(1.0, radius / norm), H[i])
        keep = past * (1 - rho)
        M[i] = add(times(keep, M[i]), times((1 - keep) * slope(u[i]), H[i]))
        x_prev[i] = xi

    t = 0
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        xs = dict.fromkeys(ids, x)
        for k in range(len(data[0])):
            for i, batches in zip(ids, data, strict=True):
                sample(i, xs[i], batches[k], t)
            if k == 0:
                m_bar = mean([M[i] for i in ids])
                for i in ids:
                    M[i] = m_bar
            for i in ids:
                xs[i] = sub(xs[i], times(eta, unit(M[i], direction)))
            t += 1
        x = mean(list(xs.values()))
        history.append(x)
    return history
