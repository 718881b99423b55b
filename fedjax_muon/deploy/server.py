"""The server of a deployed federation: the engine's rounds, with messages for clients.

An exchange here is the simulator's, whose clients hand on the messages that were
received. So the mean, its order, the finite checks and the random streams are those of
`fedjax_muon.engine`, and the parameters are those of a simulation with the plan
`mapped`.
"""

import contextlib
import functools
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Params, message_shapes, streams, tree
from fedjax_muon.deploy import messages
from fedjax_muon.deploy.federation import Federation, description
from fedjax_muon.deploy.messages import Message, MessageError
from fedjax_muon.deploy.node import INITIAL, Node, round_of
from fedjax_muon.engine import plans
from fedjax_muon.engine.plans import CohortMember
from fedjax_muon.engine.round import ExchangeKeys, exchange_keys, make_exchange
from fedjax_muon.privacy.guarantees import Guarantee
from fedjax_muon.simulation import checkpoint
from fedjax_muon.simulation.arrivals import (
    Arrival,
    Arrivals,
    Step,
    asynchronous,
    damped,
    filled,
    orders_of,
)
from fedjax_muon.simulation.batching import objective_of
from fedjax_muon.simulation.rounds import (
    Inputs,
    State,
    cohort_of,
    init_state,
)
from fedjax_muon.simulation.simulation import fresh_key, inputs_of

# Sends requests by client id, and yields (client id, answer) as answers arrive, until
# all have arrived or the deadline in seconds is over. With asynchronous rounds, several
# threads call it at the same time, each for another client.
Send = Callable[[Mapping[int, bytes], float | None], Iterable[tuple[int, bytes]]]
NO_ANSWER = "no answer"


class Missing(NamedTuple):
    """An answer that was left out of a mean."""

    round: int  # -1 in the prologue
    exchange: int
    client: int
    reason: str


class Progress(NamedTuple):
    """What a server has to remember."""

    state: State  # without client states
    accepted: np.ndarray  # int32 [N], turn of each client's last answer that counted
    run: str  # name of the run, which answers repeat
    # messages in the mean of the last round in their order, if it is asynchronous
    arrived: tuple[Arrival, ...] = ()

    @property
    def params(self) -> Params:
        """The current parameters."""
        return self.state.params


def serve(
    shared: Federation,
    send: Send,
    key: jax.Array,
    *,
    rounds: int,
    deadline: float | None = None,
    directory: Path | None = None,
    checkpoint_seconds: float = 0.0,
    on_round: Callable[[Progress, list[Missing]], None] = lambda progress, missing: (
        None
    ),
) -> Progress:
    """Trains with real clients.

    A client that does not answer in time, or whose answer can't be used, is left out of
    the mean of that exchange and of the rest of the round. Its state stays as it was.

    With the federation's `arrivals`, clients train at the same time, and a round ends
    when the buffer is full, or no client is left that could answer. A client whose
    message is lost or too late starts again from newer parameters. `fm.replayed`
    repeats the order of arrivals in a simulation.

    Args:
      send: Transport, such as `in_process(nodes)` or a `FlowerServer`'s `send`.
      key: Typed key of the run, as for `Simulation.init`. It never leaves the server.
      deadline: Seconds to wait for the answers of an exchange, or of a client if rounds
        are asynchronous; by default, as long as the transport waits.
      directory: Where checkpoints are kept; a server that is started again resumes from
        the newest one. In a private run, only their owner can read them, and later
        rounds have fresh noise.
      checkpoint_seconds: Shortest time between two checkpoints; by default, there is
        one after every round, as there must be with privacy. Nodes keep the states that
        were made since the last one. Asynchronous clients that were at work start
        again.
      on_round: Called after the prologue and after every round, with the answers that
        are missing.
    """
    private = shared.guarantee is not None
    if shared.guarantee is not None:
        shared.guarantee.check_rounds(0, rounds)
        if directory is not None and checkpoint_seconds:
            raise ValueError(
                "a private server saves every round before it sends the parameters, so "
                "that no round is sent twice with different noise; leave out "
                f"checkpoint_seconds, got {checkpoint_seconds}"
            )
    server, arrivals = _Server(shared, send, key, deadline), shared.setup.arrivals
    if arrivals is not None:
        server = _Asynchronous(arrivals, shared, send, key, deadline)
    opened: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if directory is not None:
        opened = checkpoint.open_checkpoints(directory, secret=private)
    with opened as stored:
        progress, saved = _begin(server, key, stored)
        on_round(progress, server.missing)
        since = time.monotonic()
        while progress.state.round < rounds:
            server.missing, server.saved = [], saved
            progress = server.round(progress)
            last = progress.state.round == rounds
            if stored and (last or time.monotonic() - since >= checkpoint_seconds):
                _save(stored, shared, progress)
                saved, since = progress.accepted, time.monotonic()
            on_round(progress, server.missing)
    return progress


def _begin(
    server: "_Server", key: jax.Array, stored: Any
) -> tuple[Progress, np.ndarray | None]:
    """Restores the newest checkpoint, or runs the prologue."""
    # as a simulation's, not compiled
    state = init_state(server.shared.setup, key, fresh_key(server.shared.guarantee))
    bare = state._replace(training=state.training._replace(client_states=()))
    accepted = np.full(server.shared.setup.num_clients, INITIAL, np.int32)
    if stored:
        like = {"state": bare, "accepted": jnp.asarray(accepted)}
        restored = checkpoint.restore(stored, like, _mark(server.shared, bare))
        if restored is not None:
            values, notes = restored
            accepted = np.asarray(values["accepted"])
            state = _with_fresh_noise(values["state"], server.shared.guarantee)
            return Progress(state, accepted, notes["run"]), accepted
    progress = Progress(bare, accepted, secrets.token_hex(8))
    if stored:
        server.saved = accepted
    progress = server.prologue(progress)
    if stored:
        _save(stored, server.shared, progress)
    return progress, progress.accepted if stored else None


def _with_fresh_noise(state: State, guarantee: Guarantee | None) -> State:
    """A restored state whose later noise is another than before.

    The checkpoint may be an old one, or a copy. Its rounds would be repeated with the
    answers of other clients, and the difference of two broadcasts with the same noise
    is a client's message. The memory of correlated noise stays.
    """
    key = fresh_key(guarantee)
    return state if key is None else state._replace(key=key)


class _Server:
    """Exchanges with clients, and the compiled programs of the server."""

    def __init__(
        self, shared: Federation, send: Send, key: jax.Array, deadline: float | None
    ) -> None:
        self.shared, self.send, self.deadline = shared, send, deadline
        self.about = description(shared)
        self.missing: list[Missing] = []
        self.saved: np.ndarray | None = None  # turns of the newest checkpoint
        setup = shared.setup
        self.initial = init_state(setup, key).params
        self.messages = message_shapes(setup.algorithm, self.initial)
        numbers = range(len(shared.exchanges))
        self.broadcast = [_broadcast_program(shared, number) for number in numbers]
        self.update = [_update_program(shared, number) for number in numbers]

    def prologue(self, progress: Progress) -> Progress:
        all_clients = jnp.arange(self.shared.setup.num_clients, dtype=jnp.int32)
        joins = np.ones(len(all_clients), bool)
        return self.run(progress, range(self.shared.first), all_clients, joins)

    def round(self, progress: Progress) -> Progress:
        state, setup = progress.state, self.shared.setup
        key = jax.random.fold_in(state.key, streams.COHORT)
        index = state.training.index
        cohort, joins = cohort_of(setup, jax.random.fold_in(key, index), index)
        numbers = range(self.shared.first, len(self.shared.exchanges))
        progress = self.run(progress, numbers, cohort, np.asarray(joins))
        training = progress.state.training._replace(index=index + 1)
        return progress._replace(state=progress.state._replace(training=training))

    def run(
        self, progress: Progress, numbers: range, cohort: jax.Array, present: np.ndarray
    ) -> Progress:
        """Runs some exchanges with the present clients of a cohort."""
        setup, accepted = self.shared.setup, progress.accepted.copy()
        training, key = progress.state
        sizes = np.ones(len(cohort), np.int32)
        for number in numbers:
            keys = exchange_keys(
                jax.random.fold_in(key, streams.ENGINE),
                training.index,
                number,
                numbers[0],
                cohort,
                setup.num_clients,
            )
            size = jnp.float32(self.shared.told(number, present.sum()))
            shared = self.broadcast[number](
                training.server, training.index, keys.server, size
            )
            turn = self.shared.turn(int(training.index), number)
            requests = {
                int(client): self._request(
                    progress._replace(accepted=accepted),
                    int(client),
                    number,
                    {
                        "broadcast": shared,
                        "keys": (keys.members[place], keys.draws[place]),
                        "present": size,
                    },
                )
                for place, client in enumerate(cohort)
                if present[place]
            }
            answers, problems = self._collect(requests, progress.run, turn, number)
            for client, problem in problems.items():
                self._miss(number, training.index, client, problem)
            weights, sent = self._stacked(cohort, answers, number, sizes)
            server, received = self.update[number](
                training.server, training.index, keys, cohort, sent, weights
            )
            training = training._replace(server=server)
            received = np.asarray(received)
            for place, client in enumerate(map(int, cohort)):
                if received[place]:
                    accepted[client] = turn
                elif client in answers:
                    self._miss(number, training.index, client, "not finite")
            present = present & received
        state = progress.state._replace(training=training)
        return progress._replace(state=state, accepted=accepted)

    def _request(
        self, progress: Progress, client: int, number: int, values: dict[str, Any]
    ) -> bytes:
        index, base = progress.state.round, int(progress.accepted[client])
        if base == INITIAL:
            values = {**values, "params": self.initial}
        oldest = base if self.saved is None else int(self.saved[client])
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
                answers[client] = self._read(data, client, run, turn, number)
                del problems[client]
            except MessageError as error:
                problems[client] = str(error)
        return answers, problems

    def _read(
        self, data: bytes, client: int, run: str, turn: int, number: int
    ) -> tuple[Any, int]:
        answer = messages.read(data)
        about = answer.about
        if about.get("client") != client:
            raise MessageError(f"an answer of client {about.get('client')}")
        if "refused" in about:
            raise MessageError(f"refused: {str(about['refused'])[:500]}")
        if about.get("run") != run or about.get("turn") != turn:
            raise MessageError("an answer to another request")
        size = about.get("examples")
        if type(size) is not int or not 0 < size <= self.shared.max_client_size:
            raise MessageError(f"{size!r} examples")
        sent = messages.unpack(answer.arrays, self.messages[number])
        if about.get("finite") is not True:
            raise MessageError("not finite")
        return sent, size

    def _stacked(
        self,
        cohort: jax.Array,
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

    def _miss(self, number: int, index: Any, client: int, reason: str) -> None:
        at = -1 if number < self.shared.first else int(index)
        self.missing.append(Missing(at, number, client, reason))


class _Asynchronous(_Server):
    """Rounds that end when enough messages have arrived.

    A thread waits for the answer of each client that is at work.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        shared: Federation,
        send: Send,
        key: jax.Array,
        deadline: float | None,
    ) -> None:
        super().__init__(shared, send, key, deadline)
        self.arrivals, self.began = arrivals, time.monotonic()
        self.jobs: dict[int, int] = {}  # the rounds in which clients at work started
        self.reasons: dict[int, str] = {}  # why their answers can't be used
        self.events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        run_key = init_state(shared.setup, key).key
        self.order = orders_of(run_key, shared.setup.num_clients)

    def prologue(self, progress: Progress) -> Progress:
        late = progress.state.training.server
        progress = super().prologue(_with_server(progress, late.inner))
        inner = progress.state.training.server
        return _with_server(progress, late._replace(inner=inner))

    def round(self, progress: Progress) -> Progress:
        """Takes messages until the buffer is full, or no client is left."""
        setup, number = self.shared.setup, self.shared.first
        training, key = progress.state
        index, arrivals = int(training.index), self.arrivals
        keys = exchange_keys(
            jax.random.fold_in(key, streams.ENGINE),
            training.index,
            number,
            number,
            jnp.arange(setup.num_clients, dtype=jnp.int32),
            setup.num_clients,
        )
        size = jnp.float32(arrivals.buffer)
        shared = self.broadcast[number](
            training.server.inner, training.index, keys.server, size
        )

        def begin(client: int) -> None:
            values = {"broadcast": shared, "present": size}
            values["keys"] = keys.members[client], keys.draws[client]
            self._begin(client, self._request(progress, client, number, values), index)

        started: set[int] = set()  # who has begun in this round
        arrived: dict[int, Arrival] = {}  # in order
        answers: dict[int, tuple[Any, int]] = {}
        while len(answers) < arrivals.buffer:
            at_work = sum(index - s < arrivals.depth for s in self.jobs.values())
            taken = self.jobs.keys() | answers.keys() | started
            free = [c for c in map(int, self.order(index)) if c not in taken]
            for client in free[: arrivals.concurrency - at_work]:
                started.add(client)
                begin(client)
            if not self.jobs:
                break
            answer = self._next(progress.run, index)
            if answer is not None:
                client, start, answers[client] = answer
                seconds = round(time.monotonic() - self.began, 3)
                arrived[client] = Arrival(index, client, start, seconds)
        return self._step(progress, keys, arrived, answers)

    def _begin(self, client: int, request: bytes, index: int) -> None:
        def wait() -> None:
            try:
                for sender, data in self.send({client: request}, self.deadline):
                    self.events.put(_Event(sender, data))
                self.events.put(_Event(client, None, index))
            except Exception as error:  # the server raises it
                self.events.put(_Event(client, error))

        self.jobs[client] = index
        # a daemon, since a run does not wait for the last answers
        threading.Thread(target=wait, daemon=True).start()

    def _next(self, run: str, index: int) -> tuple[int, int, tuple[Any, int]] | None:
        """The next answer that counts, with its client and the round of its start."""
        client, data, ended = self.events.get()
        start = self.jobs.get(client)
        if isinstance(data, Exception):
            raise data
        if start is None or (data is None and start != ended):
            return None  # nobody asked, or a second answer
        number, reason = self.shared.first, self.reasons.pop(client, NO_ANSWER)
        if data is not None:
            turn = self.shared.turn(start, number)
            try:
                message = self._read(data, client, run, turn, number)
            except MessageError as error:
                self.reasons[client] = str(error)
                return None  # perhaps another answer follows
            most = self.arrivals.max_staleness
            if index - start <= most:
                del self.jobs[client]
                return client, start, message
            reason = f"later than max_staleness={most}"
        del self.jobs[client]
        self._miss(number, index, client, reason)
        return None

    def _step(
        self,
        progress: Progress,
        keys: ExchangeKeys,
        arrived: Mapping[int, Arrival],
        answers: Mapping[int, tuple[Any, int]],
    ) -> Progress:
        """A step of the server by the messages of a round."""
        setup, number = self.shared.setup, self.shared.first
        training, accepted = progress.state.training, progress.accepted.copy()
        step = Step(list(arrived), [job.start for job in arrived.values()], 0.0)
        cohort, begun = map(jnp.int32, filled(step, self.arrivals, setup.num_clients))
        sizes = np.ones(len(cohort), np.int32)
        weights, sent = self._stacked(cohort, answers, number, sizes)
        of_members = keys._replace(
            members=keys.members[cohort], draws=keys.draws[cohort]
        )
        server, received = self.update[number](
            training.server, training.index, of_members, cohort, sent, weights, begun
        )
        counted = []
        for job, counts in zip(arrived.values(), np.asarray(received), strict=False):
            if counts:
                accepted[job.client] = self.shared.turn(job.start, number)
                counted.append(job)
            else:
                self._miss(number, training.index, job.client, "not finite")
        training = training._replace(server=server, index=training.index + 1)
        state = progress.state._replace(training=training)
        return Progress(state, accepted, progress.run, tuple(counted))


class _Event(NamedTuple):
    """An answer, or the end of a client's job."""

    client: int
    data: bytes | Exception | None  # None at the end
    start: int = -1  # round in which the job started that has ended


def _with_server(progress: Progress, server: Any) -> Progress:
    training = progress.state.training._replace(server=server)
    return progress._replace(state=progress.state._replace(training=training))


def _broadcast_program(shared: Federation, number: int) -> Callable[..., Any]:
    @jax.jit
    def broadcast(inputs, server, index, key, present):
        ours = shared.with_inputs(inputs)
        round = round_of(ours, number, index, key, present)
        return ours.exchanges[number].broadcast(server, round)

    return functools.partial(broadcast, _inputs(shared))


def _update_program(shared: Federation, number: int) -> Callable[..., Any]:
    """Compiles the engine's exchange, whose clients hand on what they have sent.

    That is given as the leaves of all messages, [S, ...]. If rounds are asynchronous,
    the rounds that they started in are given too, int32 [S].
    """
    arrivals = shared.setup.arrivals if number >= shared.first else None
    given = lambda objective, broadcast, state, batches, round: (batches, state)

    @jax.jit
    def update(inputs, server, index, keys, cohort, sent, weights, starts=None):
        ours = shared.with_inputs(inputs)
        # Messages of another instance of the algorithm may have other static parts.
        shapes = message_shapes(ours.setup.algorithm, server.params)[number]
        messages = jax.tree.unflatten(jax.tree.structure(shapes), sent)

        def of_server(present: jax.Array) -> Any:
            size = jnp.sum(present).astype(weights.dtype)
            return round_of(ours, number, index, keys.server, size)

        exchange = ours.exchanges[number]._replace(client=given)
        if arrivals is not None:
            algorithm = ours.setup.algorithm._replace(exchanges=(exchange,))
            (exchange,) = asynchronous(algorithm, arrivals).exchanges
        run = make_exchange(
            exchange,
            objective_of(ours.setup.task),
            plans.mapped,
            lambda entry, key: entry,
            of_server,
        )
        member_keys = keys.members, keys.draws
        members = CohortMember(cohort, messages, weights, *member_keys, None, starts)
        after, _, received = run(server, (), members)
        if arrivals is not None:
            late = jnp.where(received, index - starts, 0)
            after = damped(arrivals, server.params, after, late)
        return after, received

    return functools.partial(update, _inputs(shared))


def _inputs(shared: Federation) -> Inputs:
    return inputs_of(shared.setup.algorithm, shared.setup.task)


def _mark(shared: Federation, state: Any) -> str:
    return checkpoint.fingerprint(description(shared), state)


def _save(stored: Any, shared: Federation, progress: Progress) -> None:
    values = {"state": progress.state, "accepted": jnp.asarray(progress.accepted)}
    mark = _mark(shared, progress.state)
    checkpoint.save(stored, progress.state.round, values, mark, {"run": progress.run})


def in_process(nodes: Mapping[int, Node]) -> Send:
    """Makes a transport to nodes of this process.

    Args:
      nodes: Nodes by client id; requests to others are never answered.
    """
    workers = ThreadPoolExecutor(max(1, len(nodes)))

    def answered(client: int, request: bytes) -> bytes:
        if not threading.current_thread().daemon:
            return nodes[client].answer(request)
        # Python ends daemons anywhere, also inside XLA, and waits for workers.
        return workers.submit(nodes[client].answer, request).result()

    def send(
        requests: Mapping[int, bytes], deadline: float | None
    ) -> Iterator[tuple[int, bytes]]:
        del deadline
        for client, request in requests.items():
            if client in nodes:
                yield client, answered(client, request)

    return send
