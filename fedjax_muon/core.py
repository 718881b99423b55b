"""The interface of a federated algorithm, and the local loop that all of them share.

A round is a sequence of exchanges. In each, the server broadcasts a pytree, every
sampled client answers with a message and keeps a private state, and the server folds
the weighted mean of the messages into its own state. Nothing else crosses the network,
which is what lets the engine own the mean, the mapping over clients, the byte counts
and whatever happens to a message on its way.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_muon import tree

Params = Any  # a pytree of arrays
GradFn = Callable[[Params, Any, jax.Array], Params]  # (params, batch, key) -> gradient
Schedule = Callable[[jax.Array], Any]  # round index -> number
# what a hyper-parameter may be: also a prefix of the parameters' tree, see `tree`
Hyper = float | jax.Array | Schedule | tuple["Hyper", ...]


class Round(NamedTuple):
    """What everyone knows of a round besides their own state."""

    # int32 [], from 0
    index: jax.Array  # type: ignore[assignment]  # hides tuple.index
    key: jax.Array  # typed key; another one for the server and for every client
    steps: int  # K, the batches that each client works through
    clients: int | jax.Array  # S, how many take part
    fraction: float | jax.Array  # S / N


def as_sent(message):
    """`decode` of an exchange whose messages are averaged as they are."""
    return message


class Exchange(NamedTuple):
    """One broadcast, the clients' answers to it, and what the server makes of them."""

    broadcast: Callable[[Any, Round], Any]
    # (server state, round) -> what every sampled client receives
    client: Callable[[Any, Any, Any, Round], tuple[Any, Any]]
    # (shared, mine, batches, round) -> (message to be averaged, mine)
    server: Callable[[Any, Any, Round], Any]
    # (state, mean message, round) -> state
    decode: Callable[[Any], Any] = as_sent
    # message -> what the mean is taken of, where a message travels in another form
    summed: bool = False
    # True: the server is given the plain sum of what is heard, even if that is nothing


class Algorithm(NamedTuple):
    """A federated algorithm: how states begin, and what is exchanged in a round."""

    init: Callable[[Params], Any]  # params -> server state, which has `.params`
    init_client: Callable[[Params], Any]  # params -> private state, () if none
    exchanges: tuple[Exchange, ...]
    prologue: tuple[Exchange, ...] = ()  # played once, by all clients, before round 0
    uniform: bool = False  # True: its identities hold for the unweighted mean only
    everyone: bool = False  # True: it is defined for full participation only
    made_for: tuple[int, int] | None = None  # (N, S), where it divides by them itself


def map_exchanges(
    change: Callable[[int, Exchange], Exchange], algorithm: Algorithm
) -> Algorithm:
    """The one way to wrap an algorithm: no message escapes, the prologue's neither.

    `change(number, exchange)` is called for all exchanges, which are numbered from 0 at
    the prologue's first.
    """
    first = len(algorithm.prologue)
    changed = [
        change(i, e) for i, e in enumerate((*algorithm.prologue, *algorithm.exchanges))
    ]
    return algorithm._replace(
        prologue=tuple(changed[:first]), exchanges=tuple(changed[first:])
    )


class Parcel(NamedTuple):
    """The shapes of what one exchange sends to and receives from one client."""

    down: Any
    up: Any


def parcels(
    exchanges: Iterable[Exchange], algorithm: Algorithm, params, batches
) -> list[Parcel]:
    """What some exchanges of an algorithm send, as `ShapeDtypeStruct`s.

    Read off the interface, without running anything. `batches` are one client's,
    [K, ...]; all arrays may be `ShapeDtypeStruct`s.
    """
    state = jax.eval_shape(algorithm.init, params)
    mine = jax.eval_shape(algorithm.init_client, params)
    key = jax.eval_shape(lambda: jax.random.key(0))
    steps = jax.tree.leaves(batches)[0].shape[0]

    def sent(exchange, state, mine, batches, key):
        round = Round(jnp.int32(0), key, steps, 1, 1.0)
        shared = exchange.broadcast(state, round)
        return Parcel(shared, exchange.client(shared, mine, batches, round)[0])

    look = lambda e: jax.eval_shape(partial(sent, e), state, mine, batches, key)
    return [look(exchange) for exchange in exchanges]


def messages(algorithm: Algorithm, params) -> list[Any]:
    """The shapes of what a client sends in all exchanges, the prologue's first.

    `algorithm` should be made with a gradient that does not look at its batches: the
    shapes are the same for any.
    """
    batches = jax.ShapeDtypeStruct((1,), jnp.float32)
    exchanges = (*algorithm.prologue, *algorithm.exchanges)
    return [sent.up for sent in parcels(exchanges, algorithm, params, batches)]


def still(params, batch, key):
    """A gradient for `messages`: zero, whatever the batch."""
    del batch, key
    return tree.zeros_like(params)


def everything(state, round: Round):
    """`broadcast` of an algorithm whose server has no secrets."""
    del round
    return state


def stateless(params: Params):
    """`init_client` of an algorithm whose clients keep nothing between rounds."""
    del params
    return ()


def at(value: Hyper, round: Round):
    """A hyper-parameter's value in this round."""
    return tree.map(lambda v: v(round.index) if callable(v) else v, value)


def after_first(value: Hyper, first: float = 1.0) -> Hyper:
    """`first` in round 0 and `value` later: the weight of an average without a past."""

    def schedule(value):
        later = value if callable(value) else lambda index: value
        return lambda index: jnp.where(index == 0, first, later(index))

    return tree.map(schedule, value)


def move(params, lr, rule: optax.GradientTransformation, opt, direction):
    """`params - lr * rule(direction)`, and the rule's new state.

    Local rules begin anew in every round unless an algorithm says otherwise; what
    must outlive a round travels as the algorithm's own state. A rule that has a
    `project` (see `pair.projected`) has it applied to the result.
    """
    updates, opt = rule.update(direction, opt, params)
    moved = tree.sub_scaled(params, lr, updates)
    return getattr(rule, "project", lambda params: params)(moved), opt


def mean_direction(lr: Hyper, round: Round, dx):
    """-dx / (K lr): the mean of the directions whose K moves add up to dx."""
    weight = lambda lr: -1 / (round.steps * lr)
    return tree.scale(tree.map(weight, at(lr, round)), dx)


def local_steps(step, carry, batches, key):
    """Scans `step(carry, batch, key) -> (carry, seen)` over the K batches.

    Returns the last carry and the mean of all `seen` (gradients for control variates,
    or `()`), of which never more than one is stored.
    """
    keys = jax.random.split(key, jax.tree.leaves(batches)[0].shape[0])
    one = jax.tree.map(lambda x: x[0], (batches, keys))
    total = tree.zeros_like(jax.eval_shape(step, carry, *one)[1])

    def body(state, row):
        carry, total = state
        carry, seen = step(carry, *row)
        return (carry, tree.add(total, seen)), None

    (carry, total), _ = jax.lax.scan(body, (carry, total), (batches, keys))
    return carry, tree.scale(1 / len(keys), total)


def mean_gradient(grad_fn: GradFn, params, batches, key):
    """The mean gradient over all of `batches`, at one point: what prologues measure."""
    return local_steps(lambda _, *row: ((), grad_fn(params, *row)), (), batches, key)[1]
