"""Transcriptions of what `tests/oracles` has not: Muon alone, and rules of servers."""

import numpy as np

from tests.oracles.fedavg import plain_sgd
from tests.oracles.problem import add, each, polar, sub, times, total


def muon(x, gradients, lr, momentum, decay, direction=polar):
    """``M <- b M + (1-b) g; x <- (1 - lr decay) x - lr direction((1-b) g + b M)``."""
    M, history = each(np.zeros_like, x), []
    for g in gradients:
        new = {}
        for k, v in x.items():
            M[k] = momentum * M[k] + (1 - momentum) * g[k]
            ahead = (1 - momentum) * g[k] + momentum * M[k]
            u = direction(ahead)
            new[k] = (1 - lr * decay) * v - lr * u
        x = new
        history.append(x)
    return history


# ---------------------------------------------------------------- asynchronous steps
def fedasync(x, trace, starts, lr, weight, exponent):
    """Every message is a step (Xie et al. 2019, without a proximal term)."""
    local, models = plain_sgd(trace), [x]
    for r, ((_, data), (start,)) in enumerate(zip(trace.rounds, starts, strict=True)):
        late = r - start
        begin = models[start]
        end = local(begin, data[0], lr)
        a = weight * (1 + late) ** -exponent
        x = add(times(1 - a, x), times(a, end))
        models.append(x)
    return models[1:]


def fedbuff(x, trace, starts, lr, server_lr, exponent):
    """A step for every full buffer (Nguyen et al. 2022)."""
    local, models = plain_sgd(trace), [x]
    for r, ((ids, data), begun) in enumerate(zip(trace.rounds, starts, strict=True)):
        deltas, factors = [], []
        for batches, start in zip(data, begun, strict=True):
            late = r - start
            begin = models[start]
            deltas.append(sub(local(begin, batches, lr), models[start]))
            factors.append((1 + late) ** -exponent)
        by = len(ids)
        step = total([times(s / by, d) for s, d in zip(factors, deltas, strict=True)])
        x = add(x, times(server_lr, step))
        models.append(x)
    return models[1:]


# ------------------------------------------------------------------ rules of servers
def stacked(case):
    """The messages as rows."""
    rows = [np.concatenate([v.ravel() for v in m.values()]) for m in case["messages"]]
    return np.stack(rows)


def arrays(case, row):
    """A row as a message."""
    out, at = {}, 0
    for k, v in case["messages"][0].items():
        out[k], at = row[at : at + v.size].reshape(v.shape), at + v.size
    return out


def mean_by_examples(case):
    """The mean, weighted by examples."""
    V, n = stacked(case), case["weights"]
    w = n / n.sum()
    return arrays(case, w @ V)


def coordinate_median(case):
    """Coordinate by coordinate (Yin et al. 2018)."""
    V = stacked(case)
    s = np.sort(V, axis=0)
    middle = (s[(len(V) - 1) // 2] + s[len(V) // 2]) / 2
    return arrays(case, middle)


def trimmed_mean(case, f):
    """Without the f largest and the f smallest of a coordinate (Yin et al. 2018)."""
    V = stacked(case)
    order = np.argsort(V, axis=0)
    kept = order[f : len(V) - f]
    W = np.ones(len(V))[kept]
    values = np.take_along_axis(V, kept, axis=0)
    return arrays(case, (W * values).sum(0) / W.sum(0))


def krum(case, f, chosen=None):
    """The messages with the least sums of squared distances to their n - f - 2 nearest
    others (Blanchard et al. 2017); `chosen` of them, or n - f, are averaged."""
    V = stacked(case)
    N = len(V)
    scores = []
    for i in range(N):
        apart = np.delete(((V - V[i]) ** 2).sum(1), i)
        scores.append(np.sort(apart)[: N - f - 2].sum())
    best = np.argsort(scores, kind="stable")[: chosen or N - f]
    w = np.ones(len(best))
    return arrays(case, w @ V[best] / w.sum())


def geometric_median(case, rounds=400):
    """The point with the least sum of distances, by Weiszfeld's iterations."""
    V = stacked(case)
    w = np.ones(len(V))
    z = w @ V / w.sum()
    for _ in range(rounds):
        near = w / np.maximum(np.linalg.norm(V - z, axis=1), 1e-9)
        z = near @ V / near.sum()
    return arrays(case, z)


def centered_clipping(case, tau, rounds):
    """``v <- v + mean((x_i - v) min(1, tau/|x_i - v|))`` from v = 0 (Karimireddy et al.
    2021)."""
    V = stacked(case)
    v = np.zeros(V.shape[1])
    for _ in range(rounds):
        moves = [d * min(1.0, tau / np.linalg.norm(d)) for d in V - v]
        v = v + np.mean(moves, axis=0)
    return arrays(case, v)


def norm_clipping(case, tau):
    """``mean(x_i min(1, tau/|x_i|))``, as under differential privacy without noise."""
    V = stacked(case)
    moves = [d * min(1.0, tau / np.linalg.norm(d)) for d in V]
    return arrays(case, np.mean(moves, axis=0))


def majority(case):
    """The sign of most (Bernstein et al. 2019); signs of zeros and ties are +1, which
    stands for a draw."""
    V = stacked(case)
    sent = np.where(V == 0, 1.0, np.sign(V))
    total = sent.sum(0)
    vote = np.where(total == 0, 1.0, np.sign(total))
    return arrays(case, vote)
