"""A loop in PyTorch, as one writes it first: clients, then their batches."""

import numpy as np
import torch
from torch import nn

from benchmarks.peers.torch_nets import batches, examples, loss_of, network
from benchmarks.turns import Turns
from benchmarks.works import LR, Work


def play(work: Work, weights, turns: Turns, *, cores: int, rounds: int) -> None:
    """On the first GPU if PyTorch sees one, else on that many cores."""
    del rounds  # as many as are asked for
    torch.set_num_threads(cores)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    net = network(work, weights).to(device)
    x, y, parts = examples(work)
    x, y = x.to(device), y.to(device)
    rng = np.random.default_rng(0)
    params: list[torch.Tensor] = list(net.parameters())
    while turns.start():
        start = [p.detach().clone() for p in params]
        mean = [torch.zeros_like(p) for p in params]
        cohort = rng.choice(work.clients, work.cohort, replace=False)
        total = sum(len(parts[i]) for i in cohort)
        for i in cohort:
            with torch.no_grad():
                torch._foreach_copy_(params, start)
            optimizer = torch.optim.SGD(params, LR)
            for ids in torch.tensor(batches(work, parts[i], rng), device=device):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x[ids]), y[ids]).backward()
                optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(mean, params, alpha=len(parts[i]) / total)
        with torch.no_grad():
            torch._foreach_copy_(params, mean)
        if on_gpu:
            torch.cuda.synchronize()
        turns.stop()
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    turns.finish([loss_of(work, net, x, y)], peak)
