"""STEM: stochastic two-sided momentum."""

from .problem import (
    Params,
    Rate,
    Trace,
    add,
    first_gradient,
    mean,
    rate,
    sub,
    times,
)


def stem(x: Params, trace: Trace, lr: Rate, a: float = 0.1) -> list[Params]:
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
