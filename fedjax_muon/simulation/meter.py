"""What a run has sent, trained on and waited for: the columns beside its scores."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.engine import Traffic
from fedjax_muon.engine.programs import promoting
from fedjax_muon.simulation.cohorts import Cohort, Timing
from fedjax_muon.simulation.participation import durations_of
from fedjax_muon.simulation.program import Data, Program, Run, clients

Record = dict[str, Any]
TIMINGS = 16  # runs whose times are kept, since they are computed from round 0 on


@dataclasses.dataclass(frozen=True)
class Meter:
    """Counts bytes, answers, tokens and virtual seconds of a simulation's runs.

    Counts of a run need its key, `state.key`, which decides who takes part.

    Example:
      >>> simulation.meter.bytes_after(20)  # received and sent by all clients
    """

    program: Program
    data: Data
    run: Run
    # bytes before round 0, and in a round, of each link; shared by simulations whose
    # messages have the same shapes, since messages are traced for it
    sent: Callable[[], tuple[Traffic, Traffic]]
    links: float = 1.0  # that each message travels, in a round
    private: bool = False  # whether it keeps to itself who answered

    @classmethod
    def of(
        cls,
        program: Program,
        data: Data,
        run: Run,
        *,
        links: float = 1.0,
        private: bool,
    ) -> "Meter":
        """The meter of a new simulation."""
        sent = functools.cache(functools.partial(program.traffic, data, run))
        return cls(program, data, run, sent, links, private)

    @property
    def cohort(self) -> Cohort | None:
        """Who takes part in a round; None of agents, who all do."""
        return getattr(self.program.settings, "cohort", None)

    @promoting
    def bytes_after(self, rounds: int, key: jax.Array | None = None) -> Traffic:
        """Counts the bytes that all clients together received and sent.

        Clients receive even if they do not answer.

        Args:
          rounds: Number of rounds since the beginning, the prologue included.
          key: Key of the run whose answers count. By default, all sampled clients
            answer, and a cohort of random size counts as its expected size.
        """
        if rounds < 0:
            raise ValueError(f"rounds must be at least 0, got {rounds}")
        first, later = self._traffic
        down, up = (a + rounds * b for a, b in zip(first, later, strict=True))
        if key is not None and self.cohort is not None:
            size = self.cohort.size
            if (answers := self.answered(key, rounds)) is not None:
                up = first.up + answers * later.up / size
            if (jobs := self.jobs(key, rounds)) is not None:
                down = first.down + jobs * later.down / size
        return Traffic(round(down), round(up))

    @functools.cached_property
    def _traffic(self) -> tuple[Traffic, Traffic]:
        first, later = self.sent()
        times = lambda sent: Traffic(self.links * sent.down, self.links * sent.up)
        return times(first), times(later)

    @promoting
    def answered(self, key: jax.Array, rounds: int) -> int | None:
        """Counts the clients that answered in the first rounds, one for each message.

        Returns:
          None where all that are sampled answer, and in a private simulation.
        """
        if self.cohort is None or self.private:
            return None
        number = self.program.settings.num_clients
        return self.cohort.answered(self.timing(key), key, rounds, number)

    @promoting
    def jobs(self, key: jax.Array, rounds: int) -> int | None:
        """Counts the clients that were sent a model in the first rounds, once for each.

        In asynchronous rounds, some of them are lost, or stopped and sent a newer one.

        Returns:
          None where these are the sampled ones.
        """
        timing = self.timing(key)
        return None if self.cohort is None else self.cohort.jobs(timing, rounds)

    def tokens_after(self, rounds: int, key: jax.Array | None = None) -> int | None:
        """Counts the tokens that clients trained on; None of other tasks.

        Args:
          rounds: Number of rounds since the beginning, without the prologue.
          key: As in `bytes_after`; in asynchronous rounds, all jobs count.
        """
        setup, cohort = self.program.settings, self.cohort
        if cohort is None or "perplexity" not in self.data.task.metrics:
            return None
        if setup.work.steps is not None:  # clients take different numbers of steps
            return None
        jobs = None if key is None else self.jobs(key, rounds)
        if jobs is None:
            answered = None if key is None else self.answered(key, rounds)
            jobs = rounds * cohort.size if answered is None else answered
        largest = clients(self.data, self.run).max_size
        steps = setup.work.bound(largest, setup.batch_size)
        return jobs * steps * setup.batch_size * (self.data.x.shape[1] - 1)

    def virtual_seconds(self, key: jax.Array, rounds: int) -> float | None:
        """The time after some rounds, by the simulation's clock; None without one."""
        timing = self.timing(key)
        return None if timing is None else timing.seconds(rounds)

    def timed(self, key: jax.Array, first: int, count: int) -> Run:
        """The run with the times of `count` rounds, by the key of its state."""
        timing = self.timing(key)
        if timing is None:
            return self.run
        return self.run._replace(timing=timing.inputs(first, count))

    @promoting
    def timing(self, key: jax.Array) -> Timing | None:
        """The times of a run by the key of its state; None without a clock."""
        if self.cohort is None or self.durations is None:
            return None
        name = np.asarray(jax.random.key_data(key)).tobytes()
        if name not in self._timings:
            if len(self._timings) == TIMINGS:
                self._timings.pop(next(iter(self._timings)))
            kept = jnp.copy(key)  # states are donated
            self._timings[name] = self.cohort.timing(self.durations, kept)
        return self._timings[name]

    @functools.cached_property
    def _timings(self) -> dict[bytes, Timing]:
        """Times of the last runs by their keys."""
        return {}

    @functools.cached_property
    def durations(self) -> np.ndarray | None:
        """Seconds of a job of every client, float64 [N]; None without a clock."""
        setup, cohort = self.program.settings, self.cohort
        speeds = None if cohort is None else cohort.speeds(setup.num_clients)
        if cohort is None or speeds is None:
            return None
        nbytes = sum(self._traffic[1]) / cohort.size
        sizes = setup.work, setup.batch_size
        return durations_of(*sizes, clients(self.data, self.run), speeds, nbytes)

    def row(
        self,
        key: jax.Array,
        rounds: int,
        scores: Mapping[str, Any],
        *,
        dropped: int,
        seconds: float,
    ) -> Record:
        """The record of a run after some rounds.

        Args:
          key: Key of the run's state.
          scores: From `Simulation.evaluate`.
          dropped: Number of messages that were left out so far.
          seconds: Duration of training so far.
        """
        down, up = self.bytes_after(rounds, key)
        row: Record = {"round": rounds, "bytes_down": down, "bytes_up": up}
        more = {
            "answered": self.answered(key, rounds),
            "tokens": self.tokens_after(rounds, key),
            **{name: float(score) for name, score in scores.items()},
            "virtual_seconds": self.virtual_seconds(key, rounds),
        }
        row |= {name: value for name, value in more.items() if value is not None}
        return row | {"dropped": dropped, "seconds": seconds}


class NonFiniteError(ArithmeticError):
    """A client's message, or its new state, has a NaN or an infinity.

    Example:
      >>> huge = simulation.at({"lr": 1e30})
      >>> state = huge.init(jax.random.key(0))
      >>> try:
      ...     fm.run(huge, state, rounds=3, progress=False)
      ... except fm.NonFiniteError as error:
      ...     print(error.round)
      1
    """

    def __init__(self, round: int, clients: list[int]):
        self.round = round
        ids = ", ".join(map(str, clients[:5])) + (", ..." if len(clients) > 5 else "")
        super().__init__(
            f"round {round}: not a finite message from client {ids}; lower the "
            "learning rate, or leave such messages out of the mean (drop_nonfinite)"
        )


class NonFiniteLossError(NonFiniteError):
    """The training loss became NaN, though all messages were finite."""

    def __init__(self, round: int):
        self.round = round
        ArithmeticError.__init__(
            self, f"round {round}: the training loss is NaN; lower the learning rate"
        )


# What ends a run ends a cell of a sweep, and with the same error.


def end_at_start(received: Any) -> NonFiniteError | None:
    """What ends a run before round 0.

    Args:
      received: Whether each client's message of the prologue was, bool [N].
    """
    lost = np.flatnonzero(~np.asarray(received))
    return NonFiniteError(0, lost.tolist()) if lost.size else None


def end_of_messages(lost_round: Any) -> NonFiniteError | None:
    """What ends a run after some rounds.

    Args:
      lost_round: `Metrics.lost_round`, [N].
    """
    rounds = np.asarray(lost_round)
    if not (rounds >= 0).any():
        return None
    first = rounds[rounds >= 0].min()
    return NonFiniteError(int(first), np.flatnonzero(rounds == first).tolist())


def end_of_row(row: Record) -> NonFiniteError | None:
    """What ends a run with a record."""
    lost = math.isnan(row.get("train_loss", 0))
    return NonFiniteLossError(row["round"]) if lost else None
