"""Agnostic federated learning: the worst mixture of clients.

Mohri et al. 2019, arXiv:1902.00146: min over x, max over w in the simplex of

    sum_i w_i f_i(x) - strength / 2 |w - 1/N|^2,

whose i-th share, of which the clients' mean is taken, is N w_i f_i(x) and the second
term.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_muon.core import check_range
from fedjax_muon.core.pair import Pair, descent_ascent
from fedjax_muon.tasks.classification import (
    Examples,
    Task,
    classification,
    cross_entropy,
)
from fedjax_muon.tasks.simplex import project_weights


def agnostic(
    model: nn.Module,
    examples: Examples,
    num_clients: int,
    *,
    strength: float = 0.0,
) -> Task:
    """The task of classifying well for the worst mixture of clients.

    Args:
      model: as for `tasks.classification`.
      examples: as for `tasks.classification`.
      num_clients: N.
      strength: of the pull of the weights towards 1/N each.

    Weights are projected onto the simplex. Scores are those of `classification`.

    Raises `ValueError` for fewer than 1 clients or a negative strength, and, when it is
    used, for a gradient whose batch does not say its client. Gradients of clients
    beyond `num_clients` are nan.
    """
    if num_clients < 1:
        raise ValueError(f"num_clients must be at least 1, got {num_clients}")
    check_range("strength", strength, schedules=False)
    plain, loss = classification(model, examples), cross_entropy(model)

    def init(key):
        return Pair(plain.init(key), jnp.full(num_clients, 1 / num_clients))

    def grad(params, batch, key):
        if batch.client is None:
            raise ValueError("a batch must say whose it is")
        return jax.grad(objective)(params, batch, key)

    def objective(params, batch, key):
        # a client that has no weight makes the gradient nan, which is never averaged
        weight = params.y.at[batch.client].get(mode="fill", fill_value=jnp.nan)
        mine = num_clients * weight * loss(params.x, batch, key)
        return mine - strength / 2 * jnp.sum((params.y - 1 / num_clients) ** 2)

    def evaluate(params, x, y):
        return plain.evaluate(params.x, x, y)

    return Task(init, descent_ascent(grad), evaluate, project_weights)
