"""Evaluation of parameters on training and test examples."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Params
from fedjax_muon.simulation.batching import Clients
from fedjax_muon.tasks.task import Scores, Task

BATCH_SIZE = 512
MAX_TRAINING_EXAMPLES = 10_000

Evaluation = dict[str, jax.Array]  # metrics by name
Examples = tuple[Any, Any]  # x [n, ...], y [n]


def evaluate(
    task: Task, params: Params, clients: Clients, test: Examples
) -> Evaluation:
    """Evaluates parameters on training and test examples.

    Args:
      task: Provides the metrics.
      params: The parameters.
      clients: Their examples are the training examples. From more than 10,000 of them,
        as many are selected at equal distances in the order of clients.
      test: Test examples, a pair (x [n, ...], y [n]).

    Returns:
      Every metric of the task with the prefixes "train_" and "test_". If examples are
      classified, also "client_accuracy_std", the standard deviation of the clients'
      accuracies.
    """
    count = len(clients.order)
    sampled = np.linspace(
        0, count - 1, min(count, MAX_TRAINING_EXAMPLES), dtype=np.int32
    )
    owned = clients.order[sampled]
    y = clients.y[owned]
    train = scores(task, params, clients.x[owned], y)
    found = {f"train_{name}": metric(train, y) for name, metric in task.metrics.items()}
    found |= {f"test_{name}": v for name, v in measure(task, params, *test).items()}
    if "correct" in train:
        spread = _client_spread(clients, sampled, train["correct"])
        found["client_accuracy_std"] = spread
    return found


def measure(task: Task, params: Params, x: jax.Array, y: jax.Array) -> Evaluation:
    """Computes every metric of a task on some examples.

    Args:
      task: Provides the metrics.
      params: The parameters.
      x: Examples [n, ...].
      y: Labels [n].

    Returns:
      Metrics by name.
    """
    found = scores(task, params, x, y)
    return {name: metric(found, y) for name, metric in task.metrics.items()}


def scores(task: Task, params: Params, x: jax.Array, y: jax.Array) -> Scores:
    """Computes the scores of every example, batch by batch.

    Args:
      task: Provides the scores.
      params: The parameters.
      x: Examples [n, ...].
      y: Labels [n].

    Returns:
      Scores [n] by name.
    """
    count = len(x)
    batch = min(count, BATCH_SIZE)
    indices = jnp.arange(-(-count // batch) * batch).reshape(-1, batch) % count
    found = jax.lax.map(lambda at: task.evaluate(params, x[at], y[at]), indices)
    found = jax.tree.map(lambda s: s.reshape(-1)[:count], found)
    as_numbers = lambda s: s.astype(jnp.float32) if s.dtype == bool else s
    return jax.tree.map(as_numbers, found)


def _client_spread(
    clients: Clients, sampled: np.ndarray, values: jax.Array
) -> jax.Array:
    """Computes the standard deviation over clients of the mean value of their sampled
    examples."""
    number = len(clients.size)
    total = len(clients.order)
    owner = jnp.repeat(jnp.arange(number), clients.size, total_repeat_length=total)
    client_sums = lambda v: jax.ops.segment_sum(v, owner[sampled], number)
    counts = client_sums(jnp.ones_like(values))
    means = client_sums(values) / jnp.maximum(counts, 1)
    return jnp.std(means, where=counts > 0)
