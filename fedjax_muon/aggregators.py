"""Robust aggregation: what a server does instead of the mean of the clients' messages.

    algorithm = fm.robust(fm.fedmuon(lr=0.01), fm.aggregators.trimmed_mean(0.2))
    mixed = chain(nearest_neighbor_mixing(0.2), median())

An aggregator maps all messages of an exchange, as vectors, to other messages, of which
the mean is then taken. It counts only messages that have arrived, all alike. `bad` is
the number of messages that may be wrong: a count, or a share of those that arrived,
rounded down. Distances are those of whole messages. Rules are as in ByzFL
(https://github.com/LPD-EPFL/byzfl; compared with the authors' code), unless said
otherwise.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Messages,
    check_count,
    check_range,
    map_exchanges,
    only_finite,
    recorded,
)

Aggregator = Callable[[Messages], Messages]


@recorded
def robust(algorithm: Algorithm, aggregator: Aggregator) -> Algorithm:
    """Aggregates the messages of an algorithm by a robust rule instead of their mean.

    All messages of a cohort are in memory together: S times the bytes of one, on every
    device. Bytes that are sent stay the same.

    Args:
      aggregator: Applied in every exchange, those of the prologue included.

    Returns:
      An algorithm that accepts uniform weights only. Where fewer messages arrive than
      the rule needs, the server's state stays as it is.

    Example:
      >>> normuon = transforms.by_rank(transforms.scale_by_normuon())
      >>> scaffold_normuon = scaffold(lr=0.01, rule=normuon)
      >>> algorithm = robust(scaffold_normuon, aggregators.trimmed_mean(0.2))
    """
    if not callable(aggregator):
        raise TypeError(
            f"aggregator must be a function such as median(), got {aggregator!r}"
        )
    add = lambda exchange: exchange._replace(stack=(*exchange.stack, aggregator))
    return with_all_messages(algorithm, add)


def with_all_messages(
    algorithm: Algorithm, change: Callable[[Exchange], Exchange]
) -> Algorithm:
    """Changes the functions of all messages, in all exchanges."""

    def one(number: int, exchange: Exchange) -> Exchange:
        del number
        if exchange.reduce_sum:
            raise ValueError(
                "a private algorithm sums its messages, and can't aggregate or attack "
                "them in another way: leave out privacy"
            )
        return change(exchange)

    return map_exchanges(one, algorithm)._replace(uniform_weights=True)


def chain(*aggregators: Aggregator) -> Aggregator:
    """Applies several aggregators, one to the results of the other."""

    def apply(messages: Messages) -> Messages:
        for aggregator in aggregators:
            messages = only_finite(aggregator(messages))
        return messages

    return apply


# ------------------------------------------------------------------------------ rules


def median() -> Aggregator:
    """The median of every coordinate; of an even number, the mean of the middle two."""

    def apply(messages: Messages) -> Messages:
        ordered, count = _ordered(messages)
        middle = ordered[(count - 1) // 2] + ordered[count // 2]
        return _one(messages, middle / 2, count > 0)

    return apply


def trimmed_mean(bad: int | float) -> Aggregator:
    """The mean of every coordinate without its `bad` largest and smallest values."""
    _check_bad(bad)

    def apply(messages: Messages) -> Messages:
        ordered, count = _ordered(messages)
        few = _number("trimmed_mean", bad, messages, 2)
        place = jnp.arange(len(ordered))
        kept = (place >= few) & (place < count - few)
        total = jnp.where(kept[:, None], ordered, 0).sum(0)
        left = count - 2 * few
        return _one(messages, total / jnp.maximum(left, 1), left > 0)

    return apply


def geometric_median(smoothing: float = 0.1, iterations: int = 3) -> Aggregator:
    """The point with the least sum of distances, by smoothed Weiszfeld iterations.

    Pillutla et al. 2019, arXiv:1912.13445, from the point 0.

    Args:
      smoothing: Smallest distance that a message is weighted by.
    """
    check_range("smoothing", smoothing, open_low=True, schedules=False)
    check_count("iterations", iterations)

    def apply(messages: Messages) -> Messages:
        values, there = messages.values, messages.weight > 0
        point = jnp.zeros_like(values[0])
        for _ in range(iterations):
            distances = jnp.linalg.norm(values - point[None], axis=1)
            weight = jnp.where(there, 1 / jnp.maximum(distances, smoothing), 0)
            point = weight @ values / jnp.maximum(weight.sum(), 1e-30)
        return _one(messages, point, there.any())

    return apply


def krum(bad: int | float, *, chosen: int | None = 1) -> Aggregator:
    """The messages that are nearest to others: Krum and Multi-Krum.

    Blanchard et al. 2017, arXiv:1703.02757: a message's score is the sum of squared
    distances to its n - bad - 2 nearest others. Of equal scores, the first wins.

    Args:
      chosen: How many messages with the least scores are averaged; None for n - bad.
    """
    _check_bad(bad)
    if chosen is not None:
        check_count("chosen", chosen)

    def apply(messages: Messages) -> Messages:
        there = messages.weight > 0
        count = there.sum()
        few = _number("krum", bad, messages, 1, 3)
        if chosen is not None and chosen > len(there):
            raise ValueError(
                f"krum averages {chosen} messages, but a round has {len(there)}"
            )
        distances = jnp.sort(_squared_distances(messages), axis=1)
        place = jnp.arange(len(there))
        few_others = (place < jnp.maximum(count - few - 2, 1))[None]
        near = few_others & jnp.isfinite(distances)
        scores = jnp.where(near, distances, 0).sum(1)
        order = jnp.argsort(jnp.where(there, scores, jnp.inf), stable=True)
        most = count - few if chosen is None else chosen
        best = jnp.zeros_like(there).at[order].set(place < most) & there
        return messages._replace(weight=best.astype(messages.weight.dtype))

    return apply


def centered_clipping(largest: float, iterations: int = 1) -> Aggregator:
    """Moves a center, from 0, by the mean of clipped differences from it.

    Karimireddy et al. 2021, arXiv:2012.10333. The center is not kept between rounds.

    Args:
      largest: Largest norm of a difference, tau.
    """
    check_range("largest", largest, open_low=True, schedules=False)
    check_count("iterations", iterations)

    def apply(messages: Messages) -> Messages:
        values, there = messages.values, messages.weight > 0
        center = jnp.zeros_like(values[0])
        for _ in range(iterations):
            moves = _shortened(values - center[None], largest)
            total = jnp.where(there[:, None], moves, 0).sum(0)
            center = center + total / jnp.maximum(there.sum(), 1)
        return _one(messages, center, there.any())

    return apply


# ------------------------------------------------------------------- before a rule


def nearest_neighbor_mixing(bad: int | float) -> Aggregator:
    """Replaces every message by the mean of its n - bad nearest, itself included.

    Allouah et al. 2023, arXiv:2302.01772. Chain a rule after it.
    """
    _check_bad(bad)

    def apply(messages: Messages) -> Messages:
        there = messages.weight > 0
        few = _number("nearest_neighbor_mixing", bad, messages)
        distances = _squared_distances(messages)
        own = jnp.diag(there)
        order = jnp.argsort(jnp.where(own, -1, distances), axis=1, stable=True)
        near = jnp.arange(len(there)) < jnp.maximum(there.sum() - few, 1)
        rows = jnp.arange(len(there))[:, None]
        is_near = jnp.zeros_like(own).at[rows, order].set(near[None]) & _pairs(there)
        count = jnp.maximum(is_near.sum(1, keepdims=True), 1)
        mixing = is_near.astype(messages.values.dtype) / count
        return messages._replace(values=_product(mixing, messages.values))

    return apply


def bucketing(size: int) -> Aggregator:
    """Replaces messages by means of `size` of them, drawn without replacement.

    Karimireddy et al. 2022, arXiv:2006.09365. The last bucket may have fewer. Chain a
    rule after it.
    """
    check_count("size", size)

    def apply(messages: Messages) -> Messages:
        there = messages.weight > 0
        draws = jax.random.uniform(messages.key, there.shape)
        order = jnp.argsort(jnp.where(there, draws, jnp.inf))
        buckets = -(-len(there) // size)
        bucket = jnp.zeros(len(there), jnp.int32)
        bucket = bucket.at[order].set(jnp.arange(len(there), dtype=jnp.int32) // size)
        is_in = (bucket[None] == jnp.arange(buckets)[:, None]) & there[None]
        counts = is_in.sum(1, keepdims=True)
        means = is_in.astype(messages.values.dtype) / jnp.maximum(counts, 1)
        return messages._replace(
            values=_product(means, messages.values),
            weight=(counts[:, 0] > 0).astype(messages.weight.dtype),
            ids=jnp.full(buckets, -1, jnp.int32),
            key=jax.random.fold_in(messages.key, 1),
        )

    return apply


def shorten_longest(bad: int | float) -> Aggregator:
    """Shortens the longest messages, adaptive robust clipping (ARC).

    Allouah et al. 2025, arXiv:2405.14432: the floor(2 (bad / n) (n - bad)) longest get
    the largest norm of the others. Chain a rule after it.
    """
    _check_bad(bad)

    def apply(messages: Messages) -> Messages:
        there = messages.weight > 0
        count = there.sum()
        few = _number("shorten_longest", bad, messages)
        longest = 2 * few * (count - few) // jnp.maximum(count, 1)
        norms = jnp.linalg.norm(messages.values, axis=1)
        ordered = jnp.sort(jnp.where(there, norms, jnp.inf))
        largest = ordered[jnp.maximum(count - longest - 1, 0)]
        return messages._replace(values=_shortened(messages.values, largest))

    return apply


# ------------------------------------------------------------------------- arithmetic


def _check_bad(bad: int | float) -> None:
    if type(bad) is int:
        check_count("bad", bad, 0)
    else:
        check_range("bad", bad, 0.0, 0.5, open_high=True, schedules=False)


def _number(
    name: str, bad: int | float, messages: Messages, times: int = 1, more: int = 1
) -> Any:
    """`bad` as a count, of the messages that arrived if it is a share.

    Raises:
      ValueError: If a count exceeds what a cohort allows, of times * bad + more.
    """
    size = len(messages.weight)
    if not isinstance(bad, int):
        if 0 < bad < 1 / size:
            warnings.warn(
                f"{name}({bad:g}) of {size} messages in a round rounds down to no bad "
                f"message; give the count 1, or a share of at least 1/{size}",
                stacklevel=2,
            )
        return jnp.floor(bad * (messages.weight > 0).sum() + 1e-4).astype(jnp.int32)
    if bad and size < times * bad + more:
        raise ValueError(
            f"{name} with {bad} bad messages needs at least {times * bad + more} "
            f"messages in a round, got {size}"
        )
    return bad


def _one(messages: Messages, value: jax.Array, is_enough: jax.Array) -> Messages:
    """One message, or none."""
    value = jnp.where(is_enough, value, 0)[None]
    weight = is_enough.astype(messages.weight.dtype)[None]
    return messages._replace(
        values=value, weight=weight, ids=jnp.full(1, -1, jnp.int32)
    )


def _ordered(messages: Messages) -> tuple[jax.Array, jax.Array]:
    """The values of every coordinate in order, the missing last, and their number."""
    there = messages.weight > 0
    return jnp.sort(jnp.where(there[:, None], messages.values, jnp.inf), 0), there.sum()


def _shortened(vectors: jax.Array, largest: Any) -> jax.Array:
    norms = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors * jnp.minimum(1, largest / jnp.where(norms > 0, norms, 1))


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _pairs(there: jax.Array) -> jax.Array:
    return there[:, None] & there[None]


def _squared_distances(messages: Messages) -> jax.Array:
    """[S, S]; infinite on the diagonal, and from and to what is missing."""
    there = messages.weight > 0
    # From their median, near which honest messages keep all digits beside huge ones.
    ordered, count = _ordered(messages)
    center = ordered[(count - 1) // 2]
    rows = jnp.where(there[:, None], messages.values - center[None], 0)
    squares = jnp.sum(rows * rows, 1)
    distances = squares[:, None] + squares[None] - 2 * _product(rows, rows.T)
    known = _pairs(there) & ~jnp.eye(len(there), dtype=bool)
    return jnp.where(known, jnp.maximum(distances, 0), jnp.inf)


__all__ = [
    "Aggregator",
    "bucketing",
    "centered_clipping",
    "chain",
    "geometric_median",
    "krum",
    "median",
    "nearest_neighbor_mixing",
    "robust",
    "shorten_longest",
    "trimmed_mean",
]
