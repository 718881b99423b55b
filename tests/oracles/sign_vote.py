"""One bit per parameter: signs of momenta, and the sign of their sum."""

import numpy as np

from .problem import add, direct, each, mean, polar, rate, sub, times, total, zeros


def sign_vote(x, trace, lr, b=0.1, before=None, after=None):
    """SignSGD with majority vote (Bernstein et al. 2019, arXiv 1810.05291, Alg. 1).

    Clients: ``M_i <- (1-b) M_i + b g_i``, the mean gradient over their batches; they
    send ``sign(before(M_i))``. Server: ``V = sign(sum_i ...)``, ``X <- X - eta
    after(V)``. Both maps act on matrices. The cohorts are odd, so that nothing ties.
    """
    before, after = before or (lambda m: m), after or (lambda m: m)
    M = [zeros(x) for _ in range(trace.num_clients)]
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        sent = []
        for i, batches in zip(ids, data, strict=True):
            g = mean([trace.grad(x, batch) for batch in batches])
            M[i] = add(times(1 - b, M[i]), times(b, g))
            sent.append(each(np.sign, direct(M[i], before)))
        vote = each(np.sign, total(sent))
        x = sub(x, times(rate(lr, r), direct(vote, after)))
        history.append(x)
    return history


def signmuon(x, trace, lr, direction=polar):
    """SignMuon (Smirnova and Kravatskiy 2026, arXiv 2607.29674): sign(D(M_i))."""
    return sign_vote(x, trace, lr, before=direction)


def muonusign(x, trace, lr, direction=polar):
    """MuonUSign of the same paper: D(vote)."""
    return sign_vote(x, trace, lr, after=direction)


def muonsign(x, trace, lr, direction=polar):
    """MuonSign of the same paper: sign(D(vote)), so that clients get signs alone."""
    return sign_vote(x, trace, lr, after=lambda v: np.sign(direction(v)))
