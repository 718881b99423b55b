"""What parameters are worth, on the clients' examples and on others."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.batching import Clients
from fedjax_muon.tasks import Task

BATCH = 512
EVALUATED = 10_000  # training examples, at most


class Evaluation(NamedTuple):
    """Means over examples: all test examples, and the clients' own training examples,
    of which, if they have more, 10,000 are taken at equal distances in the order of
    clients. The spread is that of the clients' accuracies on these."""

    train_loss: jax.Array
    train_accuracy: jax.Array
    test_loss: jax.Array
    test_accuracy: jax.Array
    client_accuracy_std: jax.Array


def evaluate(task: Task, params, clients: Clients, test) -> Evaluation:
    """Scores parameters on the clients' examples and on `test`, a pair (x, y)."""
    count = len(clients.order)
    sampled = np.linspace(0, count - 1, min(count, EVALUATED), dtype=np.int32)
    owned = clients.order[sampled]
    loss, correct = scores(task, params, clients.x[owned], clients.y[owned])
    test_loss, test_correct = scores(task, params, *test)
    return Evaluation(
        train_loss=jnp.mean(loss),
        train_accuracy=jnp.mean(correct),
        test_loss=jnp.mean(test_loss),
        test_accuracy=jnp.mean(test_correct),
        client_accuracy_std=_client_spread(clients, sampled, correct),
    )


def scores(task: Task, params, x, y):
    """Loss and correctness of every example, a batch at a time."""
    count = len(x)
    batch = min(count, BATCH)
    places = jnp.arange(-(-count // batch) * batch).reshape(-1, batch) % count
    scores = jax.lax.map(lambda at: task.evaluate(params, x[at], y[at]), places)
    loss, correct = (s.reshape(-1)[:count] for s in scores)
    return loss, correct.astype(jnp.float32)


def _client_spread(clients: Clients, sampled, values):
    """The standard deviation over clients of their mean of a value per example."""
    number = len(clients.size)
    total = len(clients.order)
    owner = jnp.repeat(jnp.arange(number), clients.size, total_repeat_length=total)
    summed = lambda v: jax.ops.segment_sum(v, owner[sampled], number)
    counts = summed(jnp.ones_like(values))
    means = summed(values) / jnp.maximum(counts, 1)
    return jnp.std(means, where=counts > 0)
