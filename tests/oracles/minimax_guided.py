"""Fed-NSGDA-M, FedMuon-DA and FedSGDA-Clip: control variates, momentum, a direction.

All three are Algorithm 1 of "Federated Stochastic Minimax Optimization under
Heavy-Tailed Noises" (Zhang & Gao) and differ in step 6 alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .guided import normalise_whole
from .problem import (
    Params,
    Rate,
    add,
    each,
    mean,
    normalise,
    polar,
    rate,
    sub,
    times,
    total,
    zeros,
)
from .saddle import Saddle, SaddleTrace

Direction = Callable[[Params], Params]  # of the whole variable x or the whole y
Direction1 = Callable[[np.ndarray], np.ndarray]  # of one leaf


class GuidedSaddle(NamedTuple):
    """The state after a round: x, y, the momenta u, v, controls g and all N g_i."""

    x: Params
    y: Params
    u: Params
    v: Params
    g_x: Params
    g_y: Params
    g_x_i: list[Params]
    g_y_i: list[Params]


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
    N = trace.num_clients
    x, y = start["x"], start["y"]
    u, g_x, g_x_i = zeros(x), zeros(x), [zeros(x)] * N
    v, g_y, g_y_i = zeros(y), zeros(y), [zeros(y)] * N
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta_x, eta_y = rate(lr_x, r), rate(lr_y, r)
        beta_x, beta_y = (1.0, 1.0) if r == 0 else (b_x, b_y)
        moves_x, fresh_x = [], list(g_x_i)
        moves_y, fresh_y = [], list(g_y_i)
        for i, batches in zip(ids, data, strict=True):
            xi, yi, raw_x, raw_y = x, y, [], []
            for batch in batches:
                grad = trace.grad({"x": xi, "y": yi}, batch)
                raw_x.append(grad["x"])
                raw_y.append(grad["y"])
                u_i = times(beta_x, sub(add(grad["x"], g_x), g_x_i[i]))
                u_i = add(u_i, times(1 - beta_x, u))
                v_i = times(beta_y, sub(add(grad["y"], g_y), g_y_i[i]))
                v_i = add(v_i, times(1 - beta_y, v))
                xi = sub(xi, times(eta_x, direction_x(u_i)))
                yi = add(yi, times(eta_y, direction_y(v_i)))
            fresh_x[i], fresh_y[i] = mean(raw_x), mean(raw_y)
            moves_x.append(sub(xi, x))
            moves_y.append(sub(yi, y))
        news_x = [sub(fresh_x[i], g_x_i[i]) for i in ids]
        news_y = [sub(fresh_y[i], g_y_i[i]) for i in ids]
        u = add(times(beta_x, add(g_x, mean(news_x))), times(1 - beta_x, u))
        v = add(times(beta_y, add(g_y, mean(news_y))), times(1 - beta_y, v))
        g_x = add(g_x, times(1 / N, total(news_x)))
        g_y = add(g_y, times(1 / N, total(news_y)))
        g_x_i, g_y_i = fresh_x, fresh_y
        x = add(x, times(server_lr_x, mean(moves_x)))
        y = add(y, times(server_lr_y, mean(moves_y)))
        history.append(GuidedSaddle(x, y, u, v, g_x, g_y, g_x_i, g_y_i))
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
    return [{"x": s.x, "y": s.y} for s in states]


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
    return [{"x": s.x, "y": s.y} for s in states]


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
    return [{"x": s.x, "y": s.y} for s in states]
