"""FedProx: a pull to the round's model. FedNova: means of normalized directions.

Li et al. 2020; Wang et al. 2020, arXiv:2007.07481.
"""

import numpy as np

from .fedavg import plain_server, replay
from .problem import add, rate, sub, times, total


def fedprox(x, trace, lr, proximal=0.01, server_lr=1.0):
    """FedProx (Li et al. 2020, Algorithm 2) with K steps of SGD as the inexact solver.

    h_i(z) = f_i(z) + proximal/2 |z - x^r|^2, hence the gradient
    ``grad_i(z) + proximal (z - x^r)``.
    """

    def local(x, batches, eta):
        xi = x
        for batch in batches:
            pull = times(proximal, sub(xi, x))
            xi = sub(xi, times(eta, add(trace.grad(xi, batch), pull)))
        return xi

    return replay(x, trace, lr, local, plain_server(server_lr))


def coefficients(steps: int, momentum: float, shrink: float) -> np.ndarray:
    """a_i of x - x_i = lr sum_k a_ik g_k, one unit gradient after the other.

    ``shrink`` is lr mu. Without it, a_ik = (1 - momentum^(K-k)) / (1 - momentum), as in
    section 3 of the paper; without momentum, (1 - shrink)^(K-1-k).
    """
    a = np.zeros(steps)
    for k in range(steps):
        way, u = 0.0, 0.0
        for j in range(steps):
            u = momentum * u + float(j == k) - shrink * way
            way += u
        a[k] = way
    return a


def fednova(
    x,
    trace,
    lr,
    momentum=0.0,
    mu=0.0,
    server_lr=1.0,
    weights: list[float] | None = None,
    server_momentum=0.0,
):
    """FedNova with local momentum, a proximal term, and a server momentum.

    ``weights`` are those of all N clients, by default equal. Clients may have different
    numbers of batches.
    """
    history, memory = [], times(0.0, x)
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        w = np.ones(len(ids)) if weights is None else np.array(weights)[ids]
        p = w / w.sum()
        norms, directions = [], []
        for batches in data:
            xi, u = x, times(0.0, x)
            for batch in batches:
                g = add(trace.grad(xi, batch), times(mu, sub(xi, x)))
                u = add(times(momentum, u), g)
                xi = sub(xi, times(eta, u))
            norm = coefficients(len(batches), momentum, eta * mu).sum()
            norms.append(norm)
            directions.append(times(1 / norm, sub(x, xi)))
        tau = float(np.dot(p, norms))
        mean = total([times(tau * q, d) for q, d in zip(p, directions, strict=True)])
        memory = add(times(server_momentum, memory), mean)
        x = sub(x, times(server_lr, memory))
        history.append(x)
    return history
