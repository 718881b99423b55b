"""Fed-NSGDA-M, FedMuon-DA and FedSGDA-Clip: control variates, momentum, a direction.

All three are Algorithm 1 of "Federated Stochastic Minimax Optimization under
Heavy-Tailed Noises" (Zhang & Gao) and differ in step 6 alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .guided import normalise_whole
from .problem import Params, Rate, add, each, normalise, polar, sub, times, total, zeros
from .saddle import (
    Saddle,
    SaddleTrace,
    averaged,
    both,
    combined,
    mixed,
    moved,
    rates,
    two_sided,
)

Direction = Callable[[Params], Params]  # of the whole variable x or the whole y
Direction1 = Callable[[np.ndarray], np.ndarray]  # of one leaf


class GuidedSaddle(NamedTuple):
    """The state after a round: (x, y), momenta (u, v), controls g and all N g_i."""

    at: Saddle
    momentum: Saddle
    g: Saddle
    g_i: list[Saddle]


def guided_states(
    start: Saddle,
    trace: SaddleTrace,
    lr_x: Rate,
    lr_y: Rate,
    direction_x: Direction,
    direction_y: Direction,
    b_x: float = 0.1,
    b_y: float = 0.1,
    server_lr_x: float = 1.0,
    server_lr_y: float = 1.0,
) -> list[GuidedSaddle]:
    """Algorithm 1 with any direction in step 6.

    Step 5: ``u_i = b_x (grad_x + g_x - g_x_i) + (1-b_x) u``, likewise v_i for y, both
    gradients at the same local (x, y) on the same batch; g, g_i and u stay those of
    the last round. Step 6: ``x_i <- x_i - lr_x direction_x(u_i)`` and ``y_i <- y_i +
    lr_y direction_y(v_i)`` at once. Step 8: g_i^+ the mean of the client's K
    gradients. Step 11: ``x += server_lr_x mean(x_i - x)``, that is gamma_x =
    server_lr_x lr_x K. Step 12: ``u <- b_x g_x^+ + (1-b_x) u``.

    Two choices where Algorithm 1 is silent. Before the first round u, g and all g_i
    are 0 and the fresh gradient has the weight 1 in it. When only S of N clients take
    part, PAdaMFed's rule holds: ``u <- b_x [g_x + mean_S(g_i^+ - g_i)] + (1-b_x) u``
    with the old g_x, then ``g_x += (1/N) sum_S(g_i^+ - g_i)``; absent clients keep
    their g_i. With S = N it is steps 10 and 12.
    """
    N, server_lr, at = trace.num_clients, both(server_lr_x, server_lr_y), start
    momentum = g = combined(zeros, start)
    g_i = [g] * N
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta, ends, fresh = rates(lr_x, lr_y, r), [], list(g_i)
        beta = both(1.0, 1.0) if r == 0 else both(b_x, b_y)
        for i, batches in zip(ids, data, strict=True):
            local, raw = at, []
            for batch in batches:
                raw.append(trace.grad(local, batch))
                whole = combined(sub, combined(add, raw[-1], g), g_i[i])
                u_i = mixed(beta, whole, momentum)
                step = both(direction_x(u_i["x"]), direction_y(u_i["y"]))
                local = moved(local, eta, step)
            fresh[i] = averaged(raw)
            ends.append(local)
        news = [combined(sub, fresh[i], g_i[i]) for i in ids]
        momentum = mixed(beta, combined(add, g, averaged(news)), momentum)
        change = lambda *parts: times(1 / N, total(parts))
        g, g_i = combined(add, g, combined(change, *news)), fresh
        at = two_sided(at, ends, server_lr)
        history.append(GuidedSaddle(at, momentum, g, g_i))
    return history


def fed_nsgda_m(
    start: Saddle,
    trace: SaddleTrace,
    lr_x: Rate,
    lr_y: Rate,
    b_x: float = 0.1,
    b_y: float = 0.1,
    server_lr_x: float = 1.0,
    server_lr_y: float = 1.0,
) -> list[Saddle]:
    """Fed-NSGDA-M, Algorithm 1: the direction is u/|u| for x and v/|v| for y.

    Each norm is that of one whole variable, over all its leaves; 0 gives 0.
    """
    states = guided_states(
        start,
        trace,
        lr_x,
        lr_y,
        normalise_whole,
        normalise_whole,
        b_x,
        b_y,
        server_lr_x,
        server_lr_y,
    )
    return [s.at for s in states]


def fedmuon_da(
    start: Saddle,
    trace: SaddleTrace,
    lr_x: Rate,
    lr_y: Rate,
    b_x: float = 0.1,
    b_y: float = 0.1,
    server_lr_x: float = 1.0,
    server_lr_y: float = 1.0,
    vector: Direction1 = normalise,
    scalar: Direction1 = np.sign,
) -> list[Saddle]:
    """FedMuon-DA, Algorithm 3: P Q^T of U = P Sigma Q^T, leaf by leaf.

    The algorithm knows matrices only. Two choices for the rest, so that every step is
    bounded: vectors move along their momentum over its norm, or along ``vector`` of
    it, and scalars along its sign, or along ``scalar`` of it.
    """

    def direction(leaf: np.ndarray) -> np.ndarray:
        if leaf.ndim == 0:
            return scalar(leaf)
        return polar(leaf) if leaf.ndim > 1 else vector(leaf)

    by_leaf = lambda variable: each(direction, variable)
    states = guided_states(
        start, trace, lr_x, lr_y, by_leaf, by_leaf, b_x, b_y, server_lr_x, server_lr_y
    )
    return [s.at for s in states]


def clip_whole(variable: Params, tau: float) -> Params:
    """``min(1, tau/|u|) u``, the Euclidean norm over all leaves together; 0 gives 0."""
    norm = np.sqrt(sum(np.sum(leaf**2) for leaf in variable.values()))
    return times(tau / norm, variable) if norm > tau else variable


def fedsgda_clip(
    start: Saddle,
    trace: SaddleTrace,
    lr_x: Rate,
    lr_y: Rate,
    b_x: float = 0.1,
    b_y: float = 0.1,
    server_lr_x: float = 1.0,
    server_lr_y: float = 1.0,
    tau: float = 0.1,
) -> list[Saddle]:
    """FedSGDA-Clip, equation (21): u and v are clipped, each as a whole, at tau."""
    clipped = lambda variable: clip_whole(variable, tau)
    states = guided_states(
        start, trace, lr_x, lr_y, clipped, clipped, b_x, b_y, server_lr_x, server_lr_y
    )
    return [s.at for s in states]
