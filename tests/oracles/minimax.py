"""Local SGDA and its relatives: min over x by descent, max over y by ascent.

Each oracle returns ``{"x": x, "y": y}`` after every round. Both gradients are taken at
the same local (x, y) on the same batch, and both variables move at once.
"""

from collections.abc import Callable

from .problem import Params, Rate, add, mean, rate, sub, times, total, zeros
from .saddle import Saddle, SaddleTrace, first_saddle_gradient


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
    x, y = start["x"], start["y"]
    first = [first_saddle_gradient(trace, start, i) for i in range(trace.num_clients)]
    d_x, d_y = mean([g["x"] for g in first]), mean([g["y"] for g in first])
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta_x, eta_y = rate(lr_x, r), rate(lr_y, r)
        last_x, last_y, last_d_x, last_d_y = [], [], [], []
        for i, batches in zip(ids, data, strict=True):
            own = own_start and r == 0
            xi, yi = x, y
            dx, dy = (first[i]["x"], first[i]["y"]) if own else (d_x, d_y)
            for batch in batches:
                xi = sub(xi, times(eta_x, dx))
                yi = add(yi, times(eta_y, dy))
                g = trace.grad({"x": xi, "y": yi}, batch)
                dx = add(times(1 - b_x, dx), times(b_x, g["x"]))
                dy = add(times(1 - b_y, dy), times(b_y, g["y"]))
            last_x.append(xi)
            last_y.append(yi)
            last_d_x.append(dx)
            last_d_y.append(dy)
        x, y = mean(last_x), mean(last_y)
        d_x, d_y = mean(last_d_x), mean(last_d_y)
        history.append({"x": x, "y": y})
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
    N = trace.num_clients
    x, y = start["x"], start["y"]
    first = [first_saddle_gradient(trace, start, i) for i in range(N)]
    v, u = mean([g["x"] for g in first]), mean([g["y"] for g in first])
    before = [start] * N
    x = sub(x, times(rate(lr_x, 0), v))
    y = add(y, times(rate(lr_y, 0), u))
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        assert sorted(ids) == list(range(N)), "FedSGDA-M needs all clients"
        eta_x, eta_y = rate(lr_x, r), rate(lr_y, r)
        xs, ys, vs, us = [], [], [], []
        for i, batches in zip(ids, data, strict=True):
            xi, yi, vi, ui = x, y, v, u
            for k, batch in enumerate(batches):
                old = trace.grad(before[i], batch)
                new = trace.grad({"x": xi, "y": yi}, batch)
                vi = add(new["x"], times(1 - a_x, sub(vi, old["x"])))
                ui = add(new["y"], times(1 - a_y, sub(ui, old["y"])))
                before[i] = {"x": xi, "y": yi}
                if k + 1 < len(batches):
                    xi = sub(xi, times(eta_x, vi))
                    yi = add(yi, times(eta_y, ui))
            xs.append(xi)
            ys.append(yi)
            vs.append(vi)
            us.append(ui)
        v, u = mean(vs), mean(us)
        x = sub(mean(xs), times(eta_x, v))
        y = add(mean(ys), times(eta_y, u))
        history.append({"x": x, "y": y})
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
    x, y = start["x"], start["y"]
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta_x, eta_y = rate(lr_x, r), rate(lr_y, r)
        moves_x, moves_y = [], []
        for batches in data:
            xi, yi = x, y
            for batch in batches:
                g = trace.grad({"x": xi, "y": yi}, batch)
                xi = sub(xi, times(eta_x, g["x"]))
                yi = add(yi, times(eta_y, g["y"]))
            moves_x.append(sub(xi, x))
            moves_y.append(sub(yi, y))
        x = add(x, times(server_lr_x, mean(moves_x)))
        y = add(y, times(server_lr_y, mean(moves_y)))
        history.append({"x": x, "y": y})
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
    N = trace.num_clients
    x, y = start["x"], start["y"]
    v_x, v_x_i = zeros(x), [zeros(x)] * N
    v_y, v_y_i = zeros(y), [zeros(y)] * N
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        eta_x, eta_y = rate(lr_x, r), rate(lr_y, r)
        moves_x, fresh_x = [], list(v_x_i)
        moves_y, fresh_y = [], list(v_y_i)
        for i, batches in zip(ids, data, strict=True):
            xi, yi, raw_x, raw_y = x, y, [], []
            for batch in batches:
                g = trace.grad({"x": xi, "y": yi}, batch)
                raw_x.append(g["x"])
                raw_y.append(g["y"])
                xi = sub(xi, times(eta_x, add(sub(g["x"], v_x_i[i]), v_x)))
                yi = add(yi, times(eta_y, add(sub(g["y"], v_y_i[i]), v_y)))
            fresh_x[i], fresh_y[i] = mean(raw_x), mean(raw_y)
            moves_x.append(sub(xi, x))
            moves_y.append(sub(yi, y))
        x = add(x, times(server_lr_x, mean(moves_x)))
        y = add(y, times(server_lr_y, mean(moves_y)))
        v_x = add(v_x, times(1 / N, total([sub(fresh_x[i], v_x_i[i]) for i in ids])))
        v_y = add(v_y, times(1 / N, total([sub(fresh_y[i], v_y_i[i]) for i in ids])))
        v_x_i, v_y_i = fresh_x, fresh_y
        history.append({"x": x, "y": y})
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
    x, y = start["x"], start["y"]
    z = x
    history = []
    for r, (_, data) in enumerate(trace.rounds):
        eta_x, eta_y = rate(lr_x, r), rate(lr_y, r)
        K = len(data[0])
        moves_x, moves_y = [], []
        for batches in data:
            xi, yi = x, y
            for batch in batches:
                g = trace.grad({"x": xi, "y": yi}, batch)
                xi = sub(xi, times(eta_x, g["x"]))
                yi = project(add(yi, times(eta_y, g["y"])))
            moves_x.append(sub(xi, x))
            moves_y.append(sub(yi, y))
        pull = times(eta_x * server_lr_x * K * rho, sub(x, z))
        x = sub(add(x, times(server_lr_x, mean(moves_x))), pull)
        y = project(add(y, times(server_lr_y, mean(moves_y))))
        z = add(z, times(beta, sub(x, z)))
        history.append({"x": x, "y": y})
    return history
