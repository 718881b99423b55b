"""Federated averages of low-rank adapters, literally: loops, dense products and SVDs.

The model's kernel is ``w + scale A B``; clients take plain steps in A, B and b, a bias.
All are given ``x = {"w", "A", "B", "b"}``; the mean weighs client i by ``weights[i]``.
"""

import numpy as np

from .problem import rate, sub, times


def train(trace, w, start, batches, lr, scale, moving="ABb"):
    t = dict(start)
    for batch in batches:
        g = trace.grad({"w": w + scale * t["A"] @ t["B"], "b": t["b"]}, batch)
        of = {"A": scale * g["w"] @ t["B"].T, "B": scale * t["A"].T @ g["w"]}
        of["b"] = g["b"]
        t = sub(t, times(lr, {k: of[k] if k in moving else 0 * t[k] for k in t}))
    return t


def weighted(values, shares):
    total = np.zeros_like(values[0])
    for share, value in zip(shares, values, strict=True):
        total = total + share * value
    return total


def cut(t, rank):
    """The first columns of A and rows of B; the others are zero."""
    t = {k: v.copy() for k, v in t.items()}
    t["A"][:, rank:] = 0
    t["B"][rank:] = 0
    return t


def adapters(x, trace, lr, scale, method, *, weights=None, ranks=None, draw=None):
    """The paths of the shared parameters and of the clients' own B.

    Args:
      method: fedit, ffa_lora, rolora, fedsa_lora, fedex_lora, flora or flexlora.
      ranks: q_i of all clients.
      draw: ``draw(r, i)`` is FLoRA's new A of client i in round r.
    """
    w, t = x["w"], {k: x[k] for k in ("A", "B", "b")}
    own = [x["B"] for _ in range(trace.num_clients)]
    if method == "flora":
        w, t = w + scale * t["A"] @ t["B"], {**t, "B": 0 * t["B"]}
    history, kept = [], []
    for r, (ids, data) in enumerate(trace.rounds):
        shares = np.ones(len(ids)) if weights is None else np.array(weights)[ids]
        shares = shares / shares.sum()
        moving = {"ffa_lora": "Bb", "rolora": ("Bb", "Ab")[r % 2]}.get(method, "ABb")
        ends = []
        for i, batches in zip(ids, data, strict=True):
            start = dict(t)
            if method == "fedsa_lora":
                start["B"] = own[i]
            if method == "flora":
                start["A"] = draw(r, i)
            if ranks is not None:
                start = cut(start, ranks[i])
            ends.append(train(trace, w, start, batches, rate(lr, r), scale, moving))
            own[i] = ends[-1]["B"]
        mean = {k: weighted([end[k] for end in ends], shares) for k in t}
        product = weighted([end["A"] @ end["B"] for end in ends], shares)
        if method == "fedsa_lora":
            mean["B"] = t["B"]
        if method == "fedex_lora":
            w = w + scale * (product - mean["A"] @ mean["B"])
        if method == "flora":
            w, mean["A"], mean["B"] = w + scale * product, t["A"], t["B"]
        if method == "flexlora":
            q = t["A"].shape[1]
            u, s, vt = np.linalg.svd(product)
            mean["A"], mean["B"] = u[:, :q], s[:q, None] * vt[:q]
        t = mean
        history.append({"w": w, **t})
        kept.append(list(own))
    return history, kept


def signed_qr(matrix):
    """The factor Q whose R has a positive diagonal."""
    q, r = np.linalg.qr(matrix)
    return q * np.where(np.diag(r) < 0, -1.0, 1.0)


def turned(basis, sketch, step):
    """FedSubMuon-GT: along the gradient of |basis' G V|^2 / 2 on the Grassmannian."""
    b = basis.T @ sketch
    t = (sketch - basis @ b) @ b.T
    size = np.sqrt(np.sum(t**2))
    length = step * np.sqrt(np.sum(basis**2))
    return signed_qr(basis + (length / size * t if size else 0))


def fedsubmuon(
    x, trace, lr, scale, refresh, direction, *, momentum, step=None, draw, weights=None
):
    """FedSubMuon (v2), or with ``step`` FedSubMuon-GT with the residual merged.

    The kernel is ``w + scale U X V``. Clients take steps along ``direction`` of the
    momentum ``m <- momentum m + g`` of X, and plain ones in the bias.

    Args:
      draw: ``draw(r)`` are U and V of round r.
    """
    w, bias, history = x["w"] + scale * x["A"] @ x["B"], x["b"], []
    q = x["A"].shape[1]
    core, left, right = np.zeros((q, q)), None, None
    for r, (ids, data) in enumerate(trace.rounds):
        if r == 0 or (step is None and refresh and r % refresh == 0):
            if left is not None:
                w = w + scale * left @ core @ right
            core, (left, right) = np.zeros((q, q)), draw(r)
        shares = np.ones(len(ids)) if weights is None else np.array(weights)[ids]
        shares = shares / shares.sum()
        cores, biases, of_left, of_right = [], [], [], []
        at = lambda core, b, w=w, u=left, v=right: {
            "w": w + scale * u @ core @ v,
            "b": b,
        }
        for batches in data:
            mine, b, m = core, bias, np.zeros_like(core)
            for batch in batches:
                g = trace.grad(at(mine, b), batch)
                m = momentum * m + scale * left.T @ g["w"] @ right.T
                mine = mine - rate(lr, r) * direction(m)
                b = b - rate(lr, r) * g["b"]
            g = trace.grad(at(mine, b), batches[-1])["w"]
            of_left.append(g @ right.T)
            of_right.append((left.T @ g).T)
            cores.append(mine)
            biases.append(b)
        core, bias = weighted(cores, shares), weighted(biases, shares)
        number = r + 1  # the authors count rounds from 1, and turn after the F-th
        if step is not None and number % refresh == 0:
            before = left @ core @ right
            left, old = turned(left, weighted(of_left, shares), step), left
            right, other = turned(right.T, weighted(of_right, shares), step).T, right
            core = left.T @ old @ core @ other @ right.T
            w = w + scale * (before - left @ core @ right)
        history.append({"w": w, "A": left, "B": core @ right, "b": bias})
    return history
