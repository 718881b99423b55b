"""The oracles against independent optimizers: those of PyTorch, and by hand."""

import numpy as np
import torch
from oracles import fedavg as avg
from oracles.cases import (
    ALONE,
    ONE_STEP,
    X,
)
from oracles.muloco import muloco
from oracles.problem import (
    assert_same,
    draw_trace,
    mean,
    toy_grad,
)


def by_torch(make, trace):
    """One client alone, a fresh torch optimiser per round, in float64."""
    path, x = [], X
    for _, data in trace.rounds:
        leaves = {k: torch.tensor(v, requires_grad=True) for k, v in x.items()}
        optimiser = make(leaves.values())
        for batch in data[0]:
            g = toy_grad({k: v.detach().numpy() for k, v in leaves.items()}, batch)
            for k, leaf in leaves.items():
                leaf.grad = torch.tensor(g[k])
            optimiser.step()
        x = {k: v.detach().numpy().copy() for k, v in leaves.items()}
        path.append(x)
    return path


def test_local_optimisers_are_those_of_torch():
    adamw = lambda leaves: torch.optim.AdamW(leaves, lr=0.02, weight_decay=0.1)
    assert_same(avg.local_adamw(X, ALONE, 0.02, decay=0.1), by_torch(adamw, ALONE))
    adam = lambda leaves: torch.optim.Adam(leaves, lr=0.02)
    assert_same(avg.fedavg_adam(X, ALONE, 0.02), by_torch(adam, ALONE))
    ball = lambda leaves: torch.optim.SGD(leaves, lr=0.1, momentum=0.9)
    assert_same(avg.fedavg_momentum(X, ALONE, 0.1), by_torch(ball, ALONE))
    # local Muon moves its vectors alone where U V^T is replaced by zero
    adam = lambda leaves: torch.optim.Adam([*leaves][1:], 0.02, (0.9, 0.95), 1e-10)
    ours = avg.local_muon(X, ALONE, 0.02, decay=0.0, direction=np.zeros_like)
    assert_same(ours, by_torch(adam, ALONE))


def test_muloco_inner_and_outer_optimisers_are_those_of_torch():
    # sign instead of U V^T leaves heavy ball, persistent AdamW, and Nesterov SGD
    trace = draw_trace(7, 2, 2, 3, 6, 5, [9, 4])
    outer = [torch.tensor(X["w"]), torch.tensor(X["b"])]
    nesterov = torch.optim.SGD(outer, lr=0.8, momentum=0.9, nesterov=True)
    own = [[torch.tensor(X["w"]), torch.tensor(X["b"])] for _ in range(2)]
    inner = [torch.optim.AdamW(p[1:], 0.02, (0.9, 0.99), 1e-8, 0.1) for p in own]
    m, path = [np.zeros((4, 3))] * 2, []
    for ids, data in trace.rounds:
        for i, batches in zip(ids, data, strict=True):
            for mine, shared in zip(own[i], outer, strict=True):
                mine.data.copy_(shared.data)
            for batch in batches:
                w, b = own[i]
                g = toy_grad({"w": w.numpy(), "b": b.numpy()}, batch)
                m[i] = 0.9 * m[i] + g["w"]
                w.data.sub_(0.02 * (0.5 * torch.tensor(np.sign(m[i])) + 0.1 * w))
                b.grad = torch.tensor(g["b"])
                inner[i].step()
        for at, leaf in enumerate(outer):
            leaf.grad = leaf - (own[0][at] + own[1][at]) / 2
        nesterov.step()
        path.append({"w": outer[0].numpy().copy(), "b": outer[1].numpy().copy()})
    half = lambda rows, cols: 0.5
    ours = muloco(X, trace, 0.02, decay=0.1, scale=half, direction=np.sign)
    assert_same(ours, path)


def test_adaptive_servers_unrolled():
    # the sums that the recursions stand for, on displacements recomputed from x
    lr, tau = 0.1, 0.01  # so that Yogi meets both signs of v - d^2
    means = lambda d, w: sum(c * u for c, u in zip(w, d, strict=True))

    def v_yogi(d):
        v = np.full_like(d[0], tau**2)
        for u in d:
            v = np.where(v > u**2, v - 0.01 * u**2, v + 0.01 * u**2)
        return v

    def v_adam(d):
        t = len(d)
        w = [0.01 * 0.99 ** (t - 1 - s) for s in range(t)]
        return 0.99**t * tau**2 + means([u**2 for u in d], w)

    v_adagrad = lambda d: tau**2 + sum(u**2 for u in d)
    for f, b1, v in (
        (avg.fedadam, 0.9, v_adam),
        (avg.fedyogi, 0.9, v_yogi),
        (avg.fedadagrad, 0.0, v_adagrad),
    ):
        history = [X, *f(X, ONE_STEP, lr, 0.05, tau=tau)]
        for name in X:
            d = []
            for r, (_, data) in enumerate(ONE_STEP.rounds):
                g = mean([toy_grad(history[r], batches[0]) for batches in data])
                d.append(-lr * g[name])
                m = means(d, [(1 - b1) * b1 ** (r - s) for s in range(r + 1)])
                step = 0.05 * m / (np.sqrt(v(d)) + tau)
                now = history[r + 1][name]
                np.testing.assert_allclose(now, history[r][name] + step, 0, 1e-12)
