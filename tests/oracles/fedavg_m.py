"""FedCM and FedAvg-M: the last round's mean displacement is every client's momentum."""

from .problem import Params, Rate, Trace, add, mean, rate, sub, times, zeros


def fedcm(
    x: Params, trace: Trace, lr: Rate, b: float = 0.1, server_lr: float = 1.0
) -> list[Params]:
    """FedCM (Xu et al. 2021, arXiv 2106.10874, Algorithm 2).

    ``x_i <- x_i - lr [b g + (1-b) Delta]``; ``Delta <- -mean(x_i - x)/(K lr)`` with
    the lr of the round that made it; ``x += server_lr mean(x_i - x)``; Delta = 0 first.
    """
    delta_r = zeros(x)
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        K = len(data[0])
        deltas = []
        for batches in data:
            xi = x
            for batch in batches:
                v = add(times(b, trace.grad(xi, batch)), times(1 - b, delta_r))
                xi = sub(xi, times(eta, v))
            deltas.append(sub(xi, x))
        delta_r = times(-1 / (K * eta), mean(deltas))
        x = add(x, times(server_lr, mean(deltas)))
        history.append(x)
    return history


def fedavg_m(
    x: Params, trace: Trace, lr: Rate, b: float = 0.1, server_lr: float = 1.0
) -> list[Params]:
    """FedAvg-M (Cheng et al. 2024, arXiv 2306.16504, Algorithm 1).

    ``d = b g_i + (1-b) g^r``; ``x_i <- x_i - lr d``; ``g^{r+1}`` is the mean of d over
    the cohort and its K steps; ``x <- x - gamma g^{r+1}`` with ``gamma = server_lr lr
    K``; g^0 = 0.
    """
    g = zeros(x)
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        K = len(data[0])
        gamma = server_lr * eta * K
        directions = []
        for batches in data:
            xi = x
            for batch in batches:
                d = add(times(b, trace.grad(xi, batch)), times(1 - b, g))
                xi = sub(xi, times(eta, d))
                directions.append(d)
        g = mean(directions)
        x = sub(x, times(gamma, g))
        history.append(x)
    return history
