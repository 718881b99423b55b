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
from fedjax_muon.data.cleaning import MISSING
from fedjax_muon.data.images import Size
from fedjax_muon.data.loading import OPTIONS, Directory, open_dataset
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
Source = Dataset | str | Path  # of a dataset: a value, a name, or a path
ALPHA = 0.1


@named
def classification(
    dataset: Source = "digits",
    *,
    clients: int = 16,
    alpha: float = ALPHA,
    divide: Divide | None = None,
    model: Model | None = None,
    client_tests: bool = False,
    positives: float | None = None,
    augment: Augmentation | None = None,
    graph: Graph | GraphOf = "erdos_renyi",
    train_share: float = 1.0,
    data_dir: Directory = None,
    label: str = "label",
    owner: str | None = None,
    split: str | None = None,
    exclude: tuple[str, ...] = (),
    missing: tuple[str, ...] = MISSING,
    image_size: Size | None = None,
) -> Problem:
    """Classification by the cross-entropy.

    Args:
      dataset: A `Dataset`; or a name, such as digits, fashion_mnist, cifar10 or sst2,
        or tfds:NAME of one that `data.prepare` made; or your own data: FILE.csv,
        FILE.npz, a directory of images CLASS/IMAGE, or a saved Hugging Face dataset.
      clients: Number of clients, or of agents, that the training examples are divided
        among.
      alpha: Dirichlet concentration. The smaller it is, the more the clients differ.
      divide: Function (labels, clients, key=) that divides the training examples
        instead, such as `partial(partition.shards, shards_per_client=2)`. With
        `partition.by_owner`, every owner in the data is a client.
      model: Function of the dataset that returns a Flax module, such as
        `problems.lenet`. By default `mlp`, and `rnn` of texts.
      client_tests: Whether clients have test examples of their own: those of their
        owner, or a sample with the class proportions of their training examples.
      positives: Of two classes: share of positives. Positives are dropped at random
        until the share is reached.
      augment: Augmentation of training images, such as
        `tasks.augmentation.crop_and_flip()`.
      graph: Agents without a server: the graph that they exchange messages on, mixed
        with Metropolis weights. A name, or a function (agents, key) that returns it.
      train_share: Share of the training examples to use. The subset is the same every
        time and keeps the proportions of the classes.
      data_dir: Directory of the dataset's files. By default, the environment variable
        FEDJAX_MUON_DATA.
      label: Label column of a table. Columns that no argument names are features.
      owner: Every owner is a client: the column of a table that says which one a row
        belongs to or, of images, a regular expression that finds it in an image's path.
      split: Column of FILE.csv that says train or test. By default, a fifth of the rows
        is held out for testing.
      exclude: Columns of a table to ignore.
      missing: Words for a missing label, owner or part in FILE.csv, which are refused.
        Leave out the ones that are names, such as NA for Namibia.
      image_size: Height and width that the images of a directory are resized to. By
        default, all images must have the same size.
    """
    columns = _columns(label, owner, split, exclude, missing, image_size)
    data = open_dataset(dataset, data_dir, train_share=train_share, **columns)
    module = module_of(model, data)
    task = tasks.classification(module, data)
    if dataset == "cola":  # Matthews' correlation is what papers on GLUE give
        task = tasks.by_matthews(task)
    check_range("alpha", alpha, open_low=True, schedules=False)
    if divide is not None and alpha != ALPHA:
        raise ValueError(
            "alpha is for the division by Dirichlet(alpha) over clients, got divide "
            "too; leave out one of them"
        )
    by_alpha = functools.partial(partition.dirichlet, alpha=alpha)
    return problem_of(
        name_of(dataset),
        module,
        _augmented(task, augment, data),
        data,
        {"cohort": 8, "local_steps": 5, "batch_size": 32},
        clients=clients,
        divide=division_of(divide, owner, by_alpha),
        positives=positives,
        graph=graph,
        client_tests=client_tests,
    )


@named
def auc(
    dataset: Source = "breast_cancer",
    *,
    clients: int = 8,
    divide: Divide | None = None,
    model: Model | None = None,
    client_tests: bool = False,
    positives: float | None = 0.1,
    augment: Augmentation | None = None,
    graph: Graph | GraphOf = "erdos_renyi",
    train_share: float = 1.0,
    data_dir: Directory = None,
    label: str = "label",
    owner: str | None = None,
    split: str | None = None,
    exclude: tuple[str, ...] = (),
    missing: tuple[str, ...] = MISSING,
    image_size: Size | None = None,
) -> Problem:
    """The area under the ROC curve of two classes, a minimax problem.

    Each client uses its own share of positives. In private runs and among agents, where
    that would tell of its examples, all use the share of the whole training set.

    Args:
      dataset: A `Dataset`, the name of one, or a path to your own data, as in
        `classification`.
      clients: Number of clients, or of agents.
      divide: Function (labels, clients, key=) that divides the training examples, such
        as `problems.ratios`; by default at random.
      model: Function of the dataset that returns a Flax module.
      client_tests: Whether clients have test examples of their own.
      positives: Share of positives. Positives are dropped at random until the share is
        reached; None keeps them all.
      augment: Augmentation of training images.
      graph: Agents without a server: the graph that they exchange messages on, a name
        or a function (agents, key) that returns it.
      train_share: Share of the training examples to use.
      data_dir: Directory of the dataset's files. By default, the environment variable
        FEDJAX_MUON_DATA.
      label: Label column of a table.
      owner: Every owner is a client: the column of a table, or a regular expression
        for the paths of images.
      split: Column of FILE.csv that says train or test.
      exclude: Columns of a table to ignore.
      missing: Words for a missing label, owner or part in FILE.csv.
      image_size: Height and width that the images of a directory are resized to.
    """
    columns = _columns(label, owner, split, exclude, missing, image_size)
    data = open_dataset(dataset, data_dir, train_share=train_share, **columns)
    module = module_of(model, data)
    task = _augmented(tasks.auc(module, data), augment, data)
    shared = lambda data: tasks.auc(module, data, share=float(data.y_train.mean()))
    return problem_of(
        name_of(dataset),
        module,
        task,
        data,
        {"cohort": 8, "local_steps": 4, "batch_size": 16},
        clients=clients,
        divide=division_of(divide, owner, partition.iid),
        positives=positives,
        graph=graph,
        client_tests=client_tests,
        public_task=lambda data: _augmented(shared(data), augment, data),
    )


def problem_of(
    name: str,
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
        f"{name}, {number}clients by {words}{share}",
        task,
        dataset,
        functools.partial(divided, divide, clients, positives),
        {**sizes, "cohort": cohort},
        tested if client_tests else None,
        lambda agents, key: metropolis(graph_of(agents, key)),
        public_task=public_task,
        model=module,
    )


def _columns(*values: Any) -> dict[str, Any]:
    return dict(zip(OPTIONS, values, strict=True))


def name_of(dataset: Source) -> str:
    return "your data" if isinstance(dataset, Dataset) else Path(dataset).name


def module_of(model: Model | None, dataset: Dataset) -> nn.Module:
    make = model or (rnn if is_text(dataset) else mlp)
    check_function("model", make, "problems.lenet")
    module = make(dataset)
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"{function_name(make)} must return a flax.linen module, or one of "
            f"flax.nnx by models.from_nnx, got {type(module).__name__}"
        )
    return module


def _augmented(task: Task, augment: Augmentation | None, dataset: Dataset) -> Task:
    if augment is None:
        return task
    check_function("augment", augment, "tasks.augmentation.crop_and_flip()")
    with files.named(f"the augmentation {function_name(augment)} does not fit"):
        jax.eval_shape(augment, jax.random.key(0), dataset.x_train[:1])
    return augmented(task, augment)
