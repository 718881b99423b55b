"""Evaluation of parameters on training and test examples."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Params
from fedjax_muon.data.partition import check_listed
from fedjax_muon.simulation.batching import Clients
from fedjax_muon.tasks.task import Scores, Task

BATCH_SIZE = 512

Evaluation = dict[str, jax.Array]  # metrics by name
Examples = tuple[Any, Any]  # x [n, ...], y [n]
WORST_SHARE = 10  # percentile of the clients' accuracies


class ClientTests(NamedTuple):
    """Which test examples the clients have, client by client."""

    ids: jax.Array  # int32 [m], of test examples
    owner: jax.Array  # int32 [m], the client that has each


def client_tests_of(
    test_parts: Sequence[Any], num_clients: int, count: int
) -> ClientTests:
    """Puts the ids of the clients' test examples, out of `count`, on the device."""
    check_listed("test_parts", test_parts)
    if len(test_parts) != num_clients:
        raise ValueError(
            f"test_parts must have one part for each of the {num_clients} clients, "
            f"got {len(test_parts)}"
        )
    sizes = [len(part) for part in test_parts]
    if not any(sizes):
        raise ValueError("test_parts must give a client test examples, got none")
    ids = np.concatenate([np.asarray(part) for part in test_parts if len(part)])
    if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= count:
        raise ValueError(
            f"test_parts hold ids of test examples, 0 to {count - 1}, got {ids.dtype} "
            f"from {ids.min()} to {ids.max()}"
        )
    owner = np.repeat(np.arange(num_clients), sizes)
    return ClientTests(*(jnp.asarray(a, jnp.int32) for a in (ids, owner)))


def evaluate(
    task: Task,
    params: Params,
    clients: Clients,
    test: Examples,
    client_tests: ClientTests | None = None,
    validation: Examples | None = None,
) -> Evaluation:
    """Evaluates parameters on training, test and validation examples.

    Args:
      clients: Their examples are the training examples. From more than the task's
        `scored`, as many are selected at equal distances in the order of clients.
      client_tests: The clients' test examples, if they have their own.
      validation: Examples that no client has.

    Returns:
      Every metric of the task with the prefixes "train_", "test_" and, with validation
      examples, "validation_". If examples are
      classified, also "client_accuracy_std" and "client_accuracy_min", the standard
      deviation and the lowest of the clients' accuracies on training examples, and, if
      clients have test examples, the entries of `spread` on them with the prefix
      "client_test_accuracy_".
    """
    sampled = scored_places(task, len(clients.partition.order))
    owned = clients.partition.order[sampled]
    y = clients.y[owned]
    train = scores(task, params, clients.x[owned], y)
    metrics = {
        f"train_{name}": metric(train, y) for name, metric in task.metrics.items()
    }
    tested = scores(task, params, *test)
    metrics |= {
        f"test_{name}": metric(tested, test[1]) for name, metric in task.metrics.items()
    }
    if "correct" in train:
        owner = _owners(clients)[sampled]
        accuracy, counts = client_means(train["correct"], owner, len(clients.size))
        metrics["client_accuracy_std"] = jnp.std(accuracy, where=counts > 0)
        metrics["client_accuracy_min"] = jnp.min(accuracy, initial=1, where=counts > 0)
        if client_tests is not None:
            correct = tested["correct"][client_tests.ids]
            owner = client_tests.owner
            accuracy, counts = client_means(correct, owner, len(clients.size))
            metrics |= {
                f"client_test_accuracy_{name}": value
                for name, value in spread(accuracy, counts > 0).items()
            }
    if validation is not None:
        held_out = measure(task, params, *validation)
        metrics |= {f"validation_{name}": value for name, value in held_out.items()}
    return metrics


def scored_places(task: Task, count: int) -> np.ndarray:
    """Which of the examples, in the order of clients, are evaluated; int32."""
    return np.linspace(0, count - 1, min(count, task.scored.examples), dtype=np.int32)


def client_means(
    values: jax.Array, owner: jax.Array, num_clients: int
) -> tuple[jax.Array, jax.Array]:
    """Computes the mean value of every client's examples.

    Args:
      values: Value of each example [m].
      owner: Client that has it, int32 [m].

    Returns:
      Means, 0 for clients without examples, and numbers of examples, both [N].
    """
    sums = lambda v: jax.ops.segment_sum(v, owner, num_clients)
    counts = sums(jnp.ones_like(values))
    return sums(values) / jnp.maximum(counts, 1), counts


def spread(accuracy: jax.Array, has: jax.Array) -> Evaluation:
    """Describes how a score differs between clients.

    Args:
      accuracy: Score of each client [N].
      has: Which clients have one, bool [N].

    Returns:
      "std", "min" (the worst client), "p10" (the 10th percentile, with linear
      interpolation) and "median".
    """
    known = jnp.where(has, accuracy, jnp.nan)
    return {
        "std": jnp.nanstd(known),
        "min": jnp.nanmin(known),
        "p10": jnp.nanpercentile(known, WORST_SHARE),
        "median": jnp.nanmedian(known),
    }


def measure(task: Task, params: Params, x: jax.Array, y: jax.Array) -> Evaluation:
    """Computes every metric of a task, by name, on examples x [n, ...], y [n]."""
    each = scores(task, params, x, y)
    return {name: metric(each, y) for name, metric in task.metrics.items()}


def scores(task: Task, params: Params, x: jax.Array, y: jax.Array) -> Scores:
    """Computes the scores [n] of examples x [n, ...], y [n], by name, in batches."""
    count = len(x)
    batch = min(count, BATCH_SIZE)
    indices = jnp.arange(-(-count // batch) * batch).reshape(-1, batch) % count
    batches = jax.lax.map(lambda at: task.evaluate(params, x[at], y[at]), indices)
    each = jax.tree.map(lambda s: s.reshape(-1)[:count], batches)
    as_numbers = lambda s: s.astype(jnp.float32) if s.dtype == bool else s
    return jax.tree.map(as_numbers, each)


def _owners(clients: Clients) -> jax.Array:
    """The client of each entry of `order`."""
    number, total = len(clients.size), len(clients.partition.order)
    return jnp.repeat(jnp.arange(number), clients.size, total_repeat_length=total)
