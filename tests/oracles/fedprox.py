"""FedProx: local SGD on the loss plus a pull towards the round's global model."""

from .problem import Params, Rate, Trace, add, mean, rate, sub, times


def fedprox(
    x: Params, trace: Trace, lr: Rate, proximal: float = 0.01, server_lr: float = 1.0
) -> list[Params]:
    """FedProx (Li et al. 2020, Algorithm 2) with K steps of SGD as the inexact solver.

    h_i(z) = f_i(z) + proximal/2 |z - x^r|^2, hence the gradient
    ``grad_i(z) + proximal (z - x^r)``.
    """
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        deltas = []
        for batches in data:
            xi = x
            for batch in batches:
                pull = times(proximal, sub(xi, x))
                xi = sub(xi, times(eta, add(trace.grad(xi, batch), pull)))
            deltas.append(sub(xi, x))
        x = add(x, times(server_lr, mean(deltas)))
        history.append(x)
    return history
