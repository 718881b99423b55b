"""Random augmentation of training images, drawn inside the gradient for every batch.

    task = tasks.classification(model, dataset)
    task = augmented(task, crop_and_flip(padding=4))

The augmentation is a function of the key of the gradient, which differs for every
client and every step. Methods that evaluate the gradient at two points with the same
batch and key see the same images twice.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_muon.core import Params, check_count
from fedjax_muon.tasks.task import Batch, Task, as_partial

Augmentation = Callable[[jax.Array, jax.Array], jax.Array]
# (key, x [B, ...]) -> x of the same shape and dtype


class CropsAndFlips(NamedTuple):
    """The crop and the flip of each of B images."""

    top: jax.Array  # int32 [B], first row of the crop in the padded image
    left: jax.Array  # int32 [B], first column
    mirrored: jax.Array  # bool [B]


def augmented(task: Task, augmentation: Augmentation) -> Task:
    """Augments the examples of which a task takes the gradient.

    The key of the gradient is split in two: one for the augmentation, the other for
    the task's own gradient, such as its dropout. Evaluation does not change.
    """
    changed = lambda grad: Partial(_grad, as_partial(grad), as_partial(augmentation))
    one = task.example_grad
    example_grad = None if one is None else changed(one)
    return task._replace(grad=changed(task.grad), example_grad=example_grad)


def _grad(
    grad: Partial, augmentation: Partial, params: Params, batch: Batch, key: jax.Array
) -> Params:
    change_key, grad_key = jax.random.split(key)
    x = augmentation(change_key, batch.x)
    return grad(params, batch._replace(x=x), grad_key)


def crop_and_flip(padding: int = 4) -> Augmentation:
    """Random crops of the padded image, mirrored left to right with probability 1/2.

    This is usual for CIFAR since He et al. 2016 (arXiv:1512.03385, section 4.2). The
    padding is zero in the units of the dataset: the mean color if it is standardized,
    while many PyTorch programs standardize later and pad with black.

    Args:
      padding: Pixels that are added on all four sides before the crop, which has the
        size of the image.
    """
    check_count("padding", padding, 0)
    return partial(_crop_and_flip, padding=padding)


def draw(key: jax.Array, count: int, padding: int) -> CropsAndFlips:
    """Draws crops and flips; all positions are equally likely."""
    place_key, mirror_key = jax.random.split(key)
    top, left = jax.random.randint(place_key, (2, count), 0, 2 * padding + 1)
    return CropsAndFlips(top, left, jax.random.bernoulli(mirror_key, shape=(count,)))


def _crop_and_flip(key: jax.Array, x: jax.Array, *, padding: int) -> jax.Array:
    if jnp.ndim(x) != 4:
        raise ValueError(f"only images [B, H, W, C] can be cropped, got {jnp.shape(x)}")
    drawn = draw(key, len(x), padding)
    sides = (padding, padding)
    padded = jnp.pad(x, ((0, 0), sides, sides, (0, 0)))
    crop = lambda image, *place: jax.lax.dynamic_slice(image, (*place, 0), x.shape[1:])
    cropped = jax.vmap(crop)(padded, drawn.top, drawn.left)
    mirrored = drawn.mirrored[:, None, None, None]
    return jnp.where(mirrored, cropped[:, :, ::-1], cropped)
