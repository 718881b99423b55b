"""Regression: one number for each example, by the squared error."""

from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_muon.core import Params
from fedjax_muon.core.variables import refuse_statistics
from fedjax_muon.data import Dataset
from fedjax_muon.tasks.classification import (
    check_model,
    example_shape_of,
    initial,
    logits_of,
    weighted_mean,
)
from fedjax_muon.tasks.metrics import mean_error, mean_loss
from fedjax_muon.tasks.task import Batch, Scores, Task


class Scale(NamedTuple):
    """What targets are standardized with."""

    mean: float
    std: float


def scale_of(dataset: Dataset) -> Scale:
    """The mean and the standard deviation of the training targets."""
    if dataset.classes:
        raise ValueError(
            f"this dataset has the classes {', '.join(dataset.classes[:5])}, but no "
            "targets; read it with from_csv(..., target=...), or from_arrays(x, "
            "targets=y)"
        )
    y = np.asarray(dataset.y_train, float)
    if y.min() == y.max():
        raise ValueError(
            f"all training targets are {y[0]:g}; there is nothing to learn"
        )
    return Scale(float(y.mean()), float(y.std()))


def regression(model: nn.Module, dataset: Dataset) -> Task:
    """Regression with the squared error of standardized targets.

    The loss of an example is (f(x) - (y - mean) / std)^2, with the mean and the
    standard deviation of the training targets, so predicting the mean has a loss of 1.
    The metric "mae" is the mean absolute error in the unit of the targets.

    Args:
      model: Module that maps [B, ...] to [B, 1].
      dataset: Its labels are targets, float32 [n].

    Example:
      >>> x = np.arange(40.0).reshape(20, 2)
      >>> dataset = fm.data.from_arrays(x, targets=x[:, 0])
      >>> task = regression(fm.models.MLP(1), dataset)
    """
    scale = scale_of(dataset)
    shapes = check_model(model, dataset, outputs=1)
    refuse_statistics(shapes, "regression")
    init = initial(model, example_shape_of(dataset))
    evaluate = partial(_evaluate, model, scale)
    metrics = {"loss": Partial(mean_loss), "mae": Partial(mean_error)}
    return Task(init, partial(_grad, model, scale), evaluate, metrics=metrics)


def _errors(
    model: nn.Module,
    scale: Scale,
    params: Params,
    x: jax.Array,
    y: jax.Array,
    *key: jax.Array,
) -> jax.Array:
    return logits_of(model, params, x, *key)[:, 0] - (y - scale.mean) / scale.std


def _grad(
    model: nn.Module, scale: Scale, params: Params, batch: Batch, key: jax.Array
) -> Params:
    def loss(params: Params) -> jax.Array:
        errors = _errors(model, scale, params, batch.x, batch.y, key)
        return weighted_mean(errors**2, batch.weight)

    return jax.grad(loss)(params)


def _evaluate(
    model: nn.Module, scale: Scale, params: Params, x: jax.Array, y: jax.Array
) -> Scores:
    errors = _errors(model, scale, params, x, y)
    return {"loss": errors**2, "error": jnp.abs(errors) * scale.std}
