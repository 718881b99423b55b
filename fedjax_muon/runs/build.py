"""From a config to a simulation: the library's functions in place of names."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

from fedjax_muon import (
    algorithms,
    models,
    simulation,
    transforms,
)
from fedjax_muon.algorithms.registry import Method
from fedjax_muon.core import Algorithm, streams
from fedjax_muon.core.schedules import cosine_decay
from fedjax_muon.data import Dataset, client_tests, imbalance, partition
from fedjax_muon.data.dataset import summary
from fedjax_muon.decentralized import private_methods as private_agents, topology
from fedjax_muon.decentralized.agent_privacy import AgentPrivacy
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.private import PRIVATE, Mechanism
from fedjax_muon.decentralized.private_methods import PrivateAgents
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.engine import plans
from fedjax_muon.files import named
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.models.convolution import by_patches
from fedjax_muon.privacy.client_privacy import ClientPrivacy
from fedjax_muon.privacy.correlated import Strategy, banded, buffered_toeplitz
from fedjax_muon.runs import launch, own_code
from fedjax_muon.runs.config import (
    DEFAULTS,
    OF_AGENTS,
    OF_SERVER,
    Config,
    Run,
    hyper_parameters,
    method_of,
)
from fedjax_muon.simulation import arrivals, batching, clocks, staleness
from fedjax_muon.tasks import auc
from fedjax_muon.tasks.augmentation import augmented, crop_and_flip
from fedjax_muon.tasks.classification import by_matthews, classification
from fedjax_muon.tasks.task import Task
from fedjax_muon.wrappers import compression
from fedjax_muon.wrappers.compression import compress
from fedjax_muon.wrappers.personalization import ditto, keep_own

SAMPLERS = {
    "shuffled_epochs": batching.shuffled_epochs,
    "with_replacement": batching.with_replacement,
    "full_batch": batching.full_batch,
}
WEIGHTINGS = {"uniform": simulation.uniform, "examples": simulation.by_examples}
NORMALIZATIONS = {"frobenius": kernel.frobenius, "schatten8": kernel.schatten8}
COEFFICIENTS = {"jordan": kernel.JORDAN, "quintic": kernel.QUINTIC}
SHAPE_SCALES = {
    "none": transforms.unscaled,
    "jordan": transforms.jordan,
    "moonlight": transforms.moonlight,
    "spectral": transforms.spectral,
}
COMPUTE_DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
RECURRENT = ("rnn", "lstm", "gru")  # models
CONVOLUTIONAL = ("lenet", "emnist_cnn", "resnet18")  # models
AUGMENTATIONS = {"crop_and_flip": crop_and_flip}


GRAPHS: dict[str, Callable[[Config, jax.Array], nx.Graph]] = {
    "erdos_renyi": lambda config, key: (
        topology.erdos_renyi(config.num_clients, config.connectivity, key=key).graph
    ),
    "ring": lambda config, key: topology.ring(config.num_clients),
    "star": lambda config, key: topology.star(config.num_clients),
    "exponential": lambda config, key: topology.exponential(config.num_clients),
    "complete": lambda config, key: topology.complete(config.num_clients),
}
# clip norms of a client's message, and of the gradient of an agent's example
CLIENT_CLIP, EXAMPLE_CLIP = 0.5, 0.2


def algorithm_of(run: Run) -> Algorithm | Gossip | PrivateAgents:
    """The run's algorithm. Raises `ValueError` for an unknown name or option."""
    method, config = method_of(run.algorithm), run.config
    known = run.algorithm in {**algorithms.ALL, **OF_AGENTS}
    known = known or own_code.is_own(run.algorithm)
    if config.problem == "classification" and not known:
        raise ValueError(
            f"{run.algorithm} is a method for minimax problems; add --problem auc"
        )
    plain = hyper_parameters(method)
    unknown = sorted(set(run.hyper) - set(plain))
    if unknown:
        raise ValueError(
            f"{run.algorithm} has no option {unknown[0]!r}; it has {', '.join(plain)}"
        )
    hyper = plain | dict(run.hyper)
    if method.takes("polar"):
        hyper["polar"] = _polar(config)
    if method.takes("shape_scale"):
        hyper["shape_scale"] = SHAPE_SCALES[config.shape_scale]
    if config.weight_decay and has_plain_rule(method):
        hyper["rule"] = optax.add_decayed_weights(config.weight_decay)
    algorithm = own_code.algorithm(method, hyper)
    _check_kind(run, algorithm)
    if isinstance(algorithm, PrivateAgents):
        return algorithm
    if config.lr_schedule == "cosine":
        algorithm = cosine_decay(algorithm, lr=hyper["lr"], rounds=config.rounds)
    if isinstance(algorithm, Gossip):
        return algorithm
    return _compressed(_personalized(algorithm, config), config)


def federated_of(run: Run) -> Algorithm:
    """The run's algorithm, which must have a server, on clients without privacy."""
    algorithm = algorithm_of(run)
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            f"{run.algorithm} is decentralized and has no server to deploy"
        )
    if run.config.private:
        raise ValueError(
            "deploy does not support differential privacy yet; leave out epsilon"
        )
    return algorithm


def _check_kind(run: Run, algorithm: Algorithm | Gossip | PrivateAgents) -> None:
    """Raises `ValueError` for options that a kind of method does not have."""
    name, config = run.algorithm, run.config
    if isinstance(algorithm, Algorithm):
        if config.graph is not None:
            raise ValueError(
                f"{name} has a server, and a graph is for agents without one; leave "
                "out graph"
            )
        return
    defaults = Config(), DEFAULTS[config.problem]
    for option in OF_SERVER:
        if getattr(config, option) not in [getattr(each, option) for each in defaults]:
            raise ValueError(f"{name} has no server; leave out {option}")
    if isinstance(algorithm, PrivateAgents):
        if not config.private:
            raise ValueError(f"{name} is a private method; add --epsilon")
        if config.lr_schedule == "cosine":
            raise ValueError(
                f"{name} takes no learning rate schedule; leave out lr_schedule"
            )
    elif config.private:
        known = ", ".join(private_agents.ALL)
        raise ValueError(
            f"{name} has no private version; leave out epsilon, or choose one of "
            f"{known}"
        )


def _personalized(algorithm: Algorithm, config: Config) -> Algorithm:
    if config.own_leaves and config.ditto is not None:
        raise ValueError("own_leaves and ditto cannot be combined; choose one")
    if config.own_leaves:
        return keep_own(algorithm, config.own_leaves)
    if config.ditto is None:
        return algorithm
    return ditto(algorithm, personal_lr=config.personal_lr, pull=config.ditto)


def has_plain_rule(method: Method) -> bool:
    """Whether a method's local rule is an option, and plain descent by default."""
    parameters = inspect.signature(method.function).parameters
    rule = parameters["rule"].default if "rule" in parameters else None
    return rule is not None and rule.init(0.0) == optax.identity().init(0.0)


def _polar(config: Config) -> Callable[[jax.Array], jax.Array]:
    return partial(
        kernel.orthogonalize,
        steps=config.newton_schulz_steps,
        dtype=COMPUTE_DTYPES[config.newton_schulz_dtype],
        normalization=NORMALIZATIONS[config.newton_schulz_normalization],
        coefficients=COEFFICIENTS[config.newton_schulz_coefficients],
    )


def _compressed(algorithm: Algorithm, config: Config) -> Algorithm:
    fields, feedback = config.compressed_parts, config.error_feedback
    if config.compressor != "none":
        return compress(
            algorithm, _compressor(config), fields=fields, feedback=feedback
        )
    if fields or feedback is not None:
        raise ValueError(
            "compressed_parts and error_feedback need a compressor; choose one with "
            "--compressor"
        )
    return algorithm


def _compressor(config: Config) -> compression.Compressor:
    rank, rest = compression.memory_share, compression.no_compression()
    kinds = {
        "svd": lambda share: compression.truncated_svd(rank(share), rest=rest),
        "power_iteration": lambda share: compression.power_iteration(
            rank(share), rest=rest
        ),
        "top_k": compression.top_k,
        "quantize": lambda share: compression.quantize(config.compressor_bits),
    }
    with named(f"compressor {config.compressor}"):
        return kinds[config.compressor](config.compressor_share)


def parts_of(config: Config, dataset: Dataset, seed: int) -> list[np.ndarray]:
    """Which examples each client has; another partition for every seed."""
    key = jax.random.fold_in(_key(seed), streams.PARTITION)
    labels, owners = dataset.y_train, dataset.owners
    if config.positives is None:
        return _parts(config, labels, owners, key)
    drop_key = jax.random.fold_in(key, 0)
    kept = imbalance.drop_positives(labels, config.positives, key=drop_key)
    owners = None if owners is None else owners[kept]
    return [kept[part] for part in _parts(config, labels[kept], owners, key)]


def _parts(
    config: Config, labels: np.ndarray, owners: np.ndarray | None, key: jax.Array
) -> list[np.ndarray]:
    number = config.num_clients
    if own_code.is_own(config.partition):
        return own_code.parts(config.partition, labels, number, key=key)
    match config.partition:
        case "dirichlet" | "dirichlet_balanced" as kind:
            least, balanced = config.min_client_size, kind == "dirichlet_balanced"
            return partition.dirichlet(
                labels,
                number,
                config.alpha,
                key=key,
                min_size=least,
                balanced=balanced,
            )
        case "quantity":
            least = config.min_client_size
            return partition.quantity(
                labels, number, config.alpha, key=key, min_size=least
            )
        case "labels_per_client":
            count = config.labels_per_client
            return partition.labels_per_client(labels, number, count, key=key)
        case "dirichlet_per_client":
            return partition.dirichlet_per_client(labels, number, config.alpha, key=key)
        case "shards":
            return partition.shards(labels, number, config.shards_per_client, key=key)
        case "iid":
            return partition.iid(labels, number, key=key)
        case "by_owner":
            if owners is None:
                raise ValueError(
                    f"{config.dataset} does not say which clients its examples belong "
                    "to; for a CSV file, name the column with --owner, or choose "
                    "another --partition"
                )
            return partition.by_owner(owners)
        case "ratios":
            if len(config.ratios) != number:
                raise ValueError(
                    f"ratios must have one number for each of the {number} clients, "
                    f"got {len(config.ratios)}"
                )
            return imbalance.with_ratios(labels, config.ratios, key=key)
    raise AssertionError("unreachable")


def tests_of(
    config: Config, dataset: Dataset, parts: Sequence[np.ndarray], seed: int
) -> list[np.ndarray] | None:
    """Which test examples each client has; None if they have none of their own."""
    if not config.client_tests:
        return None
    if config.partition != "by_owner":
        key = jax.random.fold_in(_key(seed), streams.PARTITION)
        key = jax.random.fold_in(key, 1)
        labels, tested = dataset.y_train, dataset.y_test
        return client_tests.like(parts, labels, tested, key=key)
    owners, tested_owners = dataset.owners, dataset.test_owners
    if owners is None or tested_owners is None:
        raise ValueError(
            f"{config.dataset} does not say which clients its test examples belong to; "
            "leave out client_tests"
        )
    return client_tests.by_owner(owners, tested_owners)


def start_key(seed: int) -> jax.Array:
    """The key that a run's parameters, cohorts and batches come from."""
    return jax.random.fold_in(_key(seed), streams.TRAINING)


def _key(seed: int) -> jax.Array:
    if not 0 <= seed < 2**32:
        raise ValueError(f"a seed must lie in [0, 2^32), got {seed}")
    return jax.random.key(seed)


def plan_of(config: Config) -> plans.Plan:
    """Returns the execution plan that a config names."""
    kinds = {
        "default": plans.default_plan,
        "loop": lambda: plans.loop,
        "mapped": lambda: plans.mapped,
        "vmapped": lambda: plans.vmapped,
        "chunked": lambda: plans.chunked(config.chunk_size),
    }
    return kinds[config.plan]()


def _trained(config: Config, dataset: Dataset) -> Task:
    is_text = dataset.x_train.dtype == np.int32
    fits = is_text == (config.model in RECURRENT)
    if not fits and not own_code.is_own(config.model):
        raise ValueError(
            f"the model {config.model} does not fit {config.dataset}; rnn, lstm and "
            "gru take text and nothing else"
        )
    if config.convolution != "direct" and config.model not in CONVOLUTIONAL:
        raise ValueError(
            f"the model {config.model} has no option convolution; the models that have "
            f"it are {', '.join(CONVOLUTIONAL)}"
        )
    model, shape = model_of(config, dataset), dataset.x_train.shape[1:]
    if config.problem == "classification":
        return classification(model, shape)
    # a client's own share would tell of its examples
    public = config.private or config.graph is not None
    public = public and len(dataset.classes) == 2  # else `auc` says what is wrong
    return auc(model, shape, share=float(dataset.y_train.mean()) if public else None)


def model_of(config: Config, dataset: Dataset) -> nn.Module:
    """The model of a run."""
    classes = len(dataset.classes)
    dtype = COMPUTE_DTYPES[config.compute_dtype]
    if own_code.is_own(config.model):
        arguments = {"classes": classes, "shape": dataset.x_train.shape[1:]}
        arguments |= {"tokens": dataset.tokens, "dtype": dtype}
        needed = ["classes"] + ["dtype"] * (config.compute_dtype != "float32")
        return own_code.model(config.model, arguments, needed=needed)
    if config.model == "mlp":
        return models.MLP(classes, config.hidden, dtype=dtype)
    if config.model in RECURRENT:
        embedding, hidden, layers = config.rnn
        return models.ALL[config.model](
            classes,
            vocabulary_size=dataset.tokens,
            embedding=embedding,
            hidden=hidden,
            layers=layers,
            dtype=dtype,
        )
    options = {"convolution": by_patches} if config.convolution == "patches" else {}
    return models.ALL[config.model](classes, dtype=dtype, **options)


def task_of(config: Config, dataset: Dataset) -> Task:
    """The task of a run. Raises `ValueError` if the model does not fit the data."""
    task = _trained(config, dataset)
    if config.score == "MCC":
        task = by_matthews(task)
    return _augmented(task, config, dataset)


def _augmented(task: Task, config: Config, dataset: Dataset) -> Task:
    if config.augmentation == "none":
        return task
    augmentation = AUGMENTATIONS[config.augmentation]()
    with named(f"augmentation {config.augmentation} does not fit {config.dataset}"):
        jax.eval_shape(augmentation, jax.random.key(0), dataset.x_train[:1])
    return augmented(task, augmentation)


def graph_of(config: Config, seed: int) -> nx.Graph:
    """The graph of a run's agents; another random one for every seed."""
    key = jax.random.fold_in(_key(seed), streams.AGENTS)
    return GRAPHS[config.graph or "erdos_renyi"](config, key)


def is_of_agents(run: Run) -> bool:
    """Whether a run has agents on a graph, and no server."""
    return not isinstance(algorithm_of(run), Algorithm)


def simulation_of(run: Run, dataset: Dataset) -> simulation.Simulation:
    """Prepares a run; nothing is compiled. Raises `ValueError` if something is off."""
    algorithm, task = algorithm_of(run), task_of(run.config, dataset)
    parts = parts_of(run.config, dataset, run.seed)
    if isinstance(algorithm, Algorithm):
        return _federated(run, algorithm, task, dataset, parts)
    return _decentralized(run, algorithm, task, dataset, parts)


def summary_of(run: Run, simulated: simulation.Simulation, dataset: Dataset) -> str:
    """The dataset and the clients of a run, in a line."""
    sizes = np.asarray(simulated.clients.size).tolist()
    members = "agent" if is_of_agents(run) else "client"
    return summary(dataset, sizes, members=members)


def _federated(
    run: Run,
    algorithm: Algorithm,
    task: Task,
    dataset: Dataset,
    parts: Sequence[np.ndarray],
) -> simulation.Simulation:
    config, private = run.config, run.config.private
    late = arrivals_of(config)
    return simulation.federate(
        algorithm,
        task,
        dataset,
        parts,
        cohort_size=None if private or late is not None else config.cohort_size,
        local_steps=None if config.local_epochs else config.local_steps,
        local_epochs=config.local_epochs or None,
        batch_size=config.batch_size,
        plan=plan_of(config),
        sampler=SAMPLERS[config.sampler],
        weighting=WEIGHTINGS[config.weighting],
        dropout=config.dropout,
        devices=launch.devices_of(config.devices),
        split_examples=config.split_examples,
        privacy=_client_privacy(config) if private else None,
        test_parts=tests_of(config, dataset, parts, run.seed),
        clock=_clock(config, run.seed),
        deadline=config.round_deadline,
        arrivals=late,
    )


CLOCKS: dict[str, Callable[..., clocks.Clock]] = {
    "constant": lambda step=1.0, byte=0.0, *, key: clocks.constant(step, byte),
    "lognormal": clocks.lognormal,
    "two_speeds": clocks.two_speeds,
}


def _clock(config: Config, seed: int) -> clocks.Clock | None:
    """The clock that a config names; other speeds for every seed."""
    text = config.clock
    if text is None:
        return None
    if text.endswith(".csv"):
        return clocks.trace(text)
    name, *words = text.split(":")
    key = {"key": jax.random.fold_in(_key(seed), streams.CLOCK)}
    try:
        numbers = [float(word) for word in words]
        inspect.signature(CLOCKS[name]).bind(*numbers, **key)
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            "clock must be such as constant:1:0, lognormal:1.0:1:0, "
            f"two_speeds:4:0.5:1:0 or FILE.csv, got {text!r}"
        ) from None
    return CLOCKS[name](*numbers, **key)


def arrivals_of(config: Config) -> arrivals.Arrivals | None:
    """Asynchronous rounds that a config names, if it does."""
    if config.buffer is None or config.concurrency is None:
        return None
    late = arrivals.buffered(
        config.concurrency,
        config.buffer,
        staleness=staleness.polynomial(config.staleness),
        max_staleness=config.max_staleness,
    )
    return late if config.replay is None else arrivals.replayed(late, config.replay)


def _client_privacy(config: Config) -> ClientPrivacy:
    return ClientPrivacy(
        clip_norm=CLIENT_CLIP if config.clip_norm is None else config.clip_norm,
        cohort_size=config.cohort_size,
        **_promise(config),
    )


def _promise(config: Config) -> dict[str, Any]:
    """What both mechanisms are told of the guarantee."""
    (epsilon,) = config.epsilon
    return {
        "epsilon": epsilon,
        "delta": config.delta,
        "rounds": config.rounds,
        "insecure_fixed_noise": config.insecure_fixed_noise,
        "publish_training_metrics": config.publish_training_metrics,
    }


def _decentralized(
    run: Run,
    algorithm: Gossip | PrivateAgents,
    task: Task,
    dataset: Dataset,
    parts: Sequence[np.ndarray],
) -> simulation.Simulation:
    config, options = run.config, dict[str, Any]()
    if isinstance(algorithm, PrivateAgents):
        least = min(map(len, parts))
        options["privacy"] = _agent_privacy(config, algorithm, least)
        algorithm = algorithm.algorithm
    else:
        options["batch_size"] = config.batch_size
        options["sampler"] = batching.always(SAMPLERS[config.sampler])
    return decentralize(
        algorithm,
        task,
        dataset,
        parts,
        weights=topology.metropolis(graph_of(config, run.seed)),
        devices=launch.devices_of(config.devices),
        **options,
    )


def _agent_privacy(config: Config, agents: PrivateAgents, least: int) -> AgentPrivacy:
    """The privacy of agents, of which the smallest has `least` examples."""
    steps = config.rounds + 1
    clip_norm = EXAMPLE_CLIP if config.clip_norm is None else config.clip_norm
    change = config.change_clip_norm
    strategy: Strategy | None = None
    if agents.method is PRIVATE["dp_ftrl"]:
        strategy = banded(steps, min(config.bands, steps))
    elif agents.method is PRIVATE["dp_ftrl_buffered"]:
        strategy = buffered_toeplitz(steps, max(1, least // config.batch_size))
    mechanism = Mechanism(
        clip_norm=clip_norm,
        change_clip_norm=clip_norm / 10 if change is None else change,
        beta=agents.beta,
        batch_size=config.batch_size,
        strategy=strategy,
    )
    return AgentPrivacy(agents.method, mechanism, **_promise(config))


def of_seed(
    simulated: simulation.Simulation, run: Run, dataset: Dataset
) -> simulation.Simulation:
    """A simulation with the partition, and the graph, of another run's seed."""
    if simulated.guarantee is not None:
        return simulation_of(run, dataset)
    parts = parts_of(run.config, dataset, run.seed)
    if is_of_agents(run):
        weights = topology.metropolis(graph_of(run.config, run.seed))
        return simulated.at(parts=parts, weights=weights)
    tests = tests_of(run.config, dataset, parts, run.seed)
    return simulated.at(parts=parts, test_parts=tests)
