"""Local SGDA and its relatives: min over x by descent, max over y by ascent.

Each oracle returns ``{"x": x, "y": y}`` after every round. Both gradients are taken at
the same local (x, y) on the same batch, and both variables move at once.
"""

from collections.abc import Callable

from .problem import Params, Rate, add, sub, times, total, zeros
from .saddle import (
    Saddle,
    SaddleTrace,
    averaged,
    both,
    combined,
    first_saddle_gradient,
    mixed,
    moved,
    rates,
    two_sided,
)


def local_sgda(
    start: Saddle, trace: SaddleTrace, lr_x: Rate, lr_y: Rate
) -> list[Saddle]:
    """Local SGDA (Deng & Mahdavi 2021, arXiv 2102.13152; from memory).

    ``x_i <- x_i - lr_x grad_x``, ``y_i <- y_i + lr_y grad_y``, K times; then the plain
    means over the cohort.
    """
    return fsgda(start, trace, lr_x, lr_y)


def local_sgdam(
    start: Saddle,
    trace: SaddleTrace,
    lr_x: Rate,
    lr_y: Rate,
    b_x: float = 0.1,
    b_y: float = 0.1,
    own_start: bool = False,
) -> list[Saddle]:
    """Momentum Local SGDA (Sharma et al. 2022, arXiv 2203.04850; from memory), alpha=1.

    A step moves along the OLD momentum, ``x_i <- x_i - lr_x d_x_i``, ``y_i <- y_i +
    lr_y d_y_i``, and refreshes it at the NEW point with a fresh batch, ``d_x_i <-
    (1-b_x) d_x_i + b_x grad_x``, likewise d_y_i. After K steps x, y, d_x and d_y are
    averaged over the cohort, and all clients go on from the averages.

    The first momentum is the mean over all N clients of their gradients over their
    batches before round 0 (a choice); with ``own_start`` a client of round 0 begins
    from its own such gradient instead.
    """
    b, at = both(b_x, b_y), start
    first = [first_saddle_gradient(trace, start, i) for i in range(trace.num_clients)]
    d = averaged(first)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta, ends, last = rates(lr_x, lr_y, r), [], []
        for i, batches in zip(ids, data, strict=True):
            local, d_i = at, first[i] if own_start and r == 0 else d
            for batch in batches:
                local = moved(local, eta, d_i)
                d_i = mixed(b, trace.grad(local, batch), d_i)
            ends.append(local)
            last.append(d_i)
        at, d = averaged(ends), averaged(last)
        history.append(at)
    return history


def fedsgda_m(
    start: Saddle,
    trace: SaddleTrace,
    lr_x: Rate,
    lr_y: Rate,
    a_x: float = 0.1,
    a_y: float = 0.1,
) -> list[Saddle]:
    """FedSGDA-M (Wu et al., NeurIPS 2023; from memory): STORM in x and in y.

    Full participation. Before round 0: ``v``, ``u`` the means over the clients of
    their gradients at (x_0, y_0) over their first batches; ``x_1 = x_0 - lr_x v``,
    ``y_1 = y_0 + lr_y u``. Iteration t > 0, one batch at both points: ``v_i <-
    grad_x(x_t,i, y_t,i) + (1-a_x)(v_i - grad_x(x_{t-1,i}, y_{t-1,i}))``, likewise u_i.
    If K divides t, x, y, v and u are averaged and ``x_{t+1} = x_bar - lr_x v_bar``,
    ``y_{t+1} = y_bar + lr_y u_bar`` (average, then step, as STEM does), else every
    client steps along its own. (x_{t-1,i}, y_{t-1,i}) is the client's own iterate,
    across an averaging too.
    """
    N, keep = trace.num_clients, both(1 - a_x, 1 - a_y)
    d = averaged([first_saddle_gradient(trace, start, i) for i in range(N)])
    before, at = [start] * N, moved(start, rates(lr_x, lr_y, 0), d)
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        assert sorted(ids) == list(range(N)), "FedSGDA-M needs all clients"
        eta, ends, last = rates(lr_x, lr_y, r), [], []
        for i, batches in zip(ids, data, strict=True):
            local, d_i = at, d
            for k, batch in enumerate(batches):
                old, new = trace.grad(before[i], batch), trace.grad(local, batch)
                past = combined(sub, d_i, old)
                d_i = {v: add(new[v], times(keep[v], past[v])) for v in "xy"}
                before[i] = local
                if k + 1 < len(batches):
                    local = moved(local, eta, d_i)
            ends.append(local)
            last.append(d_i)
        d = averaged(last)
        at = moved(averaged(ends), eta, d)
        history.append(at)
    return history


def fsgda(
    start: Saddle,
    trace: SaddleTrace,
    lr_x: Rate,
    lr_y: Rate,
    server_lr_x: float = 1.0,
    server_lr_y: float = 1.0,
) -> list[Saddle]:
    """FSGDA (Yang et al. 2022, arXiv 2210.00611; from memory).

    Local SGDA with two-sided rates: ``x += server_lr_x mean_S(x_i - x)``, ``y +=
    server_lr_y mean_S(y_i - y)``.
    """
    server_lr, at = both(server_lr_x, server_lr_y), start
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta, ends = rates(lr_x, lr_y, r), []
        for batches in data:
            local = at
            for batch in batches:
                local = moved(local, eta, trace.grad(local, batch))
            ends.append(local)
        at = two_sided(at, ends, server_lr)
        history.append(at)
    return history


def sagda(
    start: Saddle,
    trace: SaddleTrace,
    lr_x: Rate,
    lr_y: Rate,
    server_lr_x: float = 1.0,
    server_lr_y: float = 1.0,
) -> list[Saddle]:
    """SAGDA (Yang et al. 2022, arXiv 2210.00611; from memory).

    ``x_i <- x_i - lr_x (grad_x - v_x_i + v_x)``, ``y_i <- y_i + lr_y (grad_y - v_y_i +
    v_y)``, the controls being those of the last round; ``x += server_lr_x mean_S(x_i -
    x)``, likewise y. Controls (a choice, as SCAFFOLD's): ``v_i^+`` the mean of the
    client's K gradients, ``v += (1/N) sum_S(v_i^+ - v_i)``, all 0 first; absent clients
    keep theirs.
    """
    N, server_lr, at = trace.num_clients, both(server_lr_x, server_lr_y), start
    control = combined(zeros, start)
    controls = [control] * N
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta, ends, fresh = rates(lr_x, lr_y, r), [], list(controls)
        for i, batches in zip(ids, data, strict=True):
            local, raw = at, []
            for batch in batches:
                raw.append(trace.grad(local, batch))
                own = combined(sub, raw[-1], controls[i])
                local = moved(local, eta, combined(add, own, control))
            fresh[i] = averaged(raw)
            ends.append(local)
        at = two_sided(at, ends, server_lr)
        news = [combined(sub, fresh[i], controls[i]) for i in ids]
        change = lambda *parts: times(1 / N, total(parts))
        control = combined(add, control, combined(change, *news))
        controls = fresh
        history.append(at)
    return history


def fess_gda(
    start: Saddle,
    trace: SaddleTrace,
    lr_x: Rate,
    lr_y: Rate,
    server_lr_x: float = 1.0,
    server_lr_y: float = 1.0,
    rho: float = 1.0,
    beta: float = 0.5,
    project: Callable[[Params], Params] = lambda y: y,
) -> list[Saddle]:
    """FESS-GDA (Shen et al. 2024, arXiv 2311.00944).

    Locally plain SGDA from (x, y), without the smoothing term, ``y_i <- P(y_i + lr_y
    grad_y)``. Server: ``x^+ = x + server_lr_x mean_S(x_i - x) - lr_x server_lr_x K rho
    (x - z)``, ``y^+ = P(y + server_lr_y mean_S(y_i - y))``, ``z^+ = z + beta (x^+ -
    z)``; z = x first. ``project`` is P, a map of the whole y; the start is not
    projected.
    """
    server_lr, at, z = both(server_lr_x, server_lr_y), start, start["x"]
    inside = lambda point: {"x": point["x"], "y": project(point["y"])}
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta, ends = rates(lr_x, lr_y, r), []
        for batches in data:
            local = at
            for batch in batches:
                local = inside(moved(local, eta, trace.grad(local, batch)))
            ends.append(local)
        pull = times(eta["x"] * server_lr_x * len(data[0]) * rho, sub(at["x"], z))
        at = inside(two_sided(at, ends, server_lr))
        at["x"] = sub(at["x"], pull)
        z = add(z, times(beta, sub(at["x"], z)))
        history.append(at)
    return history
