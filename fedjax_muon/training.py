"""Training to the end: rounds, evaluations in between, and a row of metrics each."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fedjax_muon.engine import Traffic
from fedjax_muon.processes import agreed
from fedjax_muon.rounds import Metrics
from fedjax_muon.simulation import NonFiniteError

Row = dict[str, Any]


class Trainable(Protocol):
    """What is trained here: a `Simulation`, or one without a server. Its states say
    how many rounds they have played, as `round`."""

    def train_rounds(self, state: Any, count: int, /) -> tuple[Any, Metrics]: ...
    def evaluate(self, state: Any, /) -> Any: ...
    def bytes_after(self, rounds: int, /) -> Traffic: ...


def check_every(evaluate_every: int) -> None:
    """Raises `ValueError` unless some rounds lie between two evaluations."""
    if evaluate_every < 1:
        raise ValueError(f"evaluate_every must be at least 1, got {evaluate_every}")


class Call(NamedTuple):
    """Some rounds that were played by one call."""

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
    """Plays until `rounds` are played, in calls of about a tenth of a second."""
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
    simulation: Trainable,
    state: Any,
    *,
    rounds: int,
    evaluate_every: int = 10,
    drop_nonfinite: bool = False,
    tick: Callable[[int], None] = lambda rounds: None,
) -> Iterator[tuple[Any, Row]]:
    """Trains until `rounds` are played; yields the state and a row of metrics now, at
    every multiple of `evaluate_every`, and at the end.

    A yielded state is donated when the iteration goes on: save it, or copy it. `tick`
    is told of rounds as they are played, a few times a second. Raises
    `NonFiniteError` as soon as a client sends one, unless `drop_nonfinite`, which
    counts it in the column `dropped`.
    """
    check_every(evaluate_every)
    start, dropped, index = time.perf_counter(), 0, state.round

    def row(state, index) -> Row:
        down, up = simulation.bytes_after(index)
        scores = simulation.evaluate(state)._asdict()
        row = {"round": index, "bytes_down": down, "bytes_up": up}
        row |= {
            name: float(score) for name, score in scores.items() if score is not None
        }
        row["dropped"] = dropped
        return row | {"seconds": time.perf_counter() - start}

    played = calls(
        simulation.train_rounds,
        state,
        index,
        rounds=rounds,
        evaluate_every=evaluate_every,
    )
    yield state, row(state, index)
    for call in played:
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


def run(simulation: Trainable, state: Any, **how) -> tuple[Any, list[Row]]:
    """`evaluations` to the end: the last state, and the rows, one dict each.

    `pandas.DataFrame(rows)` makes a table of them.
    """
    rows = []
    last = state
    for last, row in evaluations(simulation, state, **how):  # noqa: B007 - returned
        rows.append(row)
    return last, rows
