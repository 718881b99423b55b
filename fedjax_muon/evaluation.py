"""What parameters are worth, on the clients' examples and on others."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.batching import Clients
from fedjax_muon.metrics import matthews, roc_auc
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
    train_auc: jax.Array | None = None  # of tasks that score two classes
    test_auc: jax.Array | None = None
    test_mcc: jax.Array | None = None  # Matthews' correlation, of tasks judged by it


def evaluate(task: Task, params, clients: Clients, test) -> Evaluation:
    """Scores parameters on the clients' examples and on `test`, a pair (x, y)."""
    count = len(clients.order)
    sampled = np.linspace(0, count - 1, min(count, EVALUATED), dtype=np.int32)
    owned = clients.order[sampled]
    train = means(task, params, clients.x[owned], clients.y[owned])
    tested = means(task, params, *test)
    return Evaluation(
        train_loss=train.loss,
        train_accuracy=train.accuracy,
        test_loss=tested.loss,
        test_accuracy=tested.accuracy,
        client_accuracy_std=_client_spread(clients, sampled, train.correct),
        train_auc=train.auc,
        test_auc=tested.auc,
        test_mcc=tested.mcc,
    )


class Means(NamedTuple):
    """Of some examples."""

    loss: jax.Array
    accuracy: jax.Array
    correct: jax.Array  # [n], 1 or 0
    auc: jax.Array | None
    mcc: jax.Array | None


def means(task: Task, params, x, y) -> Means:
    """Scores parameters on examples."""
    loss, correct, score, predicted = scores(task, params, x, y)
    return Means(
        loss=jnp.mean(loss),
        accuracy=jnp.mean(correct),
        correct=correct,
        auc=None if score is None else roc_auc(score, y),
        mcc=None if predicted is None else matthews(predicted, y),
    )


def scores(task: Task, params, x, y):
    """The `Scores` of every example, a batch at a time."""
    count = len(x)
    batch = min(count, BATCH)
    places = jnp.arange(-(-count // batch) * batch).reshape(-1, batch) % count
    found = jax.lax.map(lambda at: task.evaluate(params, x[at], y[at]), places)
    found = jax.tree.map(lambda s: s.reshape(-1)[:count], found)
    return found._replace(correct=found.correct.astype(jnp.float32))


def _client_spread(clients: Clients, sampled, values):
    """The standard deviation over clients of their mean of a value per example."""
    number = len(clients.size)
    total = len(clients.order)
    owner = jnp.repeat(jnp.arange(number), clients.size, total_repeat_length=total)
    summed = lambda v: jax.ops.segment_sum(v, owner[sampled], number)
    counts = summed(jnp.ones_like(values))
    means = summed(values) / jnp.maximum(counts, 1)
    return jnp.std(means, where=counts > 0)
