"""What a run is, in words: frozen values that the command line and config.json share.

The names of data sets, partitions, plans and so on are strings here and nowhere else;
`building` puts the library's functions in their place.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from fedjax_muon import algorithms, minimax
from fedjax_muon.algorithms.registry import Method, find
from fedjax_muon.core import check_range, recipe
from fedjax_muon.data.loading import NAMES, TFDS
from fedjax_muon.runs import own_code
from fedjax_muon.runs.lists import Model, check_name, check_widths
from fedjax_muon.runs.private_config import Private

MOST_STEPS = 100  # of Newton-Schulz; each is compiled, and ten are exact
LARGEST = 2**31 - 1  # of an integer in a compiled program
METHODS = {**algorithms.ALL, **minimax.ALL}
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
    "swin_tiny",
    "roberta",
)
FILES = (".csv", ".npz")  # suffixes of users' own data


Schedule = Literal["constant", "cosine"]


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything about a run but its algorithm and its seed."""

    problem: Literal["classification", "auc"] = "classification"
    """What is optimized: cross-entropy, or the area under the ROC curve of two classes,
    a minimax problem."""
    dataset: str = "digits"
    """Data set, such as digits, fashion_mnist, cifar10, cifar100, tiny_imagenet, sst2
    or breast_cancer: `fedjax-muon data` shows all; or tfds:NAME for one that `prepare`
    has made; or your own file, FILE.csv or FILE.npz; or a directory of images,
    CLASS/IMAGE, or of a saved data set of Hugging Face."""
    label: str = "label"
    """Column of the labels of a table, FILE.csv or a data set of Hugging Face; all
    columns that are not named are features."""
    owner: str | None = None
    """Column of a table with the client of every row, for the partition by_owner; of
    images, a regular expression that finds the client in the image's path."""
    split: str | None = None
    """Column of FILE.csv that says train or test; by default, a fifth is for tests."""
    exclude: tuple[str, ...] = ()
    """Columns of a table to leave out."""
    image_size: tuple[int, int] | None = None
    """Height and width to which images of a directory are resized; by default, all must
    have the same."""
    data_dir: Path | None = None
    """Where its files are; by default the environment variable FEDJAX_MUON_DATA."""
    train_share: float = 1.0
    """Share of the training examples that is used: the same ones every time, of all
    classes in proportion."""
    num_clients: int = 16
    """N, how many clients the training examples are divided over."""
    partition: Literal[
        "dirichlet", "dirichlet_per_client", "shards", "iid", "ratios", "by_owner"
    ] = "dirichlet"
    """How they are divided: per class by Dirichlet(alpha) over clients, per client by
    Dirichlet(alpha) over classes, by shards of sorted labels, at random, of two classes
    with a share of positives for each client, or as the data says (num_clients is not
    used)."""
    positives: float | None = None
    """Of two classes: so many positives are left out, at random, that the others are
    this share of the training examples."""
    ratios: tuple[float, ...] = (0.05, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25)
    """Each client's share of positives in the partition ratios."""
    alpha: float = 0.1
    """Dirichlet concentration; the smaller, the less alike the clients."""
    min_client_size: int = 10
    """Fewest examples of a client that the per-class Dirichlet partition accepts."""
    shards_per_client: int = 2
    """How many label shards each client gets."""
    client_tests: bool = False
    """Test clients on examples of their own too: those of their owners, or with the
    proportions of classes that they train on."""
    model: Model = "mlp"
    """Model that is trained; rnn, lstm, gru and roberta are for text, and text is for
    them. Your own one is MODULE:FUNCTION."""
    checkpoint: Path | None = None
    """Pretrained weights: of roberta, model.safetensors beside its config.json,
    vocab.json and merges.txt, or their folder; of swin_tiny, a safetensors file by
    timm's names."""
    lora_rank: int = 16
    """Rank of the adapters that roberta is trained by, with alpha twice the rank."""
    max_tokens: int = 128
    """Longest text of roberta; the end of a longer one is left out."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the mlp's hidden layers."""
    rnn: tuple[int, int, int] = (32, 64, 1)
    """Widths of the embedding and the state of rnn, lstm and gru, and their layers; 300
    4096 2 in papers, and 8 256 2 for characters."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """What the model computes in; parameters and their gradients stay float32."""
    convolution: Literal["direct", "patches"] = "direct"
    """How convolutions are computed: directly, or as products of patches."""
    newton_schulz_steps: int = 5
    """How many steps of Newton-Schulz, in algorithms that orthogonalize; with 0 they
    only divide matrices by their norms."""
    newton_schulz_dtype: Literal["float32", "bfloat16"] = "float32"
    """What its products with the matrices, not with their small squares, are of."""
    newton_schulz_normalization: Literal["frobenius", "schatten8"] = "frobenius"
    """The norm that matrices are first divided by; schatten8 is the smaller one."""
    newton_schulz_coefficients: Literal["jordan", "quintic"] = "jordan"
    """Of its steps: Jordan's, or those of Takezawa et al., Theorem 3."""
    shape_scale: Literal["none", "jordan", "moonlight", "spectral"] = "none"
    """Factor of a matrix's step by its shape, in algorithms with this option."""
    weight_decay: float = 0.0
    """Weight decay in algorithms whose local rule is plain gradient descent."""
    augmentation: Literal["none", "crop_and_flip"] = "none"
    """Random changes of images in training: cropped with 4 pixels of padding and
    mirrored, each example anew in every batch."""
    cohort_size: int = 8
    """S, clients sampled each round without replacement."""
    local_steps: int = 5
    """K, batches that each of them works through."""
    local_epochs: tuple[int, ...] = ()
    """In place of local_steps: how often a client goes through its examples; or two
    numbers, between which it is drawn for each client and round."""
    batch_size: int = 32
    """Examples in a batch."""
    sampler: Literal["shuffled_epochs", "with_replacement", "full_batch"] = (
        "shuffled_epochs"
    )
    """How a client's batches are drawn from its examples."""
    weighting: Literal["uniform", "examples"] = "uniform"
    """Weights of the mean over clients: equal, or their numbers of examples."""
    own_leaves: tuple[str, ...] = ()
    """Names of layers that every client keeps for itself, such as Dense_2."""
    ditto: float | None = None
    """Train a model for every client too, by Ditto, with so strong a pull toward the
    shared one."""
    personal_lr: float = 0.1
    """Learning rate of Ditto's own models."""
    dropout: float = 0.0
    """Probability that a sampled client does not answer."""
    drop_nonfinite: bool = False
    """Leave messages that are not finite out of the mean, in place of stopping."""
    lr_schedule: Schedule | None = None
    """The local learning rate over rounds: as given, or falling to 0 by a cosine. By
    default constant; in compare, what was tuned together with the rate."""
    rounds: int = 100
    """How many rounds to train."""
    evaluate_every: int = 5
    """Rounds between two evaluations, which are the rows of metrics.csv."""
    compressor: Literal["none", "svd", "power_iteration", "top_k", "quantize"] = "none"
    """How messages to the server are compressed; low-rank ones leave vectors alone."""
    compressor_share: float = 0.05
    """What is left by svd and power_iteration (of a matrix's numbers) and top_k (of an
    array's entries)."""
    compressor_bits: int = 4
    """Bits of a number under quantize."""
    compressed_parts: tuple[str, ...] = ()
    """Names of the parts of messages that are compressed, such as momentum; by default
    all."""
    error_feedback: float | None = None
    """Decay of the compression's error that a client keeps and sends later; None
    forgets it."""
    plan: Literal["default", "loop", "mapped", "vmapped", "chunked"] = "default"
    """How a cohort is executed; by default what was measured best on this backend."""
    chunk_size: int = 8
    """Clients at a time under the plan chunked."""
    devices: int = 1
    """Devices of every host that divide a cohort; each runs its part by the plan. Of a
    CPU, at most its cores."""
    split_examples: bool = False
    """Divide the examples over the devices, in place of a copy on each."""

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
    def title(self) -> str:
        """The data set and the federation, in a line."""
        alpha = f" ({self.alpha:g})" if "dirichlet" in self.partition else ""
        share = "" if self.positives is None else f", {self.positives:.0%} positives"
        number = "" if self.partition == "by_owner" else f"{self.num_clients} "
        return (
            f"{Path(self.dataset).name}, {number}clients by "
            f"{self.partition.removeprefix('by_').replace('_', ' ')}{alpha}{share}, "
            f"{self.cohort_size} a round, {self.work}"
        )

    def __post_init__(self):
        if not 0 <= self.newton_schulz_steps <= MOST_STEPS:
            raise ValueError(
                f"newton_schulz_steps must lie in 0..{MOST_STEPS}, got "
                f"{self.newton_schulz_steps}"
            )
        check_range("weight_decay", self.weight_decay, schedules=False)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value > LARGEST:
                raise ValueError(f"{field.name} must be below 2^31, got {value}")
        for name in ("num_clients", "rounds", "evaluate_every", "devices"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 1, got {getattr(self, name)}"
                )
        if len(self.local_epochs) > 2:
            raise ValueError(
                "local_epochs must be one number, or the smallest and the largest, got "
                f"{' '.join(map(str, self.local_epochs))}"
            )
        if not 0 < self.train_share <= 1:
            raise ValueError(f"train_share must lie in (0, 1], got {self.train_share}")
        if not own_code.is_own(self.model):
            check_name("model", self.model, MODELS)
        for name in ("hidden", "rnn"):
            check_widths(name, getattr(self, name))
        if self.owner is not None and self.partition != "by_owner":
            raise ValueError(
                "owner names the column of clients for the partition by_owner, got "
                f"{self.partition}; add --partition by_owner"
            )
        if is_own(self.dataset):  # a run goes on in any directory
            object.__setattr__(
                self, "dataset", str(Path(self.dataset).expanduser().absolute())
            )


def is_own(dataset: str) -> bool:
    """Whether a data set is the user's own file or directory, and not a name."""
    if dataset.endswith(FILES):
        return True
    if dataset.startswith(TFDS) or dataset in NAMES:
        return False
    return "/" in dataset or Path(dataset).expanduser().is_dir()


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


@dataclasses.dataclass(frozen=True)
class Run:
    """One algorithm, one seed."""

    algorithm: str
    hyper: Mapping[str, Any]
    seed: int
    config: Config


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Several algorithms on several seeds, each cell a run."""

    algorithms: tuple[str, ...]
    lr: Mapping[str, float]  # for those that depart from their default
    lr_schedule: Mapping[str, Schedule]  # likewise, from the config's
    seeds: tuple[int, ...]
    config: Config

    def cell(self, algorithm: str, seed: int) -> Run:
        """The run of one algorithm and seed."""
        hyper = {"lr": self.lr[algorithm]} if algorithm in self.lr else {}
        schedule = self.lr_schedule.get(algorithm, self.config.lr_schedule)
        config = dataclasses.replace(self.config, lr_schedule=schedule)
        return Run(algorithm, hyper, seed, config)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Several algorithms, each on a grid of hyper-parameters and several seeds."""

    algorithms: tuple[str, ...]
    grids: Mapping[str, Mapping[str, tuple[float, ...]]]
    seeds: tuple[int, ...]
    validation: float  # share of the training examples
    cells_at_once: int | None
    config: Config

    def __post_init__(self):
        if set(self.grids) != set(self.algorithms):
            raise ValueError(
                f"grids must be those of {', '.join(self.algorithms)}, got "
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
        made = method_of(algorithm).function()
        size = self.config.cohort_size
        if made.full_participation:
            size = self.config.num_clients
        return dataclasses.replace(self.config, cohort_size=size)


Job = Run | Comparison | Sweep | Private


def method_of(name: str) -> Method:
    """The method of a name, imported if it is a user's own; raises `ValueError`."""
    return own_code.method(name) if own_code.is_own(name) else find(name, METHODS)


def label_of(name: str) -> str:
    """What tables and figures call a method; nothing is imported."""
    return name if own_code.is_own(name) else METHODS[name].label


def methods_for(config: Config) -> Mapping[str, Method]:
    """The methods made for a problem; those of minimisation serve any."""
    return algorithms.ALL if config.problem == "classification" else minimax.ALL


def hyper_parameters(method: Method) -> dict[str, Any]:
    """The plain options of a method, by name, with their defaults: numbers and flags,
    not transformations. Hyper-parameters are floats even if their defaults are not."""
    parameters = inspect.signature(method.function).parameters
    defaults = {name: p.default for name, p in parameters.items()}
    plain = (bool, int, float)
    found = {name: v for name, v in defaults.items() if isinstance(v, plain)}
    numbers = recipe.hyper_parameters(method.function)
    return {name: float(v) if name in numbers else v for name, v in found.items()}
