"""Robust aggregation: what a server does instead of the mean of the clients' messages.

    algorithm = fm.robust(fm.fedmuon(lr=0.01), fm.aggregators.trimmed_mean(0.2))
    mixed = chain(nearest_neighbor_mixing(0.2), median())

An aggregator maps all messages of an exchange, as vectors, to other messages, which are
then averaged. Only messages that have arrived count, all with the same weight. `bad` is
the number of messages that may be wrong: a count, or a fraction of those that arrived,
rounded down. Distances are between whole messages. Unless noted otherwise, the rules
are those of ByzFL (https://github.com/LPD-EPFL/byzfl; compared with the authors' code).
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_muon import core

Aggregator = Callable[[core.Messages], core.Messages]


@core.recorded
def robust(algorithm: core.Algorithm, aggregator: Aggregator) -> core.Algorithm:
    """Aggregates the messages of an algorithm by a robust rule instead of their mean.

    All messages of a cohort are in memory together: S times the bytes of one, on every
    device. Bytes that are sent stay the same.

    Args:
      aggregator: Applied in every exchange, including those of the prologue.

    Returns:
      An algorithm that accepts uniform weights only. Where fewer messages arrive than
      the rule needs, the server's state stays as it is.

    Example:
      >>> normuon = transforms.by_rank(transforms.scale_by_normuon())
      >>> scaffold_normuon = scaffold(lr=0.01, rule=normuon)
      >>> algorithm = robust(scaffold_normuon, aggregators.trimmed_mean(0.2))
    """
    core.check_function("aggregator", aggregator, "median()")
    add = lambda exchange: exchange._replace(stack=(*exchange.stack, aggregator))
    return with_all_messages(algorithm, add)


def with_all_messages(
    algorithm: core.Algorithm, change: Callable[[core.Exchange], core.Exchange]
) -> core.Algorithm:
    """Changes the functions of all messages, in all exchanges."""

    def one(number: int, exchange: core.Exchange) -> core.Exchange:
        del number
        if exchange.reduce_sum:
            raise ValueError(
                "privacy and secure_sums add messages up, so nothing can aggregate or "
                "attack them one by one: leave out one of them"
            )
        return change(exchange)

    return core.map_exchanges(one, algorithm)._replace(uniform_weights=True)


def chain(*aggregators: Aggregator) -> Aggregator:
    """Applies several aggregators, one to the results of the other."""
    for aggregator in aggregators:
        core.check_function("aggregator", aggregator, "median()")

    def apply(messages: core.Messages) -> core.Messages:
        for aggregator in aggregators:
            messages = core.only_finite(aggregator(messages))
        return messages

    return apply


# ------------------------------------------------------------------------------ rules


def median() -> Aggregator:
    """The median of every coordinate; of an even number, the mean of the middle two."""

    def apply(messages: core.Messages) -> core.Messages:
        ordered, count = _ordered(messages)
        # Halves first, whose sum stays in range.
        middle = ordered[(count - 1) // 2] / 2 + ordered[count // 2] / 2
        return _one(messages, middle, count > 0)

    return apply


def trimmed_mean(bad: int | float) -> Aggregator:
    """The mean of every coordinate without its `bad` largest and smallest values."""
    _check_bad(bad)

    def apply(messages: core.Messages) -> core.Messages:
        ordered, count = _ordered(messages)
        few, is_enough = _number("trimmed_mean", bad, messages, 1)
        place = jnp.arange(len(ordered))
        kept = (place >= few) & (place < count - few)
        part = 2.0 ** -len(ordered).bit_length()  # a sum of parts stays in range
        total = jnp.where(kept[:, None], part * ordered, 0).sum(0)
        mean = total / jnp.maximum(count - 2 * few, 1) / part
        return _one(messages, mean, is_enough)

    return apply


def geometric_median(smoothing: float = 0.1, iterations: int = 3) -> Aggregator:
    """The point with the least sum of distances, by smoothed Weiszfeld iterations.

    Source: Pillutla et al. 2019, arXiv:1912.13445, from the point 0.

    Args:
      smoothing: Smallest distance that a message is weighted by.
    """
    core.check_range("smoothing", smoothing, open_low=True, schedules=False)
    core.check_count("iterations", iterations)

    def apply(messages: core.Messages) -> core.Messages:
        values, there = messages.values, messages.weight > 0
        unit = 2.0 ** (jnp.finfo(values.dtype).maxexp // 6)  # distances stay in range
        point = jnp.zeros_like(values[0])
        for _ in range(iterations):
            distances = _norms(values - point[None], unit)
            weight = jnp.where(there, 1 / jnp.maximum(distances, smoothing / unit), 0)
            point = weight @ values / jnp.where(there.any(), weight.sum(), 1)
        return _one(messages, point, there.any())

    return apply


def krum(bad: int | float, *, chosen: int | None = 1) -> Aggregator:
    """The messages that are nearest to others: Krum and Multi-Krum.

    A message's score is the sum of squared distances to its n - bad - 2 nearest others.
    If scores are equal, the first message wins. A distance that is too large for a
    float counts as the farthest.

    Source: Blanchard et al. 2017, arXiv:1703.02757.

    Args:
      chosen: How many messages with the least scores are averaged; None for n - bad.
    """
    _check_bad(bad)
    if chosen is not None:
        core.check_count("chosen", chosen)

    def apply(messages: core.Messages) -> core.Messages:
        there = messages.weight > 0
        count = there.sum()
        few, is_enough = _number("krum", bad, messages, 2)
        if chosen is not None and chosen > len(there):
            raise ValueError(
                f"krum averages {chosen} messages, but a round has {len(there)}"
            )
        distances = jnp.sort(_squared_distances(messages), axis=1)
        place = jnp.arange(len(there))
        nearest = (place < jnp.maximum(count - few - 2, 1))[None]
        far = nearest & jnp.isinf(distances)
        scores = jnp.where(nearest & ~far, distances, 0).sum(1)
        order = jnp.lexsort((scores, far.sum(1), ~there))
        most = count - few if chosen is None else chosen
        best = jnp.zeros_like(there).at[order].set(place < most) & there & is_enough
        return messages._replace(weight=best.astype(messages.weight.dtype))

    return apply


def centered_clipping(largest: float, iterations: int = 1) -> Aggregator:
    """Moves a center, from 0, by the mean of clipped differences from it.

    The center is not kept between rounds.

    Source: Karimireddy et al. 2021, arXiv:2012.10333.

    Args:
      largest: Largest norm of a difference, tau.
    """
    core.check_range("largest", largest, open_low=True, schedules=False)
    core.check_count("iterations", iterations)

    def apply(messages: core.Messages) -> core.Messages:
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

    Chain a rule after it.

    Source: Allouah et al. 2023, arXiv:2302.01772.
    """
    _check_bad(bad)

    def apply(messages: core.Messages) -> core.Messages:
        there = messages.weight > 0
        few, is_enough = _number("nearest_neighbor_mixing", bad, messages, 1)
        distances = _squared_distances(messages)
        own = jnp.diag(there)
        order = jnp.argsort(jnp.where(own, -1, distances), axis=1, stable=True)
        near = jnp.arange(len(there)) < jnp.maximum(there.sum() - few, 1)
        rows = jnp.arange(len(there))[:, None]
        is_near = jnp.zeros_like(own).at[rows, order].set(near[None]) & _pairs(there)
        count = jnp.maximum(is_near.sum(1, keepdims=True), 1)
        mixing = is_near.astype(messages.values.dtype) / count
        return _all(messages, _product(mixing, messages.values), is_enough)

    return apply


def bucketing(size: int) -> Aggregator:
    """Replaces messages by means of `size` of them, drawn without replacement.

    The last bucket may have fewer. Chain a rule after it.

    Source: Karimireddy et al. 2022, arXiv:2006.09365.
    """
    core.check_count("size", size)

    def apply(messages: core.Messages) -> core.Messages:
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

    The floor(2 (bad / n) (n - bad)) longest get the largest norm of the others. Chain a
    rule after it.

    Source: Allouah et al. 2025, arXiv:2405.14432.
    """
    _check_bad(bad)

    def apply(messages: core.Messages) -> core.Messages:
        there = messages.weight > 0
        count = there.sum()
        few, is_enough = _number("shorten_longest", bad, messages, 1)
        longest = 2 * few * (count - few) // jnp.maximum(count, 1)
        ordered = jnp.sort(jnp.where(there, _norms(messages.values), jnp.inf))
        largest = ordered[jnp.maximum(count - longest - 1, 0)]
        return _all(messages, _shortened(messages.values, largest), is_enough)

    return apply


# ------------------------------------------------------------------------- arithmetic


def _check_bad(bad: int | float) -> None:
    if type(bad) is int:
        core.check_count("bad", bad, 0)
    else:
        core.check_range("bad", bad, 0.0, 0.5, open_high=True, schedules=False)


def _number(
    name: str, bad: int | float, messages: core.Messages, more: int
) -> tuple[Any, jax.Array]:
    """`bad` as a count, of the messages that arrived if it is a share.

    Returns:
      The count, and whether 2 * count + more messages arrived, so that the good ones
      prevail; at least one if the count is 0.

    Raises:
      ValueError: If so many never arrive in a cohort of this size.
    """
    size, arrived = len(messages.weight), (messages.weight > 0).sum()
    is_share = not isinstance(bad, int)
    most = math.floor(bad * size + 1e-4) if is_share else bad
    if bad and not most:
        warnings.warn(
            f"{name}({bad:g}) of {size} messages in a round rounds down to no bad "
            f"message; give the count 1, or a share of at least 1/{size}",
            stacklevel=2,
        )
    if most and size < 2 * most + more:
        raise ValueError(
            f"{name} with {most} bad messages needs at least {2 * most + more} "
            f"messages in a round, got {size}"
        )
    few = jnp.floor(bad * arrived + 1e-4).astype(jnp.int32) if is_share else most
    return few, arrived >= jnp.where(few > 0, 2 * few + more, 1)


def _all(
    messages: core.Messages, values: jax.Array, is_enough: jax.Array
) -> core.Messages:
    """The same number of messages, or none if too few have arrived."""
    weight = jnp.where(is_enough, messages.weight, 0)
    return messages._replace(values=values, weight=weight)


def _one(
    messages: core.Messages, value: jax.Array, is_enough: jax.Array
) -> core.Messages:
    """One message, or none if too few have arrived."""
    value = jnp.where(is_enough, value, 0)[None]
    weight = is_enough.astype(messages.weight.dtype)[None]
    return messages._replace(
        values=value, weight=weight, ids=jnp.full(1, -1, jnp.int32)
    )


def _ordered(messages: core.Messages) -> tuple[jax.Array, jax.Array]:
    """The values of every coordinate in order, the missing last, and their number."""
    there = messages.weight > 0
    return jnp.sort(jnp.where(there[:, None], messages.values, jnp.inf), 0), there.sum()


def _power(largest: jax.Array) -> jax.Array:
    """A power of two, by which squares of numbers up to `largest` stay in range.

    It is 1 for ordinary numbers, which keep every bit.
    """
    far = jnp.finfo(largest.dtype).maxexp * 5 // 16
    up = jnp.where(largest < 2.0**-far, 2.0 ** (2 * far), 1)
    return jnp.where(largest > 2.0**far, 2.0 ** (-2 * far), up).astype(largest.dtype)


def _scaled(vectors: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Vectors times powers of two, their norms [S, 1], and the powers [S, 1]."""
    power = _power(jnp.abs(vectors).max(1, keepdims=True, initial=0))
    scaled = power * vectors
    return scaled, jnp.linalg.norm(scaled, axis=1, keepdims=True), power


def _norms(vectors: jax.Array, unit: float = 1.0) -> jax.Array:
    _, norms, powers = _scaled(vectors)
    return (norms / (unit * powers))[:, 0]


def _shortened(vectors: jax.Array, largest: Any) -> jax.Array:
    scaled, norms, powers = _scaled(vectors)
    is_long = norms > powers * largest
    cut = scaled * (largest / jnp.where(is_long, norms, 1))
    return jnp.where(is_long, cut, vectors)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _pairs(there: jax.Array) -> jax.Array:
    return there[:, None] & there[None]


def _squared_distances(messages: core.Messages) -> jax.Array:
    """[S, S]; infinite on the diagonal, and from and to what is missing.

    Up to one factor. Distances from and to huge messages are infinite too.
    """
    there = messages.weight > 0
    # From their median, near which honest messages keep all digits beside huge ones.
    ordered, count = _ordered(messages)
    middle = (count - 1) // 2
    rows = jnp.where(there[:, None], messages.values - ordered[middle][None], 0)
    # By the median of their sizes, so that squares of most of them stay in range.
    sizes = jnp.where(there, jnp.abs(rows).max(1, initial=0), jnp.inf)
    rows = jnp.minimum(_power(jnp.sort(sizes)[middle]), 1) * rows
    squares = jnp.sum(rows * rows, 1)
    distances = squares[:, None] + squares[None] - 2 * _product(rows, rows.T)
    known = _pairs(there) & ~jnp.eye(len(there), dtype=bool) & ~jnp.isnan(distances)
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
