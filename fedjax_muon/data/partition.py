"""Partitions of examples among clients.

All but `by_owner` take labels, integers [n], and a number of clients in 1..n. They
return one array of example indices per client, int32 and shuffled.

Two different partitions are called "Dirichlet(alpha)" in the literature. The same alpha
has a different meaning in each, so there are two functions:

* `dirichlet`: per *class* k, p_k ~ Dir(alpha) over the clients. Clients have different
  sizes, and every example has one owner (Li et al., arXiv:2102.02079; Flower).
* `dirichlet_per_client`: per *client* j, p_j ~ Dir(alpha) over the classes. Clients
  have equal sizes and share examples (the code of Liu et al., arXiv:2510.27403).
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedjax_muon.core import check_count, check_range


def iid(labels: ArrayLike, num_clients: int, *, key: jax.Array) -> list[np.ndarray]:
    """Distributes shuffled examples evenly; sizes differ by at most one."""
    labels = _checked(labels, num_clients)
    order = generator(key).permutation(len(labels))
    return [part.astype(np.int32) for part in np.array_split(order, num_clients)]


def contiguous(
    labels: ArrayLike, num_clients: int, *, key: jax.Array | None = None
) -> list[np.ndarray]:
    """Cuts the examples into pieces in their order; sizes differ by at most one.

    If examples are windows of a text, each client has a piece of it. The key has no
    effect.
    """
    del key
    order = np.arange(len(_checked(labels, num_clients)), dtype=np.int32)
    return np.array_split(order, num_clients)


def dirichlet(
    labels: ArrayLike,
    num_clients: int,
    alpha: float,
    *,
    key: jax.Array,
    min_size: int = 10,
    max_tries: int = 10_000,
    balanced: bool = False,
) -> list[np.ndarray]:
    """Splits each class over the clients by its own p_k ~ Dir(alpha, ..., alpha).

    The n_k shuffled examples of class k are cut at floor(n_k cumsum(p_k)). The draw of
    all p_k is repeated until the smallest client has `min_size` examples (Li et al.,
    arXiv:2102.02079; Flower's DirichletPartitioner). Each example has exactly one
    owner.

    Args:
      alpha: Concentration, positive. Small values give few classes per client; the
        limit of infinity is a stratified split into equal parts.
      balanced: Whether a client that has n / num_clients examples gets none of the
        classes that follow, as in the code of NIID-Bench and Flower's `self_balancing`.
    """
    labels = _checked(labels, num_clients)
    _check_dirichlet(labels, num_clients, alpha, min_size, max_tries)
    rng = generator(key)
    # Shuffled before the draws, so that their number does not change the result.
    dealt = rng.permutation(len(labels))
    dealt = dealt[np.argsort(labels[dealt], kind="stable")]
    order = rng.permutation(len(labels))
    counts = np.unique(labels, return_counts=True)[1]
    sizes = _dirichlet_sizes(
        rng, counts, num_clients, alpha, min_size, max_tries, balanced
    )
    owner = np.empty(len(labels), np.int64)
    owner[dealt] = np.repeat(
        np.tile(np.arange(num_clients), len(counts)), sizes.ravel()
    )
    grouped = order[np.argsort(owner[order], kind="stable")]
    ends = np.cumsum(sizes.sum(axis=0))
    return [part.astype(np.int32) for part in np.split(grouped, ends[:-1])]


def _check_dirichlet(
    labels: np.ndarray, num_clients: int, alpha: float, min_size: int, max_tries: int
) -> None:
    check_range("alpha", alpha, open_low=True, schedules=False)
    check_count("max_tries", max_tries)
    check_count("min_size", min_size)
    if min_size * num_clients > len(labels):
        raise ValueError(
            f"{num_clients} clients cannot hold min_size={min_size} of {len(labels)} "
            "examples each; lower min_size or num_clients"
        )


def _dirichlet_sizes(
    rng: np.random.Generator,
    counts: np.ndarray,
    num_clients: int,
    alpha: float,
    min_size: int,
    max_tries: int,
    balanced: bool = False,
) -> np.ndarray:
    """Examples per class and client, [classes, clients], of the first draw that fits.

    Many draws are made together, in blocks of about 256 kB.
    """
    block = max(1, 2**15 // (len(counts) * num_clients))
    for start in range(0, max_tries, block):
        tries = min(block, max_tries - start)
        p = rng.dirichlet(np.full(num_clients, float(alpha)), (tries, len(counts)))
        sizes = _balanced_sizes(p, counts) if balanced else _cut(p, counts[:, None])
        fits = sizes.sum(axis=1).min(axis=-1) >= min_size
        if fits.any():
            return sizes[np.argmax(fits)]
    raise ValueError(
        f"none of {max_tries} Dirichlet(alpha={alpha}) draws gave each of "
        f"{num_clients} clients min_size={min_size} examples; raise alpha, or "
        "lower min_size or num_clients"
    )


def _cut(p: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Numbers of examples by shares on the last axis, which sum up to the counts."""
    ends = np.floor(np.cumsum(p, axis=-1) * counts)
    ends[..., -1:] = counts
    return np.diff(ends, axis=-1, prepend=0).astype(np.int64)


def _balanced_sizes(p: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sizes for shares [tries, classes, clients], by classes in turn."""
    sizes = np.zeros(p.shape, np.int64)
    for k, count in enumerate(counts):
        held = sizes.sum(axis=1)
        open_ = (held < counts.sum() / p.shape[-1]).astype(float)
        share = p[:, k] * open_
        share = np.where(share.sum(-1, keepdims=True) > 0, share, open_)
        sizes[:, k] = _cut(share / share.sum(-1, keepdims=True), count)
    return sizes


def labels_per_client(
    labels: ArrayLike, num_clients: int, count: int, *, key: jax.Array
) -> list[np.ndarray]:
    """Gives every client examples of `count` classes, as in "#C=2" of NIID-Bench.

    Client j has class j mod C, and further ones of the C classes at random. The
    shuffled examples of a class are divided evenly among the clients that have it
    (Li et al., arXiv:2102.02079, checked against its code; Flower's
    PathologicalPartitioner, "first-deterministic").

    Args:
      count: Number of classes of every client. With all classes, clients are alike.
    """
    labels = _checked(labels, num_clients)
    check_count("labels_per_client", count)
    classes = np.unique(labels)
    if count > len(classes):
        raise ValueError(
            f"clients cannot have labels_per_client={count} of {len(classes)} classes; "
            "lower labels_per_client"
        )
    rng = generator(key)
    has = np.zeros((num_clients, len(classes)), bool)
    for client, row in enumerate(has):
        first = client % len(classes)
        others = np.delete(np.arange(len(classes)), first)
        row[[first, *rng.permutation(others)[: count - 1]]] = True
    if not has.any(axis=0).all():
        raise ValueError(
            f"{num_clients} clients with labels_per_client={count} leave out classes "
            f"{classes[~has.any(axis=0)].tolist()}; raise num_clients to {len(classes)}"
        )
    held: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for k, label in enumerate(classes):
        owners = np.flatnonzero(has[:, k])
        pool = rng.permutation(np.flatnonzero(labels == label))
        if len(pool) < len(owners):
            raise ValueError(
                f"{len(owners)} clients have class {label}, which has {len(pool)} "
                "examples; lower num_clients or labels_per_client"
            )
        for owner, share in zip(owners, np.array_split(pool, len(owners)), strict=True):
            held[owner].append(share)
    return [rng.permutation(np.concatenate(one)).astype(np.int32) for one in held]


def quantity(
    labels: ArrayLike,
    num_clients: int,
    alpha: float,
    *,
    key: jax.Array,
    min_size: int = 10,
    max_tries: int = 10_000,
) -> list[np.ndarray]:
    """Gives clients random examples; their numbers are in proportions p ~ Dir(alpha).

    The draw of p is repeated until the smallest client has `min_size` examples
    (quantity skew of NIID-Bench, whose beta is alpha; arXiv:2102.02079, checked against
    its code).
    """
    labels = _checked(labels, num_clients)
    _check_dirichlet(labels, num_clients, alpha, min_size, max_tries)
    rng = generator(key)
    order = rng.permutation(len(labels)).astype(np.int32)
    whole = np.array([len(labels)])
    (sizes,) = _dirichlet_sizes(rng, whole, num_clients, alpha, min_size, max_tries)
    return np.split(order, np.cumsum(sizes)[:-1])


def dirichlet_per_client(
    labels: ArrayLike,
    num_clients: int,
    alpha: float,
    *,
    key: jax.Array,
    size: int | None = None,
) -> list[np.ndarray]:
    """Gives each client `size` examples whose classes follow its p_j ~ Dir(alpha).

    Client j draws its class counts from Multinomial(size, p_j) and takes them from the
    shuffled examples of each class. All clients share these, and they start again when
    they are used up. So an example can belong to several clients, or twice to one that
    needs more examples of a class than exist, and other examples belong to no client.
    This is the partition in the code of Liu et al., arXiv:2510.27403.

    Args:
      size: Number of examples of every client; n // num_clients by default.
    """
    labels = _checked(labels, num_clients)
    check_range("alpha", alpha, open_low=True, schedules=False)
    size = len(labels) // num_clients if size is None else size
    check_count("size", size)
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
        rng.permutation(np.concatenate(share)).astype(np.int32)
        for share in zip(*shares, strict=True)
    ]


def shards(
    labels: ArrayLike, num_clients: int, shards_per_client: int, *, key: jax.Array
) -> list[np.ndarray]:
    """Gives every client random shards of the examples sorted by label.

    The sorted examples are cut into num_clients * shards_per_client shards, whose sizes
    differ by at most one (McMahan et al. 2017, arXiv:1602.05629, section 3).

    Args:
      shards_per_client: Number of shards of a client; with 2, most clients have two
        classes.
    """
    labels = _checked(labels, num_clients)
    check_count("shards_per_client", shards_per_client)
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
        rng.permutation(np.concatenate([pieces[i] for i in hand])).astype(np.int32)
        for hand in hands
    ]


def by_owner(owners: ArrayLike) -> list[np.ndarray]:
    """Makes every owner of examples a client: the natural partition.

    Args:
      owners: Owner of every training example, integers or strings [n], such as
        `Dataset.owners`.

    Returns:
      One array of example indices per client, int32 and increasing. Clients are in the
      sorted order of their owners.

    Example:
      >>> len(by_owner(["ann", "bob", "ann"]))
      2
    """
    owners = np.asarray(owners)
    if owners.ndim != 1 or owners.dtype.kind not in "iuU" or not len(owners):
        raise ValueError(
            "owners must be one or more integers or strings on one axis, one per "
            f"training example, got shape {owners.shape} and dtype {owners.dtype}"
        )
    _, numbers = np.unique(owners, return_inverse=True)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers))[:-1]
    return [part.astype(np.int32) for part in np.split(order, ends)]


def add_noise(
    inputs: ArrayLike, parts: Sequence[np.ndarray], std: float, *, key: jax.Array
) -> np.ndarray:
    """Returns inputs with more Gaussian noise from client to client.

    Client j of n has noise of standard deviation `std * j / (n - 1)`: the feature skew
    of NIID-Bench (arXiv:2102.02079, checked against its code, which draws new noise
    whenever an example is read; here it is drawn once). The inputs are not clipped.

    Args:
      inputs: Inputs of the training examples, floats [n, ...].
      parts: Example indices of each client; an example has at most one owner.
      std: Standard deviation of the last client, in the units of the inputs.

    Example:
      >>> digits = fm.data.load("digits")
      >>> key = jax.random.key(0)
      >>> parts = fm.partition.iid(digits.y_train, 10, key=key)
      >>> noisy = fm.partition.add_noise(digits.x_train, parts, 0.1, key=key)
      >>> digits = digits._replace(x_train=noisy)
    """
    check_range("std", std, schedules=False)
    check_listed("parts", parts)
    inputs = np.array(inputs)
    if inputs.dtype.kind != "f":
        raise ValueError(f"noise needs floating-point inputs, got {inputs.dtype}")
    taken = np.concatenate([np.asarray(part) for part in parts])
    if len(np.unique(taken)) < len(taken):
        raise ValueError(
            f"noise needs one owner per example, but clients share "
            f"{len(taken) - len(np.unique(taken))} examples; choose another partition"
        )
    rng = generator(key, 1)  # apart from the draws of a partition by the same key
    for client, part in enumerate(parts):
        noise = rng.standard_normal(inputs[part].shape)
        noise *= std * client / max(1, len(parts) - 1)
        inputs[part] += noise.astype(inputs.dtype)
    return inputs


def label_counts(
    labels: ArrayLike, parts: Sequence[np.ndarray], num_classes: int
) -> np.ndarray:
    """Counts the examples of each class that each client has.

    Returns:
      The counts, int64 [num_clients, num_classes].

    Example:
      >>> label_counts(digits.y_train, clients, 10).shape
      (4, 10)
    """
    check_listed("parts", parts)
    labels = checked_labels(labels)
    check_count("num_classes", num_classes)
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


def plot(
    parts: Sequence[np.ndarray],
    labels: ArrayLike,
    classes: Sequence[str] | None = None,
    *,
    axis: Any = None,
) -> Any:
    """Draws the examples of each class that each client has, as discs.

    The areas of the discs are proportional to the numbers of examples.

    Args:
      parts: Example indices of every client.
      labels: Class of every example, [n].
      classes: Names of the classes, such as `Dataset.classes`; their numbers by
        default.
      axis: Matplotlib axes to draw in; by default, those of a new figure.

    Returns:
      The axes.

    Example:
      >>> axis = plot(clients, digits.y_train)
      >>> axis.get_xlabel()
      'client'
    """
    check_listed("parts", parts)
    if axis is None:
        import matplotlib.pyplot as plt  # slow, and it may open a display

        width = min(14.0, 3 + 0.3 * len(parts))
        axis = plt.figure(figsize=(width, 4), layout="constrained").subplots()
    count = int(checked_labels(labels).max()) + 1 if classes is None else len(classes)
    names = [str(label) for label in range(count)] if classes is None else classes
    plot_counts(label_counts(labels, parts, count), names, axis)
    return axis


FEW_DISCS = 20  # that have room for their numbers


def plot_counts(counts: np.ndarray, classes: Sequence[str], axis: Any) -> None:
    """Draws counts [clients, classes] as discs."""
    clients, labels = np.nonzero(counts)
    area = 260 * counts[clients, labels] / counts.max()
    axis.scatter(clients, labels, s=area, c=labels, cmap="tab10", lw=0)
    if counts.size <= FEW_DISCS:
        for client, label in zip(clients, labels, strict=True):
            center = {"ha": "center", "va": "center", "color": "white", "fontsize": 7}
            axis.text(client, label, counts[client, label], **center)
    axis.set_xlabel("client")
    axis.set_ylabel("class")
    if len(classes) <= 30:
        # dollars in a class do not begin a formula
        axis.set_yticks(np.arange(len(classes)), classes, parse_math=False)


def generator(key: jax.Array, *more: int) -> np.random.Generator:
    """Makes a NumPy generator from all data of a typed JAX key, and more integers."""
    typed = isinstance(key, jax.Array) and jax.dtypes.issubdtype(
        key.dtype, jax.dtypes.prng_key
    )
    if not typed or key.shape != ():
        raise TypeError(
            f"key must be one typed key such as jax.random.key(0), got {key!r}"
        )
    words = np.asarray(jax.random.key_data(key)).ravel().tolist()
    return np.random.default_rng([*words, *more])


def checked_labels(labels: ArrayLike) -> np.ndarray:
    """Labels as an array of integers [n]."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        raise ValueError(
            "labels must be one or more integers on one axis, got shape "
            f"{labels.shape} and dtype {labels.dtype}"
        )
    return labels


def check_listed(name: str, parts: Any) -> None:
    """Raises `TypeError` unless parts are listed by client."""
    texts = isinstance(parts, str) or not hasattr(parts, "__len__")
    if texts or any(isinstance(part, str) for part in parts):
        raise TypeError(
            f"{name} must be a list with an array of ids for every client, got "
            f"{parts!r:.60}"
        )


def _checked(labels: ArrayLike, num_clients: int) -> np.ndarray:
    labels = checked_labels(labels)
    check_count("num_clients", num_clients)
    if num_clients > len(labels):
        raise ValueError(
            f"num_clients must be in 1..{len(labels)} (the examples), got {num_clients}"
        )
    return labels
