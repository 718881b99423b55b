"""FedMuon of Liu et al.: local-global alignment and momentum aggregation."""

from collections.abc import Callable
from typing import Any

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


def _aligned(
    x: Params, trace: Trace, lr: Rate, start: Any, local: Callable, carry: Callable
) -> list[Params]:
    """Lines 13-15 of Algorithm 2: the server of all three methods.

    ``xi, state = local(x, state, Delta_G, batches, lr)`` are a client's steps;
    ``Delta_G = -mean(x_i - x)/(K lr)`` with the lr of the round that made the
    displacement, ``x += mean(x_i - x)``, and ``carry`` makes the state that the next
    round begins with from the clients' last ones. Delta_G = 0 at first.
    """
    state, delta_g = start, zeros(x)
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        ends = [local(x, state, delta_g, batches, eta) for batches in data]
        delta = mean([sub(xi, x) for xi, _ in ends])
        delta_g = times(-1 / (len(data[0]) * eta), delta)
        x, state = add(x, delta), carry([last for _, last in ends])
        history.append(x)
    return history


def fedmuon_align(
    x: Params,
    trace: Trace,
    lr: Rate,
    momentum: float = 0.98,
    align: float = 0.5,
    decay: float = 0.01,
    ratio: float = 1.0,
    carry: bool = True,
    direction: Callable[[np.ndarray], np.ndarray] = polar,
) -> list[Params]:
    """FedMuon (Liu et al. 2025, arXiv 2510.27403), Algorithm 2.

    Lines 6-9: ``M <- momentum M + g``; ``x <- x - lr [(1-align) U V^T + align Delta_G
    + decay x]``. Lines 13-15 also ``M_bar = mean M_i``, 0 at first. (The printed
    indices of M and Delta_G are slips; a round is exactly K steps, and the Delta_G of a
    round serves the next one.)

    Vectors: ``ratio`` times Adam(.9, .95, 1e-10), started anew every round, never
    averaged, aligned with Delta_G as the matrices are (the authors' code). Without
    ``carry`` M starts every round at 0 ("w/o m-bar" of Table 5).
    """

    def local(xi, m, delta_g, batches, eta):
        moments = Moments(zeros(xi), zeros(xi), 0)
        for batch in batches:
            g = trace.grad(xi, batch)
            m = add(times(momentum, m), g)
            by_adam, moments = adam(g, moments, 0.9, 0.95, 1e-10)
            mixed = {k: m[k] if xi[k].ndim > 1 else by_adam[k] for k in xi}
            along = times(1 - align, direct(mixed, direction, ratio))
            step = add(add(along, times(align, delta_g)), times(decay, xi))
            xi = sub(xi, times(eta, step))
        return xi, m

    after = mean if carry else lambda last: zeros(last[0])
    return _aligned(x, trace, lr, zeros(x), local, after)


def local_sgd_align(
    x: Params,
    trace: Trace,
    lr: Rate,
    momentum: float = 0.9,
    align: float = 0.5,
    decay: float = 0.0,
) -> list[Params]:
    """Local SGD with averaged momentum and alignment (Liu et al. 2025, Table 5).

    ``m <- momentum m + (g + decay x)``, the decay coupled as in torch's SGD; ``x <- x -
    lr [(1-align) m + align Delta_G]`` on all leaves; m as in `fedmuon_align`.
    """

    def local(xi, m, delta_g, batches, eta):
        for batch in batches:
            g = add(trace.grad(xi, batch), times(decay, xi))
            m = add(times(momentum, m), g)
            step = add(times(1 - align, m), times(align, delta_g))
            xi = sub(xi, times(eta, step))
        return xi, m

    return _aligned(x, trace, lr, zeros(x), local, mean)


def local_adamw_align(
    x: Params,
    trace: Trace,
    lr: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    align: float = 0.5,
    decay: float = 0.01,
) -> list[Params]:
    """Local AdamW with averaged momentum and alignment (Liu et al. 2025, Table 5).

    ``x <- x - lr [(1-align) m_hat/(sqrt(v_hat)+eps) + align Delta_G + decay x]`` on all
    leaves. Both moments are averaged and carried; the count that corrects both biases
    starts anew every round (a choice: the paper is silent).
    """

    def local(xi, state, delta_g, batches, eta):
        for batch in batches:
            by_adam, state = adam(trace.grad(xi, batch), state, b1, b2, eps)
            step = add(times(1 - align, by_adam), times(align, delta_g))
            xi = sub(xi, times(eta, add(step, times(decay, xi))))
        return xi, state

    after = lambda last: Moments(
        mean([s.m for s in last]), mean([s.v for s in last]), 0
    )
    return _aligned(x, trace, lr, Moments(zeros(x), zeros(x), 0), local, after)
