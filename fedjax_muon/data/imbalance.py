"""Class imbalance: subsets and partitions with given ratios of positives.

Label 1 is the positive class, 0 the negative one. The experiments of "Federated
Stochastic Minimax Optimization Under Heavy-Tailed Noises" (Zhang and Gao) use both
functions: their homogeneous clients share the result of `drop_positives` at a ratio of
0.1, and their eight heterogeneous clients have the ratios .05, .05, .08, .1, .12, .15,
.2, .25.
"""

from collections.abc import Sequence

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedjax_muon.core import check_range
from fedjax_muon.data.partition import checked_labels, generator


def drop_positives(labels: ArrayLike, ratio: float, *, key: jax.Array) -> np.ndarray:
    """Drops random positives until they are a given ratio of the examples.

    Args:
      ratio: Ratio of the positives to the examples that are kept, in [0, 1]. The number
        of positives is rounded to the nearest integer.

    Returns:
      Indices of the examples that are kept, int32 and shuffled. All negatives are kept.
    """
    labels = _checked_binary(labels)
    check_range("ratio", ratio, high=1.0, schedules=False)
    rng = generator(key)
    negatives, positives = (np.flatnonzero(labels == k) for k in (0, 1))
    if ratio == 1 and len(negatives):
        raise ValueError(
            f"ratio 1 leaves no room for the {len(negatives)} negatives, which are all "
            "kept; choose a ratio below 1"
        )
    wanted = len(positives)
    if ratio < 1:
        wanted = int(np.floor(len(negatives) * ratio / (1 - ratio) + 0.5))
    if wanted > len(positives) or (0 < ratio < 1 and not wanted):
        raise ValueError(
            f"ratio {ratio} with {len(negatives)} negatives needs {wanted} "
            f"positives, which must be in {int(ratio > 0)}..{len(positives)}; "
            f"choose a {'lower' if wanted else 'higher'} ratio"
        )
    kept = rng.choice(positives, wanted, replace=False)
    return rng.permutation(np.concatenate([negatives, kept])).astype(np.int32)


def with_ratios(
    labels: ArrayLike, ratios: Sequence[float], *, key: jax.Array
) -> list[np.ndarray]:
    """Partitions examples so that each client has its own ratio of positives.

    All clients have s examples, with the largest s for which there are enough examples
    of both classes. Client i has ratios[i] s positives, rounded to the nearest integer.
    No example has two owners; some have none. Indices are int32 and shuffled.
    """
    labels = _checked_binary(labels)
    if not len(ratios):
        raise ValueError("ratios must hold one number for every client, got none")
    for client, ratio in enumerate(ratios):
        check_range(f"ratios[{client}]", ratio, high=1.0, schedules=False)
    rng = generator(key)
    pools = [rng.permutation(np.flatnonzero(labels == k)) for k in (0, 1)]
    have = np.array([len(pool) for pool in pools])
    share = np.asarray(ratios, np.float64)
    # At least the size 1, for the error below if no size is possible.
    sizes = np.arange(1, max(len(labels) // len(share), 1) + 1)
    positives = np.floor(sizes[:, None] * share + 0.5).astype(np.int64)
    needs = np.stack([sizes[:, None] - positives, positives], axis=1)  # [s, class, i]
    fits = np.all(needs.sum(axis=-1) <= have, axis=-1)
    need = needs[max(int(fits.sum()), 1) - 1]  # sizes fit up to a largest one
    _check_needs(need, have, share)
    ends = np.cumsum(need, axis=1)
    hands = [np.split(pools[k][: ends[k, -1]], ends[k, :-1]) for k in (0, 1)]
    return [
        rng.permutation(np.concatenate(hand)).astype(np.int32)
        for hand in zip(*hands, strict=True)
    ]


def _check_needs(need: np.ndarray, have: np.ndarray, share: np.ndarray) -> None:
    """Checks the numbers needed [class, client] against those available [class]."""
    mixed = (share > 0) & (share < 1)
    short = np.cumsum(need, axis=1) > have[:, None]
    bad = np.any(short | (mixed & (need < 1)), axis=0)
    if bad.any():
        client = int(np.argmax(bad))
        raise ValueError(
            f"client {client} of {len(share)} with a ratio of {share[client]} would "
            f"get {need[1, client]} positives and {need[0, client]} negatives, out of "
            f"{have[1]} and {have[0]} for all; use more examples, fewer clients or "
            "other ratios"
        )


def _checked_binary(labels: ArrayLike) -> np.ndarray:
    labels = checked_labels(labels)
    other = np.setdiff1d(labels, (0, 1))
    if other.size:
        raise ValueError(
            f"labels must be 0 (negative) or 1 (positive), got {other[0]} too"
        )
    return labels
