"""Which client holds which examples.

Every function returns one array of example indices (int32, shuffled) per client, and
the same typed key always gives the same partition. Two different splits are both
called "Dirichlet(alpha)" in the literature, and one alpha does not mean the same in
the two, so each has its function:

* `dirichlet`: per *class* k, p_k ~ Dir(alpha) over the clients. Clients differ in
  size, and every example has one owner (Li et al., arXiv:2102.02079; Flower).
* `dirichlet_per_client`: per *client* j, p_j ~ Dir(alpha) over the classes. Clients
  have equal sizes and share examples (the code of Liu et al., arXiv:2510.27403).
"""

from collections.abc import Sequence

import jax
import numpy as np


def iid(labels, num_clients: int, *, key) -> list[np.ndarray]:
    """Shuffles all examples and deals them out; sizes differ by at most one.

    Only the number of `labels` matters.

    Raises:
      ValueError, TypeError: as every function here, if `labels` are not one axis of
        integers, `num_clients` is not in 1..n, or `key` is not one typed key.
    """
    labels = checked_labels(labels)
    _check_count("num_clients", num_clients, most=len(labels))
    order = generator(key).permutation(len(labels))
    return [_indices(part) for part in np.array_split(order, num_clients)]


def dirichlet(
    labels,
    num_clients: int,
    alpha: float,
    *,
    key,
    min_size: int = 10,
    max_tries: int = 10_000,
) -> list[np.ndarray]:
    """Splits each class over the clients by its own p_k ~ Dir(alpha, ..., alpha).

    The n_k shuffled examples of class k are cut at floor(n_k cumsum(p_k)), and the draw
    of all p_k is repeated until the smallest client holds `min_size` examples (Li et
    al., arXiv:2102.02079, without the balancing heuristic of its code; Flower's
    DirichletPartitioner). Each example has exactly one owner. Small alpha means few
    classes per client; alpha to infinity is a stratified, equal split.

    Raises:
      ValueError: also if alpha is not positive and finite, if `min_size` cannot be met
        by any split, or was not met by `max_tries` draws.
    """
    labels = checked_labels(labels)
    _check_count("num_clients", num_clients, most=len(labels))
    _check_alpha(alpha)
    _check_count("max_tries", max_tries)
    _check_count("min_size", min_size)
    if min_size * num_clients > len(labels):
        raise ValueError(
            f"{num_clients} clients cannot hold min_size={min_size} of {len(labels)} "
            "examples each; lower min_size or num_clients"
        )
    rng = generator(key)
    # All shuffling comes before the tries: their number must not change it.
    dealt = rng.permutation(len(labels))
    dealt = dealt[np.argsort(labels[dealt], kind="stable")]
    reading = rng.permutation(len(labels))
    counts = np.unique(labels, return_counts=True)[1]
    sizes = _dirichlet_sizes(rng, counts, num_clients, alpha, min_size, max_tries)
    owner = np.empty(len(labels), np.int64)
    owner[dealt] = np.repeat(
        np.tile(np.arange(num_clients), len(counts)), sizes.ravel()
    )
    grouped = reading[np.argsort(owner[reading], kind="stable")]
    ends = np.cumsum(sizes.sum(axis=0))
    return [_indices(part) for part in np.split(grouped, ends[:-1])]


def _dirichlet_sizes(rng, counts, num_clients, alpha, min_size, max_tries):
    """Examples per class and client, [classes, clients], of the first draw that fits.

    Draws many tries at once, in blocks of about 256 kB.
    """
    block = max(1, 2**15 // (len(counts) * num_clients))
    for start in range(0, max_tries, block):
        tries = min(block, max_tries - start)
        p = rng.dirichlet(np.full(num_clients, float(alpha)), (tries, len(counts)))
        ends = np.floor(np.cumsum(p, axis=-1) * counts[:, None])
        ends[..., -1] = counts
        sizes = np.diff(ends, axis=-1, prepend=0).astype(np.int64)
        fits = sizes.sum(axis=1).min(axis=-1) >= min_size
        if fits.any():
            return sizes[np.argmax(fits)]
    raise ValueError(
        f"none of {max_tries} Dirichlet(alpha={alpha}) draws gave each of "
        f"{num_clients} clients min_size={min_size} examples; raise alpha or "
        "max_tries, or lower min_size or num_clients"
    )


def dirichlet_per_client(
    labels, num_clients: int, alpha: float, *, key, size: int | None = None
) -> list[np.ndarray]:
    """Gives each client `size` examples whose classes follow its p_j ~ Dir(alpha).

    `size` is n // num_clients by default. Client j draws its class counts from
    Multinomial(size, p_j) and takes them from the shuffled pool of each class, which
    all clients share and which starts anew when it is used up. So clients have equal
    sizes, an example may belong to several of them (or to one of them twice, if it asks
    for more than a class has), and others belong to nobody. This is the split in the
    code of Liu et al., arXiv:2510.27403.

    Raises:
      ValueError: also if alpha is not positive and finite, or `size` is below 1.
    """
    labels = checked_labels(labels)
    _check_count("num_clients", num_clients, most=len(labels))
    _check_alpha(alpha)
    size = len(labels) // num_clients if size is None else size
    _check_count("size", size)
    rng = generator(key)
    classes = np.unique(labels)
    p = rng.dirichlet(np.full(len(classes), float(alpha)), num_clients)
    wanted = rng.multinomial(size, p)  # [clients, classes]
    shares = []
    for k, label in enumerate(classes):
        pool = rng.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(wanted[:, k])
        shares.append(np.split(np.resize(pool, ends[-1]), ends[:-1]))
    return [
        _indices(rng.permutation(np.concatenate(share)))
        for share in zip(*shares, strict=True)
    ]


def shards(
    labels, num_clients: int, shards_per_client: int, *, key
) -> list[np.ndarray]:
    """Deals every client `shards_per_client` runs of the examples sorted by label.

    The sorted examples are cut into num_clients * shards_per_client shards whose sizes
    differ by at most one; with two shards most clients see two classes (McMahan et al.
    2017, arXiv:1602.05629, section 3).

    Raises:
      ValueError: also if there are more shards than examples.
    """
    labels = checked_labels(labels)
    _check_count("num_clients", num_clients, most=len(labels))
    _check_count("shards_per_client", shards_per_client)
    num_shards = num_clients * shards_per_client
    if num_shards > len(labels):
        raise ValueError(
            f"{num_clients} clients x {shards_per_client} shards need as many "
            f"examples, got {len(labels)}; lower num_clients or shards_per_client"
        )
    rng = generator(key)
    pieces = np.array_split(np.argsort(labels, kind="stable"), num_shards)
    hands = rng.permutation(num_shards).reshape(num_clients, shards_per_client)
    return [
        _indices(rng.permutation(np.concatenate([pieces[i] for i in hand])))
        for hand in hands
    ]


def label_counts(labels, parts: Sequence[np.ndarray], num_classes: int) -> np.ndarray:
    """How many examples of each class each client holds, [num_clients, num_classes].

    Raises:
      ValueError: if a label is not in 0..num_classes-1 or an index not in 0..n-1.
    """
    labels = checked_labels(labels)
    _check_count("num_classes", num_classes)
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(
            f"labels must be in 0..{num_classes - 1}, got "
            f"{labels.min()}..{labels.max()}"
        )
    counts = np.zeros((len(parts), num_classes), np.int64)
    for client, part in enumerate(parts):
        part = np.asarray(part)
        if part.size and (part.min() < 0 or part.max() >= len(labels)):
            raise ValueError(
                f"client {client} holds examples {part.min()}..{part.max()}, but there "
                f"are only 0..{len(labels) - 1}; were the parts made for other labels?"
            )
        counts[client] = np.bincount(labels[part], minlength=num_classes)
    return counts


def _indices(part: np.ndarray) -> np.ndarray:
    return part.astype(np.int32)


def generator(key, *more: int) -> np.random.Generator:
    """A NumPy generator seeded by all words of one typed JAX key, and `more`."""
    typed = isinstance(key, jax.Array) and jax.dtypes.issubdtype(
        key.dtype, jax.dtypes.prng_key
    )
    if not typed or key.shape != ():
        raise TypeError(
            f"key must be one typed key such as jax.random.key(0), got {key!r}"
        )
    words = np.asarray(jax.random.key_data(key)).ravel().tolist()
    return np.random.default_rng([*words, *more])


def checked_labels(labels) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        raise ValueError(
            "labels must be one non-empty axis of integers, got shape "
            f"{labels.shape} and dtype {labels.dtype}"
        )
    return labels


def _check_count(name: str, value: int, most: int | None = None):
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < 1 or (most is not None and value > most):
        limit = "at least 1" if most is None else f"in 1..{most} (the examples)"
        raise ValueError(f"{name} must be a whole number {limit}, got {value!r}")


def _check_alpha(alpha: float):
    if not 0 < alpha < np.inf:
        raise ValueError(f"alpha must be positive and finite, got {alpha}")
