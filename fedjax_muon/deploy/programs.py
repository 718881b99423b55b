"""Compiled programs of the server and of a client, made from the engine's functions.

They take and return flat lists of arrays, since the structure of a message may belong
to one trace of an algorithm. Hyper-parameters are arguments, as in a simulation, so
that the compiler sees the same program.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Objective,
    Round,
    exchange_shapes,
    tree,
    with_numbers,
)
from fedjax_muon.deploy.messages import key_data, unflatten
from fedjax_muon.engine import plans
from fedjax_muon.engine.plans import CohortMember
from fedjax_muon.engine.round import ExchangeKeys, make_exchange, server_round
from fedjax_muon.simulation.batching import Clients, objective_of
from fedjax_muon.simulation.rounds import Inputs, objective_and_sampler

if TYPE_CHECKING:
    from fedjax_muon.deploy.federation import Federation

Arrays = Sequence[Any]


def _parts(
    shared: "Federation", inputs: Inputs, number: int
) -> tuple[Algorithm, Exchange]:
    """The algorithm with hyper-parameters that are arguments, and one exchange."""
    algorithm = with_numbers(shared.setup.algorithm, inputs.numbers)
    return algorithm, (*algorithm.prologue, *algorithm.exchanges)[number]


def _zero(params: Any, batch: Any, key: jax.Array) -> Any:
    del batch, key
    return tree.zeros_like(params)


def shapes_of(shared: "Federation", algorithm: Algorithm, exchange: Exchange) -> Any:
    """Finds the shapes of the messages of an exchange.

    Args:
      shared: The federation.
      algorithm: Its algorithm, perhaps with traced hyper-parameters.
      exchange: One of the algorithm's exchanges.

    Returns:
      `ShapeDtypeStruct`s of the broadcast (`down`) and of a client's message (`up`).
    """
    params = jax.eval_shape(shared.setup.task.init, jax.random.key(0))
    batches = jax.ShapeDtypeStruct((1,), jnp.float32)
    found = exchange_shapes([exchange], algorithm, Objective(_zero), params, batches)
    return found[0]


def broadcast_program(shared: "Federation", number: int) -> Callable[..., list[Any]]:
    """Compiles the server's broadcast.

    Args:
      shared: The federation.
      number: Number of the exchange.

    Returns:
      `run(inputs, server state, index, server key, present bool [S]) -> arrays`.
    """

    @jax.jit
    def run(
        inputs: Inputs, server: Any, index: Any, key: jax.Array, present: jax.Array
    ) -> list[Any]:
        _, exchange = _parts(shared, inputs, number)
        steps, clients = shared.steps(number), shared.setup.num_clients
        round = server_round(index, key, steps, present, clients)
        return [*map(key_data, jax.tree.leaves(exchange.broadcast(server, round)))]

    return run


def client_program(
    shared: "Federation", number: int
) -> Callable[..., tuple[list[Any], list[Any], jax.Array]]:
    """Compiles the local training of a client.

    Args:
      shared: The federation.
      number: Number of the exchange.

    Returns:
      `run(inputs, clients, id, broadcast, state, keys, index, size, count) ->
      (message, state, whether both are finite)`. The broadcast, the state and the
      message are arrays, `keys` the client's two keys, `size` the number of clients
      that take part, and `count` 1.
    """

    @jax.jit
    def run(
        inputs: Inputs,
        clients: Clients,
        client: jax.Array,
        broadcast: Arrays,
        state: Arrays,
        keys: tuple[jax.Array, jax.Array],
        index: jax.Array,
        size: jax.Array,
        count: jax.Array,
    ) -> tuple[list[Any], list[Any], jax.Array]:
        algorithm, exchange = _parts(shared, inputs, number)
        setup, steps = shared.setup._replace(task=inputs.task), shared.steps(number)
        received = unflatten(broadcast, shapes_of(shared, algorithm, exchange).down)
        params = jax.eval_shape(setup.task.init, jax.random.key(0))
        like = jax.eval_shape(algorithm.init_client, params)
        objective, draw = objective_and_sampler(
            setup, clients, steps, shared.max_client_size
        )
        fraction = size / setup.num_clients

        def train(state: Any) -> tuple[Any, Any, jax.Array]:
            round = Round(index, keys[0], steps, size, fraction)
            batches = draw(client, keys[1])
            sent, after = exchange.client(objective, received, state, batches, round)
            finite = tree.all_finite((exchange.decode(sent), after))
            return sent, after, finite

        # A loop, as that of the plan `mapped`, whose body is compiled by itself. The
        # compiler does not know that it ends after one iteration.
        before = unflatten(state, like)
        sent = jax.eval_shape(train, before)[0]
        zeros = tree.zeros_like(sent), before, jnp.bool_(False)
        body = lambda _, carry: train(carry[1])
        sent, after, finite = jax.lax.fori_loop(0, count, body, zeros)
        pack = lambda values: [*map(key_data, jax.tree.leaves(values))]
        return pack(sent), pack(after), finite

    return run


def update_program(
    shared: "Federation", number: int
) -> Callable[..., tuple[Any, jax.Array]]:
    """Compiles the engine's exchange, whose clients hand on what nodes have sent.

    Args:
      shared: The federation.
      number: Number of the exchange.

    Returns:
      `run(inputs, server state, index, keys, cohort, messages, weights) -> (server
      state, received bool [S])`. The messages are arrays [S, ...].
    """

    @jax.jit
    def run(
        inputs: Inputs,
        server: Any,
        index: jax.Array,
        keys: ExchangeKeys,
        cohort: jax.Array,
        sent: Arrays,
        weights: jax.Array,
    ) -> tuple[Any, jax.Array]:
        algorithm, exchange = _parts(shared, inputs, number)
        steps, clients = shared.steps(number), shared.setup.num_clients
        like = shapes_of(shared, algorithm, exchange).up

        def hand_on(objective: Any, broadcast: Any, state: Any, sent: Any, round: Any):
            del objective, broadcast, round
            return unflatten(sent, like), state

        def round_of(present: jax.Array) -> Round:
            return server_round(index, keys.server, steps, present, clients)

        objective = objective_of(inputs.task)
        exchange = exchange._replace(client=hand_on)
        draw = lambda entry, key: entry
        run_exchange = make_exchange(exchange, objective, plans.mapped, draw, round_of)
        members = CohortMember(cohort, list(sent), weights, keys.members, keys.draws)
        server, _, received = run_exchange(server, (), members)
        return server, received

    return run
