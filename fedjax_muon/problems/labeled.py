"""Problems of labeled examples: classification, and the area under the ROC curve."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import jax
import numpy as np

from fedjax_muon import files, tasks
from fedjax_muon.core import check_choice, check_count, check_range
from fedjax_muon.data import Dataset, partition
from fedjax_muon.data.dataset import strata, stratified, subset
from fedjax_muon.data.loading import is_of_user, load, reader_of
from fedjax_muon.decentralized.topology import GRAPHS, GraphOf, metropolis
from fedjax_muon.problems.division import (
    Divide,
    alike,
    check_function,
    divided,
    division_of,
    function_name,
    of_owners,
    owners_of,
)
from fedjax_muon.problems.networks import Model, is_text, mlp, rnn
from fedjax_muon.problems.problem import Problem, named
from fedjax_muon.tasks.augmentation import Augmentation, augmented
from fedjax_muon.tasks.task import Task

Graph = Literal["erdos_renyi", "ring", "star", "exponential", "complete"]
ALPHA, CLIENTS, AUC_CLIENTS = 0.1, 16, 8


@named
def classification(
    dataset: Dataset | str = "digits",
    *,
    clients: int = CLIENTS,
    alpha: float = ALPHA,
    divide: Divide | None = None,
    model: Model | None = None,
    client_tests: bool = False,
    positives: float | None = None,
    augment: Augmentation | None = None,
    graph: Graph | GraphOf = "erdos_renyi",
    train_share: float = 1.0,
) -> Problem:
    """Classification by the cross-entropy.

    If the dataset has owners, each is a client; else, or with `divide`, the examples
    are divided among `clients`.

    Args:
      dataset: A name that `data.load` takes, such as digits, fashion_mnist, cifar10 or
        sst2, or tfds:NAME for one that `data.prepare` made; or a `Dataset`, such as
        your own data from `data.from_csv`, `from_npz`, `from_folder` or `from_hf`.
      clients: Number of clients, or of agents, that the training examples are divided
        among.
      alpha: Dirichlet concentration. The smaller it is, the more the clients differ.
      divide: Function (labels, clients, key=) that divides the training examples
        instead, such as `partial(partition.shards, shards_per_client=2)`, or
        `partition.by_owner`.
      model: Function of the dataset that returns a Flax module, such as
        `problems.lenet`. By default `mlp`, and `rnn` for texts.
      client_tests: Whether clients have test examples of their own: those of their
        owner, or a sample with the class proportions of their training examples.
      positives: Share of positives, if there are two classes. Positives are dropped at
        random until the share is reached.
      augment: Augmentation of training images, such as
        `tasks.augmentation.crop_and_flip()`.
      graph: Agents without a server: the graph that they exchange messages on, mixed
        with Metropolis weights. A name, or a function (agents, key) that returns it.
      train_share: Share of the training examples to use. The subset is the same every
        time and keeps the proportions of the classes.
    """
    data = opened(dataset, train_share)
    module = module_of(model, data)
    task = tasks.classification(module, data)
    if data.name == "cola":  # Matthews' correlation is what papers on GLUE give
        task = tasks.by_matthews(task)
    check_range("alpha", alpha, open_low=True, schedules=False)
    if divide is not None and alpha != ALPHA:
        raise ValueError(
            "alpha is for the division by Dirichlet(alpha) over clients, got divide "
            "too; leave out one of them"
        )
    usual = _by_owner_or(functools.partial(partition.dirichlet, alpha=alpha), data)
    unheeded = {"clients": (clients, CLIENTS), "alpha": (alpha, ALPHA)}
    return problem_of(
        module,
        _augmented(task, augment, data),
        data,
        {"cohort": 8, "local_steps": 5, "batch_size": 32},
        clients=clients,
        divide=division_of(divide, usual, unheeded),
        positives=positives,
        graph=graph,
        client_tests=client_tests,
    )


@named
def auc(
    dataset: Dataset | str = "breast_cancer",
    *,
    clients: int = AUC_CLIENTS,
    divide: Divide | None = None,
    model: Model | None = None,
    client_tests: bool = False,
    positives: float | None = 0.1,
    augment: Augmentation | None = None,
    graph: Graph | GraphOf = "erdos_renyi",
    train_share: float = 1.0,
) -> Problem:
    """The area under the ROC curve of two classes, a minimax problem.

    Each client uses its own share of positives. In private runs and among agents, where
    that would tell of its examples, all use the share of the whole training set.

    Args:
      dataset: The name of a dataset, or a `Dataset`, as in `classification`.
      clients: Number of clients, or of agents.
      divide: Function (labels, clients, key=) that divides the training examples, such
        as `problems.ratios`; by default, by owners if there are any, or at random.
      model: Function of the dataset that returns a Flax module.
      client_tests: Whether clients have test examples of their own.
      positives: Share of positives. Positives are dropped at random until the share is
        reached; None keeps them all.
      augment: Augmentation of training images.
      graph: Agents without a server: the graph that they exchange messages on, a name
        or a function (agents, key) that returns it.
      train_share: Share of the training examples to use.
    """
    data = opened(dataset, train_share)
    module = module_of(model, data)
    task = _augmented(tasks.auc(module, data), augment, data)
    shared = lambda data: tasks.auc(module, data, share=float(data.y_train.mean()))
    usual = _by_owner_or(partition.iid, data)
    return problem_of(
        module,
        task,
        data,
        {"cohort": 8, "local_steps": 4, "batch_size": 16},
        clients=clients,
        divide=division_of(divide, usual, {"clients": (clients, AUC_CLIENTS)}),
        positives=positives,
        graph=graph,
        client_tests=client_tests,
        public_task=lambda data: _augmented(shared(data), augment, data),
    )


@named
def regression(
    dataset: Dataset,
    *,
    clients: int = CLIENTS,
    divide: Divide | None = None,
    model: Model | None = None,
    graph: Graph | GraphOf = "erdos_renyi",
    train_share: float = 1.0,
) -> Problem:
    """Regression by the squared error; methods are ranked by the mean absolute error.

    Args:
      dataset: Your own data with targets, by `data.from_csv(..., target=...)` or
        `data.from_arrays(x, targets=y)`.
      clients: Number of clients, or of agents.
      divide: Function (targets, clients, key=) that divides the training examples; by
        default by owners if there are any, or at random.
      model: Function of the dataset that returns a Flax module with one output; by
        default `mlp`.
      graph: Agents without a server: the graph that they exchange messages on, a name
        or a function (agents, key) that returns it.
      train_share: Share of the training examples to use.
    """
    data = opened(dataset, train_share)
    module = module_of(model, data)
    usual = _by_owner_or(partition.iid, data)
    return problem_of(
        module,
        tasks.regression(module, data),
        data,
        {"cohort": 8, "local_steps": 5, "batch_size": 32},
        clients=clients,
        divide=division_of(divide, usual, {"clients": (clients, CLIENTS)}),
        positives=None,
        graph=graph,
        client_tests=False,
    )


def problem_of(
    module: nn.Module,
    task: Task,
    dataset: Dataset,
    sizes: Mapping[str, Any],
    *,
    clients: int,
    divide: Divide,
    positives: float | None,
    graph: Graph | GraphOf,
    client_tests: bool,
    public_task: Callable[[Dataset], Task] | None = None,
) -> Problem:
    check_count("clients", clients)
    if positives is not None:
        check_range("positives", positives, 0, 1, schedules=False)
    number, tested = f"{clients} ", alike
    if divide is partition.by_owner:
        clients = len(np.unique(owners_of(dataset.owners)))
        number, tested = "", of_owners
        if client_tests:
            tested(dataset, jax.random.key(0), ())  # may raise
    share = "" if positives is None else f", {positives:.0%} positives"
    alpha = getattr(divide, "keywords", {}).get("alpha")
    words = function_name(divide).removeprefix("by_").replace("_", " ")
    words += "" if alpha is None else f" ({alpha:g})"
    graph_of = (
        GRAPHS[check_choice("graph", graph, GRAPHS)]
        if isinstance(graph, str)
        else graph
    )
    check_function("graph", graph_of, "'ring', or a function (agents, key)")
    cohort = min(sizes["cohort"], clients)
    return Problem(
        f"{dataset.name}, {number}clients by {words}{share}",
        task,
        dataset,
        functools.partial(divided, divide, clients, positives),
        {**sizes, "cohort": cohort},
        tested if client_tests else None,
        lambda agents, key: metropolis(graph_of(agents, key)),
        public_task=public_task,
        model=module,
    )


def opened(dataset: Dataset | str, train_share: float) -> Dataset:
    """A dataset, or that of a name, with a share of its training examples."""
    check_range("train_share", train_share, 0, 1, open_low=True, schedules=False)
    if isinstance(dataset, Path) or (isinstance(dataset, str) and is_of_user(dataset)):
        read = reader_of(Path(dataset).expanduser()).__name__
        label = ', label="..."' if read in ("from_csv", "from_hf") else ""
        raise ValueError(
            f"{str(dataset)!r} is not the name of a dataset; give "
            f'fedjax_muon.data.{read}("{dataset}"{label})'
        )
    if not isinstance(dataset, Dataset | str):
        raise TypeError(
            "dataset must be a Dataset, or a name such as 'digits', got "
            f"{type(dataset).__name__}"
        )
    whole = dataset if isinstance(dataset, Dataset) else load(dataset)
    if train_share == 1:
        return whole
    classes = whole.classes
    _, kept = stratified(strata(whole), train_share, "training", classes=classes)
    return subset(whole, kept)


def _by_owner_or(usual: Divide, dataset: Dataset) -> Divide:
    return usual if dataset.owners is None else partition.by_owner


def module_of(model: Model | None, dataset: Dataset) -> nn.Module:
    make = model or (rnn if is_text(dataset) else mlp)
    check_function("model", make, "problems.lenet")
    module = make(dataset)
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"{function_name(make)} must return a flax.linen module, or one of "
            f"flax.nnx with models.from_nnx, got {type(module).__name__}"
        )
    return module


def _augmented(task: Task, augment: Augmentation | None, dataset: Dataset) -> Task:
    if augment is None:
        return task
    check_function("augment", augment, "tasks.augmentation.crop_and_flip()")
    with files.named(f"the augmentation {function_name(augment)} does not fit"):
        jax.eval_shape(augment, jax.random.key(0), dataset.x_train[:1])
    return augmented(task, augment)
