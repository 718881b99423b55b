"""What `fedjax-muon private` runs, made from its config."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import networkx as nx
import numpy as np

from fedjax_muon import data, models
from fedjax_muon.core import streams
from fedjax_muon.data import Dataset, partition
from fedjax_muon.decentralized import ALL, topology
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.private import (
    PRIVATE,
    Mechanism,
    calibrate,
    noise_scale_of,
)
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.privacy.guarantees import PrivacySpec
from fedjax_muon.privacy.sampling import Cyclic, Poisson
from fedjax_muon.runs.config import Private
from fedjax_muon.simulation.batching import always, cyclic, poisson, shuffled_epochs
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.tasks import auc
from fedjax_muon.tasks.task import Task

REFERENCES = ("dsgda", "dm_hsgd")  # what the same methods reach without privacy
ROOM = 3  # a batch's, over its expected size
# Tried by hand on the default job, on a seed that it does not use.
LR = {
    "dsgda": 1.0,
    "dm_hsgd": 1.0,
    "dp_sgda": 1.0,
    "dpmixsgd": 0.1,
    "dpmixsgd_inside": 0.1,
    "private_storm": 0.3,
}


class Setting(NamedTuple):
    """What all runs have in common."""

    job: Private
    dataset: Dataset
    task: Task
    parts: dict[int, list[np.ndarray]]  # by seed
    graphs: dict[int, nx.Graph]

    @property
    def fewest(self) -> int:
        """Examples of the agent that is protected least."""
        return min(len(part) for parts in self.parts.values() for part in parts)

    @property
    def room(self) -> int:
        """Of a Poisson batch."""
        return min(ROOM * self.job.batch_size, self.fewest)


def setting_of(job: Private) -> Setting:
    """Data, task, partitions and graphs. Raises `ValueError` for what does not fit."""
    for name in ("methods", "epsilons", "seeds"):
        given = getattr(job, name)
        if not given or len(set(given)) != len(given):
            raise ValueError(f"{name} must be one or more, each once, got {given}")
    known = (*REFERENCES, *PRIVATE)
    for name in (*job.methods, *job.lr):
        if name not in known:
            raise ValueError(f"unknown method {name!r}; there are {', '.join(known)}")
    dataset = data.load(job.dataset, job.data_dir)
    if len(dataset.classes) != 2:
        raise ValueError(
            f"AUC is defined for two classes, {job.dataset} has {len(dataset.classes)}"
        )
    if dataset.x_train.dtype == np.int32:
        raise ValueError(f"the mlp does not fit the sentences of {job.dataset}")
    keys = {
        seed: jax.random.fold_in(jax.random.key(seed), streams.AGENTS)
        for seed in job.seeds
    }
    parts = {
        seed: partition.iid(dataset.y_train, job.agents, key=key)
        for seed, key in keys.items()
    }
    # the share of positives is taken as public: a client's own would tell of its data
    task = auc(
        models.MLP(len(dataset.classes), job.hidden),
        dataset.x_train.shape[1:],
        share=float(dataset.y_train.mean()),
    )
    graphs = {seed: _graph(job, key) for seed, key in keys.items()}
    return Setting(job, dataset, task, parts, graphs)


def _graph(job: Private, key: jax.Array) -> nx.Graph:
    kinds: dict[str, Callable[[], nx.Graph]] = {
        "erdos_renyi": lambda: (
            topology.erdos_renyi(job.agents, job.connectivity, key=key).graph
        ),
        "ring": lambda: topology.ring(job.agents),
        "star": lambda: topology.star(job.agents),
        "exponential": lambda: topology.exponential(job.agents),
        "complete": lambda: topology.complete(job.agents),
    }
    return kinds[job.graph]()


def _mechanism(job: Private) -> Mechanism:
    return Mechanism(job.clip_norm, job.change_clip_norm, job.beta, job.batch_size)


def calibrated(setting: Setting, name: str, epsilon: float) -> PrivacySpec:
    """What a private method releases with the least noise for epsilon."""
    job = setting.job
    sampling = (
        Poisson(setting.fewest, job.batch_size, max_batch=setting.room)
        if PRIVATE[name].amplified
        else Cyclic(setting.fewest, job.batch_size)
    )
    mechanism, steps = _mechanism(job), job.rounds + 1
    try:
        return calibrate(
            name, mechanism, epsilon, sampling, steps=steps, delta=job.delta
        )
    except ImportError as error:
        raise ValueError(str(error)) from error


def simulation_of(setting: Setting, name: str) -> Simulation:
    """A method's simulation, to be varied by seed and noise."""
    job, task, seed = setting.job, setting.task, setting.job.seeds[0]
    lr = job.lr.get(name, LR[name])
    algorithm: Gossip
    if name in REFERENCES:
        beta: dict[str, Any] = {"beta": job.beta} if name == "dm_hsgd" else {}
        algorithm = ALL[name].function(lr=lr, **beta)
        sampler = always(shuffled_epochs)
    else:
        method = PRIVATE[name]
        algorithm = method.build(_mechanism(job), 1.0, lr)
        sampler = always(poisson(setting.room)) if method.amplified else cyclic
    return decentralize(
        algorithm,
        task,
        setting.dataset,
        setting.parts[seed],
        weights=topology.metropolis(setting.graphs[seed]),
        batch_size=job.batch_size,
        sampler=sampler,
    )


def varied(
    simulation: Simulation,
    setting: Setting,
    seed: int,
    spec: PrivacySpec | None,
) -> Simulation:
    """The simulation of one seed, with the noise of `spec` if it is private."""
    return simulation.vary(
        parts=setting.parts[seed],
        weights=topology.metropolis(setting.graphs[seed]),
        hyper={} if spec is None else {"noise_scale": noise_scale_of(spec)},
    )


def label_of(name: str) -> str:
    """A method as tables call it."""
    return ALL[name].label if name in REFERENCES else PRIVATE[name].label
