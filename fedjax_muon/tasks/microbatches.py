"""Gradients of large batches, a few examples at a time."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_muon.core import Params, check_count, tree
from fedjax_muon.core.variables import refuse_statistics
from fedjax_muon.tasks.task import Batch, Task, as_partial


def microbatched(task: Task, size: int) -> Task:
    """Computes gradients of `size` examples at a time, which take less memory.

    They add up to the gradient of the batch, since its loss is a mean over examples by
    their weights. Dropout differs, since every part has its own key.

    Example:
      >>> task = fm.tasks.classification(fm.models.MLP(10), digits)
      >>> task = microbatched(task, 8)
    """
    check_count("microbatch", size)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    refuse_statistics(shapes, "microbatches, whose statistics differ")
    return task._replace(grad=Partial(partial(_grad, size), as_partial(task.grad)))


def _grad(
    size: int, grad: Partial, params: Params, batch: Batch, key: jax.Array
) -> Params:
    rows = {k: getattr(batch, k) for k in ("x", "y", "weight", "ids")}
    rows = {name: a for name, a in rows.items() if a is not None}
    count = len(batch.weight)
    number = -(-count // size)
    if number == 1:
        return grad(params, batch, key)

    def divided(a: jax.Array) -> jax.Array:
        padding = [(0, number * size - count), *[(0, 0)] * (a.ndim - 1)]
        return jnp.pad(a, padding).reshape(number, size, *a.shape[1:])

    def add(total: Params, part: tuple[Any, jax.Array]) -> tuple[Params, None]:
        some = batch._replace(**part[0])
        gradient = grad(params, some, part[1])
        return tree.add_scaled(total, some.weight.sum(), gradient), None

    zeros = tree.zeros_like(jax.eval_shape(grad, params, batch, key))
    several = jax.tree.map(divided, rows), jax.random.split(key, number)
    total, _ = jax.lax.scan(add, zeros, several)
    whole = batch.weight.sum()
    return tree.scale(total, 1 / jnp.where(whole > 0, whole, 1))
