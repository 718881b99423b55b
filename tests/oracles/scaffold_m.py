"""SCAFFOLD-M and PAdaMFed: control variates and a momentum of the last round."""

from typing import NamedTuple

import numpy as np

from .problem import (
    Params,
    Rate,
    Trace,
    add,
    each,
    mean,
    rate,
    sub,
    times,
    total,
    zeros,
)


class Guided(NamedTuple):
    """The state after a round: x, the momentum g, c, and c_i of all N clients."""

    x: Params
    g: Params
    c: Params
    c_i: list[Params]


def normalise_whole(d: Params) -> Params:
    """d / |d|, the Euclidean norm over all leaves together; 0 gives 0."""
    norm = np.sqrt(sum(np.sum(leaf**2) for leaf in d.values()))
    return each(lambda leaf: leaf / norm, d) if norm > 0 else zeros(d)


def scaffold_m_states(
    x: Params, trace: Trace, lr: Rate, b: float = 0.1, server_lr: float = 1.0
) -> list[Guided]:
    """SCAFFOLD-M (Cheng et al. 2024, arXiv 2306.16504; from memory).

    ``d = b (grad - c_i + c) + (1-b) g``; ``x_i <- x_i - lr d``; ``c_i^+`` the mean of
    the K gradients; ``g <- -mean_S(x_i - x)/(lr K)``; ``x += server_lr mean_S(x_i -
    x)``; ``c += (1/N) sum_S(c_i^+ - c_i)``. Controls and g are 0 first, b = 1 in
    round 0.
    """
    N = trace.num_clients
    g, c, c_i = zeros(x), zeros(x), [zeros(x)] * N
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        b_r = 1.0 if r == 0 else b
        deltas, fresh = [], list(c_i)
        for i, batches in zip(ids, data, strict=True):
            xi, raw = x, []
            for batch in batches:
                gradient = trace.grad(xi, batch)
                raw.append(gradient)
                d = times(b_r, add(sub(gradient, c_i[i]), c))
                d = add(d, times(1 - b_r, g))
                xi = sub(xi, times(eta, d))
            fresh[i] = mean(raw)
            deltas.append(sub(xi, x))
        g = times(-1 / (len(data[0]) * eta), mean(deltas))
        x = add(x, times(server_lr, mean(deltas)))
        c = add(c, times(1 / N, total([sub(fresh[i], c_i[i]) for i in ids])))
        c_i = fresh
        history.append(Guided(x, g, c, c_i))
    return history


def scaffold_m(
    x: Params, trace: Trace, lr: Rate, b: float = 0.1, server_lr: float = 1.0
) -> list[Params]:
    """The parameters of `scaffold_m_states` (Cheng et al. 2024)."""
    return [s.x for s in scaffold_m_states(x, trace, lr, b, server_lr)]


def padamfed_states(
    x: Params, trace: Trace, lr: Rate, b: float = 0.1, server_lr: float = 1.0
) -> list[Guided]:
    """PAdaMFed (Yan et al., ICLR 2025, the version without variance reduction).

    ``h = b c + (1-b) g``; ``d = b grad - b c_i + h``; ``x_i <- x_i - lr d/|d|``, the
    norm over the whole model; ``c_i^+`` the mean of the K gradients. Server, c being
    the old one: ``g <- b [c + mean_S(c_i^+ - c_i)] + (1-b) g``, then ``c += (1/N)
    sum_S(c_i^+ - c_i)``; ``x += server_lr mean_S(x_i - x)``. Controls and g are 0
    first, b = 1 in round 0.
    """
    N = trace.num_clients
    g, c, c_i = zeros(x), zeros(x), [zeros(x)] * N
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        b_r = 1.0 if r == 0 else b
        h = add(times(b_r, c), times(1 - b_r, g))
        deltas, fresh = [], list(c_i)
        for i, batches in zip(ids, data, strict=True):
            xi, raw = x, []
            for batch in batches:
                gradient = trace.grad(xi, batch)
                raw.append(gradient)
                d = add(sub(times(b_r, gradient), times(b_r, c_i[i])), h)
                xi = sub(xi, times(eta, normalise_whole(d)))
            fresh[i] = mean(raw)
            deltas.append(sub(xi, x))
        changes = [sub(fresh[i], c_i[i]) for i in ids]
        g = add(times(b_r, add(c, mean(changes))), times(1 - b_r, g))
        c = add(c, times(1 / N, total(changes)))
        c_i = fresh
        x = add(x, times(server_lr, mean(deltas)))
        history.append(Guided(x, g, c, c_i))
    return history


def padamfed(
    x: Params, trace: Trace, lr: Rate, b: float = 0.1, server_lr: float = 1.0
) -> list[Params]:
    """The parameters of `padamfed_states` (Yan et al., ICLR 2025)."""
    return [s.x for s in padamfed_states(x, trace, lr, b, server_lr)]
