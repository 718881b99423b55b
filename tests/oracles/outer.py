"""DiLoCo and MuLoCo: inner states that stay at the client, Nesterov SGD outside."""

from collections.abc import Callable

from .problem import Moments, adam, add, direct, mean, polar, rate, sub, times, zeros


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


def muloco(
    x,
    trace,
    lr,
    momentum=0.9,
    decay=0.0,
    outer_lr=0.8,
    outer_momentum=0.9,
    scale: Callable[[int, int], float] = lambda rows, cols: 1.0,
    ratio=1.0,
    direction=polar,
):
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
