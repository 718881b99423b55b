"""Adversarially robust training against one perturbation of all examples.

    min over x, max over |delta| <= radius:
        mean loss at a + delta - strength / 2 |delta|^2

Universal adversarial training, Shafahi et al. 2020, arXiv:1811.11304. The perturbation
delta is the dual variable, which all clients share.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from fedjax_muon.core import Params, check_range
from fedjax_muon.core.pair import Pair, descent_ascent, on_y
from fedjax_muon.tasks.classification import (
    Examples,
    classification,
    cross_entropy,
    example_shape_of,
)
from fedjax_muon.tasks.task import Batch, Scores, Task


def adversarial(
    model: nn.Module, examples: Examples, *, radius: float, strength: float = 0.0
) -> Task:
    """Classification of perturbed examples.

    Args:
      radius: Largest Euclidean norm of the perturbation, positive.
      strength: Weight of the quadratic term that pulls the perturbation to zero.

    Returns:
      A task whose parameters are `Pair(parameters of the model, perturbation)`. The
      perturbation has the shape of one example and starts at zero. Scores are of the
      perturbed examples.
    """
    check_range("strength", strength, schedules=False)
    check_range("radius", radius, open_low=True, schedules=False)
    project = on_y(partial(optax.projections.projection_l2_ball, scale=radius))
    plain, loss = classification(model, examples), cross_entropy(model)

    def init(key: jax.Array) -> Pair:
        return Pair(plain.init(key), jnp.zeros(example_shape_of(examples)))

    def objective(params: Pair, batch: Batch, key: jax.Array) -> jax.Array:
        moved = batch._replace(x=batch.x + params.y[None])
        return loss(params.x, moved, key) - strength / 2 * jnp.sum(params.y**2)

    def evaluate(params: Params, x: jax.Array, y: jax.Array) -> Scores:
        return plain.evaluate(params.x, x + params.y[None], y)

    return Task(init, descent_ascent(jax.grad(objective)), evaluate, project)
