"""Adversarially robust training against one perturbation of all examples.

min over x, max over |delta| <= radius of the mean loss at a + delta - strength / 2
|delta|^2: universal adversarial training, Shafahi et al. 2020, arXiv:1811.11304, with a
perturbation that all clients share as the dual variable.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from fedjax_muon.pair import Pair, descent_ascent, on_y
from fedjax_muon.ranges import check_range
from fedjax_muon.tasks import Task, classification, cross_entropy


def project_perturbation(radius: float):
    """For `pair.projected`: keeps the perturbation in the Euclidean ball."""
    check_range("radius", radius, open_low=True, schedules=False)
    return on_y(partial(optax.projections.projection_l2_ball, scale=radius))


def adversarial(
    model: nn.Module, example_shape: tuple[int, ...], *, strength: float = 0.0
) -> Task:
    """The task of classifying perturbed examples.

    Args:
      model: as for `tasks.classification`.
      example_shape: of one example, and of the perturbation, which starts at zero.
      strength: of the pull of the perturbation towards zero.

    Give the algorithm's rule to `pair.projected(rule, project_perturbation(radius))`.
    `evaluate` scores the perturbed examples. Raises `ValueError` for a negative
    strength.
    """
    check_range("strength", strength, schedules=False)
    plain, loss = classification(model, example_shape), cross_entropy(model)

    def init(key):
        return Pair(plain.init(key), jnp.zeros(example_shape))

    def objective(params, batch, key):
        moved = batch._replace(x=batch.x + params.y[None])
        return loss(params.x, moved, key) - strength / 2 * jnp.sum(params.y**2)

    def evaluate(params, x, y):
        return plain.evaluate(params.x, x + params.y[None], y)

    return Task(init, descent_ascent(jax.grad(objective)), evaluate)
