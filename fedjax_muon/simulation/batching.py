"""Batches of clients: ids of examples, drawn inside jit.

The examples are stored on the device once. A client owns a segment of `order`. Its
local steps scan `ExampleIndices`, and gather the examples step by step
(`gradient_of_indices`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Objective, Params, unconstrained
from fedjax_muon.simulation.arguments import on_device
from fedjax_muon.tasks.classification import weighted_mean
from fedjax_muon.tasks.task import Batch, Task, per_example

T = TypeVar("T")

Array = jax.Array | np.ndarray
Sampler = Callable[[jax.Array, jax.Array, int, int, int], jax.Array]
# (key, size, steps, batch_size, max_client_size) -> int32 [steps, batch], positions
# below `size` among a client's examples, or -1 for padding; `size`, int32 [], is the
# number of the client's examples


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Partition:
    """Which examples each client has: a segment of `order`."""

    order: jax.Array  # int32, ids of examples, client by client
    start: jax.Array  # int32 [N], first position of a client's segment
    size: jax.Array  # int32 [N], length of the segment, at least 1
    shares: jax.Array  # float32 [N, classes], class frequencies of a client's examples
    # upper bound of the sizes, on which the shapes in compiled programs depend
    max_size: int = dataclasses.field(metadata={"static": True})


class Clients(NamedTuple):
    """Training examples of all clients."""

    x: jax.Array  # [n, ...]
    y: jax.Array  # [n]
    partition: Partition
    ids: jax.Array | None = None  # int32 [n], what they are called, if not 0 to n - 1

    @property
    def size(self) -> jax.Array:
        """The number of examples of each client, int32 [N]."""
        return self.partition.size

    @property
    def max_size(self) -> int:
        """An upper bound of the sizes."""
        return self.partition.max_size


class ExampleIndices(NamedTuple):
    """The examples of K batches, or of one batch without the leading axis."""

    ids: jax.Array  # int32 [K, B], -1 for padding
    client: jax.Array  # int32 [K], the client that owns the examples


def clients_of(x: Array, y: Array, parts: Sequence[np.ndarray]) -> Clients:
    """Puts examples x [n, ...] with labels y [n] of clients on the device."""
    if x.dtype == np.uint8:
        raise ValueError(
            "these examples are raw uint8 pixels; convert them first, with "
            "fedjax_muon.data.standardize(dataset) or to float32"
        )
    return Clients(on_device(x), on_device(y), partition_of(y, parts))


def partition_of(y: Array, parts: Sequence[np.ndarray]) -> Partition:
    """Puts the ids of clients' examples, whose labels are y [n], on the device."""
    if not parts:
        raise ValueError("a partition needs at least one client, got none")
    sizes = [len(part) for part in parts]
    if 0 in sizes:
        raise ValueError(
            f"client {sizes.index(0)} has no examples; use fewer clients, a larger "
            "alpha or min_size of at least 1"
        )
    order = np.concatenate([np.asarray(part) for part in parts])
    if order.dtype.kind not in "iu":
        raise ValueError(f"a partition holds ids of examples, got {order.dtype}")
    unknown = order[(order < 0) | (order >= len(y))]
    if len(unknown):
        raise ValueError(
            f"the partition names example {unknown[0]}, but there are only 0 to "
            f"{len(y) - 1}"
        )
    labels = np.asarray(y)
    if labels.dtype == np.float32:  # targets, which have no shares of classes
        labels = np.zeros(len(labels), int)
    if labels.dtype.kind not in "iu" or labels.min() < 0:
        raise ValueError(
            f"labels must be integers from 0, got {labels.dtype} from {labels.min()}"
        )
    classes = int(labels.max()) + 1
    counts = [np.bincount(labels[part], minlength=classes) for part in parts]
    as_ids = lambda a: jnp.asarray(a, jnp.int32)
    return Partition(
        order=as_ids(order),
        start=as_ids(np.cumsum([0, *sizes[:-1]])),
        size=as_ids(sizes),
        shares=jnp.asarray(np.array(counts) / np.array(sizes)[:, None], jnp.float32),
        max_size=max_client_size_of(parts),
    )


def max_client_size_of(parts: Sequence[np.ndarray]) -> int:
    """Computes an upper bound of the clients' sizes, a power of two.

    Partitions of similar sizes have the same bound, and so share compiled programs.
    """
    return 1 << (max(map(len, parts)) - 1).bit_length()


def shuffled_epochs(
    key: jax.Array, size: jax.Array, steps: int, batch_size: int, max_client_size: int
) -> jax.Array:
    """Draws K consecutive batches from epochs that are shuffled independently.

    A batch may contain the end of one epoch and the beginning of the next. The result
    does not depend on `max_client_size`.
    """
    count = steps * batch_size
    first_key, rest_key = jax.random.split(key)
    at = jnp.arange(count + min(count, max_client_size), dtype=jnp.int32)
    draw = jax.random.bits(rest_key, at.shape, jnp.uint32)
    # Every epoch in use is complete, if the client has fewer than `count` examples.
    _, _, position = jax.lax.sort((at // size, draw, at % size), num_keys=2)
    position = position[:count]
    if max_client_size >= count:
        # One epoch is enough for larger clients. Its first positions are those of the
        # largest random numbers, which is much faster than sorting all numbers.
        bits = jax.random.bits(first_key, (max_client_size,), jnp.uint32) >> 2
        mark = jax.lax.bitcast_convert_type(bits + jnp.uint32(1 << 23), jnp.float32)
        # Marks are positive, so zeros come last.
        mark = jnp.where(jnp.arange(max_client_size) < size, mark, 0)
        top = jax.lax.top_k(mark, count)[1]
        position = jnp.where(size >= count, top, position)
    return position.reshape(steps, batch_size)


def with_replacement(
    key: jax.Array, size: jax.Array, steps: int, batch_size: int, max_client_size: int
) -> jax.Array:
    """Draws every example of every batch independently and uniformly."""
    del max_client_size
    return jax.random.randint(key, (steps, batch_size), 0, size)


def full_batch(
    key: jax.Array, size: jax.Array, steps: int, batch_size: int, max_client_size: int
) -> jax.Array:
    """Uses all examples of a client in every local step, whatever `batch_size` is."""
    del key, batch_size
    position = jnp.arange(max_client_size, dtype=jnp.int32)
    return jnp.broadcast_to(
        jnp.where(position < size, position, -1), (steps, max_client_size)
    )


def poisson(longest_batch: int) -> Sampler:
    """Makes a sampler of truncated Poisson sampling, as in privacy accounting.

    Every example joins a batch independently with probability batch_size / size. If
    more than `longest_batch` examples join, a uniform subset is kept. Sums over a batch
    must be divided by `batch_size`, never by the number of examples in it. The sampler
    raises `ValueError` if `longest_batch` is below the expected `batch_size`.
    """

    def sample(
        key: jax.Array,
        size: jax.Array,
        steps: int,
        batch_size: int,
        max_client_size: int,
    ) -> jax.Array:
        if longest_batch < batch_size:
            raise ValueError(
                f"longest_batch must be at least the batch_size {batch_size}, got "
                f"{longest_batch}"
            )

        def one(key: jax.Array) -> jax.Array:
            coins, order = jax.random.split(key)
            chance = jnp.minimum(batch_size / size, 1)
            joins = jax.random.uniform(coins, (max_client_size,)) < chance
            joins &= jnp.arange(max_client_size) < size
            # Examples that join have positive marks: the largest are a uniform subset.
            mark = jax.random.uniform(order, (max_client_size,), minval=0.5)
            count = min(longest_batch, max_client_size)
            top, position = jax.lax.top_k(jnp.where(joins, mark, 0.0), count)
            return jnp.where(top > 0, position.astype(jnp.int32), -1)

        return jax.vmap(one)(jax.random.split(key, steps))

    return sample


def without_replacement(
    key: jax.Array, size: jax.Array, steps: int, batch_size: int, max_client_size: int
) -> jax.Array:
    """Draws an independent uniform subset for every batch, or all examples if fewer."""

    def one(key: jax.Array) -> jax.Array:
        mark = jax.random.uniform(key, (max_client_size,), minval=0.5)
        mark = jnp.where(jnp.arange(max_client_size) < size, mark, 0.0)
        top, position = jax.lax.top_k(mark, min(batch_size, max_client_size))
        return jnp.where(top > 0, position.astype(jnp.int32), -1)

    return jax.vmap(one)(jax.random.split(key, steps))


def always(sampler: Sampler) -> Callable[[jax.Array], Sampler]:
    """Uses the same sampler in every iteration, for `decentralize`."""
    return lambda index: sampler


def cyclic(index: jax.Array) -> Sampler:
    """Cycles through fixed batches of a client's examples, for `decentralize`.

    Examples that fill no batch are never drawn.
    """

    def sample(
        key: jax.Array,
        size: jax.Array,
        steps: int,
        batch_size: int,
        max_client_size: int,
    ) -> jax.Array:
        del key, max_client_size
        at = (index * steps + jnp.arange(steps)) % jnp.maximum(size // batch_size, 1)
        return at[:, None] * batch_size + jnp.arange(batch_size)[None]

    return sample


def cyclic_poisson(longest_batch: int, cycle: int) -> Callable[[jax.Array], Sampler]:
    """Makes Poisson samplers of groups that take turns, for correlated noise.

    A client's examples are divided into `cycle` groups of the same size, in order.
    Examples that fill no group are never drawn. The result is a function of the
    iteration, for `decentralize`.
    """
    one = poisson(longest_batch)

    def of(index: jax.Array) -> Sampler:
        def sample(
            key: jax.Array,
            size: jax.Array,
            steps: int,
            batch_size: int,
            max_client_size: int,
        ) -> jax.Array:
            group = size // cycle
            within = one(key, group, steps, batch_size, max_client_size)
            turn = (index * steps + jnp.arange(steps)) % cycle
            return jnp.where(within < 0, -1, within + (turn * group)[:, None])

        return sample

    return of


def draw_rows(
    clients: Clients, sampler: Sampler, steps: int, batch_size: int
) -> Callable[[jax.Array, jax.Array], ExampleIndices]:
    """Makes a function `(client id, key) -> ExampleIndices`, for the engine."""

    def draw(client: jax.Array, key: jax.Array) -> ExampleIndices:
        at, size = clients.partition, clients.size[client]
        position = sampler(key, size, steps, batch_size, at.max_size)
        ids = at.order[at.start[client] + jnp.maximum(position, 0)]
        ids = jnp.where(position < 0, -1, ids)
        return ExampleIndices(ids, jnp.full(len(ids), client, jnp.int32))

    return draw


def objective_of(task: Task, clients: Clients | None = None) -> Objective:
    """Makes the objective of a task.

    Args:
      clients: The examples, if batches are `ExampleIndices` instead of `Batch`. Call
        this function inside the jitted function that has them as an argument: closing
        over concrete data costs compilation time and memory.
    """
    read = (lambda f: f) if clients is None else partial(gradient_of_indices, clients)
    example_grad = task.example_grad or per_example(task.grad)

    def value_and_grad(
        params: Params, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, Params]:
        losses = task.evaluate(params, batch.x, batch.y)["loss"]
        loss = weighted_mean(losses, batch.weight)
        return loss, task.grad(params, batch, key)

    return Objective(
        grad=read(task.grad),
        project=task.project or unconstrained,
        example_grad=read(example_grad),
        public_grad=task.public_grad,
        value_and_grad=read(value_and_grad),
    )


def gradient_of_indices(clients: Clients, grad: Callable[..., T]) -> Callable[..., T]:
    """Converts a gradient of a `Batch` to a gradient of `ExampleIndices`."""

    def grad_fn(params: Params, rows: ExampleIndices, key: jax.Array) -> T:
        return grad(params, batch_of(clients, rows), key)

    return grad_fn


def batch_of(
    clients: Clients,
    rows: ExampleIndices,
    take: Callable[[jax.Array, jax.Array], jax.Array] = lambda x, ids: x[ids],
) -> Batch:
    """Gathers the examples of a batch by `take(x, ids)`; padding has weight 0."""
    ids, client = rows
    weight = (ids >= 0).astype(jnp.float32)
    x, y = take(clients.x, ids), clients.y[ids]
    ids = ids if clients.ids is None else clients.ids[ids]
    return Batch(x, y, weight, client, clients.partition.shares[client], ids)
