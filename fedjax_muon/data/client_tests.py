"""Test examples of single clients, for `federate(..., test_parts=...)`."""

from collections.abc import Sequence

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedjax_muon.data.partition import checked_labels, generator, label_counts


def by_owner(owners: ArrayLike, test_owners: ArrayLike) -> list[np.ndarray]:
    """Gives the clients of `partition.by_owner` the test examples of their owners.

    Returns:
      One array of test example indices per client, int32, possibly empty. Test examples
      of owners without training examples are left out.

    Example:
      >>> of_3, of_5 = by_owner([3, 3, 5], [5, 3, 4, 5])
      >>> of_5.tolist()
      [0, 3]
    """
    tested = np.asarray(test_owners)
    each = [np.flatnonzero(tested == owner) for owner in np.unique(owners)]
    return [part.astype(np.int32) for part in each]


def like(
    parts: Sequence[np.ndarray],
    labels: ArrayLike,
    test_labels: ArrayLike,
    *,
    key: jax.Array,
) -> list[np.ndarray]:
    """Divides test examples by the clients' shares of the training examples.

    The m_k shuffled test examples of class k are cut at floor(m_k cumsum(q_k)), where
    q_k are the clients' shares of the training examples of the class.

    Returns:
      One array of test example indices per client, int32, possibly empty. Test examples
      of classes that no client has are left out.
    """
    labels, tested = checked_labels(labels), checked_labels(test_labels)
    counts = label_counts(labels, parts, int(max(labels.max(), tested.max())) + 1)
    rng, owner = generator(key), np.full(len(tested), -1)
    for label, owned in enumerate(counts.T):
        ids = rng.permutation(np.flatnonzero(tested == label))
        ends = np.cumsum(owned) * len(ids) // max(owned.sum(), 1)
        sizes = np.diff(ends, prepend=0)
        owner[ids[: sizes.sum()]] = np.repeat(np.arange(len(parts)), sizes)
    return [np.flatnonzero(owner == i).astype(np.int32) for i in range(len(parts))]
