"""Random changes of training images, drawn inside the gradient for every batch.

    task = tasks.classification(model, dataset.x_train.shape[1:])
    task = augmented(task, crop_and_flip(padding=4))

What is drawn is a function of the key that the gradient is given. Every client and
every step have another, and methods that ask for the gradient at two points with the
same batch and key meet the same images twice.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_muon.tasks.classification import Task, as_partial

Augmentation = Callable[[jax.Array, jax.Array], jax.Array]
# (key, x [B, ...]) -> x of the same shape and dtype


class CropsAndFlips(NamedTuple):
    """How each of B images is changed."""

    top: jax.Array  # int32 [B], where the crop begins in the padded image
    left: jax.Array  # int32 [B]
    mirrored: jax.Array  # bool [B]


def augmented(task: Task, augmentation: Augmentation) -> Task:
    """The task whose gradient is of changed examples; its evaluation is as before.

    Examples of weight 0, which are padding, are changed like all others and count as
    little. The key of the gradient is split in two, for `augmentation` and for the
    task's own gradient, such as for its dropout.
    """
    changed = lambda grad: Partial(_grad, as_partial(grad), as_partial(augmentation))
    one = task.example_grad
    example_grad = None if one is None else changed(one)
    return task._replace(grad=changed(task.grad), example_grad=example_grad)


def _grad(grad, augmentation, params, batch, key):
    change_key, grad_key = jax.random.split(key)
    x = augmentation(change_key, batch.x)
    return grad(params, batch._replace(x=x), grad_key)


def crop_and_flip(padding: int = 4) -> Augmentation:
    """Each image is cropped to its own size, at random from itself with `padding` zeros
    on all four sides, and mirrored left to right with probability 1/2.

    As usual for CIFAR since He et al. 2016 (arXiv:1512.03385, section 4.2). Zeros are
    added to what the data set has: they are the mean colour where it is standardised,
    and black where that comes later, as in many programs for PyTorch.

    Raises `ValueError` for a padding that is no integer or is negative and, when it is
    used, for anything but images [B, H, W, C].
    """
    try:
        pixels = operator.index(padding)
    except TypeError:
        pixels = -1
    if pixels < 0:
        raise ValueError(f"padding must be an integer of at least 0, got {padding!r}")
    return partial(_crop_and_flip, padding=pixels)


def draw(key: jax.Array, count: int, padding: int) -> CropsAndFlips:
    """What `crop_and_flip` does to `count` images: all places are equally likely."""
    place_key, mirror_key = jax.random.split(key)
    top, left = jax.random.randint(place_key, (2, count), 0, 2 * padding + 1)
    return CropsAndFlips(top, left, jax.random.bernoulli(mirror_key, shape=(count,)))


def _crop_and_flip(key, x, *, padding: int):
    if jnp.ndim(x) != 4:
        raise ValueError(
            f"images [B, H, W, C] can be cropped, got examples {jnp.shape(x)}"
        )
    drawn = draw(key, len(x), padding)
    beside = (padding, padding)
    padded = jnp.pad(x, ((0, 0), beside, beside, (0, 0)))
    crop = lambda image, *place: jax.lax.dynamic_slice(image, (*place, 0), x.shape[1:])
    cropped = jax.vmap(crop)(padded, drawn.top, drawn.left)
    mirrored = drawn.mirrored[:, None, None, None]
    return jnp.where(mirrored, cropped[:, :, ::-1], cropped)
