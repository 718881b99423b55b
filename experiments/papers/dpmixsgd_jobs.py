"""Problems of the DPMixSGD experiments: robust logistic regression, and AUC of an MLP.

The paper (section 6 and appendix C) leaves open the number of iterations, the size of
the MLP, and which of ten classes are positive. It also leaves open whether the simplex
of robust logistic regression has a weight for every example, or for every agent, as
equation (22) reads. We run 500 iterations of logistic regression, 200 of the MLP, and
2000 in the paper's table 3, where 200 make no progress. The MLP has one hidden layer
of 32 units, classes 5 to 9 are positive, and both simplices are run.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from fedjax_muon import data, models
from fedjax_muon.core.pair import Pair
from fedjax_muon.data import Dataset, partition
from fedjax_muon.decentralized import topology
from fedjax_muon.tasks import robust
from fedjax_muon.tasks.auc import auc
from fedjax_muon.tasks.task import Task

Kind = Literal["examples", "agents", "mlp"]


@dataclasses.dataclass(frozen=True)
class Job:
    """A problem and its training, without its data."""

    dataset: str
    kind: Kind  # dual weights of examples or of agents, or the MLP
    iterations: int
    batch_size: int
    first_size: int  # an upper limit: agents may have fewer examples
    rates: tuple[float, ...]  # of both variables
    betas: tuple[float, ...]


def logistic(dataset: str, kind: Kind) -> Job:
    """Returns the job of section 6.1."""
    return Job(
        dataset, kind, 500, 20, 10_000, (1.0, 0.1, 0.01, 0.001), (0.5, 0.1, 0.01)
    )


def mlp(dataset: str, iterations: int = 200) -> Job:
    """Returns the job of appendix C."""
    return Job(dataset, "mlp", iterations, 64, 64, (0.01, 0.001, 0.0001), (0.1, 0.01))


@functools.cache
def read(name: str, data_dir: Path | None, validate: bool) -> Dataset:
    """Returns a data set with two classes.

    With `validate`, a tenth of the training examples replaces the test examples.
    """
    dataset = data.load(name, data_dir)
    if len(dataset.classes) > 2:
        half = len(dataset.classes) // 2
        two = lambda y: (y >= half).astype(np.int32)
        dataset = dataset._replace(
            y_train=two(dataset.y_train),
            y_test=two(dataset.y_test),
            classes=("first half", "second half"),
        )
    if not validate:
        return dataset
    train, (x, y) = data.hold_out(dataset, 0.1)
    return train._replace(x_test=x, y_test=y)


class Problem:
    """Data and task of a job, for a number of agents."""

    def __init__(self, job: Job, agents: int, data_dir: Path | None, validate: bool):
        self.job, self.agents = job, agents
        self.dataset = read(job.dataset, data_dir, validate)
        if job.kind == "mlp":
            share = float(self.dataset.y_train.mean())
            model, shape = models.MLP(2, (32,)), self.dataset.x_train.shape[1:]
            self.task: Task = auc(model, shape, share=share)
        else:
            of = getattr(robust, job.kind)
            count = agents if job.kind == "agents" else len(self.dataset.y_train)
            features = self.dataset.x_train.shape[1]
            self.task = robust.robust_logistic(features, count, of)

    def parts(self, seed: int) -> list[np.ndarray]:
        """Returns equal shares of the training examples."""
        return partition.iid(self.dataset.y_train, self.agents, key=_keys(seed)[0])

    def weights(self, seed: int, connectivity: float) -> np.ndarray:
        """Returns the mixing weights of a random graph."""
        drawn = topology.erdos_renyi(self.agents, connectivity, key=_keys(seed)[1])
        return topology.metropolis(drawn.graph)

    @property
    def fewest(self) -> int:
        """The smallest number of examples of an agent."""
        return len(self.dataset.y_train) // self.agents


def paired(hyper: dict[str, Any]) -> dict[str, Any]:
    """Joins the learning rates of x and y in a pair."""
    rest = {k: v for k, v in hyper.items() if k not in ("lr_x", "lr_y")}
    return rest | {"lr": Pair(hyper["lr_x"], hyper["lr_y"])}


def _keys(seed: int) -> jax.Array:
    return jax.random.split(jax.random.fold_in(jax.random.key(seed), 2))
