"""pfl-research: its federated averaging on a simulated backend, in PyTorch."""

import types
from functools import partial
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn

from benchmarks.peers.torch_nets import batches, examples, loss_of, network
from benchmarks.turns import Turns
from benchmarks.workloads import LR, Workload


class TakesTurns(TrainingProcessCallback):
    """Makes one turn of every central iteration."""

    def __init__(self, turns: Turns):
        self._turns = turns

    def on_train_begin(self, *, model):
        self._turns.start()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self._turns.stop()
        return not self._turns.start(), Metrics()


def run(workload: Workload, weights, turns: Turns, *, cores: int, rounds: int) -> None:
    """Runs rounds. A user's data set is the examples of its batches.

    All users have equally many, and so equal weights.
    """
    torch.set_num_threads(cores)
    net: Any = network(workload, weights)  # pfl needs the attributes added below
    x, y, parts = examples(workload)
    rng = np.random.default_rng(0)
    net.loss = types.MethodType(
        lambda self, x, y: nn.functional.cross_entropy(self(x), y), net
    )
    net.metrics = lambda x, y, eval=False: {}

    def user(i: int) -> Dataset:
        ids = torch.from_numpy(batches(workload, parts[i], rng).ravel())
        return Dataset((x[ids], y[ids]), user_id=str(i))

    users = FederatedDataset(user, partial(rng.integers, workload.clients))
    backend = SimulatedBackend(users, users, [WeightByDatapoints()])
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=rounds + 2,
            train_cohort_size=workload.cohort,
            val_cohort_size=0,
        ),
        backend,
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LR, local_batch_size=workload.batch
        ),
        callbacks=[TakesTurns(turns)],
    )
    device = next(net.parameters()).device
    on_gpu = device.type == "cuda"
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    turns.finish([loss_of(workload, net, x.to(device), y.to(device))], peak)
