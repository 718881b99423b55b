"""Messages as fixed-point numbers, of which the server learns only the sum.

    algorithm = fm.secure_sums(fm.fedmuon(lr=0.01))

Sums of integers do not depend on their order. So a simulation is bitwise identical to a
deployed run in which a protocol, such as Flower's SecAgg+, adds the messages under
masks. In a simulation there are no masks, only the same rounding.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon import core
from fedjax_muon.core import tree

BITS = 22  # of an entry, as in Flower by default
MOST = 2 ** (32 - BITS) - 1  # clients of a sum, which must fit in 32 bits
FEWEST = 3  # from a sum of two, each client could tell the other's message


class FixedPoint(NamedTuple):
    """A message of integers between -2 ** (BITS - 1) and 2 ** (BITS - 1)."""

    values: Any  # int32 leaves
    # float32 [], 0, or NaN if an entry is too large, so that the message is left out
    check: jax.Array


@core.recorded
def secure_sums(algorithm: core.Algorithm, largest: float = 8.0) -> core.Algorithm:
    """Rounds messages to fixed-point numbers, so that they can be summed in secret.

    A message with an entry beyond `largest` is treated like one that is not finite: a
    deployed server leaves it out of the mean, and `fm.run` raises `NonFiniteError`, or
    leaves it out if you ask for that. Wrap personalization and compression first: the
    sum is that of decompressed messages.

    Source: Bonawitz et al. 2017, https://doi.org/10.1145/3133956.3133982; the rounding
    of Flower 1.41 (its code), to the nearest number rather than at random.

    Args:
      algorithm: An algorithm whose server needs only the unweighted mean.
      largest: Bound on the entries of a message, a power of two. Entries are rounded to
        multiples of 2 ** -21 times it.

    Raises:
      ValueError: If the server needs single messages, as for robust aggregation.

    Example:
      >>> algorithm = fm.secure_sums(fm.fedavg(lr=0.1))
    """
    core.check_range("largest", largest, open_low=True, schedules=False)
    if np.frexp(largest)[0] != 0.5:
        raise ValueError(
            f"largest must be a power of two, such as 8, got {largest:g}: rounded "
            "entries are exact only then"
        )
    step = largest / 2 ** (BITS - 1)

    def change(number: int, exchange: core.Exchange) -> core.Exchange:
        _check_sums(exchange, algorithm)
        rounded = partial(_rounded, largest=largest, step=step)

        def client(*given: Any) -> tuple[FixedPoint, Any]:
            sent, after = core.returned(exchange.client(*given))
            return rounded(exchange.decode(sent)), after

        def server(state: Any, total: FixedPoint, round: core.Round) -> Any:
            clients = jnp.asarray(round.clients)
            count = jnp.maximum(clients, 1)
            share = lambda x, like: (x * step / count).astype(like.dtype)
            like = core.received_shapes(algorithm, state.params)[number]
            after = exchange.server(state, tree.map(share, total.values, like), round)
            return tree.where(clients > 0, after, state)

        return exchange._replace(
            client=client,
            server=server,
            decode=added,
            reduce_sum=True,
            local_params=None,
        )

    return core.map_exchanges(change, algorithm)._replace(uniform_weights=True)


def _check_sums(exchange: core.Exchange, algorithm: core.Algorithm) -> None:
    if exchange.attacks or exchange.stack or exchange.gather or exchange.reduce_sum:
        raise ValueError(
            f"the server of {algorithm!r} needs single messages (for robust "
            "aggregation, attacks, privacy, or products of factors), which a secure "
            "sum hides; leave out one of them"
        )


def _rounded(message: Any, largest: float, step: float) -> FixedPoint:
    sizes = [jnp.abs(x).max(initial=0) for x in jax.tree.leaves(message)]
    fits = tree.all_finite(message) & jnp.all(jnp.array(sizes) <= largest)
    one = lambda x: jnp.round(jnp.where(fits, x, 0) / step).astype(jnp.int32)
    check = jnp.where(fits, 0.0, jnp.nan).astype(jnp.float32)
    return FixedPoint(tree.map(one, message), check)


def added(message: FixedPoint) -> FixedPoint:
    """`decode` of messages that the server gets the sum of."""
    return message


def is_summed(algorithm: core.Algorithm) -> bool:
    """Whether the server gets sums of messages, and no single one."""
    exchanges = (*algorithm.prologue, *algorithm.exchanges)
    return any(exchange.decode is added for exchange in exchanges)


def check_clients(algorithm: core.Algorithm, first: int, cohort: int) -> None:
    """Raises `ValueError` for sums of too few or too many clients.

    Args:
      first: Number of clients in the prologue.
    """
    if not is_summed(algorithm):
        return
    largest = max(cohort, first if algorithm.prologue else 0)
    if not FEWEST <= cohort <= largest <= MOST:
        raise ValueError(
            f"a secure sum has {FEWEST} to {MOST} clients, got {cohort} in a round and "
            f"at most {largest}: fewer would learn each other's messages, and a larger "
            "sum does not fit in 32 bits"
        )
