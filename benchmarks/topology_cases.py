"""Rounds that `benchmarks.topologies` compiles.

Examples have the shapes and the number of the original data, with random labels. Only a
few of them are made, since a program depends on shapes alone.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.papers import fedmuon_004
from fedjax_muon import algorithms, decentralized, minimax, models, tasks
from fedjax_muon.core.pair import Pair
from fedjax_muon.data import NAMES, Dataset
from fedjax_muon.decentralized import topology
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.runs.build import (
    WEIGHTINGS,
    federated_of,
    parts_of,
    plan_of,
    simulation_of,
)
from fedjax_muon.runs.config import Config, Run
from fedjax_muon.simulation import Simulation, federate
from fedjax_muon.simulation.batching import max_client_size_of
from fedjax_muon.tasks.lora import lora_classification

CHIP, SQUARE, POD = "v5e:1x1", "v5e:2x2", "v5e:16x16"
MANY_CLIENTS = 256  # one for each chip of a pod
ROBERTA = (50_265, 128)  # tokens, and length of a text
DESCENT = ("dsgd", "dsgd_muon", "gradient_tracking", "gradient_tracking_muon")


class Case(NamedTuple):
    """One program."""

    group: str
    algorithm: str
    config: Config
    topology: str

    @property
    def name(self) -> str:
        """What identifies it."""
        one = self.config
        plan = f"chunked({one.chunk_size})" if one.plan == "chunked" else one.plan
        sizes = f"{one.cohort_size}x{one.local_steps}x{one.batch_size}"
        words = (self.group, self.algorithm, one.model, one.dataset, sizes)
        return "/".join((*words, plan, one.compute_dtype, self.topology))


MLP = Config(
    dataset="mnist",
    model="mlp",
    hidden=(200, 200),
    num_clients=MANY_CLIENTS,
    partition="iid",
    cohort_size=MANY_CLIENTS,
    batch_size=20,
    plan="vmapped",
)
AUC = dataclasses.replace(MLP, problem="auc", dataset="a9a")
LARGE = dataclasses.replace(fedmuon_004.BASE, plan="vmapped", weight_decay=0.0)
MODELS = {  # with the sizes of the papers that have them
    "emnist_cnn": dataclasses.replace(
        MLP, model="emnist_cnn", num_clients=100, cohort_size=10, local_steps=30
    ),
    "resnet18": dataclasses.replace(LARGE, model="resnet18"),
    "vit_tiny": dataclasses.replace(LARGE, model="vit_tiny"),
    "swin_tiny": dataclasses.replace(
        LARGE, model="swin_tiny", cohort_size=5, batch_size=16
    ),
    "roberta": dataclasses.replace(
        LARGE,
        model="roberta",
        dataset="mnli",
        num_clients=4,
        cohort_size=4,
        batch_size=16,
        augmentation="none",
    ),
}
CHOSEN = "fedavg", "fedmuon", "scaffold"


def methods() -> Iterator[Case]:
    """Yields the methods that have code of their own, on one chip and on 256.

    DM-HSGD, a preset, is the one for minimax problems on a graph.
    """
    registries = algorithms.ALL | minimax.ALL | decentralized.ALL
    for chips, (name, row) in itertools.product((CHIP, POD), registries.items()):
        if row.preset is None or name == "dm_hsgd":
            plain = name in algorithms.ALL or name in DESCENT
            yield Case("methods", name, MLP if plain else AUC, chips)


def large_models() -> Iterator[Case]:
    """Yields some methods on every model."""
    for config, algorithm in itertools.product(MODELS.values(), CHOSEN):
        yield Case("models", algorithm, config, SQUARE)


def plans() -> Iterator[Case]:
    """Yields plans and types for two methods."""
    kinds, types = ("mapped", "vmapped", "chunked"), ("float32", "bfloat16")
    for algorithm, plan, dtype in itertools.product(CHOSEN[:2], kinds, types):
        how: dict[str, Any] = {"plan": plan, "compute_dtype": dtype, "chunk_size": 2}
        yield Case("plans", algorithm, dataclasses.replace(MLP, **how), SQUARE)


def scaling() -> Iterator[Case]:
    """Yields rounds of 1,000 and of 100,000 clients on 1 to 256 chips."""
    counts, sides = (1_000, 100_000), (1, 4, 16)
    for count, algorithm, side in itertools.product(
        counts, ("fedavg", "scaffold"), sides
    ):
        sizes: dict[str, Any] = {"num_clients": count, "cohort_size": count}
        how: dict[str, Any] = {"plan": "chunked", "chunk_size": 50, "batch_size": 1}
        how |= {"hidden": (64,), "split_examples": side > 1, "devices": min(2, side)}
        config = dataclasses.replace(MLP, **sizes, **how)
        yield Case("scaling", algorithm, config, f"v5e:{side}x{side}")


GROUPS = {
    "methods": methods,
    "models": large_models,
    "plans": plans,
    "scaling": scaling,
}


def dataset_of(config: Config) -> Dataset:
    """Returns zeros in the shape of a dataset, which take no memory, random labels."""
    known = NAMES[config.dataset]
    assert known.examples is not None
    count, classes = max(known.examples[0], config.num_clients), known.classes
    tokens, sizes, zero = 0, [ROBERTA[1]], np.zeros((), np.int32)
    if config.model == "roberta":
        tokens = ROBERTA[0]
    else:
        words = known.example.removesuffix(" numbers").split(" x ")
        sizes, zero = list(map(int, words)), np.zeros((), np.float32)
    x = np.broadcast_to(zero, (count, *sizes))
    y = np.random.default_rng(0).integers(0, classes, count).astype(np.int32)
    names = tuple(map(str, range(classes)))
    return Dataset(x, y, x[:classes], np.arange(classes, dtype=np.int32), names, tokens)


def prepare(case: Case) -> Simulation:
    """Prepares the simulation of a case, on this machine's devices.

    Args:
      case: A case.

    Returns:
      The simulation. It can be compiled but not run, since its examples are shapes.
    """
    dataset = dataset_of(case.config)
    classes = len(dataset.classes)
    # agents need a batch, clients one example
    each = case.config.batch_size if case.algorithm in decentralized.ALL else 1
    count = max(each * case.config.num_clients, classes)
    few = dataset._replace(
        x_train=dataset.x_train[:count],
        y_train=(np.arange(count) % classes).astype(np.int32),
    )
    config = dataclasses.replace(case.config, partition="iid", positives=None)
    return _in_full_size(
        with_data(case._replace(config=config), few),
        dataset,
        parts_of(case.config, dataset, 0),
    )


def with_data(case: Case, dataset: Dataset) -> Simulation:
    """Prepares the simulation of a case.

    Args:
      case: A case.
      dataset: Its data.

    Returns:
      The simulation, which can be run.
    """
    if case.algorithm in decentralized.ALL:
        return _agents(case, dataset)
    run = Run(case.algorithm, {}, 0, case.config)
    if case.config.model == "roberta":
        return _adapters(run, dataset)
    return simulation_of(run, dataset)


def _in_full_size(
    made: Simulation, dataset: Dataset, parts: list[np.ndarray]
) -> Simulation:
    def shape(array: Any, count: int) -> Any:
        return jax.ShapeDtypeStruct((count, *array.shape[1:]), array.dtype)

    few, count = made.data, len(dataset.y_train)
    data = few._replace(x=shape(few.x, count), y=shape(few.y, count))
    partition = dataclasses.replace(
        made.run.partition,
        order=shape(made.run.partition.order, sum(map(len, parts))),
        max_size=max_client_size_of(parts),
    )
    run = made.run._replace(partition=partition)
    return dataclasses.replace(made, data=data, run=run)


def _agents(case: Case, dataset: Dataset) -> Simulation:
    config, is_descent = case.config, case.algorithm in DESCENT
    make = {"classification": tasks.classification, "auc": tasks.auc}[config.problem]
    model = models.MLP(len(dataset.classes), config.hidden)
    return decentralize(
        decentralized.ALL[case.algorithm].function(
            lr=0.1 if is_descent else Pair(0.1, 0.1)
        ),
        make(model, dataset.x_train.shape[1:]),
        dataset,
        parts_of(config, dataset, 0),
        weights=topology.metropolis(topology.ring(config.num_clients)),
        batch_size=config.batch_size,
        mixer=decentralized.shifted,
    )


def _adapters(run: Run, dataset: Dataset) -> Simulation:
    config, classes = run.config, len(dataset.classes)
    model = models.RoBERTa(classes)
    tokens = jnp.ones((1, ROBERTA[1]), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    frozen = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    shape = dataset.x_train.shape[1:]
    return federate(
        federated_of(run),
        lora_classification(model, frozen, shape, rank=config.lora_rank),
        dataset,
        parts_of(config, dataset, 0),
        cohort_size=config.cohort_size,
        local_steps=config.local_steps,
        batch_size=config.batch_size,
        plan=plan_of(config),
        weighting=WEIGHTINGS[config.weighting],
    )
