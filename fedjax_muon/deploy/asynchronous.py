"""Asynchronous rounds of a deployed federation, which end as messages arrive."""

import queue
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import streams
from fedjax_muon.deploy.messages import MessageError
from fedjax_muon.deploy.rounds import NO_ANSWER, Progress, Rounds
from fedjax_muon.engine.round import ExchangeKeys, exchange_keys
from fedjax_muon.simulation.arrivals import (
    PROLOGUE,
    Arrival,
    Buffered,
    Step,
    filled,
    orders_of,
)
from fedjax_muon.simulation.rounds import init_state


class AsynchronousRounds:
    """Rounds that end when enough messages have arrived.

    A thread waits for the answer of each client that is at work.
    """

    def __init__(self, rounds: Rounds, cohort: Buffered, key: jax.Array) -> None:
        self.rounds, self.shared = rounds, rounds.shared
        self.cohort, self.began = cohort, time.monotonic()
        self.jobs: dict[int, int] = {}  # the rounds in which clients at work started
        self.reasons: dict[int, str] = {}  # why their answers can't be used
        self.events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        setup = self.shared.setup
        self.order = orders_of(init_state(setup, key).key, setup.num_clients)

    def prologue(self, progress: Progress) -> Progress:
        progress = self.rounds.prologue(progress)
        seconds = round(time.monotonic() - self.began, 3)
        silent = [
            Arrival(PROLOGUE, lost.client, PROLOGUE, seconds)
            for lost in progress.missing
        ]
        return progress._replace(arrived=tuple(silent))

    def round(self, progress: Progress) -> Progress:
        """Takes messages until the buffer is full, or no client is left."""
        setup, number = self.shared.setup, self.shared.first
        training, key = progress.state
        index, wanted = int(training.index), self.cohort
        keys = exchange_keys(
            jax.random.fold_in(key, streams.ENGINE),
            training.index,
            number,
            number,
            jnp.arange(setup.num_clients, dtype=jnp.int32),
            setup.num_clients,
        )
        size = jnp.float32(wanted.buffer)
        shared = self.rounds.broadcast[number](
            training.server, training.index, keys.server, size
        )

        def begin(client: int) -> None:
            values = {"broadcast": shared, "present": size}
            values["keys"] = keys.members[client], keys.draws[client]
            request = self.rounds.request(progress, client, number, values)
            self._begin(client, request, index)

        started: set[int] = set()  # who has begun in this round
        arrived: dict[int, Arrival] = {}  # in order
        answers: dict[int, tuple[Any, int]] = {}
        while len(answers) < wanted.buffer:
            at_work = sum(index - s < wanted.depth for s in self.jobs.values())
            taken = self.jobs.keys() | answers.keys() | started
            free = [c for c in map(int, self.order(index)) if c not in taken]
            for client in free[: wanted.concurrency - at_work]:
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
        send, deadline = self.rounds.send, self.rounds.deadline

        def wait() -> None:
            try:
                for sender, data in send({client: request}, deadline):
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
                message = self.rounds.read(data, client, run, turn, number)
            except MessageError as error:
                self.reasons[client] = str(error)
                return None  # perhaps another answer follows
            most = self.cohort.max_staleness
            if index - start <= most:
                del self.jobs[client]
                return client, start, message
            reason = f"later than max_staleness={most}"
        del self.jobs[client]
        self.rounds.miss(number, index, client, reason)
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
        cohort, begun = map(jnp.int32, filled(step, self.cohort, setup.num_clients))
        sizes = np.ones(len(cohort), np.int32)
        weights, sent = self.rounds.stacked(np.asarray(cohort), answers, number, sizes)
        of_members = keys._replace(
            members=keys.members[cohort], draws=keys.draws[cohort]
        )
        server, received = self.rounds.update[number](
            training.server, training.index, of_members, cohort, sent, weights, begun
        )
        counted = []
        for job, counts in zip(arrived.values(), np.asarray(received), strict=False):
            if counts:
                accepted[job.client] = self.shared.turn(job.start, number)
                counted.append(job)
            else:
                self.rounds.miss(number, training.index, job.client, "not finite")
        training = training._replace(server=server, index=training.index + 1)
        state = progress.state._replace(training=training)
        return progress._replace(
            state=state,
            accepted=accepted,
            arrived=tuple(counted),
            rest=None,
            missing=self.rounds.taken(),
        )


class _Event(NamedTuple):
    """An answer, or the end of a client's job."""

    client: int
    data: bytes | Exception | None  # None at the end
    start: int = -1  # round in which the job started that has ended
