"""Evaluation of parameters on the clients' examples and on others."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.simulation.batching import Clients
from fedjax_muon.tasks.classification import Scores, Task

BATCH = 512
EVALUATED = 10_000  # training examples, at most

Evaluation = dict[str, jax.Array]  # of metrics by name


def evaluate(task: Task, params, clients: Clients, test) -> Evaluation:
    """Evaluates parameters on training and test examples.

    Args:
      task: Has the metrics.
      params: What is evaluated.
      clients: Their examples are the training examples; of more than 10,000 as many are
        taken, at equal distances in the order of clients.
      test: Test examples, a pair (x, y).

    Returns:
      Every metric of the task with the prefix "train_" and "test_", and
      "client_accuracy_std", the spread of the clients' accuracies, if examples are
      classified.
    """
    count = len(clients.order)
    sampled = np.linspace(0, count - 1, min(count, EVALUATED), dtype=np.int32)
    owned = clients.order[sampled]
    y = clients.y[owned]
    train = scores(task, params, clients.x[owned], y)
    found = {f"train_{name}": metric(train, y) for name, metric in task.metrics.items()}
    found |= {f"test_{name}": v for name, v in measure(task, params, *test).items()}
    if "correct" in train:
        spread = _client_spread(clients, sampled, train["correct"])
        found["client_accuracy_std"] = spread
    return found


def measure(task: Task, params, x, y) -> Evaluation:
    """Every metric of a task on some examples."""
    found = scores(task, params, x, y)
    return {name: metric(found, y) for name, metric in task.metrics.items()}


def scores(task: Task, params, x, y) -> Scores:
    """The `Scores` of every example, a batch at a time."""
    count = len(x)
    batch = min(count, BATCH)
    places = jnp.arange(-(-count // batch) * batch).reshape(-1, batch) % count
    found = jax.lax.map(lambda at: task.evaluate(params, x[at], y[at]), places)
    found = jax.tree.map(lambda s: s.reshape(-1)[:count], found)
    as_numbers = lambda s: s.astype(jnp.float32) if s.dtype == bool else s
    return jax.tree.map(as_numbers, found)


def _client_spread(clients: Clients, sampled, values):
    """The standard deviation over clients of their mean of a value per example."""
    number = len(clients.size)
    total = len(clients.order)
    owner = jnp.repeat(jnp.arange(number), clients.size, total_repeat_length=total)
    summed = lambda v: jax.ops.segment_sum(v, owner[sampled], number)
    counts = summed(jnp.ones_like(values))
    means = summed(values) / jnp.maximum(counts, 1)
    return jnp.std(means, where=counts > 0)
