"""What a run is, in words: frozen values that the command line and config.json share.

The names of data sets, partitions, plans and so on are strings here and nowhere else;
`simulation_of` puts the library's functions in their place.
"""

import dataclasses
import inspect
import itertools
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import jax
import numpy as np
import optax

from fedjax_muon import (
    algorithms,
    batching,
    compressors,
    engine,
    models,
    partition,
    simulation,
)
from fedjax_muon.compression import compress
from fedjax_muon.data import Dataset
from fedjax_muon.tasks import classification

SAMPLERS = {
    "shuffled_epochs": batching.shuffled_epochs,
    "with_replacement": batching.with_replacement,
    "full_batch": batching.full_batch,
}
WEIGHTINGS = {"uniform": simulation.uniform, "examples": simulation.by_examples}


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything about a run but its algorithm and its seed."""

    dataset: str = "digits"
    """Data set: digits, mnist, fashion_mnist, cifar10, cifar10_subset, cifar100, or
    tfds:NAME for one that `prepare` has made."""
    data_dir: Path | None = None
    """Where its files are; by default the environment variable FEDJAX_MUON_DATA."""
    num_clients: int = 16
    """N, how many clients the training examples are divided over."""
    partition: Literal["dirichlet", "dirichlet_per_client", "shards", "iid"] = (
        "dirichlet"
    )
    """How they are divided: per class by Dirichlet(alpha) over clients, per client by
    Dirichlet(alpha) over classes, by shards of sorted labels, or at random."""
    alpha: float = 0.1
    """Dirichlet concentration; the smaller, the less alike the clients."""
    min_client_size: int = 10
    """Fewest examples of a client that the per-class Dirichlet partition accepts."""
    shards_per_client: int = 2
    """How many label shards each client gets."""
    model: Literal["mlp", "lenet", "emnist_cnn"] = "mlp"
    """Model that is trained."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the mlp's hidden layers."""
    cohort_size: int = 8
    """S, clients sampled each round without replacement."""
    local_steps: int = 5
    """K, batches that each of them works through."""
    batch_size: int = 32
    """Examples in a batch."""
    sampler: Literal["shuffled_epochs", "with_replacement", "full_batch"] = (
        "shuffled_epochs"
    )
    """How a client's batches are drawn from its examples."""
    weighting: Literal["uniform", "examples"] = "uniform"
    """Weights of the mean over clients: equal, or their numbers of examples."""
    dropout: float = 0.0
    """Probability that a sampled client does not answer."""
    drop_nonfinite: bool = False
    """Leave messages that are not finite out of the mean, in place of stopping."""
    lr_schedule: Literal["constant", "cosine"] = "constant"
    """The local learning rate over rounds: as given, or falling to 0 by a cosine."""
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

    def __post_init__(self):
        for name in ("num_clients", "rounds", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 1, got {getattr(self, name)}"
                )
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"hidden widths must be at least 1, got {self.hidden}")


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
    seeds: tuple[int, ...]
    config: Config

    def cell(self, algorithm: str, seed: int) -> Run:
        """The run of one algorithm and seed."""
        hyper = {"lr": self.lr[algorithm]} if algorithm in self.lr else {}
        return Run(algorithm, hyper, seed, self.config)


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
        built = algorithms.find(algorithm)(lambda params, batch, key: params)
        everyone = (
            self.config.num_clients if built.everyone else self.config.cohort_size
        )
        return dataclasses.replace(self.config, cohort_size=everyone)


What = Run | Comparison | Sweep


def to_json(what: What) -> str:
    """The text of config.json."""
    kind = {"kind": type(what).__name__.lower()}
    return json.dumps(kind | dataclasses.asdict(what), indent=2, default=str) + "\n"


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}


def from_json(text: str) -> What:
    """Reads what `to_json` wrote; raises `ValueError` for anything else."""
    try:
        fields = json.loads(text, object_hook=_with_tuples)
        kinds = {"run": Run, "comparison": Comparison, "sweep": Sweep}
        kind = kinds[fields.pop("kind")]
        config = fields.pop("config")
        if config["data_dir"] is not None:
            config["data_dir"] = Path(config["data_dir"])
        return kind(**fields, config=Config(**config))
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"config.json is not one of ours: {error!r}") from error


def hyper_parameters(method: algorithms.Method) -> dict[str, Any]:
    """The plain options of a method, by name, with their defaults: numbers and flags,
    not transformations."""
    found = {}
    for name, parameter in inspect.signature(method.factory).parameters.items():
        default = method.settings.get(name, parameter.default)
        if isinstance(default, (bool, int, float)):
            found[name] = default
    return found


def algorithm_of(run: Run) -> partial:
    """The run's algorithm but for its gradient. Raises `ValueError` for an unknown
    name or option."""
    method = algorithms.find(run.algorithm)
    plain = hyper_parameters(method)
    unknown = sorted(set(run.hyper) - set(plain))
    if unknown:
        raise ValueError(
            f"{run.algorithm} has no option {unknown[0]!r}; it has {', '.join(plain)}"
        )
    hyper = plain | dict(run.hyper)
    method(lambda params, *_: params, **hyper)  # a schedule would hide what is refused
    factory: Callable[..., Any] = partial(_scheduled, method, run.config)
    return partial(_compressed(factory, run.config), **hyper)


def _scheduled(method: algorithms.Method, config: Config, grad_fn, **hyper):
    if config.lr_schedule == "cosine":
        hyper["lr"] = optax.cosine_decay_schedule(hyper["lr"], config.rounds)
    return method(grad_fn, **hyper)


def _compressed(factory: Callable[..., Any], config: Config) -> Callable[..., Any]:
    parts, feedback = config.compressed_parts, config.error_feedback
    if config.compressor != "none":
        return compress(factory, _compressor(config), parts=parts, feedback=feedback)
    if parts or feedback is not None:
        raise ValueError(
            "compressed_parts and error_feedback need a compressor; choose one with "
            "--compressor"
        )
    return factory


def _compressor(config: Config) -> compressors.Compressor:
    rank, rest = compressors.memory_share, compressors.identity()
    kinds = {
        "svd": lambda share: compressors.truncated_svd(rank(share), rest=rest),
        "power_iteration": lambda share: compressors.power_iteration(
            rank(share), rest=rest
        ),
        "top_k": compressors.top_k,
        "quantize": lambda share: compressors.quantize(config.compressor_bits),
    }
    try:
        return kinds[config.compressor](config.compressor_share)
    except ValueError as error:
        raise ValueError(f"compressor {config.compressor}: {error}") from error


def parts_of(config: Config, dataset: Dataset, seed: int) -> list[np.ndarray]:
    """Which examples each client has; another partition for every seed."""
    labels, number = dataset.y_train, config.num_clients
    key = jax.random.fold_in(_key(seed), 0)
    match config.partition:
        case "dirichlet":
            return partition.dirichlet(
                labels, number, config.alpha, key=key, min_size=config.min_client_size
            )
        case "dirichlet_per_client":
            return partition.dirichlet_per_client(labels, number, config.alpha, key=key)
        case "shards":
            return partition.shards(labels, number, config.shards_per_client, key=key)
        case "iid":
            return partition.iid(labels, number, key=key)


def start_key(seed: int) -> jax.Array:
    """The key that a run's parameters, cohorts and batches come from."""
    return jax.random.fold_in(_key(seed), 1)


def _key(seed: int) -> jax.Array:
    if not 0 <= seed < 2**32:
        raise ValueError(f"a seed must lie in [0, 2^32), got {seed}")
    return jax.random.key(seed)


def _plan(config: Config) -> engine.Plan:
    plans = {
        "default": engine.default_plan,
        "loop": lambda: engine.loop,
        "mapped": lambda: engine.mapped,
        "vmapped": lambda: engine.vmapped,
        "chunked": lambda: engine.chunked(config.chunk_size),
    }
    return plans[config.plan]()


def _model(config: Config, classes: int) -> nn.Module:
    if config.model == "mlp":
        return models.MLP(classes, config.hidden)
    return models.ALL[config.model](classes)


def simulation_of(run: Run, dataset: Dataset) -> simulation.Simulation:
    """Prepares a run; nothing is compiled. Raises `ValueError` if something is off."""
    config = run.config
    return simulation.simulate(
        algorithm_of(run),
        classification(_model(config, len(dataset.classes)), dataset.x_train.shape[1:]),
        dataset,
        parts_of(config, dataset, run.seed),
        cohort_size=config.cohort_size,
        local_steps=config.local_steps,
        batch_size=config.batch_size,
        plan=_plan(config),
        sampler=SAMPLERS[config.sampler],
        weighting=WEIGHTINGS[config.weighting],
        dropout=config.dropout,
    )
