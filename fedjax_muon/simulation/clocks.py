"""Clocks: how many seconds clients need, for runs in virtual time.

    clock = fm.clocks.lognormal(1.0, step=0.05, byte=1e-7, key=jax.random.key(0))
    simulation = fm.federate(..., cohort=fm.timed(8, clock))

A job of a client takes the seconds of its local steps and of the bytes that it receives
and sends. They do not depend on what is computed, so that a run can be timed, and
scheduled, before it begins.
"""

import csv
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedjax_muon.core import check_range
from fedjax_muon.data.partition import generator

# By client: the seconds when it leaves and returns, in order. Unlisted clients stay.
Away = Mapping[int, Sequence[tuple[float, float]]]
NEVER: Away = types.MappingProxyType({})


class Speeds(NamedTuple):
    """Seconds of each of the N clients, float64 [N], and their absences."""

    step: np.ndarray  # per local step
    byte: np.ndarray  # per byte that is received or sent
    away: Away = NEVER


Clock = Callable[[int], Speeds]  # number of clients -> their speeds


def _times(factors: Callable[[int], np.ndarray], step: float, byte: float) -> Clock:
    """A clock whose clients are slower than `step` and `byte` by factors."""
    check_range("step", step, schedules=False)
    check_range("byte", byte, schedules=False)
    if not step + byte > 0:
        raise ValueError(f"step or byte must be positive, got {step} and {byte}")

    def clock(num_clients: int) -> Speeds:
        slower = factors(num_clients)
        return Speeds(step * slower, byte * slower)

    return clock


def constant(step: float = 1.0, byte: float = 0.0) -> Clock:
    """All clients are equally fast.

    Args:
      step: Seconds per local step.
      byte: Seconds per byte that a client receives or sends.
    """
    return _times(np.ones, step, byte)


def lognormal(
    sigma: float, step: float = 1.0, byte: float = 0.0, *, key: jax.Array
) -> Clock:
    """Clients are slower than the median one by factors exp(sigma z), z ~ N(0, 1)."""
    check_range("sigma", sigma, schedules=False)

    def factors(number: int) -> np.ndarray:
        return generator(key, 2).lognormal(0, sigma, (number,))

    return _times(factors, step, byte)


def two_speeds(
    slower: float,
    share: float = 0.5,
    step: float = 1.0,
    byte: float = 0.0,
    *,
    key: jax.Array,
) -> Clock:
    """A share of the clients, chosen at random, is slower by one factor."""
    check_range("slower", slower, 1.0, schedules=False)
    check_range("share", share, 0.0, 1.0, schedules=False)

    def factors(number: int) -> np.ndarray:
        is_slow = generator(key, 2).permutation(number) < round(share * number)
        return np.where(is_slow, float(slower), 1.0)

    return _times(factors, step, byte)


def measured(step: ArrayLike, byte: ArrayLike | None = None) -> Clock:
    """Clients have measured seconds per local step, and per byte, [N]."""
    steps = np.asarray(step, float)
    seconds = Speeds(steps, np.zeros_like(steps) if byte is None else np.asarray(byte))
    for name, values in {"step": seconds.step, "byte": seconds.byte}.items():
        if values.shape != steps.shape or steps.ndim != 1:
            raise ValueError(
                f"{name} must have one number per client, got shape {values.shape}"
            )
        if not (np.isfinite(values) & (values >= 0)).all():
            bad = values[~(np.isfinite(values) & (values >= 0))][0]
            raise ValueError(f"{name} must be seconds of at least 0, got {bad}")
    idle = np.flatnonzero(seconds.step + seconds.byte == 0)
    if len(idle):
        raise ValueError(f"client {idle[0]} needs a time above 0 for a step or a byte")

    def clock(num_clients: int) -> Speeds:
        if num_clients != len(steps):
            raise ValueError(
                f"the clock has {len(steps)} clients, but the simulation has "
                f"{num_clients}"
            )
        return seconds

    return clock


def trace(path: str | Path) -> Clock:
    """Reads measured seconds from a CSV file.

    The file has a row for every client, in any order, and the columns `client`, from 0
    on, `step` and, optionally, `byte`.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows, names = list(reader), reader.fieldnames or ()
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from None
    for name in ("client", "step"):
        if name not in names:
            raise ValueError(f"{path} has no column {name!r}")
    if not rows:
        raise ValueError(f"{path} has no clients; give one row per client")
    try:
        ids = [int(row["client"]) for row in rows]
        columns = np.array(
            [[float(row["step"]), float(row.get("byte") or 0)] for row in rows]
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} has a row that is not all numbers: {error}") from None
    if sorted(ids) != list(range(len(ids))):
        lacking = sorted(set(range(len(ids))) - set(ids))[0]
        what = (
            "has a client twice"
            if len(set(ids)) < len(ids)
            else f"lacks client {lacking}"
        )
        raise ValueError(f"{path} {what}; give one row per client, from 0 on")
    step, byte = columns[np.argsort(ids)].T
    return measured(step, byte)


def absent(clock: Clock, away: Away) -> Clock:
    """Lets clients leave and return, in asynchronous rounds.

    A client that leaves loses its job, and gets no other one until it returns.

    Args:
      away: By client, (leaves, returns) in seconds, in order; a client that leaves for
        good returns at `math.inf`.

    Example:
      >>> away = {3: [(10.0, 25.0), (40.0, math.inf)]}
      >>> clock = fm.clocks.absent(fm.clocks.constant(), away)
    """
    for client, spans in away.items():
        times = np.ravel(spans)
        if not (len(times) and times[0] >= 0 and (np.diff(times) > 0).all()):
            raise ValueError(
                f"client {client} must leave at 0 seconds or later and return after "
                f"that, in order, got {list(spans)}"
            )

    def with_absences(num_clients: int) -> Speeds:
        unknown = [client for client in away if not 0 <= client < num_clients]
        if unknown:
            raise ValueError(
                f"client {unknown[0]} is away, but there are {num_clients} clients, "
                "numbered from 0"
            )
        return clock(num_clients)._replace(away=away)

    return with_absences
