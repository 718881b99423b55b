"""The oracles against independent optimizers, those of PyTorch."""

import numpy as np
import pytest
from oracles import fedavg as avg
from oracles.cases import ALONE, ONE_STEP, X
from oracles.fedlada import fedlada
from oracles.fedmuon import local_sgd_align
from oracles.outer import muloco
from oracles.problem import assert_same, draw_trace, mean, toy_grad
from packages import needs

torch = needs("torch")
pytestmark = pytest.mark.slow


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


def test_the_first_round_alone_is_that_of_torch():
    """Of AMSGrad from the same v, without its bias correction; and of decayed SGD."""
    amsgrad = lambda leaves: torch.optim.Adam(leaves, 0.02, (0.0, 0.0), 0, amsgrad=True)
    ours = fedlada(X, ALONE, 0.02, alpha=1.0, b1=0.0, b2=0.0, eps=1e-12)
    assert_same(ours[:1], by_torch(amsgrad, ALONE)[:1])
    decayed = lambda leaves: torch.optim.SGD(leaves, 0.1, 0.8, weight_decay=0.05)
    ours = local_sgd_align(X, ALONE, 0.1, 0.8, align=0.0, decay=0.05)
    assert_same(ours[:1], by_torch(decayed, ALONE)[:1])


def test_local_sgdm_of_one_step_is_heavy_ball():
    leaves = {k: torch.tensor(v, requires_grad=True) for k, v in X.items()}
    ball, path = torch.optim.SGD(leaves.values(), lr=0.1, momentum=0.8), []
    for _, data in ONE_STEP.rounds:
        now = {k: v.detach().numpy() for k, v in leaves.items()}
        g = mean([toy_grad(now, batches[0]) for batches in data])
        for k, leaf in leaves.items():
            leaf.grad = torch.tensor(g[k])
        ball.step()
        path.append({k: v.detach().numpy().copy() for k, v in leaves.items()})
    assert_same(avg.local_sgdm(X, ONE_STEP, 0.1, 0.8), path)
