"""FedMuon of "On Provable Benefits of Muon in Federated Learning" (Zhang & Gao).

A step moves along the old momentum first and refreshes the momentum afterwards.
"""

from collections.abc import Callable

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
)


def fedmuon(
    x: Params,
    trace: Trace,
    lr: Rate,
    b: float = 0.1,
    decay: float = 0.0,
    ratio: float = 1.0,
    synced: bool = False,
    direction: Callable[[np.ndarray], np.ndarray] = polar,
) -> list[Params]:
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
