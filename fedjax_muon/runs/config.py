"""Configuration of a run, as used by the command line and stored in config.json.

The names of datasets, partitions, plans and so on are strings here and nowhere else;
`build` puts the library's functions in their place.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedjax_muon import algorithms, decentralized
from fedjax_muon.algorithms import minimax
from fedjax_muon.algorithms.registry import Method, find
from fedjax_muon.core import check_count, check_range, recipe
from fedjax_muon.data.cleaning import MISSING
from fedjax_muon.data.loading import is_of_user
from fedjax_muon.decentralized import private_methods as private_agents
from fedjax_muon.runs import own_code
from fedjax_muon.runs.lists import Epsilons, NameOrFunction, check_name

MOST_STEPS = 100  # of Newton-Schulz; each is compiled, and ten are exact
LARGEST = 2**31 - 1  # of an integer in a compiled program
OF_AGENTS = {**decentralized.ALL, **private_agents.ALL}
METHODS = {**algorithms.ALL, **minimax.ALL, **OF_AGENTS}
MODELS = (
    "mlp",
    "lenet",
    "emnist_cnn",
    "rnn",
    "lstm",
    "gru",
    "resnet18",
    "vit",
    "vit_tiny",
)
PARTITIONS = (
    "dirichlet",
    "dirichlet_balanced",
    "dirichlet_per_client",
    "labels_per_client",
    "quantity",
    "shards",
    "iid",
    "ratios",
    "by_owner",
)

Schedule = Literal["constant", "cosine"]


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything about a run but its algorithm and its seed."""

    problem: Literal["classification", "auc"] = "classification"
    """What to optimize: the cross-entropy (classification), or the area under the ROC
    curve of two classes, a minimax problem (auc)."""
    dataset: str = "digits"
    """Name of a dataset, such as digits, fashion_mnist, cifar10, cifar100,
    tiny_imagenet, sst2 or breast_cancer (`fedjax-muon list` has all); or tfds:NAME
    for one made with `fedjax-muon prepare`; or your own data: FILE.csv, FILE.npz, a
    directory of images CLASS/IMAGE, or a saved Hugging Face dataset."""
    label: str = "label"
    """Label column of FILE.csv or of a Hugging Face dataset. Columns that no option
    names are features."""
    owner: str | None = None
    """For the partition by_owner: the column of a table that says which client a row
    belongs to or, for images, a regular expression that finds the client in an image's
    path."""
    split: str | None = None
    """Column of FILE.csv that says train or test. By default, a fifth of the rows is
    held out for testing."""
    exclude: tuple[str, ...] = ()
    """Columns of a table to ignore."""
    missing: tuple[str, ...] = MISSING
    """Words for a missing label, owner or part in FILE.csv, which are refused. Leave
    out the ones that are names, such as NA for Namibia."""
    image_size: tuple[int, int] | None = None
    """Height and width that the images of a directory are resized to. By default, all
    images must have the same size."""
    data_dir: Path | None = None
    """Directory of the dataset's files. By default, the environment variable
    FEDJAX_MUON_DATA."""
    train_share: float = 1.0
    """Share of the training examples to use. The subset is the same every time and
    keeps the proportions of the classes."""
    num_clients: int = 16
    """N, the number of clients (agents, in decentralized methods) that the training
    examples are divided among."""
    partition: NameOrFunction = "dirichlet"
    """How the training examples are divided: dirichlet, each class by Dirichlet(alpha)
    over clients; dirichlet_balanced, the same with sizes that differ less;
    dirichlet_per_client, each client by Dirichlet(alpha) over classes;
    labels_per_client, a number of classes each; quantity, sizes by Dirichlet(alpha);
    shards of sorted labels; iid, at random; ratios, two classes with a given share of
    positives per client; by_owner, as the data says (ignores num_clients); or your own,
    as MODULE:FUNCTION."""
    positives: float | None = None
    """For two classes: share of positives in the training examples. Positives are
    dropped at random until the share is reached."""
    ratios: tuple[float, ...] = (0.05, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25)
    """Each client's share of positives, for the partition ratios."""
    alpha: float = 0.1
    """Dirichlet concentration. The smaller it is, the more the clients differ."""
    min_client_size: int = 10
    """Fewest examples that a client may have in the partitions dirichlet,
    dirichlet_balanced and quantity."""
    labels_per_client: int = 2
    """Number of classes that each client has, for the partition labels_per_client."""
    shards_per_client: int = 2
    """Number of label shards that each client gets, for the partition shards."""
    client_tests: bool = False
    """Also test on each client's own test examples: those of its owner, or a sample
    with the class proportions of its training examples."""
    graph: Literal["erdos_renyi", "ring", "star", "exponential", "complete"] | None = (
        None
    )
    """For decentralized methods: the graph of agents that exchange messages, mixed with
    Metropolis weights. By default erdos_renyi."""
    connectivity: float = 0.5
    """Probability of each edge in erdos_renyi. The graph is redrawn until it is
    connected."""
    epsilon: Epsilons = ()
    """Differential privacy: the epsilon of a whole run, for each client in a federated
    method or each example of an agent in a decentralized one. `compare` takes
    several. Needs the extra `privacy`."""
    delta: float = 1e-5
    """The delta of (epsilon, delta). It must be below 1 / number of clients, or below 1
    / number of examples of each agent."""
    clip_norm: float | None = None
    """Clipping norm: of a client's message (by default 0.5), or of the gradient of an
    agent's example (by default 0.2)."""
    change_clip_norm: float | None = None
    """For private_storm: clipping norm of the change of an example's gradient between
    two iterations. By default a tenth of clip_norm."""
    bands: int = 4
    """Number of bands of the correlated noise of dp_ftrl, and of the groups of an
    agent's examples that take turns."""
    ledger: Path | None = None
    """File that records the total privacy loss of all private runs on a dataset. By
    default, one file for all datasets in your user data directory."""
    budget: float | None = None
    """Largest total epsilon of all runs in the ledger. A run that would exceed it is
    refused."""
    publish_training_metrics: bool = False
    """Record training metrics of a private run too. The privacy guarantee does not
    cover them."""
    insecure_fixed_noise: bool = False
    """Draw the noise of a private run from the seed, so that you can reproduce it. This
    gives no privacy."""
    model: NameOrFunction = "mlp"
    """Model to train. rnn, lstm and gru take text and nothing else. Your own model is
    MODULE:FUNCTION."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the mlp's hidden layers."""
    rnn: tuple[int, int, int] = (32, 64, 1)
    """Embedding width, state width and number of layers of rnn, lstm and gru. Papers
    use 300 4096 2, and 8 256 2 for characters."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision that the model computes in. Parameters and their gradients stay
    float32."""
    convolution: Literal["direct", "patches"] = "direct"
    """How convolutions are computed: directly, or as matrix products of image
    patches."""
    newton_schulz_steps: int = 5
    """Newton-Schulz steps, in algorithms that orthogonalize. With 0, matrices are only
    divided by their norms."""
    newton_schulz_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the large matrix products. The small Gram products are more precise:
    float32, or at least TF32 with bfloat16 on accelerators."""
    newton_schulz_normalization: Literal["frobenius", "schatten8"] = "frobenius"
    """Norm that matrices are divided by first. schatten8 is the smaller of the two."""
    newton_schulz_coefficients: Literal["jordan", "quintic"] = "jordan"
    """Polynomial of each step: Jordan's (jordan), or the one of Takezawa et al.,
    Theorem 3 (quintic)."""
    shape_scale: Literal["none", "jordan", "moonlight", "spectral"] = "none"
    """How the step of a matrix is scaled by its shape, in algorithms with this
    option."""
    weight_decay: float = 0.0
    """Weight decay, in algorithms whose local rule is plain gradient descent."""
    augmentation: Literal["none", "crop_and_flip"] = "none"
    """Data augmentation of training images. crop_and_flip pads by 4 pixels, crops and
    mirrors at random, anew for each example in every batch."""
    cohort_size: int = 8
    """S, the number of clients sampled per round, without replacement."""
    local_steps: int = 5
    """K, the number of local batches per client and round."""
    local_epochs: tuple[int, ...] = ()
    """Local epochs per round, instead of local_steps. Two numbers are a range from
    which the epochs are drawn for each client and round."""
    batch_size: int = 32
    """Number of examples per batch."""
    sampler: Literal["shuffled_epochs", "with_replacement", "full_batch"] = (
        "shuffled_epochs"
    )
    """How a client draws batches from its examples."""
    weighting: Literal["uniform", "examples"] = "uniform"
    """Weights of the mean over clients: all equal, or each client's number of
    examples."""
    own_leaves: tuple[str, ...] = ()
    """Names of layers that stay with each client and are never averaged, such as
    Dense_2."""
    ditto: float | None = None
    """Also train a personal model for each client with Ditto. The value is the strength
    of the pull toward the shared model."""
    personal_lr: float = 0.1
    """Learning rate of Ditto's personal models."""
    dropout: float = 0.0
    """Probability that a sampled client does not answer."""
    clock: str | None = None
    """Speeds of the clients, for metrics in virtual seconds: constant, lognormal:SIGMA,
    two_speeds:FACTOR:SHARE, each of which may end in seconds per local step (by default
    1) and per byte (0), such as lognormal:1.0:0.05:1e-7; or FILE.csv with the columns
    client, step and byte."""
    round_deadline: float | None = None
    """Virtual seconds after which a round ends, without clients that are slower."""
    concurrency: int | None = None
    """In asynchronous rounds: number of clients that train at any time."""
    buffer: int | None = None
    """Asynchronous rounds (FedBuff): number of messages after which the server takes a
    step, which counts as a round. It replaces cohort_size."""
    staleness: float = 0.5
    """In asynchronous rounds: exponent e of (1 + staleness)^-e, the factor of late
    messages."""
    max_staleness: int = 20
    """In asynchronous rounds: largest staleness of a message. Clients that would be
    later start again."""
    replay: str | None = None
    """In asynchronous rounds: CSV file of the order of arrivals to repeat, such as
    arrivals.csv of a deployed run."""
    drop_nonfinite: bool = False
    """Leave messages with NaN or infinity out of the mean instead of stopping."""
    lr_schedule: Schedule | None = None
    """Schedule of the local learning rate over rounds: constant, or decaying to 0 along
    a cosine. By default constant; in `compare`, the schedule that was tuned together
    with the rate."""
    rounds: int = 100
    """Number of rounds to train."""
    evaluate_every: int = 5
    """Rounds between evaluations. Each evaluation is a row of metrics.csv."""
    compressor: Literal["none", "svd", "power_iteration", "top_k", "quantize"] = "none"
    """How messages to the server are compressed. The low-rank compressors, svd and
    power_iteration, leave vectors alone."""
    compressor_share: float = 0.05
    """Share that is kept: of a matrix's numbers by svd and power_iteration, of an
    array's entries by top_k."""
    compressor_bits: int = 4
    """Bits per number, for quantize."""
    compressed_parts: tuple[str, ...] = ()
    """Names of the parts of a message to compress, such as momentum. By default all."""
    error_feedback: float | None = None
    """Error feedback: decay of the compression error that a client keeps and adds to a
    later message. With None, the error is dropped."""
    plan: Literal["default", "loop", "mapped", "vmapped", "chunked"] = "default"
    """How a cohort is executed. default is mapped on CPUs. On accelerators it is the
    plan that train --tune measures as the fastest, and elsewhere vmapped."""
    chunk_size: int = 8
    """Number of clients at a time, for the plan chunked."""
    devices: int = 1
    """Number of devices per host that share a cohort. Each runs its part with the plan.
    On a CPU, at most its number of cores."""
    split_examples: bool = False
    """Split the training examples over the devices instead of copying them to each."""

    @property
    def score(self) -> str:
        """What methods are ranked by, as tables call it."""
        if self.problem == "auc":
            return "AUC"
        # Matthews' correlation, which is what papers on GLUE give for this set
        return "MCC" if self.dataset == "cola" else "accuracy"

    @property
    def work(self) -> str:
        """What clients do in a round, such as `5 local steps`."""
        if not self.local_epochs:
            return f"{self.local_steps} local steps"
        return f"{' to '.join(map(str, self.local_epochs))} local epochs"

    @property
    def private(self) -> bool:
        """Whether a run has a guarantee, of differential privacy."""
        return bool(self.epsilon)

    @property
    def fixes_rounds(self) -> bool:
        """Whether with more rounds the first ones would be others."""
        return self.private or self.lr_schedule == "cosine"

    @property
    def drops(self) -> bool:
        """Whether messages that are not finite are left out. A private run does not
        stop for them, since that would tell of its data."""
        return self.drop_nonfinite or self.private

    @property
    def title(self) -> str:
        """The dataset and the federation, in a line."""
        divided, alpha = self.partition, ""
        if not own_code.is_own(divided):
            alpha = f" ({self.alpha:g})" if "dirichlet" in divided else ""
            divided = divided.removeprefix("by_").replace("_", " ")
        share = "" if self.positives is None else f", {self.positives:.0%} positives"
        number = "" if self.partition == "by_owner" else f"{self.num_clients} "
        members = f"{number}{'agents' if self.graph else 'clients'}"
        taken = f"{self.cohort_size} per round"
        if self.buffer is not None:
            taken = f"{self.buffer} per step of {self.concurrency} at work"
        return f"{Path(self.dataset).name}, {members} by {divided}{alpha}{share}, " + (
            self.graph or f"{taken}, {self.work}"
        )

    def __post_init__(self):
        check_count("newton_schulz_steps", self.newton_schulz_steps, 0, MOST_STEPS)
        check_range("weight_decay", self.weight_decay, schedules=False)
        check_range("train_share", self.train_share, 0, 1, open_low=True)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value > LARGEST:
                raise ValueError(f"{field.name} must be below 2^31, got {value}")
        for name in ("num_clients", "rounds", "evaluate_every", "devices"):
            check_count(name, getattr(self, name))
        if len(self.local_epochs) > 2:
            raise ValueError(
                "local_epochs must be one number, or the smallest and the largest, got "
                f"{' '.join(map(str, self.local_epochs))}"
            )
        for name, known in (("model", MODELS), ("partition", PARTITIONS)):
            if not own_code.is_own(getattr(self, name)):
                check_name(name, getattr(self, name), known)
        for name in ("hidden", "rnn"):
            if min(getattr(self, name), default=1) < 1:
                raise ValueError(
                    f"{name} widths must be at least 1, got {getattr(self, name)}"
                )
        asynchronous = self.buffer is not None
        for present, names, kind, option in (
            (self.private, OF_PRIVACY, "private runs", "epsilon"),
            (asynchronous, OF_ARRIVALS, "asynchronous rounds", "buffer"),
        ):
            for name in () if present else names:
                if getattr(self, name) != getattr(Config, name):
                    raise ValueError(f"{name} is an option of {kind}; add --{option}")
        if asynchronous and self.concurrency is None:
            raise ValueError("a buffer needs a number of clients; add --concurrency")
        if self.owner is not None and self.partition != "by_owner":
            raise ValueError(
                "owner names the column of clients for the partition by_owner, got "
                f"{self.partition}; add --partition by_owner"
            )
        # a run is resumed in any directory
        if is_of_user(self.dataset):
            path = str(Path(self.dataset).expanduser().absolute())
            object.__setattr__(self, "dataset", path)
        for name, value in (("clock", self.clock), ("replay", self.replay)):
            if value is not None and (name == "replay" or value.endswith(".csv")):
                path = str(Path(value).expanduser().absolute())
                object.__setattr__(self, name, path)
        if self.ledger is not None:
            object.__setattr__(self, "ledger", self.ledger.expanduser().resolve())


OF_PRIVACY = (
    "clip_norm",
    "change_clip_norm",
    "bands",
    "ledger",
    "budget",
    "publish_training_metrics",
    "insecure_fixed_noise",
)
OF_ARRIVALS = ("concurrency", "staleness", "max_staleness", "replay")
OF_SERVER = (  # and its clients
    "cohort_size",
    "local_steps",
    "local_epochs",
    "weighting",
    "dropout",
    "clock",
    "round_deadline",
    "buffer",
    "own_leaves",
    "ditto",
    "compressor",
    "plan",
    "split_examples",
    "client_tests",
)


DEFAULTS = {
    "classification": Config(),
    "auc": Config(
        problem="auc",
        dataset="breast_cancer",
        num_clients=8,
        partition="iid",
        positives=0.1,
        cohort_size=8,
        local_steps=4,
        batch_size=16,
    ),
}
# of agents without a server
DEFAULTS["agents"] = dataclasses.replace(
    DEFAULTS["auc"],
    num_clients=5,
    positives=None,
    hidden=(),
    cohort_size=Config.cohort_size,
    local_steps=Config.local_steps,
    graph="erdos_renyi",
    rounds=200,
    evaluate_every=20,
)
DEFAULTS["minimizing_agents"] = Config(
    num_clients=8, partition="iid", graph="erdos_renyi", rounds=200, evaluate_every=20
)


@dataclasses.dataclass(frozen=True)
class Run:
    """One algorithm, one seed."""

    algorithm: str
    hyper: Mapping[str, Any]
    seed: int
    config: Config

    @property
    def label(self) -> str:
        """What tables and figures call the run, whatever its seed."""
        epsilon = "".join(f", epsilon {value:g}" for value in self.config.epsilon)
        return label_of(self.algorithm) + epsilon

    @property
    def options(self) -> dict[str, Any]:
        """All options by name but the seed and places of files, with defaults. A user's
        own algorithm is not imported for this."""
        method = METHODS.get(self.algorithm)
        hyper = {} if method is None else hyper_parameters(method)
        hyper = {**hyper, **self.hyper}
        config = dataclasses.asdict(self.config)
        for place in ("data_dir", "ledger", "budget", "plan", "chunk_size", "devices"):
            del config[place]
        return config | hyper


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Several algorithms on several seeds, at each epsilon; each cell is a run."""

    algorithms: tuple[str, ...]
    lr: Mapping[str, float]  # for those that depart from their default
    lr_schedule: Mapping[str, Schedule]  # likewise, from the config's
    seeds: tuple[int, ...]
    config: Config
    # learning rates of which the best is taken first, see `tuning`
    grids: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        _check_each_once(algorithms=self.algorithms, seeds=self.seeds)
        if len(set(self.config.epsilon)) != len(self.config.epsilon):
            raise ValueError(f"epsilons must differ, got {self.config.epsilon}")

    @property
    def rows(self) -> list[list[Run]]:
        """The runs of all seeds, for every algorithm at every epsilon."""
        epsilons: list[tuple[float, ...]] = [(e,) for e in self.config.epsilon]
        return [
            [self.cell(algorithm, seed, epsilon) for seed in self.seeds]
            for algorithm in self.algorithms
            for epsilon in epsilons or [()]
        ]

    @property
    def tuning(self) -> "Sweep":
        """The sweep that chooses learning rates, on two seeds that are not compared."""
        config = dataclasses.replace(
            self.config, client_tests=False, split_examples=False, devices=1
        )
        grids = {name: {"lr": values} for name, values in self.grids.items()}
        seeds = (max(self.seeds) + 1, max(self.seeds) + 2)
        return Sweep(tuple(grids), grids, seeds, 0.1, None, config)

    def cell(self, algorithm: str, seed: int, epsilon: tuple[float, ...] = ()) -> Run:
        """The run of one algorithm and seed, private or not."""
        hyper = {"lr": self.lr[algorithm]} if algorithm in self.lr else {}
        schedule = self.lr_schedule.get(algorithm, self.config.lr_schedule)
        config = dataclasses.replace(self.config, lr_schedule=schedule, epsilon=epsilon)
        return Run(algorithm, hyper, seed, config)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Several algorithms, each on a grid of hyperparameters and several seeds."""

    algorithms: tuple[str, ...]
    grids: Mapping[str, Mapping[str, tuple[float, ...]]]
    seeds: tuple[int, ...]
    validation: float  # share of the training examples
    cells_at_once: int | None
    config: Config

    def __post_init__(self):
        _check_each_once(algorithms=self.algorithms, seeds=self.seeds)
        if self.cells_at_once is not None:
            check_count("cells_at_once", self.cells_at_once)
        if set(self.grids) != set(self.algorithms):
            raise ValueError(
                f"grids must name the algorithms {', '.join(self.algorithms)}, got "
                f"{', '.join(self.grids)}"
            )

    def points(self, algorithm: str) -> list[dict[str, float]]:
        """All combinations of the values in an algorithm's grid."""
        grid = self.grids[algorithm]
        return [
            dict(zip(grid, p, strict=True)) for p in itertools.product(*grid.values())
        ]

    def cell(self, algorithm: str, hyper: Mapping[str, float], seed: int) -> Run:
        """One run of the sweep."""
        return Run(algorithm, hyper, seed, self.config_of(algorithm))

    def config_of(self, algorithm: str) -> Config:
        """The config, with all clients in every round where an algorithm needs them."""
        if own_code.is_own(algorithm):  # which is not imported to draw its runs
            return self.config
        built = method_of(algorithm).function()
        size = self.config.cohort_size
        if getattr(built, "full_participation", False):  # agents have no cohorts
            size = self.config.num_clients
        return dataclasses.replace(self.config, cohort_size=size)


def _check_each_once(**entries: Sequence[Any]) -> None:
    for name, several in entries.items():
        if not several or len(set(several)) != len(several):
            raise ValueError(f"{name} must name one or more, each once, got {several}")


Job = Run | Comparison | Sweep


def method_of(name: str) -> Method:
    """The method of a name, imported if it is a user's own; raises `ValueError`."""
    return own_code.method(name) if own_code.is_own(name) else find(name, METHODS)


def label_of(name: str) -> str:
    """What tables and figures call a method; nothing is imported."""
    return name if own_code.is_own(name) else METHODS[name].label


def methods_for(config: Config) -> Mapping[str, Method]:
    """The methods made for a problem; those of minimization serve any."""
    return algorithms.ALL if config.problem == "classification" else minimax.ALL


def hyper_parameters(method: Method) -> dict[str, Any]:
    """The plain options of a method, by name, with their defaults: numbers and flags,
    not transformations. Hyperparameters are floats even if their defaults are not."""
    parameters = inspect.signature(method.function).parameters
    defaults = {name: p.default for name, p in parameters.items()}
    plain = (bool, int, float)
    values = {name: v for name, v in defaults.items() if isinstance(v, plain)}
    numbers = recipe.hyper_parameters(method.function)
    return {name: float(v) if name in numbers else v for name, v in values.items()}
