"""Clients that attack: what they send instead of the messages of their training.

    attacked = fm.attack(fm.fedmuon(lr=0.01), fm.attacks.alie(), clients=range(3))
    algorithm = fm.robust(attacked, fm.aggregators.median())

An attacker knows all messages of an exchange. Attackers replace messages as the server
receives them, before any robust aggregation, in whatever order the wrappers are
applied. An attack that is not finite is lost, like any such message. Unless noted
otherwise, the attacks are those of ByzFL (https://github.com/LPD-EPFL/byzfl; compared
with its code). ALIE moves to the other side of the mean, as in its paper. `flip_labels`
changes a dataset instead.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Algorithm, Messages, check_function, check_range, recorded
from fedjax_muon.data import Dataset
from fedjax_muon.data.partition import check_listed
from fedjax_muon.wrappers.aggregators import with_all_messages

# (messages, attackers [S], honest ones [S]) -> the message of all attackers [D], or of
# each [S, D]
Attack = Callable[[Messages, jax.Array, jax.Array], jax.Array]


@recorded
def attack(algorithm: Algorithm, attack: Attack, clients: Sequence[int]) -> Algorithm:
    """Lets some clients attack, whenever they take part.

    Where no honest client takes part, the attackers send what they trained.

    Args:
      attack: What they send, such as `attacks.alie()`.
      clients: Ids of the attackers; an id past the last client never takes part.

    Example:
      >>> method = fm.attack(fm.fedavg(lr=0.1), fm.attacks.sign_flip(), clients=[0])
    """
    check_function("attack", attack, "alie()")
    ids = _ids_of(clients)

    def apply(messages: Messages) -> Messages:
        shape, there = messages.values.shape, messages.weight > 0
        is_attacker = jnp.isin(messages.ids, ids) & there
        honest = there & ~is_attacker
        sent = jnp.broadcast_to(attack(messages, is_attacker, honest), shape)
        replaced = (is_attacker & honest.any())[:, None]
        return messages._replace(values=jnp.where(replaced, sent, messages.values))

    add = lambda exchange: exchange._replace(attacks=(apply, *exchange.attacks))
    return with_all_messages(algorithm, add)


def sign_flip() -> Attack:
    """Sends the negative of the attacker's own message (Karimireddy et al. 2022)."""
    return lambda messages, is_attacker, honest: -messages.values


def inner_product(scale: float = 2.0) -> Attack:
    """Sends the negative of the honest mean, scaled.

    Source: Xie et al. 2020, arXiv:1903.03936; 1 is ByzFL's sign flip.
    """
    check_range("scale", scale, open_low=True, schedules=False)
    return lambda messages, is_attacker, honest: -scale * _mean(messages, honest)


def alie(deviations: float | None = None) -> Attack:
    """Sends the honest mean minus some standard deviations: "a little is enough".

    Source: Baruch et al. 2019, arXiv:1902.06156.

    Args:
      deviations: z; by default the largest one that still has a majority behind it, of
        n messages with f attackers: Phi^-1((n - f - s) / (n - f)), s = floor(n/2 + 1)
        - f.
    """
    if deviations is not None:
        check_range("deviations", deviations, schedules=False)

    def send(
        messages: Messages, is_attacker: jax.Array, honest: jax.Array
    ) -> jax.Array:
        f, h = is_attacker.sum(), honest.sum()
        z: Any = deviations
        if deviations is None:
            supporters = (f + h) // 2 + 1 - f
            share = jnp.clip((h - supporters) / jnp.maximum(h, 1), 1e-3, 1 - 1e-3)
            z = jax.scipy.stats.norm.ppf(share)
        mean = _mean(messages, honest)
        squares = jnp.where(honest[:, None], (messages.values - mean[None]) ** 2, 0)
        deviation = jnp.sqrt(squares.sum(0) / jnp.maximum(h - 1, 1))
        return mean - z * deviation

    return send


def gaussian(deviation: float = 1.0) -> Attack:
    """Sends independent normal numbers."""
    check_range("deviation", deviation, open_low=True, schedules=False)

    def send(
        messages: Messages, is_attacker: jax.Array, honest: jax.Array
    ) -> jax.Array:
        del is_attacker, honest
        key = jax.random.fold_in(messages.key, 2)
        shape, dtype = messages.values.shape, messages.values.dtype
        return deviation * jax.random.normal(key, shape, dtype)

    return send


def mimic() -> Attack:
    """Sends a copy of the message of the honest client with the smallest id.

    Source: Karimireddy et al. 2022, arXiv:2006.09365, with a fixed choice of the
    client.
    """

    def send(
        messages: Messages, is_attacker: jax.Array, honest: jax.Array
    ) -> jax.Array:
        del is_attacker
        ids = jnp.where(honest, messages.ids, jnp.iinfo(jnp.int32).max)
        return messages.values[jnp.argmin(ids)]

    return send


def flip_labels(
    dataset: Dataset, parts: Sequence[np.ndarray], clients: Sequence[int]
) -> Dataset:
    """Replaces the labels y of some clients' training examples by C - 1 - y.

    Args:
      parts: For every client, the ids of its training examples, as for `federate`.
      clients: Ids of the clients that train on wrong labels.
    """
    y = np.array(dataset.y_train)
    if not np.issubdtype(y.dtype, np.integer):
        raise TypeError(f"only classes can be flipped, got labels of dtype {y.dtype}")
    check_listed("parts", parts)
    ids = _ids_of(clients)
    if ids.max() >= len(parts):
        raise ValueError(f"there is no client {ids.max()} among {len(parts)} parts")
    for client in ids:
        own = parts[client]
        y[own] = len(dataset.classes) - 1 - y[own]
    return dataset._replace(y_train=y)


def _ids_of(clients: Sequence[int]) -> np.ndarray:
    ids = np.asarray(list(clients) if isinstance(clients, Iterable) else None)
    if not ids.size or ids.dtype.kind not in "iu" or ids.ndim != 1 or ids.min() < 0:
        raise ValueError(f"clients must be ids of clients, from 0 on, got {clients!r}")
    return ids


def _mean(messages: Messages, honest: jax.Array) -> jax.Array:
    total = jnp.where(honest[:, None], messages.values, 0).sum(0)
    return total / jnp.maximum(honest.sum(), 1)


__all__ = [
    "Attack",
    "alie",
    "attack",
    "flip_labels",
    "gaussian",
    "inner_product",
    "mimic",
    "sign_flip",
]
