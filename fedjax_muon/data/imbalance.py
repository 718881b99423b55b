"""Few positives: which examples of two classes to keep, and which client gets which.

Label 1 is the positive class, 0 the negative one. As in the experiments of "Federated
Stochastic Minimax Optimization Under Heavy-Tailed Noises" (Zhang and Gao), whose
homogeneous clients share what `drop_positives` leaves at a ratio of 0.1, and whose
eight heterogeneous ones have the ratios .05, .05, .08, .1, .12, .15, .2, .25.
"""

from collections.abc import Sequence

import numpy as np

from fedjax_muon.data.partition import checked_labels, generator


def drop_positives(labels, ratio: float, *, key) -> np.ndarray:
    """Indices of all negatives and of so few random positives that they are `ratio`.

    That is of all that are kept, to the nearest whole number of positives. The indices
    are int32 and shuffled.

    Raises:
      ValueError: if the labels are not 0 or 1; the ratio is not in [0, 1]; there are
        not enough positives for it; or it is neither 0 nor 1, but leaves one class out.
      TypeError: if `key` is not one typed key.
    """
    labels = _checked_binary(labels)
    _check_ratio("ratio", ratio)
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
            f"ratio {ratio} beside {len(negatives)} negatives takes {wanted} "
            f"positives, which must be in {int(ratio > 0)}..{len(positives)}; "
            f"choose a {'lower' if wanted else 'higher'} ratio"
        )
    kept = rng.choice(positives, wanted, replace=False)
    return rng.permutation(np.concatenate([negatives, kept])).astype(np.int32)


def with_ratios(labels, ratios: Sequence[float], *, key) -> list[np.ndarray]:
    """Client i gets a share ratios[i] of positives; all get as many examples.

    As many as there can be: the largest s for which all clients together need no more
    of a class than there are. Of its s examples client i has ratios[i] s, rounded to
    the nearest whole number, positive. No example has two owners, some have none. One
    array of indices a client, int32 and shuffled.

    Raises:
      ValueError: if the labels are not 0 or 1; there are no ratios, or one is not in
        [0, 1]; or a client could have no example, or none of a class that its ratio
        asks for.
      TypeError: if `key` is not one typed key.
    """
    labels = _checked_binary(labels)
    if not len(ratios):
        raise ValueError("ratios must hold one number for every client, got none")
    for client, ratio in enumerate(ratios):
        _check_ratio(f"ratios[{client}]", ratio)
    rng = generator(key)
    pools = [rng.permutation(np.flatnonzero(labels == k)) for k in (0, 1)]
    have = np.array([len(pool) for pool in pools])
    share = np.asarray(ratios, np.float64)
    # a first size of 1 for the error below, should none be possible
    sizes = np.arange(1, max(len(labels) // len(share), 1) + 1)
    positives = np.floor(sizes[:, None] * share + 0.5).astype(np.int64)
    needs = np.stack([sizes[:, None] - positives, positives], axis=1)  # [s, class, i]
    fits = np.all(needs.sum(axis=-1) <= have, axis=-1)
    need = needs[max(int(fits.sum()), 1) - 1]  # they fit up to some size
    _check_needs(need, have, share)
    ends = np.cumsum(need, axis=1)
    hands = [np.split(pools[k][: ends[k, -1]], ends[k, :-1]) for k in (0, 1)]
    return [
        rng.permutation(np.concatenate(hand)).astype(np.int32)
        for hand in zip(*hands, strict=True)
    ]


def _check_needs(need, have, share):
    """`need` [class, client] of `have` [class], for `share` [client]."""
    mixed = (share > 0) & (share < 1)
    short = np.cumsum(need, axis=1) > have[:, None]
    bad = np.any(short | (mixed & (need < 1)), axis=0)
    if bad.any():
        client = int(np.argmax(bad))
        raise ValueError(
            f"client {client} of {len(share)} with a ratio of {share[client]} would "
            f"get {need[1, client]} positives and {need[0, client]} negatives, out of "
            f"{have[1]} and {have[0]} for all; take more examples, fewer clients or "
            "other ratios"
        )


def _check_ratio(name: str, ratio: float):
    if not 0 <= ratio <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {ratio}")


def _checked_binary(labels) -> np.ndarray:
    labels = checked_labels(labels)
    other = np.setdiff1d(labels, (0, 1))
    if other.size:
        raise ValueError(
            f"labels must be 0 (negative) or 1 (positive), got {other[0]} too"
        )
    return labels
