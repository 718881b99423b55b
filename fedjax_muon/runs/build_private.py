"""What `fedjax-muon private` runs, made from its config."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import networkx as nx
import numpy as np

from fedjax_muon import data, models
from fedjax_muon.core import streams
from fedjax_muon.data import Dataset, partition
from fedjax_muon.decentralized import ALL, topology
from fedjax_muon.decentralized.agent_privacy import AgentPrivacy
from fedjax_muon.decentralized.private import PRIVATE, Mechanism
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.privacy.correlated import Strategy, banded, buffered
from fedjax_muon.runs.config import Private
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.tasks import auc
from fedjax_muon.tasks.task import Task

# Tried by hand on the default job, on a seed that it does not use.
LR = {
    "dp_sgda": 1.0,
    "dp_ftrl": 1.0,
    "dp_ftrl_buffered": 1.0,
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


def setting_of(job: Private) -> Setting:
    """Data, task, partitions and graphs. Raises `ValueError` for what does not fit."""
    for name in ("methods", "epsilons", "seeds"):
        given = getattr(job, name)
        if not given or len(set(given)) != len(given):
            raise ValueError(f"{name} must be one or more, each once, got {given}")
    for name in (*job.methods, *job.lr):
        if name in ALL and name not in PRIVATE:
            raise ValueError(
                f"{name} is not private, and its results must not lie beside private "
                f"ones; private methods are {', '.join(PRIVATE)}"
            )
        if name not in PRIVATE:
            raise ValueError(f"unknown method {name!r}; there are {', '.join(PRIVATE)}")
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


def privacy_of(setting: Setting, name: str, epsilon: float) -> AgentPrivacy:
    """The mechanism of a method."""
    job = setting.job
    mechanism = Mechanism(
        clip_norm=job.clip_norm,
        change_clip_norm=job.change_clip_norm,
        beta=job.beta,
        batch_size=job.batch_size,
        strategy=_strategy_of(setting, name),
    )
    return AgentPrivacy(
        PRIVATE[name],
        mechanism,
        rounds=job.rounds,
        delta=job.delta,
        epsilon=epsilon,
        insecure_fixed_noise=job.insecure_fixed_noise,
        publish_training_metrics=job.publish_training_metrics,
    )


def _strategy_of(setting: Setting, name: str) -> Strategy | None:
    """The correlation of a method's noise, for all agents the same."""
    job = setting.job
    steps = job.rounds + 1
    if name == "dp_ftrl":
        return banded(steps, min(job.bands, steps))
    if name == "dp_ftrl_buffered":
        examples = min(map(len, setting.parts[job.seeds[0]]))
        return buffered(steps, max(1, examples // job.batch_size))
    return None


def simulation_of(setting: Setting, name: str) -> Simulation:
    """A method's simulation at the first epsilon and seed, to be varied."""
    job, seed = setting.job, setting.job.seeds[0]
    try:
        return decentralize(
            PRIVATE[name].base(lr=job.lr.get(name, LR[name])),
            setting.task,
            setting.dataset,
            setting.parts[seed],
            weights=topology.metropolis(setting.graphs[seed]),
            privacy=privacy_of(setting, name, job.epsilons[0]),
        )
    except ImportError as error:
        raise ValueError(str(error)) from error


def of_seed(simulation: Simulation, setting: Setting, seed: int) -> Simulation:
    """The same simulation on the partition and the graph of a seed."""
    return simulation.vary(
        parts=setting.parts[seed],
        weights=topology.metropolis(setting.graphs[seed]),
    )


def label_of(name: str) -> str:
    """A method as tables call it."""
    return PRIVATE[name].label
