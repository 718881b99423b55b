"""SCAFFOLD-VR: SCAFFOLD-M with a two-point, STORM-like direction."""

from .problem import Params, Rate, Trace, add, mean, rate, sub, times, total, zeros
from .scaffold_m import Guided


def scaffold_vr_states(
    x: Params, trace: Trace, lr: Rate, b: float = 0.1, server_lr: float = 1.0
) -> list[Guided]:
    """SCAFFOLD-VR (Cheng et al. 2024, arXiv 2306.16504; from memory).

    ``d = grad(x_i; xi) - b (c_i - c) + (1-b)(g - grad(x^{r-1}; xi))``, the same batch
    at both points; ``x_i <- x_i - lr d``; ``c_i^+`` the mean of the K gradients at the
    local points; ``g <- -mean_S(x_i - x)/(lr K)``; ``x += server_lr mean_S(x_i - x)``;
    ``c += (1/N) sum_S(c_i^+ - c_i)``. Controls and g are 0 first, x^{-1} = x^0, b = 1
    in round 0.
    """
    N = trace.num_clients
    x_prev, g, c, c_i = x, zeros(x), zeros(x), [zeros(x)] * N
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        b_r = 1.0 if r == 0 else b
        deltas, fresh = [], list(c_i)
        for i, batches in zip(ids, data, strict=True):
            xi, raw = x, []
            for batch in batches:
                new, old = trace.grad(xi, batch), trace.grad(x_prev, batch)
                raw.append(new)
                d = sub(new, times(b_r, sub(c_i[i], c)))
                d = add(d, times(1 - b_r, sub(g, old)))
                xi = sub(xi, times(eta, d))
            fresh[i] = mean(raw)
            deltas.append(sub(xi, x))
        g = times(-1 / (len(data[0]) * eta), mean(deltas))
        x_prev = x
        x = add(x, times(server_lr, mean(deltas)))
        c = add(c, times(1 / N, total([sub(fresh[i], c_i[i]) for i in ids])))
        c_i = fresh
        history.append(Guided(x, g, c, c_i))
    return history


def scaffold_vr(
    x: Params, trace: Trace, lr: Rate, b: float = 0.1, server_lr: float = 1.0
) -> list[Params]:
    """The parameters of `scaffold_vr_states` (Cheng et al. 2024)."""
    return [s.x for s in scaffold_vr_states(x, trace, lr, b, server_lr)]
