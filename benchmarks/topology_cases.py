"""Rounds that `benchmarks.topologies` compiles.

Examples have the shapes and the number of the original data, with random labels. Only a
few of them are made, since a program depends on shapes alone.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_muon as fm
from fedjax_muon import algorithms, decentralized, minimax, partition, problems
from fedjax_muon.algorithms.registry import base_of
from fedjax_muon.core import numbers_of
from fedjax_muon.core.pair import Pair
from fedjax_muon.core.schedules import cosine_decay
from fedjax_muon.data import NAMES, Dataset
from fedjax_muon.engine import plans as execution
from fedjax_muon.simulation import Simulation
from fedjax_muon.simulation.batching import max_client_size_of
from fedjax_muon.tasks.augmentation import crop_and_flip

CHIP, SQUARE, POD = "v5e:1x1", "v5e:2x2", "v5e:16x16"
MANY_CLIENTS = 256  # one for each chip of a pod
METHODS = algorithms.ALL | minimax.ALL
DESCENT = ("dsgd", "dsgd_muon", "gradient_tracking", "gradient_tracking_muon")
MAKE: dict[str, problems.Model] = {  # models by name
    "mlp": problems.mlp,
    "emnist_cnn": problems.emnist_cnn,
    "resnet18": problems.resnet18,
    "vit_tiny": problems.vit_tiny,
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """A dataset, a model, its clients, and how they are executed."""

    dataset: str = "mnist"
    model: str = "mlp"
    hidden: tuple[int, ...] = (200, 200)  # of an mlp
    auc: bool = False
    clients: int = MANY_CLIENTS
    divide: problems.Divide = partition.iid
    augment: bool = False
    cohort: int = MANY_CLIENTS
    local_steps: int = 5
    batch_size: int = 20
    rounds: int | None = None  # of a cosine schedule
    plan: str = "vmapped"
    chunk_size: int = 8
    dtype: str = "float32"
    devices: int = 1
    split_examples: bool = False


class Case(NamedTuple):
    """One program."""

    group: str
    algorithm: str
    setting: Setting
    topology: str

    @property
    def name(self) -> str:
        """What identifies it."""
        one = self.setting
        plan = f"chunked({one.chunk_size})" if one.plan == "chunked" else one.plan
        sizes = f"{one.cohort}x{one.local_steps}x{one.batch_size}"
        words = (self.group, self.algorithm, one.model, one.dataset, sizes)
        return "/".join((*words, plan, one.dtype, self.topology))

    @property
    def has_agents(self) -> bool:
        """Whether it has no server."""
        return self.algorithm in decentralized.ALL

    @property
    def plan(self) -> execution.Plan | None:
        """How clients are executed; agents have no plan."""
        if self.has_agents:
            return None
        if self.setting.plan == "chunked":
            return execution.chunked(self.setting.chunk_size)
        return getattr(execution, self.setting.plan)  # mapped, vmapped or loop


MLP = Setting()
AUC = Setting(dataset="a9a", auc=True)
LARGE = Setting(
    dataset="cifar100",
    clients=100,
    divide=partial(partition.dirichlet_per_client, alpha=0.1),
    augment=True,
    cohort=10,
    local_steps=50,
    batch_size=50,
    rounds=300,
)
MODELS = {  # with the sizes of the papers that have them
    "emnist_cnn": Setting(model="emnist_cnn", clients=100, cohort=10, local_steps=30),
    "resnet18": dataclasses.replace(LARGE, model="resnet18"),
    "vit_tiny": dataclasses.replace(LARGE, model="vit_tiny"),
}
CHOSEN = "fedavg", "fedmuon", "scaffold"


def methods() -> Iterator[Case]:
    """Yields the methods that have code of their own, on one chip and on 256.

    DM-HSGD, a preset, is the one for minimax problems on a graph.
    """
    registries = algorithms.ALL | minimax.ALL | decentralized.ALL
    for chips, (name, row) in itertools.product((CHIP, POD), registries.items()):
        if not base_of(row.function) or name == "dm_hsgd":
            plain = name in algorithms.ALL or name in DESCENT
            yield Case("methods", name, MLP if plain else AUC, chips)


def large_models() -> Iterator[Case]:
    """Yields some methods on every model."""
    for setting, algorithm in itertools.product(MODELS.values(), CHOSEN):
        yield Case("models", algorithm, setting, SQUARE)


def plans() -> Iterator[Case]:
    """Yields plans and types for two methods."""
    kinds, types = ("mapped", "vmapped", "chunked"), ("float32", "bfloat16")
    for algorithm, plan, dtype in itertools.product(CHOSEN[:2], kinds, types):
        how: dict[str, Any] = {"plan": plan, "dtype": dtype, "chunk_size": 2}
        yield Case("plans", algorithm, dataclasses.replace(MLP, **how), SQUARE)


def scaling() -> Iterator[Case]:
    """Yields rounds of 1,000 and of 100,000 clients on 1 to 256 chips."""
    counts, sides = (1_000, 100_000), (1, 4, 16)
    for count, algorithm, side in itertools.product(
        counts, ("fedavg", "scaffold"), sides
    ):
        sizes: dict[str, Any] = {"clients": count, "cohort": count}
        how: dict[str, Any] = {"plan": "chunked", "chunk_size": 50, "batch_size": 1}
        how |= {"hidden": (64,), "split_examples": side > 1, "devices": min(2, side)}
        setting = dataclasses.replace(MLP, **sizes, **how)
        yield Case("scaling", algorithm, setting, f"v5e:{side}x{side}")


GROUPS = {
    "methods": methods,
    "models": large_models,
    "plans": plans,
    "scaling": scaling,
}


def dataset_of(setting: Setting) -> Dataset:
    """Returns zeros in the shape of a dataset, which take no memory, random labels."""
    known = NAMES[setting.dataset]
    assert known.examples is not None
    count, classes = max(known.examples[0], setting.clients), known.classes
    sizes = map(int, known.example.removesuffix(" numbers").split(" x "))
    x = np.broadcast_to(np.zeros((), np.float32), (count, *sizes))
    y = np.random.default_rng(0).integers(0, classes, count).astype(np.int32)
    names = tuple(map(str, range(classes)))
    return Dataset(x, y, x[:classes], np.arange(classes, dtype=np.int32), names)


def prepare(case: Case) -> Simulation:
    """Prepares a simulation, on this machine's devices, whose examples are shapes."""
    setting = case.setting
    dataset = dataset_of(setting)
    classes = len(dataset.classes)
    # agents need a batch, clients one example
    each = setting.batch_size if case.has_agents else 1
    count = max(each * setting.clients, classes)
    few = dataset._replace(
        x_train=dataset.x_train[:count],
        y_train=(np.arange(count) % classes).astype(np.int32),
    )
    alike = case._replace(setting=dataclasses.replace(setting, divide=partition.iid))
    parts = problem_of(setting, dataset).parts(0)
    return _in_full_size(with_data(alike, few), dataset, parts)


def problem_of(setting: Setting, dataset: Dataset) -> problems.Problem:
    """Makes the problem of a setting."""
    options: dict[str, Any] = {}
    if setting.model == "mlp":
        options["hidden"] = setting.hidden
    if setting.dtype != "float32":
        options["dtype"] = jnp.dtype(setting.dtype)
    make = problems.auc if setting.auc else problems.classification
    return make(
        dataset,
        clients=setting.clients,
        divide=setting.divide,
        model=partial(MAKE[setting.model], **options),
        positives=None,
        augment=crop_and_flip() if setting.augment else None,
        graph="ring",
    )


def with_data(case: Case, dataset: Dataset) -> Simulation:
    """Prepares a simulation that can be run."""
    setting, problem = case.setting, problem_of(case.setting, dataset)
    how: dict[str, Any] = {"batch_size": setting.batch_size}
    if case.has_agents:
        lr = 0.1 if case.algorithm in DESCENT else Pair(0.1, 0.1)
        method = decentralized.ALL[case.algorithm].function(lr=lr)
        return fm.simulate(method, problem, mixer=decentralized.shifted, **how)
    method = METHODS[case.algorithm].function()
    if setting.rounds is not None:
        lr = numbers_of(method)["lr"]
        method = cosine_decay(method, lr=lr, rounds=setting.rounds)
    how |= {"cohort": setting.cohort, "local_steps": setting.local_steps}
    devices = jax.devices()[: setting.devices] if setting.devices > 1 else ()
    how |= {"devices": devices, "split_examples": setting.split_examples}
    return fm.simulate(method, problem, plan=case.plan, **how)


def _in_full_size(
    made: Simulation, dataset: Dataset, parts: problems.Parts
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
