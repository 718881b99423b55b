"""FedMuon of Takezawa et al. (bias-corrected LMO), and their LocalMuon."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .problem import (
    Params,
    Rate,
    Trace,
    add,
    direct,
    first_gradient,
    mean,
    polar,
    rate,
    sub,
    times,
    total,
    zeros,
)


class Corrected(NamedTuple):
    """The state after a round: X, C, and C_i and M_i of all N clients."""

    x: Params
    c: Params
    c_i: list[Params]
    m_i: list[Params]


def _start(x: Params, trace: Trace, warm_start: bool) -> list[Params]:
    """M_i before round 0: zeros, or client i's gradient on its first batches."""
    if warm_start:
        return [first_gradient(trace, x, i) for i in range(trace.num_clients)]
    return [zeros(x) for _ in range(trace.num_clients)]


def fedmuon_correct_states(
    x: Params,
    trace: Trace,
    lr: Rate,
    b: float = 0.1,
    direction: Callable[[np.ndarray], np.ndarray] = polar,
    ratio: float = 1.0,
    everywhere: bool = False,
    warm_start: bool = False,
    corrects: bool = True,
) -> list[Corrected]:
    """FedMuon (Takezawa et al. 2025, arXiv 2509.26337), Algorithm 1.

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


def fedmuon_correct(
    x: Params,
    trace: Trace,
    lr: Rate,
    b: float = 0.1,
    direction: Callable[[np.ndarray], np.ndarray] = polar,
    ratio: float = 1.0,
    everywhere: bool = False,
    warm_start: bool = False,
) -> list[Params]:
    """The parameters of `fedmuon_correct_states` (Takezawa et al., Algorithm 1)."""
    states = fedmuon_correct_states(
        x, trace, lr, b, direction, ratio, everywhere, warm_start
    )
    return [s.x for s in states]


def local_muon_persistent(
    x: Params,
    trace: Trace,
    lr: Rate,
    b: float = 0.1,
    direction: Callable[[np.ndarray], np.ndarray] = polar,
    ratio: float = 1.0,
    everywhere: bool = False,
    warm_start: bool = False,
) -> list[Params]:
    """LocalMuon (Takezawa et al. 2025, Algorithm 4; equations 1-3 for K=1, S=n).

    Each client keeps its M_i from one participation to the next and moves along
    lmo(M_i) alone; the server's rule is line 15, as in FedMuon.
    """
    states = fedmuon_correct_states(
        x, trace, lr, b, direction, ratio, everywhere, warm_start, corrects=False
    )
    return [s.x for s in states]
