"""Local SGDA and its relatives: min over x by descent, max over y by ascent.

Each oracle returns ``{"x": x, "y": y}`` after every round. Both gradients are taken at
the same local (x, y) on the same batch, and both variables move at once.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .guided import normalise_whole
from .problem import Params, add, each, normalise, polar, sub, times, total, zeros
from .saddle import (
    Saddle,
    averaged,
    both,
    combined,
    first_saddle_gradient,
    mixed,
    moved,
    rates,
    two_sided,
)


def local_sgda(start, trace, lr_x, lr_y):
    """Local SGDA (Deng & Mahdavi 2021, arXiv 2102.13152; from memory).

    ``x_i <- x_i - lr_x grad_x``, ``y_i <- y_i + lr_y grad_y``, K times; then the plain
    means over the cohort.
    """
    return fsgda(start, trace, lr_x, lr_y)


def local_sgdam(start, trace, lr_x, lr_y, b_x=0.1, b_y=0.1, own_start=False):
    """Momentum Local SGDA (Sharma et al. 2022, arXiv 2203.04850; from memory), alpha=1.

    A step moves along the OLD momentum, ``x_i <- x_i - lr_x d_x_i``, ``y_i <- y_i +
    lr_y d_y_i``, and refreshes it at the NEW point with a fresh batch, ``d_x_i <-
    (1-b_x) d_x_i + b_x grad_x``, likewise d_y_i. After K steps x, y, d_x and d_y are
    averaged over the cohort, and all clients go on from the averages.

    The first momentum is the mean over all N clients of their gradients over their
    batches before round 0 (a choice); with ``own_start`` a client of round 0 begins
    from its own such gradient instead.
    """
    b, at = both(b_x, b_y), start
    first = [first_saddle_gradient(trace, start, i) for i in range(trace.num_clients)]
    d = averaged(first)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta, ends, last = rates(lr_x, lr_y, r), [], []
        for i, batches in zip(ids, data, strict=True):
            local, d_i = at, first[i] if own_start and r == 0 else d
            for batch in batches:
                local = moved(local, eta, d_i)
                d_i = mixed(b, trace.grad(local, batch), d_i)
            ends.append(local)
            last.append(d_i)
        at, d = averaged(ends), averaged(last)
        history.append(at)
    return history


def fedsgda_m(start, trace, lr_x, lr_y, a_x=0.1, a_y=0.1):
    """FedSGDA-M (Wu et al., NeurIPS 2023; from memory): STORM in x and in y.

    Full participation. Before round 0: ``v``, ``u`` the means over the clients of
    their gradients at (x_0, y_0) over their first batches; ``x_1 = x_0 - lr_x v``,
    ``y_1 = y_0 + lr_y u``. Iteration t > 0, one batch at both points: ``v_i <-
    grad_x(x_t,i, y_t,i) + (1-a_x)(v_i - grad_x(x_{t-1,i}, y_{t-1,i}))``, likewise u_i.
    If K divides t, x, y, v and u are averaged and ``x_{t+1} = x_bar - lr_x v_bar``,
    ``y_{t+1} = y_bar + lr_y u_bar`` (average, then step, as STEM does), else every
    client steps along its own. (x_{t-1,i}, y_{t-1,i}) is the client's own iterate,
    across an averaging too.
    """
    N, keep = trace.num_clients, both(1 - a_x, 1 - a_y)
    d = averaged([first_saddle_gradient(trace, start, i) for i in range(N)])
    before, at = [start] * N, moved(start, rates(lr_x, lr_y, 0), d)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        assert sorted(ids) == list(range(N)), "FedSGDA-M needs all clients"
        eta, ends, last = rates(lr_x, lr_y, r), [], []
        for i, batches in zip(ids, data, strict=True):
            local, d_i = at, d
            for k, batch in enumerate(batches):
                old, new = trace.grad(before[i], batch), trace.grad(local, batch)
                past = combined(sub, d_i, old)
                d_i = {v: add(new[v], times(keep[v], past[v])) for v in "xy"}
                before[i] = local
                if k + 1 < len(batches):
                    local = moved(local, eta, d_i)
            ends.append(local)
            last.append(d_i)
        d = averaged(last)
        at = moved(averaged(ends), eta, d)
        history.append(at)
    return history


def fsgda(start, trace, lr_x, lr_y, server_lr_x=1.0, server_lr_y=1.0):
    """FSGDA (Yang et al. 2022, arXiv 2210.00611; from memory).

    Local SGDA with two-sided rates: ``x += server_lr_x mean_S(x_i - x)``, ``y +=
    server_lr_y mean_S(y_i - y)``.
    """
    server_lr, at = both(server_lr_x, server_lr_y), start
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta, ends = rates(lr_x, lr_y, r), []
        for batches in data:
            local = at
            for batch in batches:
                local = moved(local, eta, trace.grad(local, batch))
            ends.append(local)
        at = two_sided(at, ends, server_lr)
        history.append(at)
    return history


def sagda(start, trace, lr_x, lr_y, server_lr_x=1.0, server_lr_y=1.0):
    """SAGDA (Yang et al. 2022, arXiv 2210.00611; from memory).

    ``x_i <- x_i - lr_x (grad_x - v_x_i + v_x)``, ``y_i <- y_i + lr_y (grad_y - v_y_i +
    v_y)``, the controls being those of the last round; ``x += server_lr_x mean_S(x_i -
    x)``, likewise y. Controls (a choice, as SCAFFOLD's): ``v_i^+`` the mean of the
    client's K gradients, ``v += (1/N) sum_S(v_i^+ - v_i)``, all 0 first; absent clients
    keep theirs.
    """
    N, server_lr, at = trace.num_clients, both(server_lr_x, server_lr_y), start
    control = combined(zeros, start)
    controls = [control] * N
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta, ends, fresh = rates(lr_x, lr_y, r), [], list(controls)
        for i, batches in zip(ids, data, strict=True):
            local, raw = at, []
            for batch in batches:
                raw.append(trace.grad(local, batch))
                own = combined(sub, raw[-1], controls[i])
                local = moved(local, eta, combined(add, own, control))
            fresh[i] = averaged(raw)
            ends.append(local)
        at = two_sided(at, ends, server_lr)
        news = [combined(sub, fresh[i], controls[i]) for i in ids]
        change = lambda *parts: times(1 / N, total(parts))
        control = combined(add, control, combined(change, *news))
        controls = fresh
        history.append(at)
    return history


def fess_gda(
    start,
    trace,
    lr_x,
    lr_y,
    server_lr_x=1.0,
    server_lr_y=1.0,
    rho=1.0,
    beta=0.5,
    project: Callable[[Params], Params] = lambda y: y,
):
    """FESS-GDA (Shen et al. 2024, arXiv 2311.00944).

    Locally plain SGDA from (x, y), without the smoothing term, ``y_i <- P(y_i + lr_y
    grad_y)``. Server: ``x^+ = x + server_lr_x mean_S(x_i - x) - lr_x server_lr_x K rho
    (x - z)``, ``y^+ = P(y + server_lr_y mean_S(y_i - y))``, ``z^+ = z + beta (x^+ -
    z)``; z = x first. ``project`` is P, a map of the whole y; the start is not
    projected.
    """
    server_lr, at, z = both(server_lr_x, server_lr_y), start, start["x"]
    inside = lambda point: {"x": point["x"], "y": project(point["y"])}
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta, ends = rates(lr_x, lr_y, r), []
        for batches in data:
            local = at
            for batch in batches:
                local = inside(moved(local, eta, trace.grad(local, batch)))
            ends.append(local)
        pull = times(eta["x"] * server_lr_x * len(data[0]) * rho, sub(at["x"], z))
        at = inside(two_sided(at, ends, server_lr))
        at["x"] = sub(at["x"], pull)
        z = add(z, times(beta, sub(at["x"], z)))
        history.append(at)
    return history


# ------------------------------------------ control variates, momentum, a direction
#
# Fed-NSGDA-M, FedMuon-DA and FedSGDA-Clip are Algorithm 1 of "Federated Stochastic
# Minimax Optimization under Heavy-Tailed Noises" (Zhang & Gao), and differ in step 6
# alone: the direction of a whole variable x or y.


class GuidedSaddle(NamedTuple):
    """The state after a round: (x, y), momenta (u, v), controls g and all N g_i."""

    at: Saddle
    momentum: Saddle
    g: Saddle
    g_i: list[Saddle]


def guided_states(
    start,
    trace,
    lr_x,
    lr_y,
    direction_x,
    direction_y,
    b_x=0.1,
    b_y=0.1,
    server_lr_x=1.0,
    server_lr_y=1.0,
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


def fed_nsgda_m(start, trace, lr_x, lr_y, **settings):
    """Fed-NSGDA-M, Algorithm 1: the direction is u/|u| for x and v/|v| for y.

    Each norm is that of one whole variable, over all its leaves; 0 gives 0.
    """
    whole = normalise_whole
    states = guided_states(start, trace, lr_x, lr_y, whole, whole, **settings)
    return [s.at for s in states]


def fedmuon_da(
    start, trace, lr_x, lr_y, *, vector=normalise, scalar=np.sign, **settings
):
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
    states = guided_states(start, trace, lr_x, lr_y, by_leaf, by_leaf, **settings)
    return [s.at for s in states]


def clip_whole(variable: Params, tau: float) -> Params:
    """``min(1, tau/|u|) u``, the Euclidean norm over all leaves together; 0 gives 0."""
    norm = np.sqrt(sum(np.sum(leaf**2) for leaf in variable.values()))
    return times(tau / norm, variable) if norm > tau else variable


def fedsgda_clip(start, trace, lr_x, lr_y, *, tau=0.1, **settings):
    """FedSGDA-Clip, equation (21): u and v are clipped, each as a whole, at tau."""
    clipped = lambda variable: clip_whole(variable, tau)
    states = guided_states(start, trace, lr_x, lr_y, clipped, clipped, **settings)
    return [s.at for s in states]
