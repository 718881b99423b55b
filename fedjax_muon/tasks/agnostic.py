"""Agnostic federated learning: the worst mixture of clients.

Mohri et al. 2019, arXiv:1902.00146:

    min over x, max over w in the simplex:
        sum_i w_i f_i(x) - strength / 2 |w - 1/N|^2

Client i has the objective N w_i f_i(x) plus the second term, so that the mean over the
clients is this objective.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_muon.core import check_count, check_range
from fedjax_muon.core.pair import Pair, descent_ascent
from fedjax_muon.tasks.classification import Examples, classification, cross_entropy
from fedjax_muon.tasks.simplex import project_weights
from fedjax_muon.tasks.task import Batch, Scores, Task


def agnostic(
    model: nn.Module, examples: Examples, num_clients: int, *, strength: float = 0.0
) -> Task:
    """Classification for the worst mixture of clients.

    Args:
      strength: Weight of the quadratic term that pulls the weights to 1/N.

    Returns:
      A task whose parameters are `Pair(parameters of the model, weights [N])`. The
      weights are projected onto the simplex. Scores are as in `classification`. The
      gradient requires `Batch.client`, and is NaN for clients from N on.
    """
    check_count("num_clients", num_clients)
    check_range("strength", strength, schedules=False)
    plain, loss = classification(model, examples), cross_entropy(model)

    def init(key: jax.Array) -> Pair:
        return Pair(plain.init(key), jnp.full(num_clients, 1 / num_clients))

    def grad(params: Pair, batch: Batch, key: jax.Array) -> Pair:
        if batch.client is None:
            raise ValueError("a batch must have its client's number (Batch.client)")
        return jax.grad(objective)(params, batch, key)

    def objective(params: Pair, batch: Batch, key: jax.Array) -> jax.Array:
        # NaN for numbers from N on, which pad a cohort: they are never averaged.
        weight = params.y.at[batch.client].get(mode="fill", fill_value=jnp.nan)
        weighted = num_clients * weight * loss(params.x, batch, key)
        return weighted - strength / 2 * jnp.sum((params.y - 1 / num_clients) ** 2)

    def evaluate(params: Pair, x: jax.Array, y: jax.Array) -> Scores:
        return plain.evaluate(params.x, x, y)

    return Task(init, descent_ascent(grad), evaluate, project_weights)
