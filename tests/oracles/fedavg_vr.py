"""FedAvg-VR (Cheng et al. 2024): FedAvg-M with a two-point, STORM-like direction."""

from .problem import Params, Rate, Trace, add, mean, rate, sub, times, zeros


def fedavg_vr(
    x: Params, trace: Trace, lr: Rate, b: float = 0.1, server_lr: float = 1.0
) -> list[Params]:
    """FedAvg-VR (Cheng et al. 2024, arXiv 2306.16504; from memory).

    ``d = grad(x_i; xi) + (1-b)(g^r - grad(x^{r-1}; xi))``, the same batch at both
    points; ``x_i <- x_i - lr d``; ``g^{r+1} = -mean(x_i - x)/(lr K)``; ``x <- x +
    server_lr mean(x_i - x)``. x^{-1} = x^0, and b = 1 in round 0, where there is no g.
    """
    x_prev, g = x, zeros(x)
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        K = len(data[0])
        b_r = 1.0 if r == 0 else b
        deltas = []
        for batches in data:
            xi = x
            for batch in batches:
                old = trace.grad(x_prev, batch)
                d = add(trace.grad(xi, batch), times(1 - b_r, sub(g, old)))
                xi = sub(xi, times(eta, d))
            deltas.append(sub(xi, x))
        g = times(-1 / (K * eta), mean(deltas))
        x_prev = x
        x = add(x, times(server_lr, mean(deltas)))
        history.append(x)
    return history
