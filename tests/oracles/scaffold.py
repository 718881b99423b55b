"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1) with three local optimisers."""

from typing import NamedTuple

from .problem import (
    Moments,
    Params,
    Rate,
    Trace,
    adam,
    add,
    first_gradient,
    mean,
    rate,
    sub,
    times,
    total,
    zeros,
)


class Controlled(NamedTuple):
    """The state after a round: x, c, and c_i of all N clients."""

    x: Params
    c: Params
    c_i: list[Params]


def _start(x: Params, trace: Trace, warm_start: bool) -> tuple[Params, list[Params]]:
    """c and c_i before round 0: 0, or the first gradients and their mean over N."""
    if not warm_start:
        return zeros(x), [zeros(x) for _ in range(trace.num_clients)]
    c_i = [first_gradient(trace, x, i) for i in range(trace.num_clients)]
    return mean(c_i), c_i


def scaffold_states(
    x: Params,
    trace: Trace,
    lr: Rate,
    server_lr: float = 1.0,
    warm_start: bool = False,
) -> list[Controlled]:
    """SCAFFOLD with plain SGD; line 12, option II: by the displacement.

    ``x_i <- x_i - lr (g - c_i + c)``; ``c_i^+ = c_i - c + (x - x_i)/(K lr)``;
    ``x += server_lr mean_S(x_i - x)``; ``c += (1/N) sum_S(c_i^+ - c_i)``.
    """
    c, c_i = _start(x, trace, warm_start)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        deltas, changes = [], []
        for i, batches in zip(ids, data, strict=True):
            K = len(batches)
            xi = x
            for batch in batches:
                g = trace.grad(xi, batch)
                xi = sub(xi, times(eta, add(sub(g, c_i[i]), c)))
            fresh = add(sub(c_i[i], c), times(1 / (K * eta), sub(x, xi)))
            deltas.append(sub(xi, x))
            changes.append(sub(fresh, c_i[i]))
            c_i = [fresh if j == i else c_i[j] for j in range(trace.num_clients)]
        x = add(x, times(server_lr, mean(deltas)))
        c = add(c, times(1 / trace.num_clients, total(changes)))
        history.append(Controlled(x, c, c_i))
    return history


def scaffold(
    x: Params,
    trace: Trace,
    lr: Rate,
    server_lr: float = 1.0,
    warm_start: bool = False,
) -> list[Params]:
    """The parameters of `scaffold_states` (Karimireddy et al. 2020, Algorithm 1)."""
    return [s.x for s in scaffold_states(x, trace, lr, server_lr, warm_start)]


def scaffold_momentum(
    x: Params,
    trace: Trace,
    lr: Rate,
    momentum: float = 0.9,
    server_lr: float = 1.0,
) -> list[Params]:
    """SCAFFOLD of Takezawa et al. 2025, section 7: the local optimiser is heavy ball.

    The correction enters the gradient before the optimiser, ``m <- .9 m + (g - c_i
    + c)``, m = 0 every round; c_i^+ is the mean of the K raw gradients g, which is
    what option II computes when the optimiser is SGD.
    """
    c, c_i = _start(x, trace, warm_start=False)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        deltas, changes = [], []
        for i, batches in zip(ids, data, strict=True):
            xi, m, raw = x, zeros(x), []
            for batch in batches:
                g = trace.grad(xi, batch)
                raw.append(g)
                m = add(times(momentum, m), add(sub(g, c_i[i]), c))
                xi = sub(xi, times(eta, m))
            deltas.append(sub(xi, x))
            changes.append(sub(mean(raw), c_i[i]))
            c_i = [mean(raw) if j == i else c_i[j] for j in range(trace.num_clients)]
        x = add(x, times(server_lr, mean(deltas)))
        c = add(c, times(1 / trace.num_clients, total(changes)))
        history.append(x)
    return history


def scaffold_adam(
    x: Params,
    trace: Trace,
    lr: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    server_lr: float = 1.0,
) -> list[Params]:
    """SCAFFOLD (Adam) of Takezawa et al. 2025, section 7.

    Adam is given the corrected gradient g - c_i + c and starts anew every round;
    c_i^+ is the mean of the K raw gradients g.
    """
    c, c_i = _start(x, trace, warm_start=False)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        deltas, changes = [], []
        for i, batches in zip(ids, data, strict=True):
            xi, state, raw = x, Moments(zeros(x), zeros(x), 0), []
            for batch in batches:
                g = trace.grad(xi, batch)
                raw.append(g)
                step, state = adam(add(sub(g, c_i[i]), c), state, b1, b2, eps)
                xi = sub(xi, times(eta, step))
            deltas.append(sub(xi, x))
            changes.append(sub(mean(raw), c_i[i]))
            c_i = [mean(raw) if j == i else c_i[j] for j in range(trace.num_clients)]
        x = add(x, times(server_lr, mean(deltas)))
        c = add(c, times(1 / trace.num_clients, total(changes)))
        history.append(x)
    return history
