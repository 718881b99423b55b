"""Who takes part in a round, as the argument `cohort` of `federate` says.

cohort=8                                     8 clients, without replacement
cohort=fm.sampled(8, dropout=0.1)            some of them drop out
cohort=fm.sampled(8, prologue=100)           100 clients are asked before round 0
cohort=fm.poisson(8)                         every client joins independently
cohort=fm.timed(8, clock, deadline=9.0)      in virtual time, until a deadline
cohort=fm.buffered(50, 10, clock)            asynchronous rounds; see `arrivals`
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Algorithm, Params, check_count, check_range, streams
from fedjax_muon.core.hyperparameters import plain_numbers
from fedjax_muon.simulation.clocks import Clock, Speeds

# (key, number of clients, size) -> distinct ids, int32 [room], and which of them join,
# bool [room]; the others are padding
Draw = Callable[[jax.Array, int, int], tuple[jax.Array, jax.Array]]
BLOCK = 64  # rounds whose cohorts are drawn together


class Members(NamedTuple):
    """The members of a round."""

    ids: jax.Array  # int32 [S], distinct
    present: jax.Array  # bool [S], whose messages the server waits for
    starts: jax.Array | None = None  # int32 [S], the rounds that they started in


class Timing(Protocol):
    """The times of a run with one key."""

    def check(self, rounds: int) -> None:
        """Raises `ValueError` if there can't be so many rounds."""

    def inputs(self, first: int, count: int) -> Any:
        """What compiled rounds need from it."""

    def seconds(self, rounds: int) -> float:
        """Virtual seconds from the beginning to the end of some rounds."""


@runtime_checkable
class Cohort(Protocol):
    """Who takes part in a round, and when it ends."""

    @property
    def size(self) -> int:
        """The number of messages in a round; the expected one if it varies."""

    @property
    def dropout(self) -> float:
        """Probability that a client's job is lost."""

    @property
    def clock(self) -> Clock | None: ...

    @property
    def prologue(self) -> int | None:
        """The number of clients that are asked before round 0; None for all."""

    @property
    def summary(self) -> str:
        """Who takes part, in a few words."""

    def check(self, algorithm: Algorithm, params: Params, num_clients: int) -> None:
        """Raises `ValueError` for an algorithm or clients that it does not suit."""

    def executed(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm that the engine executes."""

    def asked(self, key: jax.Array, num_clients: int) -> tuple[jax.Array, jax.Array]:
        """Finds who takes part in the prologue: ids, int32 [R], and whether, bool [R].

        Args:
          key: Typed key of the run's state.
        """

    def members(
        self, inputs: Any, key: jax.Array, index: jax.Array, num_clients: int
    ) -> Members:
        """Finds the members of a round, inside of compiled programs.

        Args:
          inputs: `Timing.inputs`.
          key: Typed key of the run's state.
        """

    def speeds(self, num_clients: int) -> Speeds | None:
        """The clients' speeds; None without virtual time."""

    def timing(self, durations: np.ndarray, key: jax.Array) -> Timing:
        """The times of a run.

        Args:
          durations: Seconds of a job of every client, float64 [N].
        """

    def blank(self, num_clients: int) -> Any:
        """`Timing.inputs` of the right shapes, for programs that are not run by it."""

    def answered(
        self, timing: Any, key: jax.Array, rounds: int, num_clients: int
    ) -> int | None:
        """Counts the messages of the first rounds; None if all that are asked answer.

        Args:
          timing: The run's timing, if it has virtual time.
        """

    def jobs(self, timing: Any, rounds: int) -> int | None:
        """Counts those who were sent a model in the first rounds; None for `size`."""


def fixed_cohort(
    key: jax.Array, num_clients: int, size: int
) -> tuple[jax.Array, jax.Array]:
    """Draws exactly `size` clients, a uniform subset."""
    all_clients = jnp.arange(num_clients, dtype=jnp.int32)
    ids = jax.random.choice(key, all_clients, (size,), replace=False)
    return ids, jnp.ones(size, bool)


def of_prologue(key: jax.Array, num_clients: int, size: int | None) -> jax.Array:
    """Draws the clients of the prologue, int32 [R]: all, or a uniform subset."""
    if size is None:
        return jnp.arange(num_clients, dtype=jnp.int32)
    return fixed_cohort(jax.random.fold_in(key, streams.PROLOGUE), num_clients, size)[0]


def first_words(size: int | None) -> str:
    """How many clients are asked before round 0, after who takes part in a round."""
    return "" if size is None else f", {size} asked first"


def check_prologue(
    size: int | None, algorithm: Algorithm, params: Params, num_clients: int
) -> None:
    """Raises `ValueError` for a prologue that can't leave clients out."""
    if size is None:
        return
    check_count("prologue", size, 1, num_clients, limit="the number of clients")
    states = jax.tree.leaves(jax.eval_shape(algorithm.init_client, params))
    if algorithm.prologue and states and size < num_clients:
        raise ValueError(
            f"{algorithm!r} keeps states of clients, which may begin in the prologue, "
            f"so all clients take part in it, got prologue={size}; leave it out"
        )


@dataclasses.dataclass(frozen=True)
class PoissonDraw:
    """Draws every client independently, with probability size / clients.

    If more than `room` clients join, a uniform subset takes part.
    """

    room: int | None = None  # all clients by default

    def __call__(
        self, key: jax.Array, num_clients: int, size: int
    ) -> tuple[jax.Array, jax.Array]:
        places = num_clients if self.room is None else self.room
        limit = "the number of clients"
        check_count("room", places, size, num_clients, limit=limit)
        coins, order = jax.random.split(key)
        joins = jax.random.uniform(coins, (num_clients,)) < size / num_clients
        # Clients that join have the largest marks; the top ones are a uniform subset.
        mark = jax.random.uniform(order, (num_clients,))
        top, ids = jax.lax.top_k(jnp.where(joins, 1 + mark, mark), places)
        return ids.astype(jnp.int32), top >= 1


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A cohort that is drawn anew in every round."""

    size: int
    draw: Draw = fixed_cohort
    dropout: float = 0.0
    clock: Clock | None = None
    deadline: float | None = None  # seconds of the clock
    groups: int = 1  # of clients, which take turns; those that fill no group never do
    prologue: int | None = None

    def __post_init__(self) -> None:
        check_count("cohort", self.size)
        check_range("dropout", self.dropout, high=1.0, open_high=True, schedules=False)
        check_clock(self.clock)
        if self.deadline is not None:
            check_range("deadline", self.deadline, open_low=True, schedules=False)

    @property
    def summary(self) -> str:
        return f"{self.size} per round{first_words(self.prologue)}"

    def check(self, algorithm: Algorithm, params: Params, num_clients: int) -> None:
        check_prologue(self.prologue, algorithm, params, num_clients)
        draw = functools.partial(self.drawn, num_clients=num_clients)
        jax.eval_shape(draw, jax.random.key(0), jnp.int32(0))  # may reject the sizes
        speeds = self.speeds(num_clients)
        if speeds is not None and speeds.away:
            raise ValueError(
                "clients that leave and return need asynchronous rounds; give "
                "fm.buffered, or fm.sampled with a dropout instead"
            )

    def executed(self, algorithm: Algorithm) -> Algorithm:
        return algorithm

    def asked(self, key: jax.Array, num_clients: int) -> tuple[jax.Array, jax.Array]:
        ids = of_prologue(key, num_clients, self.prologue)
        return ids, jnp.ones(ids.shape, bool)

    def joined(
        self, key: jax.Array, index: jax.Array, num_clients: int
    ) -> tuple[jax.Array, jax.Array]:
        """Draws the ids of a round's clients, and which of them join it."""
        key = jax.random.fold_in(jax.random.fold_in(key, streams.COHORT), index)
        size = num_clients // self.groups
        ids, joins = self.draw(key, size, self.size)
        return (ids + index % self.groups * size if self.groups > 1 else ids), joins

    def drawn(
        self, key: jax.Array, index: jax.Array, num_clients: int
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Draws the ids of a round's clients, who joins, and who stays in it."""
        ids, joins = self.joined(key, index, num_clients)
        key = jax.random.fold_in(jax.random.fold_in(key, streams.DROPOUT), index)
        stays = jax.random.bernoulli(key, 1 - self.dropout, ids.shape)
        return ids, joins, joins & stays

    def members(
        self, inputs: Any, key: jax.Array, index: jax.Array, num_clients: int
    ) -> Members:
        ids, _, present = self.drawn(key, index, num_clients)
        return Members(ids, present if inputs is None else present & inputs[ids])

    def speeds(self, num_clients: int) -> Speeds | None:
        return None if self.clock is None else self.clock(num_clients)

    def timing(self, durations: np.ndarray, key: jax.Array) -> "SampledTiming":
        return SampledTiming(self, durations, key)

    def blank(self, num_clients: int) -> Any:
        return None if self.deadline is None else jnp.ones(num_clients, bool)

    def answered(
        self, timing: Any, key: jax.Array, rounds: int, num_clients: int
    ) -> int | None:
        if not self.dropout and self.deadline is None:
            return None
        inputs = None if timing is None else timing.on_time
        return int(_answers(_untimed(self), num_clients, key, inputs, rounds))

    def jobs(self, timing: Any, rounds: int) -> None:
        """All that are sampled."""


@plain_numbers
def sampled(
    size: int,
    *,
    dropout: float = 0.0,
    draw: Draw = fixed_cohort,
    prologue: int | None = None,
) -> Sampled:
    """Samples clients without replacement, as `cohort=8` does.

    Args:
      size: S, the number of clients in a round.
      dropout: Probability in [0, 1) that a sampled client drops out, independently.
      draw: Function (key, number of clients, size) -> (ids, joins) that samples in
        another way. The ids, int32 [room], are distinct, and `joins`, bool [room],
        marks those that take part; the others are padding.
      prologue: Number of clients that are asked before round 0, by algorithms that have
        a prologue, such as `fedmuon`; a uniform subset, and by default all of them.

    Example:
      >>> cohort = fm.sampled(8, dropout=0.1)
    """
    return Sampled(size, draw, dropout, prologue=prologue)


@plain_numbers
def poisson(
    size: int,
    room: int | None = None,
    *,
    dropout: float = 0.0,
    prologue: int | None = None,
) -> Sampled:
    """(Truncated) Poisson sampling, as in privacy accounting.

    Every client joins independently with probability size / clients.

    Args:
      size: S, the expected number of clients in a round.
      room: Largest number of clients in a round, from `size` to all of them. If more
        join, a uniform subset takes part. By default all clients.
      dropout: As in `sampled`.
      prologue: As in `sampled`.

    Example:
      >>> cohort = fm.poisson(8, room=16)
    """
    return Sampled(size, PoissonDraw(room), dropout, prologue=prologue)


@plain_numbers
def timed(
    size: int,
    clock: Clock,
    *,
    deadline: float | None = None,
    dropout: float = 0.0,
    prologue: int | None = None,
) -> Sampled:
    """Samples clients without replacement, in virtual time.

    Records then have `virtual_seconds`: a round lasts as long as its slowest member.

    Args:
      size: S, the number of clients in a round.
      clock: Speeds of the clients, such as `fm.clocks.lognormal(1.0, key=key)`.
      deadline: Seconds of the clock after which a round ends. Members that are slower
        take no part; the server waits for them until the deadline.
      dropout: As in `sampled`. The server waits for clients that drop out until the
        deadline, if there is one.
      prologue: As in `sampled`.

    Example:
      >>> clock = fm.clocks.lognormal(1.0, key=jax.random.key(0))
      >>> cohort = fm.timed(8, clock, deadline=10.0)
    """
    if clock is None:
        raise TypeError("clock must be a function, such as fm.clocks.constant()")
    times: Any = {"clock": clock, "deadline": deadline}
    return Sampled(size, dropout=dropout, prologue=prologue, **times)


def as_cohort(cohort: int | Cohort) -> Cohort:
    """The cohort of an argument; a number samples so many clients."""
    if isinstance(cohort, Cohort):
        return cohort
    if isinstance(cohort, int | np.integer) and not isinstance(cohort, bool):
        return Sampled(int(cohort))
    raise TypeError(
        "cohort must be a number of clients, or made by fm.sampled, fm.poisson, "
        f"fm.timed, fm.buffered or fm.fedasync, got {cohort!r:.60}"
    )


def needs_key(clock: Any) -> bool:
    """Whether a clock waits for a key, as `partial(fm.clocks.lognormal, 1.0)` does."""
    return callable(clock) and "key" in inspect.signature(clock).parameters


def check_clock(clock: Any) -> None:
    """Raises `TypeError` unless a clock is a function or None."""
    if clock is not None and not callable(clock):
        raise TypeError(
            f"clock must be a function, such as fm.clocks.constant(), got {clock!r}"
        )


class SampledTiming:
    """Rounds that last as long as their slowest member, or until a deadline."""

    def __init__(self, cohort: Sampled, durations: np.ndarray, key: jax.Array):
        self.cohort, self.durations, self.key = cohort, durations, key
        self.on_time = _on_time(cohort, durations)
        self.ends: list[float] = []  # of rounds

    def check(self, rounds: int) -> None:
        del rounds

    def inputs(self, first: int, count: int) -> Any:
        del first, count
        return self.on_time

    def seconds(self, rounds: int) -> float:
        number = len(self.durations)
        while len(self.ends) < rounds:
            drawn = _block(_untimed(self.cohort), number, self.key, len(self.ends))
            for ids, joins, present in zip(*map(np.asarray, drawn), strict=True):
                before = self.ends[-1] if self.ends else 0.0
                self.ends.append(before + self._round(ids, joins, present))
        return self.ends[rounds - 1] if rounds else 0.0

    def _round(self, ids: np.ndarray, joins: np.ndarray, present: np.ndarray) -> float:
        slowest = max(self.durations[ids[present]].tolist(), default=0.0)
        deadline = self.cohort.deadline
        if deadline is None:
            return slowest
        return deadline if (joins & ~present).any() else min(slowest, deadline)


def _on_time(cohort: Sampled, durations: np.ndarray) -> jax.Array | None:
    """Whether clients make the deadline, bool [N]; None without one."""
    if cohort.deadline is None:
        return None
    made = durations <= cohort.deadline
    if not made.any():
        raise ValueError(
            f"no client meets the deadline of {cohort.deadline:g} seconds; the fastest "
            f"needs {durations.min():.3g}"
        )
    return jnp.asarray(made)


def _untimed(cohort: Sampled) -> Sampled:
    """The same draws; cohorts that differ in times share the programs of these."""
    return dataclasses.replace(cohort, clock=None, deadline=None, prologue=None)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _block(cohort: Sampled, num_clients: int, key: jax.Array, first: Any) -> Any:
    """The cohorts of `BLOCK` rounds, leaves [BLOCK, ...]."""
    draw = lambda index: cohort.drawn(key, index, num_clients)
    return jax.vmap(draw)(first + jnp.arange(BLOCK))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _answers(
    cohort: Sampled, num_clients: int, key: jax.Array, inputs: Any, rounds: Any
) -> jax.Array:
    """Counts the messages of the first rounds."""

    def body(index: jax.Array, count: jax.Array) -> jax.Array:
        members = cohort.members(inputs, key, index, num_clients)
        return count + members.present.sum(dtype=count.dtype)

    return jax.lax.fori_loop(0, rounds, body, jnp.int32(0))
