"""A momentum of the last round guides the clients: FedCM, Cheng et al., PAdaMFed.

FedAvg-VR, SCAFFOLD-VR and PAdaMFed-VR have two-point, STORM-like directions.
"""

from typing import NamedTuple

import numpy as np

from .problem import (
    Params,
    add,
    each,
    mean,
    mean_direction,
    rate,
    sub,
    times,
    total,
    zeros,
)


def fedcm(x, trace, lr, b=0.1, server_lr=1.0):
    """FedCM (Xu et al. 2021, arXiv 2106.10874, Algorithm 2).

    ``x_i <- x_i - lr [b g + (1-b) Delta]``; ``Delta <- -mean(x_i - x)/(K lr)`` with
    the lr of the round that made it; ``x += server_lr mean(x_i - x)``; Delta = 0 first.
    """
    delta_r = zeros(x)
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        K = len(data[0])
        deltas = []
        for batches in data:
            xi = x
            for batch in batches:
                v = add(times(b, trace.grad(xi, batch)), times(1 - b, delta_r))
                xi = sub(xi, times(eta, v))
            deltas.append(sub(xi, x))
        delta_r = mean_direction(mean(deltas), K, eta, delta_r)
        x = add(x, times(server_lr, mean(deltas)))
        history.append(x)
    return history


def fedavg_m(x, trace, lr, b=0.1, server_lr=1.0):
    """FedAvg-M (Cheng et al. 2024, arXiv 2306.16504, Algorithm 1).

    ``d = b g_i + (1-b) g^r``; ``x_i <- x_i - lr d``; ``g^{r+1}`` is the mean of d over
    the cohort and its K steps; ``x <- x - gamma g^{r+1}`` with ``gamma = server_lr lr
    K``; g^0 = 0.
    """
    g = zeros(x)
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        K = len(data[0])
        gamma = server_lr * eta * K
        directions = []
        for batches in data:
            xi = x
            for batch in batches:
                d = add(times(b, trace.grad(xi, batch)), times(1 - b, g))
                xi = sub(xi, times(eta, d))
                directions.append(d)
        g = mean(directions) if eta else g  # the paper's g is what moved
        x = sub(x, times(gamma, g))
        history.append(x)
    return history


def fedavg_vr(x, trace, lr, b=0.1, server_lr=1.0):
    """FedAvg-VR (Cheng et al. 2024, arXiv 2306.16504; from memory).

    ``d = grad(x_i; xi) + (1-b)(g^r - grad(x^{r-1}; xi))``, the same batch at both
    points; ``x_i <- x_i - lr d``; ``g^{r+1} = -mean(x_i - x)/(lr K)``; ``x <- x +
    server_lr mean(x_i - x)``. x^{-1} = x^0, and b = 1 in round 0, where there is no g.
    """
    x_prev, g = x, zeros(x)
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        K = len(data[0])
        b_r = 1.0 if r == 0 else b
        deltas = []
        for batches in data:
            xi = x
            for batch in batches:
                old = trace.grad(x_prev, batch)
                d = add(trace.grad(xi, batch), times(1 - b_r, sub(g, old)))
                xi = sub(xi, times(eta, d))
            deltas.append(sub(xi, x))
        g = mean_direction(mean(deltas), K, eta, g)
        x_prev = x
        x = add(x, times(server_lr, mean(deltas)))
        history.append(x)
    return history


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


def _states(x, trace, lr, b, server_lr, direction, momentum, step=lambda d: d):
    """The rounds that all four methods with controls share.

    ``d = direction(new, old, c_i, c, g, b)`` of the gradients at x_i and at the last
    round's x, on the same batch; ``x_i <- x_i - lr step(d)``; ``c_i^+`` the mean of the
    K gradients at the local points. Server, c being the old one: ``g <-
    momentum(moved, d, change, c, g, b)`` with ``moved = -mean_S(x_i - x)/(lr K)`` and
    the means over the cohort of d and of ``c_i^+ - c_i``; ``c += (1/N) sum_S(c_i^+ -
    c_i)``; ``x += server_lr mean_S(x_i - x)``. Controls and g are 0 first, x^{-1} =
    x^0, b = 1 in round 0.
    """
    N = trace.num_clients
    x_prev, g, c, c_i = x, zeros(x), zeros(x), [zeros(x)] * N
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        b_r = 1.0 if r == 0 else b
        deltas, directions, fresh = [], [], list(c_i)
        for i, batches in zip(ids, data, strict=True):
            xi, raw = x, []
            for batch in batches:
                new, old = trace.grad(xi, batch), trace.grad(x_prev, batch)
                raw.append(new)
                directions.append(direction(new, old, c_i[i], c, g, b_r))
                xi = sub(xi, times(eta, step(directions[-1])))
            fresh[i] = mean(raw)
            deltas.append(sub(xi, x))
        changes = [sub(fresh[i], c_i[i]) for i in ids]
        moved = mean_direction(mean(deltas), len(data[0]), eta, g)
        g = momentum(moved, mean(directions), mean(changes), c, g, b_r)
        c = add(c, times(1 / N, total(changes)))
        c_i = fresh
        x_prev = x
        x = add(x, times(server_lr, mean(deltas)))
        history.append(Guided(x, g, c, c_i))
    return history


def scaffold_m_states(x, trace, lr, b=0.1, server_lr=1.0) -> list[Guided]:
    """SCAFFOLD-M (Cheng et al. 2024, arXiv 2306.16504; from memory).

    ``d = b (grad - c_i + c) + (1-b) g``; g is the mean of d, which is what moved.
    """

    def direction(new, old, own, c, g, b):
        return add(times(b, add(sub(new, own), c)), times(1 - b, g))

    return _states(x, trace, lr, b, server_lr, direction, lambda moved, d, *_: d)


def padamfed_states(x, trace, lr, b=0.1, server_lr=1.0) -> list[Guided]:
    """PAdaMFed (Yan et al., ICLR 2025, the version without variance reduction).

    ``h = b c + (1-b) g``; ``d = b grad - b c_i + h``; steps d/|d|, the norm over the
    whole model; ``g <- b [c + mean_S(c_i^+ - c_i)] + (1-b) g``.
    """

    def direction(new, old, own, c, g, b):
        h = add(times(b, c), times(1 - b, g))
        return add(sub(times(b, new), times(b, own)), h)

    def momentum(moved, d, change, c, g, b):
        return add(times(b, add(c, change)), times(1 - b, g))

    return _states(x, trace, lr, b, server_lr, direction, momentum, normalise_whole)


def scaffold_vr_states(x, trace, lr, b=0.1, server_lr=1.0) -> list[Guided]:
    """SCAFFOLD-VR (Cheng et al. 2024, arXiv 2306.16504; from memory).

    ``d = grad(x_i; xi) - b (c_i - c) + (1-b)(g - grad(x^{r-1}; xi))``; g is what moved.
    """

    def direction(new, old, own, c, g, b):
        d = sub(new, times(b, sub(own, c)))
        return add(d, times(1 - b, sub(g, old)))

    return _states(x, trace, lr, b, server_lr, direction, lambda moved, *_: moved)


def padamfed_vr_states(x, trace, lr, b=0.1, server_lr=1.0) -> list[Guided]:
    """PAdaMFed-VR (Yan et al., ICLR 2025).

    ``h = b c + (1-b) g``; ``d = grad(x_i; xi) - b c_i + h - (1-b) grad(x^{r-1}; xi)``;
    steps d/|d|, the norm over the whole model. ``g`` is the mean of d over the cohort
    and the K steps (a choice: the server's g is not printed where the local rule is).
    """

    def direction(new, old, own, c, g, b):
        h = add(times(b, c), times(1 - b, g))
        return sub(add(sub(new, times(b, own)), h), times(1 - b, old))

    mean_of = lambda moved, d, *_: d
    return _states(x, trace, lr, b, server_lr, direction, mean_of, normalise_whole)


def _params(states):
    """The same method, with the parameters of its states alone."""
    return lambda *given, **hyper: [s.x for s in states(*given, **hyper)]


scaffold_m, scaffold_vr = _params(scaffold_m_states), _params(scaffold_vr_states)
padamfed, padamfed_vr = _params(padamfed_states), _params(padamfed_vr_states)
