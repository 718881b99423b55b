"""Virtual time: how long jobs of clients, rounds and runs take by a clock."""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import check_range
from fedjax_muon.simulation import clocks
from fedjax_muon.simulation.arrivals import Arrivals, Rows, Schedule, blank
from fedjax_muon.simulation.batching import Clients
from fedjax_muon.simulation.clocks import Away, Clock
from fedjax_muon.simulation.rounds import Setup

BLOCK = 64  # rounds whose cohorts are drawn together
Draw = Callable[[jax.Array, Any], tuple[jax.Array, jax.Array, jax.Array]]


def timed(
    clock: Clock | None,
    deadline: float | None,
    arrivals: Arrivals | None,
    privacy: Any,
    local_epochs: Any,
) -> Clock | None:
    """Checks the arguments of `federate` about time; arrivals without a clock get one.

    Clients are then equally fast.
    """
    if arrivals is not None and not isinstance(arrivals, Arrivals):
        raise TypeError(
            f"arrivals must be made by fm.buffered or fm.fedasync, got {arrivals!r}"
        )
    if deadline is not None and (clock is None or arrivals is not None):
        lacks = "a clock" if clock is None else "synchronous rounds, without arrivals"
        raise ValueError(f"a deadline needs {lacks}")
    if deadline is not None:
        check_range("deadline", deadline, open_low=True, schedules=False)
    if clock is None and arrivals is None:
        return None
    if privacy is not None:
        raise ValueError(
            "the times of a private run would tell who takes part; leave out clock and "
            "arrivals"
        )
    if isinstance(local_epochs, (tuple, list)) and len(set(local_epochs)) > 1:
        raise ValueError(
            f"a clock needs a number of local steps that is known before, got "
            f"local_epochs={tuple(local_epochs)}; give one number"
        )
    return clocks.constant() if clock is None else clock


class Timing(Protocol):
    """The times of a run with one key."""

    def check(self, rounds: int) -> None:
        """Raises `ValueError` if there can't be so many rounds."""

    def inputs(self, first: int, count: int) -> Any:
        """What compiled rounds need of it."""

    def seconds(self, rounds: int) -> float:
        """Virtual seconds from the beginning to the end of some rounds."""


class Asynchronous:
    """Steps of the server whenever a buffer is full."""

    def __init__(
        self,
        arrivals: Arrivals,
        durations: np.ndarray,
        dropout: float,
        key: jax.Array,
        away: Away,
    ):
        self.schedule = Schedule(arrivals, durations, dropout, key, away)
        self.check = self.schedule.check

    def inputs(self, first: int, count: int) -> Rows:
        return self.schedule.rows(first, count)

    def seconds(self, rounds: int) -> float:
        return float(self.schedule.until(rounds)[rounds - 1].seconds) if rounds else 0.0


class Synchronous:
    """Rounds that last as long as their slowest member, or until a deadline."""

    def __init__(self, setup: Setup, durations: np.ndarray, key: jax.Array, draw: Draw):
        self.setup, self.durations, self.key, self.draw = setup, durations, key, draw
        self.on_time = on_time(setup, durations)
        self.ends: list[float] = []  # of rounds

    def check(self, rounds: int) -> None:
        del rounds

    def inputs(self, first: int, count: int) -> Any:
        del first, count
        return self.on_time

    def seconds(self, rounds: int) -> float:
        while len(self.ends) < rounds:
            drawn = map(np.asarray, _block(self.draw, self.key, len(self.ends)))
            for cohort, joins, present in zip(*drawn, strict=True):
                before = self.ends[-1] if self.ends else 0.0
                self.ends.append(before + self._round(cohort, joins, present))
        return self.ends[rounds - 1] if rounds else 0.0

    def _round(
        self, cohort: np.ndarray, joins: np.ndarray, present: np.ndarray
    ) -> float:
        there = self.durations[cohort[present]].tolist()
        deadline = self.setup.deadline
        if deadline is None:
            return max(there, default=0.0)
        missed = (joins & ~present).any() or max(there, default=0.0) > deadline
        return deadline if missed else max(there, default=0.0)


@functools.partial(jax.jit, static_argnums=0)
def _block(draw: Draw, key: jax.Array, first: jax.Array | int) -> Any:
    """The cohorts of `BLOCK` rounds, leaves [BLOCK, ...]."""
    return jax.vmap(lambda index: draw(key, index))(first + jnp.arange(BLOCK))


def on_time(setup: Setup, durations: np.ndarray) -> jax.Array | None:
    """Whether clients make the deadline, bool [N]; None without one."""
    if setup.deadline is None:
        return None
    made = durations <= setup.deadline
    if not made.any():
        raise ValueError(
            f"no client makes the deadline of {setup.deadline:g} seconds; the fastest "
            f"needs {durations.min():.3g}"
        )
    return jnp.asarray(made)


def blank_inputs(setup: Setup) -> Any:
    """`Timing.inputs` of the right shapes, for programs that are not run by it."""
    if setup.arrivals is not None:
        return blank(setup.arrivals.buffer)
    return None if setup.deadline is None else jnp.ones(setup.num_clients, bool)


def durations_of(
    clock: Clock, setup: Setup, clients: Clients, nbytes: float
) -> np.ndarray:
    """Seconds of a job of every client, float64 [N].

    Args:
      nbytes: Number of bytes that one client receives and sends.
    """
    speeds = clock(setup.num_clients)
    sizes = np.asarray(clients.size)
    steps = np.full(len(sizes), setup.work.bound(clients.max_size, setup.batch_size))
    if setup.work.steps is not None:
        key, ids = jax.random.key(0), jnp.arange(len(sizes))  # steps are not random
        count = lambda id, size: setup.work.steps(id, size, setup.batch_size, key)
        steps = np.asarray(jax.vmap(count)(ids, clients.size))
    return steps * speeds.step + nbytes * speeds.byte


def timing_of(
    setup: Setup, durations: np.ndarray, key: jax.Array, draw: Draw
) -> Timing:
    """The times of a run with a key, whose cohorts `draw` draws."""
    if setup.arrivals is None:
        return Synchronous(setup, durations, key, draw)
    away = away_of(setup)
    return Asynchronous(setup.arrivals, durations, setup.dropout, key, away)


def away_of(setup: Setup) -> Away:
    """When clients are away, which synchronous rounds cannot take into account."""
    away = setup.clock(setup.num_clients).away if setup.clock else clocks.NEVER
    if away and setup.arrivals is None:
        raise ValueError(
            "clients that leave and return need asynchronous rounds; add arrivals, or "
            "give dropout instead"
        )
    return away
