"""A task and examples for audits of whole simulations.

The gradient of the canary has a direction of its own, is far longer than any clip norm,
and has a sign that may depend on the iteration, since a public gradient moves one of
the parameters by the same amount in every iteration. Other records have a second
direction, which tells how many of them are in a batch.
"""

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core.pair import Pair
from fedjax_muon.data import Dataset
from fedjax_muon.tasks.task import Batch, Task

LENGTH = 1e3  # of the canary's gradient; far above every clip norm
SHORT = 1e-2  # of it, the length of other gradients: above clip norms, but the canary's
# dominates a mean
OVERFLOW = 1e38  # its gradient is infinite, and a client with it counts as absent
TICK = 1e4  # by which the clock moves in every iteration
ROOT = math.sqrt(0.5)
# the parameters are (x0, x1, x2, y0, y1, y2), and y2 is the clock
CANARY = np.array([ROOT, 0, 0, -ROOT, 0, 0])
OTHERS = np.array([0.0, 1, 0, 0, 0, 0])
FREE = np.array([[ROOT, 0, 0, ROOT, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0]])


def canary_task(lr: float, period: int | None = None) -> Task:
    """Makes a task whose gradients are written in its examples.

    Example (a, b) has the gradient a LENGTH along the canary's direction and b LENGTH
    along that of the others, times a sign that may depend on the iteration: plus where
    t is a multiple of `period`, and minus elsewhere.

    Args:
      lr: Learning rate of the algorithm, by which the clock moves.
      period: Period of the sign; None for plus everywhere, without a clock.

    Returns:
      The task; its parameters are a `Pair` of three numbers each, from zero.
    """

    def sign(params: Pair) -> jax.Array | float:
        if period is None:
            return 1.0
        time = jnp.round(-params.y[2] / TICK).astype(jnp.int32)
        return jnp.where(time % period == 0, 1.0, -1.0)

    def example_grad(params: Pair, batch: Batch, key: jax.Array) -> Pair:
        del key
        directions = jnp.asarray(np.stack([CANARY, OTHERS]), jnp.float32)
        rows = LENGTH * sign(params) * (batch.x @ directions) * batch.weight[:, None]
        return Pair(rows[:, :3], rows[:, 3:])

    def grad(params: Pair, batch: Batch, key: jax.Array) -> Pair:
        total = jnp.maximum(batch.weight.sum(), 1)
        rows = example_grad(params, batch, key)
        return jax.tree.map(lambda x: x.sum(0) / total, rows)

    def clock(params: Pair) -> Pair:
        return Pair(jnp.zeros_like(params.x), params.y * 0 + _last(TICK / lr))

    zeros = jnp.zeros(3, jnp.float32)
    return Task(
        init=lambda key: Pair(zeros, zeros),
        grad=grad,
        evaluate=lambda params, x, y: {"loss": jnp.zeros(len(x))},
        example_grad=example_grad,
        public_grad=None if period is None else clock,
        metrics={},
    )


def _last(value: float) -> jax.Array:
    return jnp.array([0.0, 0.0, value], jnp.float32)


def canary_data(
    sizes: Sequence[int], owner: int, *, together: bool = False, alone: bool = False
) -> tuple[Dataset, list[np.ndarray]]:
    """Makes the examples of all agents, or of all clients.

    Args:
      sizes: Numbers of their examples.
      owner: Who has the canary.
      together: Whether all examples of the owner are canaries, so that the owner is the
        record, as for the privacy of clients.
      alone: Whether the gradients of all others are infinite, so that a server with
        private clients counts none of them.

    Returns:
      Examples, and the ids of everyone's examples. The canary is the owner's first.
    """
    ends = np.cumsum([0, *sizes])
    x = np.tile(np.array([0, OVERFLOW if alone else SHORT], np.float32), (ends[-1], 1))
    start = ends[owner]
    x[start : ends[owner + 1] if together else start + 1] = [1, 0]
    labels = np.arange(ends[-1], dtype=np.int32) % 2
    parts = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    return Dataset(x, labels, x[:2], labels[:2], ("0", "1")), parts
