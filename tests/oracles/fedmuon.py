"""The three methods of the name FedMuon, and what their papers compare them with."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .problem import (
    Moments,
    Params,
    adam,
    add,
    direct,
    first_gradient,
    mean,
    mean_direction,
    polar,
    rate,
    sub,
    times,
    total,
    zeros,
)

# ---------------------------------------- Zhang & Gao: On Provable Benefits of Muon
#
# A step moves along the old momentum first and refreshes the momentum afterwards.


def fedmuon(x, trace, lr, b=0.1, decay=0.0, ratio=1.0, synced=False, direction=polar):
    """FedMuon (Zhang & Gao), Algorithm 1, with decoupled weight decay.

    Line 1: ``M_0^(i)`` = client i's gradient at x_0 on its batch before round 0. Each
    step: lines 3-4 ``x <- (1 - lr decay) x - lr U V^T`` with the SVD of the OLD M,
    then line 5 ``M <- (1-b) M + b grad_i(x)`` at the NEW x. Line 7 after every round:
    the means of x and of M. ``b`` weights the fresh gradient.

    Two choices where Algorithm 1 is silent: clients that are absent take no part in
    the means and start from the server's M later on; the leaves that are no matrices
    move along ``ratio`` M. With ``synced`` every client begins from the mean of
    M_0^(i) over all N, which Lemma 6.1 needs before the first communication.
    """
    m_0 = [first_gradient(trace, x, i) for i in range(trace.num_clients)]
    m_bar = mean(m_0)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        last_x, last_m = [], []
        for i, batches in zip(ids, data, strict=True):
            xi = x
            m = m_0[i] if r == 0 and not synced else m_bar
            for batch in batches:
                step = direct(m, direction, ratio)
                xi = sub(times(1 - eta * decay, xi), times(eta, step))
                m = add(times(1 - b, m), times(b, trace.grad(xi, batch)))
            last_x.append(xi)
            last_m.append(m)
        x = mean(last_x)
        m_bar = mean(last_m)
        history.append(x)
    return history


# ---------------------- Liu et al.: local-global alignment and momentum aggregation
def _aligned(x, trace, lr, start: Any, local: Callable, carry: Callable):
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
        delta_g = mean_direction(delta, len(data[0]), eta, delta_g)
        x, state = add(x, delta), carry([last for _, last in ends])
        history.append(x)
    return history


def fedmuon_align(
    x,
    trace,
    lr,
    momentum=0.98,
    align=0.5,
    decay=0.01,
    ratio=1.0,
    carry=True,
    direction=polar,
):
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


def local_sgd_align(x, trace, lr, momentum=0.9, align=0.5, decay=0.0):
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


def local_adamw_align(x, trace, lr, b1=0.9, b2=0.999, eps=1e-8, align=0.5, decay=0.01):
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


def descending(gram):
    """Eigenvectors of a symmetric matrix, that of the largest eigenvalue first."""
    return np.linalg.eigh(gram)[1][:, ::-1]


def power_step(gram, basis, squares, axis):
    """SOAP's refresh: columns by their size, QR of ``gram basis``, v in that order."""
    order = np.argsort(-np.diag(basis.T @ gram @ basis), kind="stable")
    return np.linalg.qr(gram @ basis[:, order])[0], np.take(squares, order, axis)


def fedpac_soap(
    x,
    trace,
    lr,
    align=0.5,
    decay=0.01,
    b1=0.95,
    b2=0.95,
    eps=1e-8,
    every=10,
    share_grams=True,
    first_step=True,
):
    """FedPAC with SOAP (2026, arXiv 2602.19271): L and R are averaged, m = v = 0.

    ``x <- x - lr [(1-align) P(g) + align Delta_G + decay x]``, Theta = (L, R) broadcast
    and averaged. P is SOAP: ``m <- b1 m + (1-b1) g`` in the original coordinates here,
    ``v <- b2 v + (1-b2) (QL' g QR)^2``, ``P(g) = QL [(QL' m QR)/(sqrt(v)+eps)] QR'
    sqrt(1-b2^t)/(1-b1^t)``. Then ``L <- b2 L + (1-b2) g g'``, R alike with g' g. QL and
    QR are the eigenvectors of the broadcast L and R (the authors' code adds the first
    gradient to these, and takes no step along it); every ``every`` steps there is one
    power iteration. Vectors: Adam with the same numbers and that eps. Without
    ``first_step`` the first gradient only enters L and R, and x decays.
    """

    def local(xi, grams, delta_g, batches, eta):
        L, R = grams
        if not first_step:
            G, *batches = trace.grad(xi, batches[0])["w"], *batches[1:]
            L, R = b2 * L + (1 - b2) * G @ G.T, b2 * R + (1 - b2) * G.T @ G
            xi = times(1 - eta * decay, xi)
        QL, QR = descending(L), descending(R)
        m, v = zeros(xi), zeros(xi)
        for t, batch in enumerate(batches, 1):
            g = trace.grad(xi, batch)
            G = g["w"]
            turned = {**g, "w": QL.T @ G @ QR}
            m = add(times(b1, m), times(1 - b1, g))
            v = {k: b2 * v[k] + (1 - b2) * turned[k] ** 2 for k in v}
            seen = {**m, "w": QL.T @ m["w"] @ QR}
            u = {k: seen[k] / (np.sqrt(v[k]) + eps) for k in v}
            u["w"] = QL @ u["w"] @ QR.T
            along = times((1 - align) * np.sqrt(1 - b2**t) / (1 - b1**t), u)
            step = add(add(along, times(align, delta_g)), times(decay, xi))
            xi = sub(xi, times(eta, step))
            L, R = b2 * L + (1 - b2) * G @ G.T, b2 * R + (1 - b2) * G.T @ G
            if t % every == 0:
                QL, v["w"] = power_step(L, QL, v["w"], 0)
                QR, v["w"] = power_step(R, QR, v["w"], 1)
        return xi, (L, R)

    def server(last):
        L, R = (sum(grams) / len(last) for grams in zip(*last, strict=True))
        return (L, R) if share_grams else (0 * L, 0 * R)

    rows, columns = x["w"].shape
    start = np.zeros((rows, rows)), np.zeros((columns, columns))
    return _aligned(x, trace, lr, start, local, server)


def local_soap(x, trace, lr, decay=0.01):
    """FedAvg with SOAP, whose state starts anew every round (code of FedPAC)."""
    off = {"align": 0.0, "share_grams": False, "first_step": False}
    return fedpac_soap(x, trace, lr, decay=decay, **off)


# ------------------------- Takezawa et al.: bias-corrected LMO, and their Local Muon
class Corrected(NamedTuple):
    """The state after a round: X, C, and C_i and M_i of all N clients."""

    x: Params
    c: Params
    c_i: list[Params]
    m_i: list[Params]


def _start(x, trace, warm_start):
    """M_i before round 0: zeros, or client i's gradient on its first batches."""
    if warm_start:
        return [first_gradient(trace, x, i) for i in range(trace.num_clients)]
    return [zeros(x) for _ in range(trace.num_clients)]


def fedmuon_correct_states(
    x,
    trace,
    lr,
    b=0.1,
    direction=polar,
    ratio=1.0,
    everywhere=False,
    warm_start=False,
    corrects=True,
) -> list[Corrected]:
    """FedMuon (Takezawa et al. 2026, arXiv 2509.26337), Algorithm 1.

    Lines 8-9: ``M_i <- (1-b) M_i + b g``; ``X_i <- X_i + lr lmo(M_i - C_i + C)``,
    lmo(v) = -direction(v); M_i continues from the client's last participation (line
    6). Line 11: C_i = M_i. Line 17, whose N is the number of all clients n:
    ``C += (1/n) sum_S(C_i^+ - C_i)``. Line 18: ``X <- (n-S)/n X + (1/n) sum_S X_i``.
    Before round 0: C_i = M_i, C = mean C_i (Theorem 2).

    direction: `problem.polar` (spectral norm), `problem.normalise` (Euclidean),
    ``numpy.sign`` (max norm), leaf by leaf. Leaves that are no matrices move along
    ``ratio`` (M_i - C_i + C) unless ``everywhere``. Without ``corrects`` a client moves
    along lmo(M_i), and nothing reads C and C_i.
    """
    n = trace.num_clients
    m_i = _start(x, trace, warm_start)
    c_i = list(m_i)
    c = mean(c_i)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        S = len(ids)
        last_x, changes = [], []
        fresh_m, fresh_c = list(m_i), list(c_i)  # the absent keep theirs (line 15)
        for i, batches in zip(ids, data, strict=True):
            xi, m = x, m_i[i]
            for batch in batches:
                m = add(times(1 - b, m), times(b, trace.grad(xi, batch)))
                corrected = add(sub(m, c_i[i]), c) if corrects else m
                step = direct(corrected, direction, ratio, everywhere)
                xi = sub(xi, times(eta, step))
            fresh_m[i], fresh_c[i] = m, m
            last_x.append(xi)
            changes.append(sub(fresh_c[i], c_i[i]))
        m_i, c_i = fresh_m, fresh_c
        c = add(c, times(1 / n, total(changes)))
        x = add(times((n - S) / n, x), times(1 / n, total(last_x)))
        history.append(Corrected(x, c, c_i, m_i))
    return history


def fedmuon_correct(*given, **settings):
    """The parameters of `fedmuon_correct_states` (Takezawa et al., Algorithm 1)."""
    return [s.x for s in fedmuon_correct_states(*given, **settings)]


def local_muon_persistent(*given, **settings):
    """Local Muon (Takezawa et al. 2026, Algorithm 4; equations 1-3 for K=1, S=n).

    Each client keeps its M_i from one participation to the next and moves along
    lmo(M_i) alone; the server's rule is line 15, as in FedMuon.
    """
    return fedmuon_correct(*given, **settings, corrects=False)
