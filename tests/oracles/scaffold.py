"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1) with three local optimisers."""

from collections.abc import Callable
from typing import Any, NamedTuple

from .problem import (
    Moments,
    Params,
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


def _start(x, trace, warm_start) -> tuple[Params, list[Params]]:
    """c and c_i before round 0: 0, or the first gradients and their mean over N."""
    if not warm_start:
        return zeros(x), [zeros(x) for _ in range(trace.num_clients)]
    c_i = [first_gradient(trace, x, i) for i in range(trace.num_clients)]
    return mean(c_i), c_i


def scaffold_states(x, trace, lr, server_lr=1.0, warm_start=False) -> list[Controlled]:
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
            if eta:
                fresh = add(sub(c_i[i], c), times(1 / (K * eta), sub(x, xi)))
            else:  # the limit of option II, whose quotient is 0 / 0
                fresh = mean([trace.grad(x, batch) for batch in batches])
            deltas.append(sub(xi, x))
            changes.append(sub(fresh, c_i[i]))
            c_i = [fresh if j == i else c_i[j] for j in range(trace.num_clients)]
        x = add(x, times(server_lr, mean(deltas)))
        c = add(c, times(1 / trace.num_clients, total(changes)))
        history.append(Controlled(x, c, c_i))
    return history


def scaffold(x, trace, lr, server_lr=1.0, warm_start=False):
    """The parameters of `scaffold_states` (Karimireddy et al. 2020, Algorithm 1)."""
    return [s.x for s in scaffold_states(x, trace, lr, server_lr, warm_start)]


def _scaffold(x, trace, lr, server_lr, start: Any, rule: Callable):
    """SCAFFOLD of Takezawa et al. 2026, section 7, with any local optimiser.

    ``step, state = rule(g - c_i + c, state)``: the correction enters the gradient
    before the optimiser, whose state is ``start`` every round; c_i^+ is the mean of the
    K raw gradients g, which is what option II computes when the optimiser is SGD.
    """
    c, c_i = _start(x, trace, warm_start=False)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        deltas, changes = [], []
        for i, batches in zip(ids, data, strict=True):
            xi, state, raw = x, start, []
            for batch in batches:
                g = trace.grad(xi, batch)
                raw.append(g)
                step, state = rule(add(sub(g, c_i[i]), c), state)
                xi = sub(xi, times(rate(lr, r), step))
            deltas.append(sub(xi, x))
            changes.append(sub(mean(raw), c_i[i]))
            c_i = [mean(raw) if j == i else c_i[j] for j in range(trace.num_clients)]
        x = add(x, times(server_lr, mean(deltas)))
        c = add(c, times(1 / trace.num_clients, total(changes)))
        history.append(x)
    return history


def scaffold_momentum(x, trace, lr, momentum=0.9, server_lr=1.0):
    """SCAFFOLD with heavy ball, ``m <- .9 m + (g - c_i + c)``."""

    def heavy_ball(g, m):
        m = add(times(momentum, m), g)
        return m, m

    return _scaffold(x, trace, lr, server_lr, zeros(x), heavy_ball)


def scaffold_adam(x, trace, lr, b1=0.9, b2=0.999, eps=1e-8, server_lr=1.0):
    """SCAFFOLD (Adam)."""
    rule = lambda g, state: adam(g, state, b1, b2, eps)
    return _scaffold(x, trace, lr, server_lr, Moments(zeros(x), zeros(x), 0), rule)
