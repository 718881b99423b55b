"""A plain loop in PyTorch: over clients, then over their batches."""

import numpy as np
import torch
from torch import nn

from benchmarks.peers.torch_nets import batches, examples, loss_of, network
from benchmarks.turns import Turns
from benchmarks.workloads import LR, Workload


def run(workload: Workload, weights, turns: Turns, *, cores: int, rounds: int) -> None:
    """Runs rounds on the first GPU if there is one, else on that many cores."""
    del rounds  # as many as are requested
    torch.set_num_threads(cores)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    if on_gpu:  # products in TF32, as JAX's
        torch.set_float32_matmul_precision("high")
    net = network(workload, weights).to(device)
    x, y, parts = examples(workload)
    x, y = x.to(device), y.to(device)
    rng = np.random.default_rng(0)
    params: list[torch.Tensor] = list(net.parameters())
    while turns.start():
        start = [p.detach().clone() for p in params]
        mean = [torch.zeros_like(p) for p in params]
        cohort = rng.choice(workload.clients, workload.cohort, replace=False)
        total = sum(len(parts[i]) for i in cohort)
        for i in cohort:
            with torch.no_grad():
                torch._foreach_copy_(params, start)
            optimizer = torch.optim.SGD(params, LR)
            for ids in torch.tensor(batches(workload, parts[i], rng), device=device):
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
    turns.finish([loss_of(workload, net, x, y)], peak)
