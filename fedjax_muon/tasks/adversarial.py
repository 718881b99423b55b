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

from fedjax_muon.core import check_range
from fedjax_muon.core.pair import Pair, descent_ascent, on_y
from fedjax_muon.tasks.classification import (
    Examples,
    Task,
    classification,
    cross_entropy,
    example_shape_of,
)


def project_perturbation(radius: float):
    """For `Task.project`: keeps the perturbation in the Euclidean ball."""
    check_range("radius", radius, open_low=True, schedules=False)
    return on_y(partial(optax.projections.projection_l2_ball, scale=radius))


def adversarial(
    model: nn.Module,
    examples: Examples,
    *,
    radius: float,
    strength: float = 0.0,
) -> Task:
    """The task of classifying perturbed examples.

    Args:
      model: as for `tasks.classification`.
      examples: as for `tasks.classification`; the perturbation, which starts at zero,
        has the shape of one.
      radius: largest Euclidean norm of the perturbation, onto which it is projected.
      strength: of the pull of the perturbation towards zero.

    `evaluate` scores the perturbed examples. Raises `ValueError` for a negative
    strength, and a radius that is not positive.
    """
    check_range("strength", strength, schedules=False)
    project = project_perturbation(radius)
    plain, loss = classification(model, examples), cross_entropy(model)

    def init(key):
        return Pair(plain.init(key), jnp.zeros(example_shape_of(examples)))

    def objective(params, batch, key):
        moved = batch._replace(x=batch.x + params.y[None])
        return loss(params.x, moved, key) - strength / 2 * jnp.sum(params.y**2)

    def evaluate(params, x, y):
        return plain.evaluate(params.x, x + params.y[None], y)

    return Task(init, descent_ascent(jax.grad(objective)), evaluate, project)
