"""STORM momentum at every client: STEM, and FAFED with an adaptive preconditioner."""

import numpy as np

from .problem import add, each, first_gradient, mean, rate, sub, times


def stem(x, trace, lr, a=0.1):
    """STEM (Khanduri et al. 2021, Algorithm 1; from memory), constant a.

    Full participation. Iteration 0: ``d = mean g_i`` at x^0 over the first batches,
    ``x_1 = x_0 - lr d``. Iteration t > 0: ``d_i <- grad(x_t,i; xi) + (1-a)(d_i -
    grad(x_{t-1,i}; xi))``; if K divides t both are averaged and ``x_{t+1} = x_bar - lr
    d_bar``, else ``x_{t+1,i} = x_t,i - lr d_i``. x_{t-1,i} is the client's own iterate,
    across an averaging too.
    """
    N = trace.num_clients
    d = mean([first_gradient(trace, x, i) for i in range(N)])
    x_prev = [x] * N
    x = sub(x, times(rate(lr, 0), d))
    t = 0
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        K = len(data[0])
        xs, ds = dict.fromkeys(ids, x), dict.fromkeys(ids, d)
        for k in range(K):
            t += 1
            for i, batches in zip(ids, data, strict=True):
                old = trace.grad(x_prev[i], batches[k])
                new = trace.grad(xs[i], batches[k])
                ds[i] = add(new, times(1 - a, sub(ds[i], old)))
                x_prev[i] = xs[i]
                if t % K != 0:
                    xs[i] = sub(xs[i], times(eta, ds[i]))
        d = mean(list(ds.values()))
        x = sub(mean(list(xs.values())), times(eta, d))
        history.append(x)
    return history


def fafed(x, trace, lr, a=0.1, beta=0.99, rho=0.01):
    """FAFED (Wu et al., AAAI 2023, arXiv 2212.00974, Algorithm 2), a round per K steps.

    Full participation. Before round 0: ``m = mean g_i``, ``v = mean g_i^2`` at x^0, and
    the first move ``x^1 = x^0 - lr m`` has no preconditioner. Each step: ``m_i <-
    grad(x_i; xi) + (1-a)(m_i - grad(x_i^prev; xi))``; ``v_i <- beta v_i + (1-beta)
    grad(x_i; xi)^2``; ``x_i <- x_i - lr m_i/(sqrt(v) + rho)`` with the v of the round's
    start. In place of the round's last move the server averages x_i, m_i and v_i and
    sets ``x <- x_bar - lr m_bar/(sqrt(v_bar) + rho)``; x_i^prev stays a client's own.
    """
    N = trace.num_clients
    g0 = [first_gradient(trace, x, i) for i in range(N)]
    m, v = mean(g0), mean([each(np.square, g) for g in g0])
    x_prev = [x] * N
    x = sub(x, times(rate(lr, 0), m))
    precondition = lambda m, v: m / (np.sqrt(v) + rho)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        xs, ms, vs = [], [], []
        for i, batches in zip(ids, data, strict=True):
            xi, mi, vi = x, m, v
            for k, batch in enumerate(batches):
                new, old = trace.grad(xi, batch), trace.grad(x_prev[i], batch)
                mi = add(new, times(1 - a, sub(mi, old)))
                vi = each(lambda v, g: beta * v + (1 - beta) * g**2, vi, new)
                x_prev[i] = xi
                if k < len(batches) - 1:
                    xi = sub(xi, times(eta, each(precondition, mi, v)))
            xs.append(xi)
            ms.append(mi)
            vs.append(vi)
        m, v = mean(ms), mean(vs)
        x = sub(mean(xs), times(eta, each(precondition, m, v)))
        history.append(x)
    return history
