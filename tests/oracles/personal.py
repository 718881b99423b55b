"""Clients with parameters of their own: those of FedPer, and Ditto's second model."""

from .problem import add, mean, rate, sub, times


def fedper(x, trace, lr, own=("b",), momentum=0.0):
    """FedAvg whose clients keep `own` (Arivazhagan et al. 2019, arXiv 1912.00818).

    Returns the shared model and what all clients keep, after every round. On the
    server, `own` stays as it was.
    """
    kept = [{name: x[name] for name in own} for _ in range(trace.num_clients)]
    history = []
    for r, (ids, data) in enumerate(trace.rounds):
        changes = []
        for i, batches in zip(ids, data, strict=True):
            local = {**x, **kept[i]}
            start, u = local, times(0.0, x)
            for batch in batches:
                u = add(times(momentum, u), trace.grad(local, batch))
                local = sub(local, times(rate(lr, r), u))
            kept[i] = {name: local[name] for name in own}
            changes.append(sub(local, start))
        shared = add(x, mean(changes))
        x = {name: x[name] if name in own else shared[name] for name in x}
        history.append((x, list(kept)))
    return history


def ditto(x, trace, lr, personal_lr, pull):
    """Ditto (Li et al. 2021, arXiv 2012.04221): FedAvg, and a model of every client.

    ``v_i <- v_i - personal_lr (grad_i(v_i) + pull (v_i - x))``, x as it was received.
    Returns x and all v_i, after every round.
    """
    own, history = [x] * trace.num_clients, []
    for r, (ids, data) in enumerate(trace.rounds):
        changes = []
        for i, batches in zip(ids, data, strict=True):
            local, v = x, own[i]
            for batch in batches:
                local = sub(local, times(rate(lr, r), trace.grad(local, batch)))
                d = add(trace.grad(v, batch), times(pull, sub(v, x)))
                v = sub(v, times(personal_lr, d))
            own[i] = v
            changes.append(sub(local, x))
        x = add(x, mean(changes))
        history.append((x, list(own)))
    return history
