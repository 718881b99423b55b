"""PyTorch with the clients of a cohort in parallel, by `torch.func.vmap`."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

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
    params = {name: p.detach() for name, p in net.named_parameters()}

    def loss(params: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(net, params, (x,)), y)

    gradients = vmap(grad(loss))
    while turns.start():
        cohort = rng.choice(workload.clients, workload.cohort, replace=False)
        sizes = torch.tensor([len(parts[i]) for i in cohort], device=device)
        shares = sizes / sizes.sum()
        drawn = np.stack([batches(workload, parts[i], rng) for i in cohort], 1)
        own = {n: p.expand(len(cohort), *p.shape).clone() for n, p in params.items()}
        for ids in torch.tensor(drawn, device=device):  # [clients, batch]
            change = gradients(own, x[ids], y[ids])
            own = {n: p - LR * change[n] for n, p in own.items()}
        params = {n: torch.tensordot(shares, p, 1) for n, p in own.items()}
        if on_gpu:
            torch.cuda.synchronize()
        turns.stop()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(params[name])
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    turns.finish([loss_of(workload, net, x, y)], peak)
