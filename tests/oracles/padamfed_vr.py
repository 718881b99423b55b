"""PAdaMFed-VR: PAdaMFed with a two-point, STORM-like direction."""

from .problem import Params, Rate, Trace, add, mean, rate, sub, times, total, zeros
from .scaffold_m import Guided, normalise_whole


def padamfed_vr_states(
    x: Params, trace: Trace, lr: Rate, b: float = 0.1, server_lr: float = 1.0
) -> list[Guided]:
    """PAdaMFed-VR (Yan et al., ICLR 2025).

    ``h = b c + (1-b) g``; ``d = grad(x_i; xi) - b c_i + h - (1-b) grad(x^{r-1}; xi)``,
    the same batch at both points; ``x_i <- x_i - lr d/|d|``, the norm over the whole
    model; ``c_i^+`` the mean of the K gradients at the local points. ``g`` is the mean
    of d over the cohort and the K steps (a choice: the server's g is not printed where
    the local rule is); ``c += (1/N) sum_S(c_i^+ - c_i)``; ``x += server_lr mean_S(x_i
    - x)``. Controls and g are 0 first, x^{-1} = x^0, b = 1 in round 0.
    """
    N = trace.num_clients
    x_prev, g, c, c_i = x, zeros(x), zeros(x), [zeros(x)] * N
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        b_r = 1.0 if r == 0 else b
        h = add(times(b_r, c), times(1 - b_r, g))
        deltas, directions, fresh = [], [], list(c_i)
        for i, batches in zip(ids, data, strict=True):
            xi, raw = x, []
            for batch in batches:
                new, old = trace.grad(xi, batch), trace.grad(x_prev, batch)
                raw.append(new)
                d = add(sub(new, times(b_r, c_i[i])), h)
                d = sub(d, times(1 - b_r, old))
                directions.append(d)
                xi = sub(xi, times(eta, normalise_whole(d)))
            fresh[i] = mean(raw)
            deltas.append(sub(xi, x))
        g = mean(directions)
        c = add(c, times(1 / N, total([sub(fresh[i], c_i[i]) for i in ids])))
        c_i = fresh
        x_prev = x
        x = add(x, times(server_lr, mean(deltas)))
        history.append(Guided(x, g, c, c_i))
    return history


def padamfed_vr(
    x: Params, trace: Trace, lr: Rate, b: float = 0.1, server_lr: float = 1.0
) -> list[Params]:
    """The parameters of `padamfed_vr_states` (Yan et al., ICLR 2025)."""
    return [s.x for s in padamfed_vr_states(x, trace, lr, b, server_lr)]
