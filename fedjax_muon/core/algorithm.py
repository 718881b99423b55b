"""The interface of a federated algorithm.

A round is a sequence of exchanges. In each, the server broadcasts a pytree, every
sampled client answers with a message and keeps a private state, and the server folds
the weighted mean of the messages into its own state. Nothing else crosses the network,
which is what lets the engine own the mean, the mapping over clients, the byte counts
and whatever happens to a message on its way.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

Params = Any  # a pytree of arrays
GradFn = Callable[[Params, Any, jax.Array], Params]  # (params, batch, key) -> gradient
Project = Callable[[Params], Params]


def unconstrained(params: Params) -> Params:
    """The projection of a problem without constraints: the identity."""
    return params


class Objective(NamedTuple):
    """What is minimized, as algorithms see it.

    Built inside a traced function, which may close over the examples; never an argument
    of a compiled one.
    """

    grad: GradFn
    project: Project = unconstrained  # parameters -> parameters in the constraint set
    example_grad: GradFn | None = None
    # (params, batch, key) -> gradients of single examples, leaves [B, ...]
    public_grad: Callable[[Params], Params] | None = None
    # gradient of the terms that touch no data


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
    """One broadcast, the clients' answers to it, and what the server makes of them.

    Broadcasts and messages are named tuples whose parameters, or their change, are the
    field `params`.
    """

    broadcast: Callable[[Any, Round], Any]
    # (server state, round) -> what every sampled client receives
    client: Callable[[Objective, Any, Any, Any, Round], tuple[Any, Any]]
    # (objective, broadcast, client state, batches, round)
    # -> (message to be averaged, client state)
    server: Callable[[Any, Any, Round], Any]
    # (state, mean message, round) -> state
    decode: Callable[[Any], Any] = as_sent
    # message -> what the mean is taken of, where a message travels in another form
    reduce_sum: bool = False
    # whether the server receives the plain sum of all messages, even if there are none


class Algorithm(NamedTuple):
    """A federated algorithm: how states begin, and what is exchanged in a round."""

    init: Callable[[Params], Any]  # params -> server state, which has `.params`
    init_client: Callable[[Params], Any]  # params -> client state, () if none
    exchanges: tuple[Exchange, ...]
    prologue: tuple[Exchange, ...] = ()  # run once, by all clients, before round 0
    # whether its identities hold for the unweighted mean only
    uniform_weights: bool = False
    # whether it is defined for full participation only
    full_participation: bool = False
    # (N, S), if it divides by them itself
    cohort_spec: tuple[int, int] | None = None
    # what made it, see `core.recipe`
    recipe: Any = None


def map_exchanges(
    change: Callable[[int, Exchange], Exchange], algorithm: Algorithm
) -> Algorithm:
    """Changes all exchanges of an algorithm, the prologue's too.

    The one way to write a wrapper: no message escapes it.

    Args:
      change: Called as `change(number, exchange)`; exchanges are numbered from 0 at the
        prologue's first.
      algorithm: The algorithm to wrap.

    Returns:
      The algorithm with the changed exchanges.

    Example:
      >>> def clip_entries(number, exchange):
      ...     decode = lambda sent: optax.tree.clip(exchange.decode(sent), -1.0, 1.0)
      ...     return exchange._replace(decode=decode)
      >>> algorithm = map_exchanges(clip_entries, fedavg(lr=0.1))
    """
    first = len(algorithm.prologue)
    changed = [
        change(i, e) for i, e in enumerate((*algorithm.prologue, *algorithm.exchanges))
    ]
    return algorithm._replace(
        prologue=tuple(changed[:first]), exchanges=tuple(changed[first:])
    )


class Model(NamedTuple):
    """A broadcast or a message that is parameters, or their change, alone."""

    params: Params


def broadcast_params(state: Any, round: Round) -> Model:
    """`broadcast` of an algorithm whose clients need the parameters alone.

    Args:
      state: Server state, which has the field `params`.
      round: Not used; every `broadcast` is given it.

    Returns:
      A message with the parameters.

    Example:
      >>> round = Round(jnp.int32(0), jax.random.key(0), 1, 1, 1.0)
      >>> params = broadcast_params(Model({"w": jnp.ones(3)}), round).params
    """
    del round
    return Model(state.params)


def broadcast_state(state: Any, round: Round) -> Any:
    """`broadcast` of an algorithm whose server has no secrets.

    Args:
      state: Server state, a named tuple with the field `params`.
      round: Not used; every `broadcast` is given it.

    Returns:
      The state as it is.

    Example:
      >>> round = Round(jnp.int32(0), jax.random.key(0), 1, 1, 1.0)
      >>> params = broadcast_state(Model({"w": jnp.ones(3)}), round).params
    """
    del round
    return state


def no_client_state(params: Params) -> tuple[()]:
    """`init_client` of an algorithm whose clients keep nothing between rounds.

    Args:
      params: Not used; every `init_client` is given the initial parameters.

    Returns:
      The empty tuple.

    Example:
      >>> no_client_state({"w": jnp.ones(3)})
      ()
    """
    del params
    return ()
