"""Problems: what is trained, on which data, and how the data are divided.

    problem = problems.classification("digits", clients=16, alpha=0.1)
    problem = problems.classification("hospital.csv", label="risk", owner="ward")
    problem = problems.auc("breast_cancer", graph="ring")

A problem is a value, and every seed has its own clients. A server trains it, or agents
on a graph. A function that returns one is all that a new problem needs:

    @problems.named
    def hospital(ward: int = 3) -> problems.Problem:
        return problems.classification(my_dataset(ward), model=my_model)
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec

import flax.linen as nn
import jax
import numpy as np
from jax.typing import DTypeLike

from fedjax_muon import files, models, tasks
from fedjax_muon.core import check_choice, check_count, check_range, streams
from fedjax_muon.core.recipe import in_words
from fedjax_muon.data import Dataset, client_tests as of_clients, imbalance, partition
from fedjax_muon.data.cleaning import MISSING
from fedjax_muon.data.dataset import TOKEN_TYPES, hold_out
from fedjax_muon.data.images import Size
from fedjax_muon.data.loading import OPTIONS, Directory, open_dataset
from fedjax_muon.decentralized.topology import GRAPHS, GraphOf, metropolis
from fedjax_muon.models.convolution import Convolution, convolution as direct
from fedjax_muon.simulation.evaluation import Examples
from fedjax_muon.tasks.augmentation import Augmentation, augmented
from fedjax_muon.tasks.task import Task

P = ParamSpec("P")
Parts = Sequence[np.ndarray]  # for every client, the ids of its examples
Divide = Callable[..., Parts]  # (labels, number of clients, key=) -> parts
Model = Callable[[Dataset], nn.Module]
Graph = Literal["erdos_renyi", "ring", "star", "exponential", "complete"]
Source = Dataset | str | Path  # of a dataset: a value, a name, or a path
Dtype = DTypeLike | None
ALPHA = 0.1


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is trained, on which data, and how the data are divided."""

    name: str  # in titles of tables and figures
    task: Task
    dataset: Dataset
    # (dataset, key of a seed) -> parts
    divided: Callable[[Dataset, jax.Array], Parts]
    # arguments of `federate` and `decentralize`, where an experiment gives no others
    sizes: Mapping[str, Any]
    # (dataset, key of a seed, parts) -> the ids of the test examples of every client
    tested: Callable[[Dataset, jax.Array, Parts], Parts] | None = None
    # (number of agents, key of a seed) -> their mixing weights; None needs a server
    weights: Callable[[int, jax.Array], np.ndarray] | None = None
    validation: Examples | None = None  # that no client has
    # dataset -> the task of private runs and of agents, where that above has something
    # of each client that would tell of its examples
    public_task: Callable[[Dataset], Task] | None = None
    model: nn.Module | None = None  # whose parameters are trained, for `model.apply`
    # the function that made it, and its arguments, see `named`
    call: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def words(self) -> dict[str, str]:
        """The call that made it, in words."""
        return {name: in_words(value) for name, value in self.call.items()}

    def parts(self, seed: int) -> Parts:
        """The ids of the training examples of every client of a seed."""
        return self.divided(self.dataset, key_of(seed, streams.PARTITION))

    def tests(self, seed: int, parts: Parts) -> Parts | None:
        """The ids of the test examples of every client, if clients have their own."""
        if self.tested is None:
            return None
        key = jax.random.fold_in(key_of(seed, streams.PARTITION), 1)
        return self.tested(self.dataset, key, parts)

    def mixing(self, seed: int, agents: int) -> np.ndarray:
        """The mixing weights of agents, on another random graph for every seed."""
        if self.weights is None:
            raise ValueError(
                f"{self.name} has no graph for agents without a server; choose a "
                "method with a server, or give the problem weights"
            )
        return self.weights(agents, key_of(seed, streams.AGENTS))

    def with_validation(self, share: float = 0.1) -> "Problem":
        """The same problem, with a share of the training examples held out."""
        if self.validation is not None:
            return self
        rest, held = hold_out(self.dataset, share)
        return dataclasses.replace(self, dataset=rest, validation=held)


def key_of(seed: int, stream: int) -> jax.Array:
    """The key of one of `core.streams`, of a seed."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"a seed must be a whole number, got {seed!r}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"a seed must lie in [0, 2^32), got {seed}")
    return jax.random.fold_in(jax.random.key(int(seed)), stream)


def named(function: Callable[P, Problem]) -> Callable[P, Problem]:
    """Decorator of a function that makes a problem: the problem knows its call.

    Directories of runs then name the argument that differs, and know other code of the
    function as another problem.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> Problem:
        made = function(*args, **kwargs)
        if not isinstance(made, Problem):
            kind = type(made).__name__
            raise TypeError(f"{function.__name__} must return a Problem, got {kind}")
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        # neither copies of the data, nor where they lie on this machine
        kept = {k: _named(v) for k, v in bound.arguments.items() if k != "data_dir"}
        return dataclasses.replace(made, call={"problem": function, **kept})

    return make


def _named(value: Any) -> Any:
    if isinstance(value, Dataset):
        return repr(value)
    return value.name if isinstance(value, Path) else value


# ------------------------------------------------------------------------------- models
def mlp(
    dataset: Dataset,
    *,
    hidden: tuple[int, ...] = (64, 64),
    dtype: Dtype = None,
) -> nn.Module:
    """A perceptron, of any numbers.

    Args:
      hidden: Widths of the hidden layers.
      dtype: Precision that the model computes in, such as `jnp.bfloat16`.
    """
    for width in hidden:
        check_count("hidden widths", width)
    return models.MLP(_classes(dataset), tuple(hidden), dtype=dtype)


def lenet(
    dataset: Dataset, *, dtype: Dtype = None, convolution: Convolution = direct
) -> nn.Module:
    """LeNet, of images of at least 12 x 12."""
    return models.LeNet(_classes(dataset), dtype, convolution)


def emnist_cnn(
    dataset: Dataset, *, dtype: Dtype = None, convolution: Convolution = direct
) -> nn.Module:
    """The LeNet of papers on EMNIST, of small images."""
    return models.EmnistCNN(_classes(dataset), dtype=dtype, convolution=convolution)


def resnet18(
    dataset: Dataset, *, dtype: Dtype = None, convolution: Convolution = direct
) -> nn.Module:
    """ResNet-18 of CIFAR, with group normalization."""
    return models.ResNet18(_classes(dataset), dtype=dtype, convolution=convolution)


def vit(dataset: Dataset, *, dtype: Dtype = None) -> nn.Module:
    """A small vision transformer."""
    return models.ViT(_classes(dataset), dtype=dtype)


def vit_tiny(dataset: Dataset, *, dtype: Dtype = None) -> nn.Module:
    """ViT-Tiny, of images."""
    return models.vit_tiny(_classes(dataset), dtype=dtype)


def rnn(
    dataset: Dataset,
    *,
    embedding: int = 32,
    hidden: int = 64,
    layers: int = 1,
    cell: Literal["simple", "lstm", "gru"] = "simple",
    dtype: Dtype = None,
) -> nn.Module:
    """A recurrent network, of token ids. Papers have sizes up to 300, 4096 and 2.

    Args:
      embedding: Width of the embedding.
      hidden: Width of the state.
      layers: Number of layers.
      cell: Kind of the recurrent cells.
      dtype: Precision that the model computes in.
    """
    sizes = {"embedding": embedding, "hidden": hidden, "layers": layers}
    for name, value in sizes.items():
        check_count(name, value)
    if not is_text(dataset):
        raise ValueError(
            "rnn takes token ids of texts, and this dataset has numbers; choose "
            "another model, such as problems.mlp"
        )
    make = CELLS[check_choice("cell", cell, CELLS)]
    classes, tokens = len(dataset.classes), dataset.tokens
    return make(classes, vocabulary_size=tokens, dtype=dtype, **sizes)


CELLS: dict[str, Callable[..., nn.Module]] = {
    "simple": models.RNN,
    "lstm": models.lstm,
    "gru": models.gru,
}
lstm = functools.partial(rnn, cell="lstm")
gru = functools.partial(rnn, cell="gru")


def is_text(dataset: Dataset) -> bool:
    """Whether the examples of a dataset are token ids."""
    return dataset.x_train.dtype in TOKEN_TYPES


def _classes(dataset: Dataset) -> int:
    if is_text(dataset):
        raise ValueError(
            "this model takes numbers, and the dataset has token ids of texts; choose "
            "problems.rnn, lstm or gru, or a model of your own"
        )
    return len(dataset.classes)


# ------------------------------------------------------------------- clients and agents
def ratios(
    labels: np.ndarray,
    num_clients: int,
    *,
    key: jax.Array,
    shares: Sequence[float] = (0.05, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25),
) -> Parts:
    """Divides two classes; `shares` are every client's share of positives."""
    if len(shares) != num_clients:
        raise ValueError(
            f"shares must have one number for each of the {num_clients} clients, got "
            f"{len(shares)}"
        )
    return imbalance.with_ratios(labels, shares, key=key)


def _divided(
    divide: Divide,
    clients: int,
    positives: float | None,
    dataset: Dataset,
    key: jax.Array,
) -> Parts:
    """The parts of a seed; `divide` gets the labels that are kept, or their owners."""
    labels, owners = np.asarray(dataset.y_train), dataset.owners
    kept: np.ndarray | None = None
    if positives is not None:
        drop_key = jax.random.fold_in(key, 0)
        kept = imbalance.drop_positives(labels, positives, key=drop_key)
        labels, owners = labels[kept], None if owners is None else owners[kept]
    if divide is partition.by_owner:
        parts: Parts = partition.by_owner(_owners(owners))
    else:
        parts = divide(labels, clients, key=key)
        _check_parts(divide, parts, clients, len(labels))
    return parts if kept is None else [kept[part] for part in parts]


def _owners(owners: np.ndarray | None) -> np.ndarray:
    if owners is None:
        raise ValueError(
            "the dataset does not say which clients its examples belong to; of a CSV "
            "file, name the column by owner, or divide the examples in another way"
        )
    return owners


def _check_parts(divide: Divide, parts: Any, clients: int, examples: int) -> None:
    """Raises `ValueError` unless a function has divided examples among clients."""
    is_list = isinstance(parts, Sequence | np.ndarray)
    if not is_list or len(parts) != clients:
        got = len(parts) if is_list else type(parts).__name__
        raise ValueError(
            f"{function_name(divide)} must return a list of {clients} arrays of ids, "
            f"one for each client, got {got}"
        )
    name, ids = function_name(divide), [np.asarray(part) for part in parts]
    for client, part in enumerate(ids):
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
            got = f"{part.dtype}{list(part.shape)} for client {client}"
            raise ValueError(f"{name} must return ids, whole numbers, got {got}")
    found, counts = np.unique(np.concatenate(ids).astype(int), return_counts=True)
    for wrong in found[(found < 0) | (found >= examples)]:
        known = f"there are only 0 to {examples - 1}"
        raise ValueError(f"{name} names example {wrong}, but {known}")
    most = np.inf if name == "dirichlet_per_client" else 1  # clients of an example
    for wrong in found[counts > most]:
        raise ValueError(
            f"{name} gives example {wrong} to two clients, or twice to one"
        )


def function_name(function: Any) -> str:
    """The name of a function, also within `functools.partial`."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def _alike(dataset: Dataset, key: jax.Array, parts: Parts) -> Parts:
    return of_clients.like(parts, dataset.y_train, dataset.y_test, key=key)


def _of_owners(dataset: Dataset, key: jax.Array, parts: Parts) -> Parts:
    del key, parts
    if dataset.owners is None or dataset.test_owners is None:
        raise ValueError(
            "the dataset does not say which clients its test examples belong to; leave "
            "out client_tests"
        )
    return of_clients.by_owner(dataset.owners, dataset.test_owners)


# ----------------------------------------------------------------------------- problems
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
    module = _module(model, data)
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
    return _problem(
        _name(dataset),
        module,
        _augmented(task, augment, data),
        data,
        {"cohort": 8, "local_steps": 5, "batch_size": 32},
        clients=clients,
        divide=_division(divide, owner, by_alpha),
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
    module = _module(model, data)
    task = _augmented(tasks.auc(module, data), augment, data)
    shared = lambda data: tasks.auc(module, data, share=float(data.y_train.mean()))
    return _problem(
        _name(dataset),
        module,
        task,
        data,
        {"cohort": 8, "local_steps": 4, "batch_size": 16},
        clients=clients,
        divide=_division(divide, owner, partition.iid),
        positives=positives,
        graph=graph,
        client_tests=client_tests,
        public_task=lambda data: _augmented(shared(data), augment, data),
    )


def _problem(
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
    number, tested = f"{clients} ", _alike
    if divide is partition.by_owner:
        clients = len(np.unique(_owners(dataset.owners)))
        number, tested = "", _of_owners
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
    _check_function("graph", graph_of, "'ring', or a function (agents, key)")
    cohort = min(sizes["cohort"], clients)
    return Problem(
        f"{name}, {number}clients by {words}{share}",
        task,
        dataset,
        functools.partial(_divided, divide, clients, positives),
        {**sizes, "cohort": cohort},
        tested if client_tests else None,
        lambda agents, key: metropolis(graph_of(agents, key)),
        public_task=public_task,
        model=module,
    )


def _columns(*values: Any) -> dict[str, Any]:
    return dict(zip(OPTIONS, values, strict=True))


def _name(dataset: Source) -> str:
    return "your data" if isinstance(dataset, Dataset) else Path(dataset).name


def _division(divide: Divide | None, owner: str | None, usual: Divide) -> Divide:
    """How examples are divided: as is given, by owners if these are, or as usual."""
    if divide is None:
        return usual if owner is None else partition.by_owner
    _check_function("divide", divide, "fedjax_muon.partition.iid")
    if divide is partition.by_owner:
        return divide
    if owner is not None:
        raise ValueError(
            "owner names the clients, so that the examples are divided by it, got "
            "divide too; leave out one of them"
        )
    try:
        inspect.signature(divide).bind(np.zeros(0), 1, key=None)
    except TypeError as error:
        name = function_name(divide)
        raise ValueError(
            f"{name} is called as {name}(labels, clients, key=key), which it does not "
            f"take: {error}; functools.partial gives it further arguments"
        ) from error
    return divide


def _module(model: Model | None, dataset: Dataset) -> nn.Module:
    make = model or (rnn if is_text(dataset) else mlp)
    _check_function("model", make, "problems.lenet")
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
    _check_function("augment", augment, "tasks.augmentation.crop_and_flip()")
    with files.named(f"the augmentation {function_name(augment)} does not fit"):
        jax.eval_shape(augment, jax.random.key(0), dataset.x_train[:1])
    return augmented(task, augment)


def _check_function(name: str, value: Any, example: str) -> None:
    if not callable(value):
        raise TypeError(
            f"{name} must be a function, such as {example}, got {value!r:.60}"
        )
