"""Decentralized methods, transcribed: loops over iterations, agents and examples.

Agents 0 to m - 1 begin at the same point. Every method returns, for each iteration, the
list of all agents' points after it. A W multiplies from the left: agent i hears
``sum_j W[i, j] message_j``.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .problem import (
    Batch,
    Params,
    add,
    direct,
    draw_trace,
    normalise,
    polar,
    rate,
    sub,
    times,
    total,
    toy_grad,
    zeros,
)
from .saddle import Saddle, draw_saddle_trace, saddle_grad

Project = Callable[[Params], Params]
Noise = Sequence[Sequence[Saddle]]  # of iteration t and agent i


class GossipTrace(NamedTuple):
    """Everything random: ``batches[t][i]`` is agent i's in iteration t, W(t) is W."""

    grad: Callable
    batches: list[list[Batch]]
    W: Callable[[int], np.ndarray]

    @property
    def agents(self) -> int:
        return len(self.batches[0])


def still(params: Params) -> Params:
    """No projection."""
    return params


# ------------------------------------------------------------------------- traces
def draw_weights(seed: int, agents: int) -> np.ndarray:
    """Metropolis weights of a random connected graph: a path and random edges.

    ``W_ij = 1 / (1 + max(d_i, d_j))`` on edges, the rest on the diagonal.
    """
    rng = np.random.default_rng(seed)
    edge = np.zeros((agents, agents), bool)
    path = rng.permutation(agents)
    for i, j in itertools.pairwise(path):
        edge[i, j] = edge[j, i] = True
    for i in range(agents):
        for j in range(i):
            if rng.random() < 0.2:
                edge[i, j] = edge[j, i] = True
    degree = edge.sum(axis=1)
    W = np.zeros((agents, agents))
    for i in range(agents):
        for j in range(agents):
            if edge[i, j]:
                W[i, j] = 1 / (1 + max(degree[i], degree[j]))
        W[i, i] = 1 - W[i].sum()
    return W


def _arranged(trace, grad: Callable, W: Callable[[int], np.ndarray]) -> GossipTrace:
    """A federated trace of one local step as one of agents, with a larger t = 0."""
    parts = lambda batches: zip(*batches, strict=True)
    join = lambda batches: tuple(np.concatenate(leaf) for leaf in parts(batches))
    batches = [[join(trace.first[i]) for i in range(trace.num_clients)]]
    for ids, data in trace.rounds:
        batches.append([data[ids.index(i)][0] for i in range(trace.num_clients)])
    return GossipTrace(grad, batches, W)


def draw_saddles(seed: int, W: Callable[[int], np.ndarray]) -> GossipTrace:
    """Five unequal agents, six iterations, two of the agents with padded batches."""
    trace = draw_saddle_trace(seed, cohort_size=5, steps=1, rounds=5)
    return _arranged(trace, saddle_grad, W)


def draw_minimum(seed: int, W: Callable[[int], np.ndarray]) -> GossipTrace:
    """As `draw_saddles`, with the toy model to be minimised."""
    trace = draw_trace(seed, 5, 5, 1, 6, 5, (3, 9, 5, 14, 7), first=2)
    return _arranged(trace, toy_grad, W)


# ------------------------------------------------------------------ minimisation
def mix(W: np.ndarray, messages: Sequence[Params]) -> list[Params]:
    """What every agent hears."""
    return [
        total([times(W[i, j], messages[j]) for j in range(len(messages))])
        for i in range(len(messages))
    ]


def dsgd(start, trace, lr, direction=lambda m: m, everywhere=False):
    """Decentralized SGD, move then mix: ``x_i <- sum_j W_ij (x_j - lr dir(g_j))``."""
    x = [start] * trace.agents
    history = []
    for t, batches in enumerate(trace.batches):
        half = []
        for i in range(trace.agents):
            g = trace.grad(x[i], batches[i])
            u = direct(g, direction, everywhere=everywhere)
            half.append(sub(x[i], times(lr, u)))
        x = mix(trace.W(t), half)
        history.append(x)
    return history


def gradient_tracking(start, trace, lr, direction=lambda m: m, everywhere=False):
    """``v <- W(v + g - g_)``, ``x <- W(x - lr dir(v))``, with v = g_ = 0 at first."""
    m = trace.agents
    x, v, before = [start] * m, [zeros(start)] * m, [zeros(start)] * m
    history = []
    for t, batches in enumerate(trace.batches):
        g = [trace.grad(x[i], batches[i]) for i in range(m)]
        v = mix(trace.W(t), [add(v[i], sub(g[i], before[i])) for i in range(m)])
        u = [direct(v[i], direction, everywhere=everywhere) for i in range(m)]
        half = [sub(x[i], times(lr, u[i])) for i in range(m)]
        x, before = mix(trace.W(t), half), g
        history.append(x)
    return history


def unit(leaf: np.ndarray) -> np.ndarray:
    """The polar factor of a matrix, or another leaf over its norm."""
    return polar(leaf) if leaf.ndim > 1 else normalise(leaf)


def dsgd_muon(start, trace, lr, vectors=True):
    """`dsgd` along polar factors, or gradients of vectors without ``vectors``."""
    return dsgd(start, trace, lr, unit if vectors else polar, vectors)


def gradient_tracking_muon(start, trace, lr, vectors=True):
    """`gradient_tracking` along polar factors, or tracks of vectors."""
    return gradient_tracking(start, trace, lr, unit if vectors else polar, vectors)


def demuon(start, trace, lr, vectors=True, beta=0.8):
    """DeMuon (He et al. 2025), from a coauthor's code: averages are tracked.

    ``M+ = beta M + (1 - beta) g``, ``V <- W(V + M+ - M)``, ``x <- W(x - lr dir(V))``,
    from M = V = 0.
    """
    m, direction = trace.agents, unit if vectors else polar
    x, V, M = [start] * m, [zeros(start)] * m, [zeros(start)] * m
    history = []
    for t, batches in enumerate(trace.batches):
        after = []
        for i in range(m):
            g = trace.grad(x[i], batches[i])
            after.append(add(times(beta, M[i]), times(1 - beta, g)))
        V = mix(trace.W(t), [add(V[i], sub(after[i], M[i])) for i in range(m)])
        half = []
        for i in range(m):
            u = direct(V[i], direction, everywhere=vectors)
            half.append(sub(x[i], times(lr, u)))
        x, M = mix(trace.W(t), half), after
        history.append(x)
    return history


def exact_diffusion(start, trace, lr):
    """SUDA's ED (Alghunaim and Yuan 2022), with tracked gradients.

    ``v <- W(v + g - g_)``; ``x <- W(x - lr v) - z``; ``z <- z + (I - W) x``, with v =
    g_ = z = 0 at first.
    """
    m = trace.agents
    x, history = [start] * m, []
    v, before, z = [[zeros(start)] * m for _ in range(3)]
    for t, batches in enumerate(trace.batches):
        W = trace.W(t)
        g = [trace.grad(x[i], batches[i]) for i in range(m)]
        v = mix(W, [add(v[i], sub(g[i], before[i])) for i in range(m)])
        moved = mix(W, [sub(x[i], times(lr, v[i])) for i in range(m)])
        x = [sub(moved[i], z[i]) for i in range(m)]
        mixed = mix(W, x)
        z = [add(z[i], sub(x[i], mixed[i])) for i in range(m)]
        before = g
        history.append(x)
    return history


def suda_muon(start, trace, lr, vectors=True, beta=0.9, form="ED"):
    """SUDA-Muon (arXiv 2604.23980), from its manuscript.

    ``M+ = beta M + (1 - beta) G``, ``H+ = W(H + M+ - M)``, ``X+ = A(C X - lr dir(H+)) -
    B Y``, ``Y+ = Y + B X+`` with M = H = G at first and Y = 0; here z = B Y. ED: A = C
    = W, B^2 = I - W^2; EXTRA: A = C = U, B^2 = (I - W) / 2 with U = (I + W) / 2; GT: A
    = C = W, B^2 = (I - W)^2.
    """
    m, direction = trace.agents, unit if vectors else polar
    x, H, M, z = [start] * m, None, None, [zeros(start)] * m
    history = []
    for t, batches in enumerate(trace.batches):
        W, I = trace.W(t), np.eye(m)
        A, square = {
            "ED": (W, I - W @ W),
            "EXTRA": ((I + W) / 2, (I - W) / 2),
            "GT": (W, (I - W) @ (I - W)),
        }[form]
        G = [trace.grad(x[i], batches[i]) for i in range(m)]
        if t == 0:
            H = M = G
        after = [add(times(beta, M[i]), times(1 - beta, G[i])) for i in range(m)]
        H = mix(W, [add(H[i], sub(after[i], M[i])) for i in range(m)])
        u = [direct(H[i], direction, everywhere=vectors) for i in range(m)]
        Cx = mix(A, x)
        half = mix(A, [sub(Cx[i], times(lr, u[i])) for i in range(m)])
        x = [sub(half[i], z[i]) for i in range(m)]
        z = [add(a, b) for a, b in zip(z, mix(square, x), strict=True)]
        M = after
        history.append(x)
    return history


# ----------------------------------------------------------------------- minimax
def dsgda(
    start, trace, lr_x, lr_y, project: Project = still, noise: Noise | None = None
):
    """``x <- W(x - lr_x grad_x)``, ``y <- P(W(y + lr_y grad_y))``; noise on gradients.

    D-SGDA, and with noise DP-SGDA: y's noise is added to what is ascended along.
    """
    m = trace.agents
    x, y = [start["x"]] * m, [start["y"]] * m
    history = []
    for t, batches in enumerate(trace.batches):
        half_x, half_y = [], []
        for i in range(m):
            g = trace.grad({"x": x[i], "y": y[i]}, batches[i])
            if noise is not None:
                g = {k: add(g[k], noise[t][i][k]) for k in ("x", "y")}
            half_x.append(sub(x[i], times(rate(lr_x, t), g["x"])))
            half_y.append(add(y[i], times(rate(lr_y, t), g["y"])))
        x = mix(trace.W(t), half_x)
        y = [project(one) for one in mix(trace.W(t), half_y)]
        history.append([{"x": x[i], "y": y[i]} for i in range(m)])
    return history


def dpmixsgd(
    start,
    trace,
    lr_x,
    lr_y,
    beta_x,
    beta_y,
    project: Project = still,
    noise: Noise | None = None,
):
    """DPMixSGD, Algorithm 1; without noise DM-HSGD (Xian et al. 2021).

    ``g`` and ``h`` are the agents' estimates in x and y, ``g_star`` and ``h_star`` what
    they tell, ``v`` and ``u`` what they track. Iteration 0 has the gradients of its
    batch for estimates, and its noise too.
    """
    m = trace.agents
    x, y = [start["x"]] * m, [start["y"]] * m
    v, u = [zeros(start["x"])] * m, [zeros(start["y"])] * m
    told_g, told_h = v, u
    g, h, before = [], [], []
    history = []
    for t, batches in enumerate(trace.batches):
        keep_x, keep_y = 1 - rate(beta_x, t), 1 - rate(beta_y, t)
        new_g, new_h = [], []
        for i in range(m):
            new = trace.grad({"x": x[i], "y": y[i]}, batches[i])
            if t == 0:
                new_g.append(new["x"])
                new_h.append(new["y"])
            else:
                old = trace.grad(before[i], batches[i])
                new_g.append(add(new["x"], times(keep_x, sub(g[i], old["x"]))))
                new_h.append(add(new["y"], times(keep_y, sub(h[i], old["y"]))))
        g, h = new_g, new_h
        g_star, h_star = g, h
        if noise is not None:
            g_star = [add(g[i], noise[t][i]["x"]) for i in range(m)]
            h_star = [add(h[i], noise[t][i]["y"]) for i in range(m)]
        v = mix(trace.W(t), [add(v[i], sub(g_star[i], told_g[i])) for i in range(m)])
        u = mix(trace.W(t), [add(u[i], sub(h_star[i], told_h[i])) for i in range(m)])
        told_g, told_h = g_star, h_star
        before = [{"x": x[i], "y": y[i]} for i in range(m)]
        half_x = [sub(x[i], times(rate(lr_x, t), v[i])) for i in range(m)]
        half_y = [add(y[i], times(rate(lr_y, t), u[i])) for i in range(m)]
        x = mix(trace.W(t), half_x)
        y = [project(one) for one in mix(trace.W(t), half_y)]
        history.append([{"x": x[i], "y": y[i]} for i in range(m)])
    return history


# ----------------------------------------------------------------------- private
def clip(limit: float, g: Params) -> Params:
    """g, shortened to the norm `limit` if it is longer."""
    norm = np.sqrt(sum(np.sum(leaf**2) for leaf in g.values()))
    return times(min(1.0, limit / norm), g) if norm > 0 else g


def share_each(new: Params, old: Params, k: float, limit: float, change: float):
    """Both gradients clipped; its sensitivity times the batch size."""
    del change
    share = sub(clip(limit, new), times(k, clip(limit, old)))
    return share, (1 + k) * limit


def share_difference(new: Params, old: Params, k: float, limit: float, change: float):
    """The innovation clipped."""
    del change
    return clip(limit, sub(new, times(k, old))), limit


def share_split(new: Params, old: Params, k: float, limit: float, change: float):
    """The gradient and its change clipped apart."""
    share = add(times(1 - k, clip(limit, new)), times(k, clip(change, sub(new, old))))
    return share, (1 - k) * limit + k * change


def private_estimates(
    points: Sequence[Saddle],
    batches: Sequence[Batch],
    share: Callable,
    beta: dict[str, float],
    limit: dict[str, float],
    change: dict[str, float],
    sizes: tuple[float, float],
    inside=0.0,
    draws: Sequence[Saddle] | None = None,
) -> list[Saddle]:
    """One agent's estimates along its points: STORM with bounded shares, and noise.

    ``g_t = k g_{t-1} + d_t``, d_t the sum of the examples' shares over the expected
    batch size, plus ``inside`` times the sensitivity times the draws. `sizes` are those
    of iteration 0 and later. Rows of weight 0 are no examples.
    """
    estimates: list[Saddle] = []
    for t, (point, (a, target, weight)) in enumerate(zip(points, batches, strict=True)):
        size = sizes[0] if t == 0 else sizes[1]
        g = {}
        for name in ("x", "y"):
            k = 0.0 if t == 0 else 1 - beta[name]
            d, bound = zeros(point[name]), 0.0
            for row in range(len(weight)):
                if weight[row] == 0:
                    continue
                one = (a[row : row + 1], target[row : row + 1], np.ones(1))
                new = saddle_grad(point, one)[name]
                old = new if t == 0 else saddle_grad(points[t - 1], one)[name]
                part, bound = share(new, old, k, limit[name], change[name])
                d = add(d, times(1 / size, part))
            if draws is not None:
                d = add(d, times(inside * bound / size, draws[t][name]))
            g[name] = d if t == 0 else add(times(k, estimates[-1][name]), d)
        estimates.append(g)
    return estimates
