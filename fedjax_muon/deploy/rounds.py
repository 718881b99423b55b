"""Rounds of a deployed federation: the engine's exchanges, with messages for clients.

An exchange here is the simulator's, whose clients hand on the messages that were
received. So the mean, its order, the finite checks and the random streams are those of
`fedjax_muon.engine`, and the parameters are those of a simulation with the plan
`mapped`.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Params, map_exchanges, message_shapes, streams, tree
from fedjax_muon.deploy import messages
from fedjax_muon.deploy.federation import Federation, description
from fedjax_muon.deploy.messages import Message, MessageError, plain
from fedjax_muon.deploy.node import INITIAL, round_of
from fedjax_muon.engine import plans
from fedjax_muon.engine.plans import CohortMember
from fedjax_muon.engine.round import exchange_keys, make_exchange, staleness_of
from fedjax_muon.simulation.arrivals import Arrival, Buffered
from fedjax_muon.simulation.batching import objective_of
from fedjax_muon.simulation.rounds import State, init_state

# Sends requests by client id, and yields (client id, answer) as answers arrive, until
# all have arrived or the deadline in seconds is over. With asynchronous rounds, several
# threads call it at the same time, each for another client.
Send = Callable[[Mapping[int, bytes], float | None], Iterable[tuple[int, bytes]]]
NO_ANSWER = "no answer"


class Sum(NamedTuple):
    """What the server learns of a secure sum."""

    clients: Collection[int]  # whose messages are in it
    total: np.ndarray  # int64 [D], of the summands of nodes
    reason: str = NO_ANSWER  # why the others are not


# Sends requests by client id, and returns the sum of the summands before the deadline.
SecureSum = Callable[[Mapping[int, bytes], float | None], Sum]


class Missing(NamedTuple):
    """An answer that was left out of a mean."""

    round: int  # -1 in the prologue
    exchange: int
    client: int
    reason: str


class Rest(NamedTuple):
    """What is left of a round, or of the prologue, after some of its exchanges."""

    number: int  # of the next exchange
    cohort: np.ndarray  # int32 [S], ids
    present: np.ndarray  # bool [S], who still takes part


class Progress(NamedTuple):
    """What a server has to remember."""

    state: State  # without client states
    accepted: np.ndarray  # int32 [N], turn of each client's last answer that counted
    run: str  # name of the run, which answers repeat
    # messages in the mean of the last round in their order, if it is asynchronous;
    # after the prologue, those that did not arrive
    arrived: tuple[Arrival, ...] = ()
    rest: Rest | None = None  # of a round that has begun
    missing: tuple[Missing, ...] = ()  # answers that the last round left out
    saved: np.ndarray | None = None  # int32 [N], `accepted` of the newest checkpoint

    @property
    def params(self) -> Params:
        """The current parameters."""
        return self.state.params


class Rounds:
    """Exchanges with clients, and the compiled programs of the server."""

    def __init__(
        self,
        shared: Federation,
        send: Send | SecureSum,
        key: jax.Array,
        deadline: float | None,
        keep: Callable[[Progress], Progress] = lambda progress: progress,
    ) -> None:
        """Compiles nothing yet.

        Args:
          keep: Called with what an exchange has changed, before the next one begins.
        """
        self.shared, self.deadline = shared, deadline
        self.send: Any = send
        self.about, self.keep = description(shared), keep
        self._missing: list[Missing] = []  # of the round that runs
        setup = shared.setup
        self.initial = init_state(setup, key).params
        self.messages = message_shapes(setup.algorithm, self.initial)
        numbers = range(len(shared.exchanges))
        self.broadcast = [_broadcast_program(shared, number) for number in numbers]
        self.update = [_update_program(shared, number) for number in numbers]

    def prologue(self, progress: Progress) -> Progress:
        """Runs the rest of the prologue."""
        assert progress.rest is not None
        key = _fresh_key(self.shared, progress.state)
        return self._run(progress, progress.rest, self.shared.first, key)

    def round(self, progress: Progress) -> Progress:
        """Runs a round, or the rest of it."""
        state, setup = progress.state, self.shared.setup
        key, index = _fresh_key(self.shared, state), state.training.index
        rest = progress.rest
        if rest is None:
            members = setup.cohort.members(None, key, index, setup.num_clients)
            drawn = map(np.asarray, (members.ids, members.present))
            rest = Rest(self.shared.first, *drawn)
        progress = self._run(progress, rest, len(self.shared.exchanges), key)
        training = progress.state.training._replace(index=index + 1)
        return progress._replace(state=progress.state._replace(training=training))

    def taken(self) -> tuple[Missing, ...]:
        """The answers that are missing since the last call."""
        missing, self._missing = tuple(self._missing), []
        return missing

    def _run(
        self, progress: Progress, rest: Rest, end: int, key: jax.Array
    ) -> Progress:
        """Runs the exchanges that are left up to one."""
        while rest.number < end:
            progress, rest = self._exchange(progress, rest, key)
            if rest.number < end:
                progress = self.keep(progress._replace(rest=rest))
        return progress._replace(rest=None, missing=self.taken())

    def _exchange(
        self, progress: Progress, rest: Rest, key: jax.Array
    ) -> tuple[Progress, Rest]:
        """Runs an exchange with those who are present."""
        number, cohort, present = rest
        setup, accepted = self.shared.setup, progress.accepted.copy()
        training, ids = progress.state.training, jnp.asarray(cohort)
        keys = exchange_keys(
            jax.random.fold_in(key, streams.ENGINE),
            training.index,
            number,
            0 if number < self.shared.first else self.shared.first,
            ids,
            setup.num_clients,
        )
        size = jnp.float32(self.shared.told(number, present.sum()))
        shared = self.broadcast[number](
            training.server, training.index, keys.server, size
        )
        turn = self.shared.turn(int(training.index), number)
        values = {"broadcast": shared, "present": size}
        requests = {
            client: self.request(
                progress,
                client,
                number,
                values | {"keys": (keys.members[place], keys.draws[place])},
            )
            for place, client in enumerate(map(int, cohort))
            if present[place]
        }
        if self.shared.sums_secretly:
            answers, problems = self._sum(requests, number)
        else:
            answers, problems = self._collect(requests, progress.run, turn, number)
        for client, problem in problems.items():
            self.miss(number, training.index, client, problem)
        sizes = np.ones(len(cohort), np.int32)
        weights, sent = self.stacked(cohort, answers, number, sizes)
        server, received = self.update[number](
            training.server, training.index, keys, ids, sent, weights
        )
        received = np.asarray(received)
        for place, client in enumerate(map(int, cohort)):
            if received[place]:
                accepted[client] = turn
            elif client in answers:
                self.miss(number, training.index, client, "not finite")
        state = progress.state._replace(training=training._replace(server=server))
        after = progress._replace(state=state, accepted=accepted)
        return after, Rest(number + 1, cohort, present & received)

    def request(
        self, progress: Progress, client: int, number: int, values: dict[str, Any]
    ) -> bytes:
        """What a client is asked in an exchange."""
        index, base = progress.state.round, int(progress.accepted[client])
        if base == INITIAL:
            values = {**values, "params": self.initial}
        oldest = base if progress.saved is None else int(progress.saved[client])
        about = {
            "run": progress.run,
            "client": client,
            "round": index,
            "exchange": number,
            "turn": self.shared.turn(index, number),
            "base": base,
            "oldest": oldest,
            "federation": self.about,
        }
        return messages.write(Message(about, messages.pack(values)))

    def _collect(
        self, requests: Mapping[int, bytes], run: str, turn: int, number: int
    ) -> tuple[dict[int, tuple[Any, int]], dict[int, str]]:
        """Each client's message and number of examples, or why there is none."""
        answers: dict[int, tuple[Any, int]] = {}
        problems = dict.fromkeys(requests, NO_ANSWER)
        for client, data in self.send(requests, self.deadline):
            if client not in requests or client in answers:
                continue  # nobody asked, or a second answer
            try:
                answers[client] = self.read(data, client, run, turn, number)
                del problems[client]
            except MessageError as error:
                problems[client] = str(error)
        return answers, problems

    def _sum(
        self, requests: Mapping[int, bytes], number: int
    ) -> tuple[dict[int, tuple[Any, int]], dict[int, str]]:
        """As if the first client of the sum had sent it, and the others zeros."""
        found = self.send(requests, self.deadline)
        if not isinstance(found, Sum):
            raise ValueError(
                "this transport sends single messages; for secure_sums, give one that "
                "sums them, such as the secure_sum of a FlowerServer"
            )
        like = self.messages[number]
        leaves, structure = jax.tree.flatten(like.values)
        ends = np.cumsum([leaf.size for leaf in leaves])
        if found.clients and found.total.shape != (ends[-1],):
            found = found._replace(clients=(), reason="a sum of another shape")
        clients = [client for client in requests if client in found.clients]
        answers = {client: (tree.zeros_like(like), 1) for client in clients}
        if clients:
            parts = np.split(found.total.astype(np.int32), ends[:-1])
            pairs = zip(parts, leaves, strict=True)
            values = [jnp.asarray(part.reshape(leaf.shape)) for part, leaf in pairs]
            total = like._replace(
                values=jax.tree.unflatten(structure, values), check=jnp.float32(0)
            )
            answers[clients[0]] = total, 1
        others = [client for client in requests if client not in answers]
        return answers, dict.fromkeys(others, found.reason)

    def read(
        self, data: bytes, client: int, run: str, turn: int, number: int
    ) -> tuple[Any, int]:
        """The message of an answer, and its number of examples.

        Raises:
          MessageError: If it can't be used.
        """
        answer = messages.read(data)
        about = answer.about
        if about.get("client") != client:
            raise MessageError(f"an answer from client {plain(about.get('client'))}")
        if "refused" in about:
            raise MessageError(f"refused: {plain(about['refused'])}")
        if about.get("run") != run or about.get("turn") != turn:
            raise MessageError("an answer to another request")
        size = about.get("examples")
        if type(size) is not int or not 0 < size <= self.shared.max_client_size:
            raise MessageError(f"it counts {plain(size)} examples")
        sent = messages.unpack(answer.arrays, self.messages[number])
        if about.get("finite") is not True:
            raise MessageError("not finite")
        return sent, size

    def stacked(
        self,
        cohort: np.ndarray,
        answers: Mapping[int, tuple[Any, int]],
        number: int,
        sizes: np.ndarray,
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Returns weights [S] and the leaves of messages [S, ...], zeros for what is
        missing."""
        zeros = tree.zeros_like(self.messages[number])
        rows, there = [], np.zeros(len(cohort), bool)
        for place, client in enumerate(map(int, cohort)):
            sent, size = answers.get(client, (zeros, 1))
            there[place], sizes[place] = client in answers, size
            rows.append(sent)
        weights = self.shared.setup.weighting(jnp.asarray(sizes))
        stack = lambda *leaves: jnp.stack(leaves)
        leaves = map(stack, *map(jax.tree.leaves, rows))
        return jnp.where(there, weights, 0), list(leaves)

    def miss(self, number: int, index: Any, client: int, reason: str) -> None:
        """Notes an answer that is left out."""
        at = -1 if number < self.shared.first else int(index)
        self._missing.append(Missing(at, number, client, plain(reason)))


def _fresh_key(shared: Federation, state: State) -> jax.Array:
    """The key of the rest of a round.

    In a private run it is drawn from the operating system and forgotten. So what was
    not released yet has other noise after a restart.
    """
    words = None if shared.guarantee is None else shared.guarantee.run_words()
    if words is None:
        return state.key
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def _broadcast_program(shared: Federation, number: int) -> Callable[..., Any]:
    @jax.jit
    def broadcast(
        inputs: Any, server: Any, index: jax.Array, key: jax.Array, present: jax.Array
    ) -> Any:
        ours = shared.with_inputs(inputs)
        round = round_of(ours, number, index, key, present)
        late = isinstance(ours.setup.cohort, Buffered)
        state = server.inner if late else server
        return ours.exchanges[number].broadcast(state, round)

    return functools.partial(broadcast, shared.inputs)


def _update_program(shared: Federation, number: int) -> Callable[..., Any]:
    """Compiles the engine's exchange, whose clients hand on what they have sent.

    That is given as the leaves of all messages, [S, ...]. If rounds are asynchronous,
    the rounds that they started in are given too, int32 [S].
    """
    given = lambda objective, broadcast, state, batches, round: (batches, state)

    @jax.jit
    def update(
        inputs: Any,
        server: Any,
        index: jax.Array,
        keys: Any,
        cohort: jax.Array,
        sent: list[jax.Array],
        weights: jax.Array,
        starts: jax.Array | None = None,
    ) -> tuple[Any, Any]:
        ours = shared.with_inputs(inputs)
        # Messages of another instance of the algorithm may have other static parts.
        shapes = message_shapes(ours.setup.algorithm, server.params)[number]
        messages = jax.tree.unflatten(jax.tree.structure(shapes), sent)

        def of_server(present: jax.Array) -> Any:
            size = jnp.sum(present).astype(weights.dtype)
            round = round_of(ours, number, index, keys.server, size)
            return round._replace(late=staleness_of(index, starts, present))

        algorithm = map_exchanges(
            lambda number, exchange: exchange._replace(client=given),
            ours.setup.algorithm,
        )
        algorithm = ours.setup.cohort.executed(algorithm)
        run = make_exchange(
            (*algorithm.prologue, *algorithm.exchanges)[number],
            objective_of(ours.setup.task),
            plans.mapped,
            lambda entry, key: entry,
            of_server,
        )
        member_keys = keys.members, keys.draws
        members = CohortMember(cohort, messages, weights, *member_keys, None, starts)
        after, _, received = run(server, (), members)
        return after, received

    return functools.partial(update, shared.inputs)
