"""The interface of a federated algorithm.

A round is a sequence of exchanges. In each, the server broadcasts a pytree, every
sampled client returns a message and updates its private state, and the server updates
its own state from the weighted mean of the messages, which the functions in `stack` may
replace first. Nothing else crosses the network. So the engine alone computes the mean,
maps over clients and counts bytes, and wrappers change messages without knowing the
algorithm.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

Params = Any  # a pytree of arrays
GradFn = Callable[[Params, Any, jax.Array], Params]  # (params, batch, key) -> gradient
Project = Callable[[Params], Params]


def unconstrained(params: Params) -> Params:
    """Returns the parameters as they are: the projection without constraints."""
    return params


def no_losses(params: Params, batch: Any, key: jax.Array) -> tuple[Any, Params]:
    """`value_and_grad` of an objective that has gradients alone."""
    raise TypeError(
        "this method needs the losses of batches; give the Objective a value_and_grad"
    )


class Objective(NamedTuple):
    """The function that an algorithm minimizes, by its gradients and its constraints.

    It is built inside a traced function, which may close over the examples, and is
    never an argument of a compiled function.

    Example:
      >>> objective = fm.Objective(lambda params, batch, key: params)  # |x|^2 / 2
      >>> objective.grad(jnp.float32(3.0), None, jax.random.key(0))
      Array(3., dtype=float32)
    """

    grad: GradFn
    project: Project = unconstrained  # parameters -> parameters in the constraint set
    example_grad: GradFn | None = None
    # (params, batch, key) -> gradients of single examples, leaves [B, ...]
    public_grad: Callable[[Params], Params] | None = None
    # params -> gradient of the terms that depend on no data
    value_and_grad: Callable[[Params, Any, jax.Array], tuple[Any, Params]] = no_losses
    # (params, batch, key) -> loss of the batch [], as in an evaluation, and gradient


class Round(NamedTuple):
    """Information about a round that the server and the clients share.

    Example:
      >>> start = fm.Round(jnp.int32(0), jax.random.key(0), 5, 8, 0.5)
      >>> start.steps, start.fraction
      (5, 0.5)
    """

    # int32 [], counts from 0
    index: jax.Array  # type: ignore[assignment]  # hides tuple.index
    key: jax.Array  # typed key; the server and every client have their own
    # K, the number of local steps of each client. If they differ, int32 [], a client's
    # own; for the server float32 [], their weighted mean over those that take part.
    steps: int | jax.Array
    clients: int | jax.Array  # S, the number of clients that take part
    fraction: float | jax.Array  # S / N
    # int32 [], for the server: largest staleness of the messages in asynchronous rounds
    late: int | jax.Array = 0
    # int32 [], for a client: its number
    client: int | jax.Array = 0


def as_sent(message: Any) -> Any:
    """`decode` of an exchange whose messages are averaged as they are."""
    return message


class Messages(NamedTuple):
    """All messages of an exchange, as vectors, before they are averaged."""

    values: jax.Array  # [S, D], zeros where the weight is 0
    weight: jax.Array  # float [S], 0 for those that did not arrive
    ids: jax.Array  # int32 [S], of the clients
    key: jax.Array  # typed key of the server


class Gathered(NamedTuple):
    """What the server of an exchange with `gather` receives in place of the mean."""

    messages: Any  # leaves [S, ...], zeros where the share is 0
    shares: jax.Array  # float [S], the weights of the mean, whose sum is 1


def unprepared(state: Any, round: Round) -> Any:
    """`prepare` of an exchange that broadcasts its state as it is."""
    del round
    return state


class Exchange(NamedTuple):
    """One broadcast, the clients' messages, and the server's update from their mean.

    Broadcasts and messages are named tuples whose parameters, or their change, are the
    field `params`.

    Example:
      >>> exchange = fm.Exchange(
      ...     broadcast=fm.broadcast_params,
      ...     client=lambda objective, shared, state, batches, round: (shared, state),
      ...     server=lambda state, mean, round: state._replace(params=mean.params),
      ... )
    """

    broadcast: Callable[[Any, Round], Any]
    # (server state, round) -> what every sampled client receives
    client: Callable[[Objective, Any, Any, Any, Round], tuple[Any, Any]]
    # (objective, broadcast, client state, batches, round)
    # -> (message to be averaged, client state)
    server: Callable[[Any, Any, Round], Any]
    # (state, mean message, round) -> state
    decode: Callable[[Any], Any] = as_sent
    # message -> value that is averaged, if a message is sent in another form
    reduce_sum: bool = False
    # whether the server receives the plain sum of all messages, even if there are none
    local_params: Callable[[Any, Any], Params] | None = None
    # (broadcast, message) -> the client's last parameters, if they follow from it
    attacks: tuple[Callable[[Messages], Messages], ...] = ()
    # functions of all messages, which replace those of clients that attack
    stack: tuple[Callable[[Messages], Messages], ...] = ()
    # functions of all messages that arrived and are finite, applied in this order
    # before the mean is taken
    prepare: Callable[[Any, Round], Any] = unprepared
    # (server state, round) -> state that is broadcast, and kept without any message
    gather: bool = False
    # whether the server receives all messages, `Gathered`, in place of their mean


class Algorithm(NamedTuple):
    """A federated algorithm: initial states, and the exchanges of a round.

    Example:
      >>> algorithm = fm.fedavg(lr=0.1)
      >>> len(algorithm.prologue), len(algorithm.exchanges)
      (0, 1)
    """

    # params -> server state, a named tuple with the field `params`
    init: Callable[[Params], Any]
    init_client: Callable[[Params], Any]  # params -> client state, () if none
    exchanges: tuple[Exchange, ...]
    prologue: tuple[Exchange, ...] = ()  # run once, by all clients, before round 0
    # whether it is correct for the unweighted mean only
    uniform_weights: bool = False
    # whether it is defined for full participation only
    full_participation: bool = False
    # (N, S) that it was built for, if it divides by them itself or has numbers of each
    # client; S is None for any
    cohort_spec: tuple[int, int | None] | None = None
    # the function and arguments that it was made from, see `core.recipe`
    recipe: Any = None

    def __repr__(self) -> str:
        name = type(self).__name__
        return name if self.recipe is None else self.recipe.call()


def map_exchanges(
    change: Callable[[int, Exchange], Exchange], algorithm: Algorithm
) -> Algorithm:
    """Changes all exchanges of an algorithm, including those of the prologue.

    Wrappers are written with this function, so that they cover every message.

    Args:
      change: Called as `change(number, exchange)`; exchanges are numbered from 0,
        beginning with the prologue's.

    Example:
      >>> scale = lambda number, exchange: exchange._replace(
      ...     decode=lambda sent: fm.tree.scale(0.5, exchange.decode(sent))
      ... )
      >>> halved = fm.map_exchanges(scale, fm.fedavg(lr=0.1))
    """
    first = len(algorithm.prologue)
    changed = [
        change(i, e) for i, e in enumerate((*algorithm.prologue, *algorithm.exchanges))
    ]
    return algorithm._replace(
        prologue=tuple(changed[:first]), exchanges=tuple(changed[first:])
    )


class Wrapped(NamedTuple):
    """State of a server with what a wrapper keeps there; see `wrapped`."""

    params: Params
    rest: Any  # the algorithm's state, without its parameters
    kept: Any  # of the wrapper

    @property
    def inner(self) -> Any:
        """The algorithm's state."""
        return self.rest._replace(params=self.params)


def wrapped(inner: Any, kept: Any) -> Wrapped:
    """A server's state beside what a wrapper keeps; its parameters stay where they are.

    Example:
      >>> state = wrapped(ParamsMessage(1.0), {"clip": 0.1})
      >>> state.params, state.inner
      (1.0, ParamsMessage(params=1.0))
    """
    return Wrapped(inner.params, inner._replace(params=()), kept)


class ParamsMessage(NamedTuple):
    """A broadcast or a message with nothing but parameters, or their change.

    Example:
      >>> fm.ParamsMessage({"w": 1.0}).params
      {'w': 1.0}
    """

    params: Params


def broadcast_params(state: Any, round: Round) -> ParamsMessage:
    """`broadcast` of an algorithm whose clients need only the parameters.

    Example:
      >>> start = fm.Round(jnp.int32(0), jax.random.key(0), 5, 8, 0.5)
      >>> fm.broadcast_params(fm.ParamsMessage(1.0), start)
      ParamsMessage(params=1.0)
    """
    del round
    return ParamsMessage(state.params)


def broadcast_state(state: Any, round: Round) -> Any:
    """`broadcast` of an algorithm whose clients receive the whole server state.

    Example:
      >>> start = fm.Round(jnp.int32(0), jax.random.key(0), 5, 8, 0.5)
      >>> fm.broadcast_state(fm.ParamsMessage(1.0), start)
      ParamsMessage(params=1.0)
    """
    del round
    return state


def no_client_state(params: Params) -> tuple[()]:
    """`init_client` of an algorithm whose clients keep nothing between rounds.

    Example:
      >>> no_client_state({"w": jnp.ones(3)})
      ()
    """
    del params
    return ()
