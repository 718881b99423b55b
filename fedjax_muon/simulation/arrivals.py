"""Asynchronous rounds: messages are averaged as they arrive.

Clients train at the same time, each from the newest broadcast when it starts. The
server takes a step whenever a buffer of messages is full. Durations do not depend on
values, so the host draws the whole schedule first: who arrives in which step, and which
broadcast each started from. A step is then a round whose members gather their broadcast
among the last ones, which the server's state keeps. So plans, devices, wrappers and
checkpoints work as in synchronous rounds.
"""

import contextlib
import csv
import dataclasses
import functools
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Algorithm, Params, check_count, check_range, streams
from fedjax_muon.data.partition import generator
from fedjax_muon.files import reading
from fedjax_muon.simulation import clocks, staleness as weights
from fedjax_muon.simulation.asynchronous import asynchronous, check_suits
from fedjax_muon.simulation.clocks import NEVER, Away, Clock, Speeds
from fedjax_muon.simulation.cohorts import (
    Members,
    check_clock,
    check_prologue,
    first_words,
    fixed_cohort,
    of_prologue,
)
from fedjax_muon.simulation.staleness import Staleness

ROWS = 1024  # of a schedule that a compiled program takes, or more


class Step(NamedTuple):
    """A step of the server."""

    clients: list[int]  # in the order of their arrival
    starts: list[int]  # the steps whose broadcasts they started from
    seconds: float  # virtual time
    lost: int = 0  # jobs that ended without an answer since the step before


@dataclasses.dataclass(frozen=True)
class Buffered:
    """A cohort of asynchronous rounds: the clients whose messages fill a buffer."""

    concurrency: int
    buffer: int
    clock: Clock | None  # None if all clients are equally fast
    dropout: float
    max_staleness: int
    staleness: Staleness
    # factor of the server's step, by the largest staleness; None for 1
    damping: Staleness | None
    rebase: bool  # whether messages are changes from the server's current parameters
    recorded: Mapping[int, Step] | None = None  # steps that are replayed
    silent: tuple[int, ...] = ()  # recorded clients without an answer to the prologue
    prologue: int | None = None

    def __post_init__(self) -> None:
        check_count("buffer", self.buffer)
        check_count("concurrency", self.concurrency)
        check_count("max_staleness", self.max_staleness, 0)
        check_range("dropout", self.dropout, high=1.0, open_high=True, schedules=False)
        check_clock(self.clock)
        if self.buffer > self.concurrency:
            raise ValueError(
                f"a buffer of {self.buffer} never fills with "
                f"concurrency={self.concurrency}; lower buffer or raise concurrency"
            )

    @property
    def size(self) -> int:
        return self.buffer

    @property
    def depth(self) -> int:
        """Number of broadcasts that are kept."""
        return self.max_staleness + 1

    @property
    def summary(self) -> str:
        first = first_words(self.prologue)
        return f"{self.buffer} per step of {self.concurrency} at work{first}"

    def check(self, algorithm: Algorithm, params: Params, num_clients: int) -> None:
        if self.concurrency > num_clients:
            raise ValueError(
                f"there is no concurrency={self.concurrency} of {num_clients} clients; "
                "lower concurrency"
            )
        steps = (self.recorded or {}).values()
        last = max((*self.silent, *(max(s.clients) for s in steps)), default=0)
        if last >= num_clients:
            raise ValueError(
                f"the record of arrivals has client {last}, but there are "
                f"{num_clients} clients, numbered from 0"
            )
        if self.silent and len(algorithm.prologue) != 1:
            raise ValueError(
                "the record has answers missing in a prologue of one exchange, but "
                f"that of {algorithm!r} has {len(algorithm.prologue)}; use the "
                "algorithm of the record"
            )
        check_prologue(self.prologue, algorithm, params, num_clients)
        check_suits(algorithm, params, rebase=self.rebase)
        self.speeds(num_clients)  # may raise

    def executed(self, algorithm: Algorithm) -> Algorithm:
        return asynchronous(
            algorithm, self.depth, self.staleness, self.damping, rebase=self.rebase
        )

    def asked(self, key: jax.Array, num_clients: int) -> tuple[jax.Array, jax.Array]:
        ids = of_prologue(key, num_clients, self.prologue)
        return ids, ~jnp.isin(ids, jnp.array(self.silent, jnp.int32))

    def members(
        self, inputs: Any, key: jax.Array, index: jax.Array, num_clients: int
    ) -> Members:
        del key, num_clients
        row = index - inputs.first
        starts = inputs.starts[row]
        return Members(inputs.clients[row], starts >= 0, starts)

    def speeds(self, num_clients: int) -> Speeds:
        return (self.clock or clocks.constant())(num_clients)

    def timing(self, durations: np.ndarray, key: jax.Array) -> "Schedule":
        return Schedule(self, durations, key)

    def blank(self, num_clients: int) -> "Rows":
        del num_clients
        zeros = jnp.zeros((ROWS, self.buffer), jnp.int32)
        return Rows(jnp.int32(0), zeros, zeros)

    def answered(
        self, timing: Any, key: jax.Array, rounds: int, num_clients: int
    ) -> int | None:
        if not self.dropout and self.recorded is None:
            return None
        return sum(len(step.clients) for step in timing.until(rounds)[:rounds])

    def jobs(self, timing: Any, rounds: int) -> int:
        """Jobs that have ended: with an answer, lost, or stopped as too late."""
        steps = timing.until(rounds)[:rounds]
        return sum(len(step.clients) + step.lost for step in steps)


def buffered(
    concurrency: int,
    buffer: int,
    clock: Clock | None = None,
    *,
    staleness: Staleness | None = None,
    damping: Staleness | None = None,
    max_staleness: int = 20,
    dropout: float = 0.0,
    prologue: int | None = None,
) -> Buffered:
    """FedBuff (Nguyen et al. 2022, arXiv:2106.06639): a step per full buffer.

    x <- x + server_lr mean_i s(tau_i) (x_i - x_start), for the messages in the buffer
    and their staleness tau; the algorithm's server rule takes the mean. Checked against
    the authors' library FLSim, which normalizes the weights, and independent code that
    does not, as here.

    With a buffer of 1, `max_staleness` R - 1 and `staleness.constant()` it is
    Ringmaster ASGD (arXiv:2501.16168; checked against the authors' code), which stops
    a job at a delay of R and starts it again. With a server rule such as AMSGrad and
    `damping=staleness.inverse(1)` it is FADAS (arXiv:2407.18365; checked
    against the authors' code, which corrects both moments for their start).

    Args:
      concurrency: Number of clients that train at any time.
      buffer: Number of messages in a server step, at most `concurrency`.
      clock: Speeds of the clients, such as `fm.clocks.lognormal(1.0, key=key)`; by
        default, all are equally fast.
      staleness: Factor of a message's `params`, such as `fm.staleness.polynomial(0.5)`,
        the default. Other parts, such as changes of control variates, stay as they are.
      damping: Factor of the change of the parameters in a step, by the largest
        staleness in the buffer; by default 1.
      max_staleness: Largest staleness of a message. Jobs that would be later are
        stopped, and their clients start again from the newest broadcast. The state
        keeps max_staleness + 1 broadcasts.
      dropout: Probability in [0, 1) that a client's job is lost; then it is free again.
      prologue: As in `fm.sampled`.

    Example:
      >>> clock = fm.clocks.lognormal(1.0, key=jax.random.key(0))
      >>> cohort = fm.buffered(50, 10, clock)
    """
    return Buffered(
        concurrency,
        buffer,
        clock,
        dropout,
        max_staleness,
        weights.polynomial(0.5) if staleness is None else staleness,
        damping,
        rebase=False,
        prologue=prologue,
    )


def fedasync(
    concurrency: int,
    clock: Clock | None = None,
    *,
    weight: float = 0.6,
    staleness: Staleness | None = None,
    max_staleness: int = 20,
    dropout: float = 0.0,
    prologue: int | None = None,
) -> Buffered:
    """FedAsync (Xie et al. 2019, arXiv:1903.03934): x <- (1 - a) x + a x_i.

    Every message is a step, with a = weight s(tau). Checked against two independent
    codes. For algorithms whose messages are changes of parameters and that move by
    their mean, such as `fedavg`.

    Args:
      concurrency: Number of clients that train at any time.
      clock: Speeds of the clients; by default, all are equally fast.
      weight: Weight of a new model.
      staleness: Factor of the weight; by default `fm.staleness.polynomial(0.5)`.
      max_staleness: As in `buffered`.
      dropout: As in `buffered`.
      prologue: As in `fm.sampled`.

    Example:
      >>> cohort = fm.fedasync(8, fm.clocks.lognormal(1.0, key=jax.random.key(0)))
    """
    check_range("weight", weight, 0.0, 1.0, open_low=True, schedules=False)
    factor = weights.polynomial(0.5) if staleness is None else staleness
    made = buffered(
        concurrency,
        1,
        clock,
        staleness=lambda late: weight * factor(late),
        max_staleness=max_staleness,
        dropout=dropout,
        prologue=prologue,
    )
    return dataclasses.replace(made, rebase=True)


# ---------------------------------------------------------------------------- records


PROLOGUE = -1  # the round of rows about it


class Arrival(NamedTuple):
    """A message that arrived at the server of a deployed run.

    Round and start are -1 if it is the client's answer to the prologue, which did not
    arrive.
    """

    round: int  # the server's step that it was used in, from 0
    client: int
    start: int  # the step whose broadcast the client started from
    seconds: float  # since the start of the server


def replayed(arrivals: Buffered, record: str | Path | Iterable[Arrival]) -> Buffered:
    """Repeats a recorded order of arrivals, such as a deployed run's.

    Its clock, `concurrency` and dropout have no effect. The virtual time of a round
    is the recorded one of its last message. A client whose answer to the prologue did
    not arrive is left out of it.

    Args:
      arrivals: From `buffered` or `fedasync`, as in the recorded run.
      record: A CSV file with the columns `round`, `client`, `start` and `seconds`, such
        as `arrivals.csv` of `fedjax-muon deploy`; or rows of these.

    Example:
      >>> from fedjax_muon.simulation.arrivals import Arrival
      >>> record = [Arrival(round=0, client=3, start=0, seconds=1.5)]
      >>> cohort = fm.replayed(fm.buffered(1, 1), record)
    """
    if not isinstance(arrivals, Buffered):
        given = f"got {arrivals!r:.60}"
        raise TypeError(f"arrivals must come from buffered or fedasync, {given}")
    if not isinstance(record, (str, Path)):
        return _replayed(arrivals, record)
    columns = f"a CSV file with the columns {', '.join(Arrival._fields)}"
    damaged = reading(Path(record), columns, "record it again", errors=(csv.Error,))
    with damaged, open(record, encoding="utf-8", newline="") as file:
        texts = [
            [row[name] for name in Arrival._fields] for row in csv.DictReader(file)
        ]
        rows = [Arrival(int(r), int(c), int(s), float(t)) for r, c, s, t in texts]
    return _replayed(arrivals, rows)


def _replayed(cohort: Buffered, record: Iterable[Arrival]) -> Buffered:
    rows = list(map(_arrival, record if isinstance(record, Iterable) else [record]))
    before = [(client, start) for at, client, start, _ in rows if at == PROLOGUE]
    silent = tuple(client for client, _ in before)
    if len({*silent}) < len(silent) or any(c < 0 or s != PROLOGUE for c, s in before):
        raise ValueError(
            f"rows of round {PROLOGUE} name clients without an answer to the prologue, "
            f"once each with a start of {PROLOGUE}; record it again"
        )
    recorded = _recorded(cohort, (row for row in rows if row[0] != PROLOGUE))
    return dataclasses.replace(cohort, recorded=recorded, silent=silent)


def _arrival(row: Any) -> Arrival:
    if not isinstance(row, Mapping | str):
        with contextlib.suppress(TypeError, ValueError):
            *numbers, seconds = row
            at, client, start = map(int, numbers)
            if [at, client, start] == numbers and math.isfinite(seconds):
                return Arrival(at, client, start, float(seconds))
    columns = ", ".join(Arrival._fields)
    raise TypeError(f"record must have rows ({columns}), got {row!r:.60}")


def _recorded(cohort: Buffered, rows: Iterable[Arrival]) -> dict[int, Step]:
    """The steps of a record by their numbers; nothing arrived in those left out."""
    steps: dict[int, Step] = {}
    free: dict[int, int] = {}  # since which step clients have no job
    last = 0
    for at, client, start, seconds in rows:
        job = f"client {client} arrives in round {at} from round {start}"
        step = steps.get(at, Step([], [], 0.0))
        if at < last:
            raise ValueError(f"{job}, after a message of round {last}; sort the rounds")
        if client < 0 or not 0 <= start <= at:
            raise ValueError(f"{job}; clients and rounds are from 0, and start is past")
        if at - start > cohort.max_staleness:
            raise ValueError(f"{job}, later than max_staleness={cohort.max_staleness}")
        if start < free.get(client, 0):
            raise ValueError(f"{job}, while it has another job")
        if len(step.clients) == cohort.buffer:
            raise ValueError(f"{job}, into a buffer of {cohort.buffer} that is full")
        clients, starts = [*step.clients, client], [*step.starts, start]
        steps[at] = Step(clients, starts, seconds)
        free[client], last = at + 1, at
    if not steps:
        raise ValueError("the record has no arrivals")
    return steps


# -------------------------------------------------------------------------- schedule


def queue(
    cohort: Buffered,
    durations: np.ndarray,
    orders: Callable[[int], np.ndarray],
    is_lost: Callable[[], bool],
    away: Away = NEVER,
) -> Iterator[Step]:
    """Runs the event queue, without any model.

    A client has one job at a time, and none while its message waits in the buffer.
    Jobs that end together arrive in the order in which they started.

    Args:
      durations: Seconds of a job of every client, [N].
      orders: Maps a step to a permutation of the clients. The first free one starts.
      is_lost: Whether the next job that ends is lost; its client is free again.
      away: When clients leave and return. The job of one that leaves is lost.
    """
    now, step, number, ended = 0.0, 0, 0, 0
    events = _departures(away)  # and ends of jobs: (time, kind, number or client)
    jobs: dict[int, tuple[int, int]] = {}  # number -> (client, start)
    number_of: dict[int, int] = {}  # the last job of a client
    by_start: dict[int, list[int]] = {}
    taken = np.zeros((2, len(durations)), bool)  # by work, and by absence
    busy, gone, buffer = *taken, list[tuple[int, int]]()
    gone[[client for client, spans in away.items() if spans[0][0] <= 0]] = True
    order, place = orders(0), 0

    def begin(client: int) -> None:
        nonlocal number
        busy[client] = True
        heapq.heappush(events, (now + durations[client], ENDS, number))
        jobs[number], number_of[client] = (client, step), number
        by_start.setdefault(step, []).append(number)
        number += 1

    while True:
        while len(jobs) < cohort.concurrency and not taken.any(0).all():
            while taken[:, order[place]].any():
                place += 1
            begin(int(order[place]))
        if not events:
            raise ValueError(
                f"after {now:g} seconds and {step} rounds, too few clients are there "
                f"for a buffer of {cohort.buffer}; let clients return"
            )
        now = events[0][0]
        while events and events[0][0] == now:
            _, kind, job = heapq.heappop(events)
            if kind != ENDS:
                gone[job], place = kind == LEAVES, 0
                lost = jobs.pop(number_of.get(job, -1), None) if gone[job] else None
                busy[job] &= lost is None
                ended += lost is not None
                continue
            if job not in jobs:  # stopped
                continue
            client, start = jobs.pop(job)
            if is_lost():
                busy[client], place = False, 0
                ended += 1
                continue
            buffer.append((client, start))
            if len(buffer) < cohort.buffer:
                continue
            clients, starts = zip(*buffer, strict=True)
            yield Step(list(clients), list(starts), now, ended)
            busy[list(clients)] = False
            buffer.clear()
            step, ended = step + 1, 0
            order, place = orders(step), 0
            for late in by_start.pop(step - cohort.depth, ()):
                if late in jobs:
                    begin(jobs.pop(late)[0])
                    ended += 1


ENDS, LEAVES, RETURNS = range(3)  # kinds of events, in the order of those at one time


def _departures(away: Away) -> list[tuple[float, int, int]]:
    """When clients leave and return, as a heap of events."""
    spans = [(client, *span) for client, each in away.items() for span in each]
    leaves = [(start, LEAVES, client) for client, start, _ in spans if start > 0]
    returns = [(end, RETURNS, client) for client, _, end in spans if end < math.inf]
    return sorted(leaves + returns)


class Rows(NamedTuple):
    """A part of a schedule, as arguments of a compiled program."""

    first: jax.Array  # int32 [], the step of the first row
    clients: jax.Array  # int32 [T, B]
    starts: jax.Array  # int32 [T, B]


@functools.partial(jax.jit, static_argnums=2)
def _orders(key: jax.Array, first: jax.Array, clients: int) -> jax.Array:
    """Permutations of clients in 64 steps; a synchronous cohort is its beginning."""
    draw = lambda step: fixed_cohort(jax.random.fold_in(key, step), clients, clients)[0]
    return jax.vmap(draw)(first + jnp.arange(64))


def orders_of(key: jax.Array, clients: int) -> Callable[[int], np.ndarray]:
    """Makes the function that maps a step to a permutation of the clients.

    Args:
      key: Typed key of a run's state.
    """
    key = jax.random.fold_in(key, streams.COHORT)
    drawn: dict[int, np.ndarray] = {}

    def order(step: int) -> np.ndarray:
        block = step // 64
        if block not in drawn:
            drawn.clear()
            drawn[block] = np.asarray(_orders(key, jnp.int32(64 * block), clients))
        return drawn[block][step % 64]

    return order


def _repeated(recorded: Mapping[int, Step]) -> Iterator[Step]:
    """Recorded steps, in which there may be no message."""
    seconds = 0.0
    for number in range(max(recorded) + 1):
        step = recorded.get(number, Step([], [], seconds))
        seconds = step.seconds
        yield step


def filled(step: Step, cohort: Buffered, clients: int) -> tuple[list[int], list[int]]:
    """Returns clients and starts for the whole buffer.

    Others than those of the step have a start of -1, and take no part.
    """
    missing = cohort.buffer - len(step.clients)
    if not missing:
        return step.clients, step.starts
    others = [client for client in range(clients) if client not in step.clients]
    return [*step.clients, *others[:missing]], [*step.starts, *[-1] * missing]


class Schedule:
    """The steps of a run, drawn from its key as they are needed, or recorded."""

    def __init__(self, cohort: Buffered, durations: np.ndarray, key: jax.Array):
        self.steps: list[Step] = []
        self.cohort, self.clients = cohort, len(durations)
        rng = generator(key, streams.ARRIVALS)
        order = orders_of(key, self.clients)
        is_lost = lambda: bool(cohort.dropout) and rng.random() < cohort.dropout
        if cohort.recorded is None:
            away = cohort.speeds(self.clients).away
            self._queue = queue(cohort, durations, order, is_lost, away)
        else:
            self._queue = _repeated(cohort.recorded)

    def check(self, rounds: int) -> None:
        """Raises `ValueError` if fewer rounds have been recorded."""
        recorded = self.cohort.recorded
        if recorded is not None and rounds > max(recorded) + 1:
            raise ValueError(
                f"the record of arrivals has {max(recorded) + 1} rounds, got {rounds}; "
                "ask for fewer"
            )

    def until(self, step: int) -> list[Step]:
        """At least the first `step` steps."""
        self.check(step)
        while len(self.steps) < step:
            self.steps.append(next(self._queue))
        return self.steps

    def inputs(self, first: int, count: int) -> Rows:
        """The steps from `first` on, padded to a size that programs share."""
        steps = self.until(first + count)[first : first + count]
        size = max(ROWS, 1 << max(0, count - 1).bit_length())
        clients, starts = np.zeros((2, size, self.cohort.buffer), np.int32)
        for row, step in enumerate(steps):
            clients[row], starts[row] = filled(step, self.cohort, self.clients)
        return Rows(jnp.int32(first), jnp.asarray(clients), jnp.asarray(starts))

    def seconds(self, rounds: int) -> float:
        """Virtual seconds from the beginning to the end of some rounds."""
        return float(self.until(rounds)[rounds - 1].seconds) if rounds else 0.0
