"""DiLoCo: Adam inside, whose state stays at the client, Nesterov SGD outside."""

from .problem import (
    Moments,
    Params,
    Rate,
    Trace,
    adam,
    add,
    mean,
    rate,
    sub,
    times,
    zeros,
)


def diloco(
    x: Params,
    trace: Trace,
    lr: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.0,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
) -> list[Params]:
    """DiLoCo (Douillard et al. 2023, arXiv 2311.08105), Algorithm 1.

    Line 3: every worker starts from the last outer parameters. Lines 4-7, H times:
    AdamW with decoupled ``decay`` (the paper trains with 0.1). Its moments and their
    step count are the worker's own and outlive the round. Line 8: ``delta = mean(x -
    x_i)``. Line 9, OuterOpt, Nesterov SGD as the authors and PyTorch write it:
    ``u <- outer_momentum u + delta; x <- x - outer_lr (delta + outer_momentum u)``.

    Workers that a round leaves out, which the paper has none of, keep their moments.
    """
    moments = [Moments(zeros(x), zeros(x), 0) for _ in range(trace.num_clients)]
    u = zeros(x)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta = rate(lr, r)
        outer_gradients = []
        for i, batches in zip(ids, data, strict=True):
            xi = x
            for batch in batches:
                step, moments[i] = adam(trace.grad(xi, batch), moments[i], b1, b2, eps)
                xi = sub(times(1 - eta * decay, xi), times(eta, step))
            outer_gradients.append(sub(x, xi))
        delta = mean(outer_gradients)
        u = add(times(outer_momentum, u), delta)
        x = sub(x, times(outer_lr, add(delta, times(outer_momentum, u))))
        history.append(x)
    return history
