"""What a client trains on: batches as rows of example ids, drawn inside jit.

Examples lie on the device once. A client owns a segment of `order`, and what its local
steps scan are `Rows`: ids of examples, not examples, which are gathered step by step
(`on`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import GradFn, Objective, unconstrained
from fedjax_muon.tasks.classification import Batch, Task, per_example

Sampler = Callable[[jax.Array, jax.Array, int, int, int], jax.Array]
# (key, size, steps, batch_size, longest) -> int32 [steps, batch], places below `size`
# among a client's examples or -1; `longest` bounds the size of every client


class Clients(NamedTuple):
    """All clients' training examples: whose they are, as segments of `order`."""

    x: jax.Array  # [n, ...]
    y: jax.Array  # [n]
    order: jax.Array  # int32, ids of examples, client by client
    start: jax.Array  # int32 [N], where a client's segment begins
    size: jax.Array  # int32 [N], its length, at least 1
    shares: jax.Array  # float32 [N, classes], of the classes in a client's examples


class ExampleIndices(NamedTuple):
    """The examples of K batches, or of one without the leading axis."""

    ids: jax.Array  # int32 [K, B], -1 where a batch has a gap
    client: jax.Array  # int32 [K], whose they are


def clients_of(x, y, parts: Sequence[np.ndarray]) -> Clients:
    """Puts the examples on the device, divided as in `parts`.

    `parts` holds for every client the ids of its examples; ids may occur with several
    clients. Raises `ValueError` for no clients, a client without examples, or ids that
    are not integers or do not exist, raw uint8 pixels, and labels that are not integers
    from 0.
    """
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
    unknown = order[(order < 0) | (order >= len(x))]
    if len(unknown):
        raise ValueError(
            f"the partition names example {unknown[0]}, but there are only 0 to "
            f"{len(x) - 1}"
        )
    start = np.cumsum([0, *sizes[:-1]])
    if x.dtype == np.uint8:
        raise ValueError(
            "these examples are raw uint8 pixels; convert them first, with "
            "fedjax_muon.data.standardise(dataset) or to float32"
        )
    labels = np.asarray(y)
    if labels.dtype.kind not in "iu" or labels.min() < 0:
        raise ValueError(
            f"labels must be integers from 0, got {labels.dtype} from {labels.min()}"
        )
    classes = int(labels.max()) + 1
    counts = [np.bincount(labels[part], minlength=classes) for part in parts]
    as_ids = lambda a: jnp.asarray(a, jnp.int32)
    return Clients(
        x=jnp.asarray(x),
        y=jnp.asarray(y),
        order=as_ids(order),
        start=as_ids(start),
        size=as_ids(sizes),
        shares=jnp.asarray(np.array(counts) / np.array(sizes)[:, None], jnp.float32),
    )


def max_client_size_of(parts: Sequence[np.ndarray]) -> int:
    """A bound of all clients' sizes: rounded up, so that partitions of similar sizes
    share a program."""
    return 1 << (max(map(len, parts)) - 1).bit_length()


def shuffled_epochs(
    key, size, steps: int, batch_size: int, max_client_size: int
) -> jax.Array:
    """Epochs over a client's examples, each shuffled anew, cut into K batches.

    A batch may reach from one epoch into the next. The result depends on the key and
    the client's size only, not on `longest`.
    """
    count = steps * batch_size
    first_key, rest_key = jax.random.split(key)
    at = jnp.arange(count + min(count, max_client_size), dtype=jnp.int32)
    draw = jax.random.bits(rest_key, at.shape)
    # every epoch that is used is whole, if the client has fewer than `count` examples
    _, _, place = jax.lax.sort((at // size, draw, at % size), num_keys=2)
    place = place[:count]
    if max_client_size >= count:
        # one epoch is enough for larger clients: its first places are the largest of
        # random numbers, and finding these is much faster than sorting all
        bits = jax.random.bits(first_key, (max_client_size,)) >> 2
        mark = jax.lax.bitcast_convert_type(bits + jnp.uint32(1 << 23), jnp.float32)
        mark = jnp.where(
            jnp.arange(max_client_size) < size, mark, 0
        )  # marks are positive
        top = jax.lax.top_k(mark, count)[1]
        place = jnp.where(size >= count, top, place)
    return place.reshape(steps, batch_size)


def with_replacement(
    key, size, steps: int, batch_size: int, max_client_size: int
) -> jax.Array:
    """Every example of every batch drawn independently and uniformly."""
    del max_client_size
    return jax.random.randint(key, (steps, batch_size), 0, size)


def full_batch(
    key, size, steps: int, batch_size: int, max_client_size: int
) -> jax.Array:
    """All of a client's examples in every local step; deterministic gradients."""
    del key, batch_size
    place = jnp.arange(max_client_size, dtype=jnp.int32)
    return jnp.broadcast_to(
        jnp.where(place < size, place, -1), (steps, max_client_size)
    )


def poisson(longest_batch: int) -> Sampler:
    """Every example joins a batch independently, with chance batch_size / size.

    A batch has room for `longest_batch` examples, -1 where there are fewer; of more a
    uniform part is kept. What privacy accounting calls truncated Poisson sampling: sums
    over a batch are to be divided by batch_size, never by how many there are. Raises
    `ValueError` for room for less than the expected batch, when used.
    """

    def sample(key, size, steps, batch_size, max_client_size):
        if longest_batch < batch_size:
            raise ValueError(
                f"longest_batch must be at least the batch_size {batch_size}, got "
                f"{longest_batch}"
            )

        def one(key):
            coins, order = jax.random.split(key)
            chance = jnp.minimum(batch_size / size, 1)
            joins = jax.random.uniform(coins, (max_client_size,)) < chance
            joins &= jnp.arange(max_client_size) < size
            # marks of those that join are positive: the largest are a uniform part
            mark = jax.random.uniform(order, (max_client_size,), minval=0.5)
            count = min(longest_batch, max_client_size)
            top, place = jax.lax.top_k(jnp.where(joins, mark, 0.0), count)
            return jnp.where(top > 0, place.astype(jnp.int32), -1)

        return jax.vmap(one)(jax.random.split(key, steps))

    return sample


def without_replacement(
    key, size, steps: int, batch_size: int, max_client_size: int
) -> jax.Array:
    """A fresh uniform subset for every batch; -1 if the client has fewer examples."""

    def one(key):
        mark = jax.random.uniform(key, (max_client_size,), minval=0.5)
        mark = jnp.where(jnp.arange(max_client_size) < size, mark, 0.0)
        top, place = jax.lax.top_k(mark, min(batch_size, max_client_size))
        return jnp.where(top > 0, place.astype(jnp.int32), -1)

    return jax.vmap(one)(jax.random.split(key, steps))


def always(sampler: Sampler) -> Callable[[jax.Array], Sampler]:
    """The same sampler in every iteration."""
    return lambda index: sampler


def cyclic(index: jax.Array) -> Sampler:
    """Fixed batches of a client's examples, one after the other, over and over: the
    one of iteration `index`. Examples that fill no batch are never drawn."""

    def sample(key, size, steps, batch_size, max_client_size):
        del key, max_client_size
        at = (index * steps + jnp.arange(steps)) % jnp.maximum(size // batch_size, 1)
        return at[:, None] * batch_size + jnp.arange(batch_size)[None]

    return sample


def draw_rows(
    clients: Clients,
    sampler: Sampler,
    steps: int,
    batch_size: int,
    max_client_size: int,
):
    """`(client id, key) -> Rows` of its K batches, for the engine."""

    def draw(client, key):
        place = sampler(key, clients.size[client], steps, batch_size, max_client_size)
        ids = clients.order[clients.start[client] + jnp.maximum(place, 0)]
        ids = jnp.where(place < 0, -1, ids)
        return ExampleIndices(ids, jnp.full(len(ids), client, jnp.int32))

    return draw


def objective_of(task: Task, clients: Clients | None = None) -> Objective:
    """What algorithms see of a task.

    Args:
      task: What is trained.
      clients: The examples, if batches are `ExampleIndices` in place of `Batch`. Call
        this inside the jitted function that has them as an argument: closing over
        concrete data costs compilation time and memory.

    Returns:
      The objective.
    """
    read = (lambda f: f) if clients is None else partial(on, clients)
    example_grad = task.example_grad or per_example(task.grad)
    return Objective(
        grad=read(task.grad),
        project=task.project or unconstrained,
        example_grad=read(example_grad),
        public_grad=task.public_grad,
    )


def on(clients: Clients, grad: GradFn) -> GradFn:
    """A gradient of batches as a gradient of `ExampleIndices`."""

    def grad_fn(params, rows, key):
        return grad(params, batch_of(clients, rows), key)

    return grad_fn


def batch_of(
    clients: Clients, rows: ExampleIndices, take=lambda x, ids: x[ids]
) -> Batch:
    """The examples themselves, read by `take`."""
    ids, client = rows
    weight = (ids >= 0).astype(jnp.float32)
    x, y = take(clients.x, ids), clients.y[ids]
    return Batch(x, y, weight, client, clients.shares[client], ids)
