"""Training to the end: rounds, evaluations in between, and a row of metrics each."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_muon.engine.processes import agreed
from fedjax_muon.simulation.rounds import Metrics
from fedjax_muon.simulation.simulation import (
    NonFiniteError,
    NonFiniteLossError,
    Simulation,
)

Record = dict[str, Any]
Callback = Callable[[Any, Record], bool | None]


def check_every(evaluate_every: int) -> None:
    """Raises `ValueError` unless some rounds lie between two evaluations."""
    if evaluate_every < 1:
        raise ValueError(f"evaluate_every must be at least 1, got {evaluate_every}")


class Call(NamedTuple):
    """Some rounds that ran in one call."""

    state: Any
    metrics: Metrics
    rounds: int  # how many
    total: int  # since the beginning
    due: bool  # whether it is time to evaluate


def calls(
    train_rounds: Callable[[Any, int], tuple[Any, Metrics]],
    state: Any,
    index: int,
    *,
    rounds: int,
    evaluate_every: int,
) -> Iterator[Call]:
    """Runs until `rounds` are completed, in calls of about a tenth of a second."""
    pace = 1
    while index < rounds:
        stop = min(rounds, (index // evaluate_every + 1) * evaluate_every)
        began, count = time.perf_counter(), min(pace, stop - index)
        state, metrics = train_rounds(state, count)
        jax.block_until_ready(metrics)
        index += count
        took = agreed(time.perf_counter() - began)
        pace = 2 * pace if took < 0.1 else max(1, pace // 2)
        yield Call(state, metrics, count, index, index == stop)


def evaluations(
    simulation: Simulation,
    state: Any,
    *,
    rounds: int,
    evaluate_every: int = 10,
    drop_nonfinite: bool = False,
    tick: Callable[[int], None] = lambda rounds: None,
) -> Iterator[tuple[Any, Record]]:
    """Trains until `rounds` are completed; yields the state and a row of metrics at
    once, at every multiple of `evaluate_every`, and at the end.

    A yielded state is donated when the iteration goes on: save it, or copy it. `tick`
    is called with the number of new rounds, a few times a second. Raises
    `NonFiniteError` as soon as a client sends one, unless `drop_nonfinite`, which
    counts it in the column `dropped`, and `NonFiniteLossError` if the training loss is
    NaN all the same.
    """
    check_every(evaluate_every)
    start, dropped, index = time.perf_counter(), 0, state.round

    def row(state, index) -> Record:
        down, up = simulation.bytes_after(index)
        scores = simulation.evaluate(state)
        row = {"round": index, "bytes_down": down, "bytes_up": up}
        row |= {name: float(score) for name, score in scores.items()}
        if math.isnan(row.get("train_loss", 0)) and not drop_nonfinite:
            raise NonFiniteLossError(index)
        row["dropped"] = dropped
        return row | {"seconds": time.perf_counter() - start}

    completed = calls(
        simulation.train_rounds,
        state,
        index,
        rounds=rounds,
        evaluate_every=evaluate_every,
    )
    yield state, row(state, index)
    for call in completed:
        lost = np.asarray(call.metrics.lost)
        if lost.any() and not drop_nonfinite:
            raise _lost(call.metrics)
        dropped += int(lost.sum())
        tick(call.rounds)
        if call.due:
            yield call.state, row(call.state, call.total)


def _lost(metrics: Metrics) -> NonFiniteError:
    rounds = np.asarray(metrics.lost_round)
    first = rounds[rounds >= 0].min()
    return NonFiniteError(int(first), np.flatnonzero(rounds == first).tolist())


def train(
    simulation: Simulation,
    state: Any,
    *,
    rounds: int,
    evaluate_every: int = 10,
    drop_nonfinite: bool = False,
    callbacks: Sequence[Callback] = (),
) -> tuple[Any, list[Record]]:
    """Trains `rounds` more rounds, with evaluations in between.

    Args:
      simulation: From `federate` or `decentralize`.
      state: From `simulation.init`, or from an earlier call; it is donated.
      rounds: How many rounds to train from here on.
      evaluate_every: Rounds between two evaluations.
      drop_nonfinite: Whether messages that are not finite are left out of the mean, and
        counted, in place of stopping.
      callbacks: Called as `callback(state, record)` after every evaluation. The state
        must be copied to be kept. Training ends early if one returns True.

    Returns:
      The last state, and the records, one dictionary each; `pandas.DataFrame(records)`
      makes a table of them.

    Raises:
      NonFiniteError: If a message or the training loss is not finite.
      ValueError: If `rounds` or `evaluate_every` is below 1.

    Example:
      >>> state, history = train(simulation, state, rounds=100)
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    records: list[Record] = []
    steps = evaluations(
        simulation,
        state,
        rounds=state.round + rounds,
        evaluate_every=evaluate_every,
        drop_nonfinite=drop_nonfinite,
    )
    for state, record in steps:
        records.append(record)
        answers = [callback(state, record) for callback in callbacks]
        if True in answers:
            break
    return state, records
