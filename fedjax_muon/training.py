"""Training to the end: rounds, evaluations in between, and a row of metrics each."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from fedjax_muon.simulation import Metrics, NonFiniteError, Simulation, State

Row = dict[str, Any]


def evaluations(
    simulation: Simulation,
    state: State,
    *,
    rounds: int,
    evaluate_every: int = 10,
    drop_nonfinite: bool = False,
    tick: Callable[[int], None] = lambda rounds: None,
) -> Iterator[tuple[State, Row]]:
    """Trains until `rounds` are played; yields the state and a row of metrics now, at
    every multiple of `evaluate_every`, and at the end.

    A yielded state is donated when the iteration goes on: save it, or copy it. `tick`
    is told of rounds as they are played, a few times a second. Raises
    `NonFiniteError` as soon as a client sends one, unless `drop_nonfinite`, which
    counts it in the column `dropped`.
    """
    if evaluate_every < 1:
        raise ValueError(f"evaluate_every must be at least 1, got {evaluate_every}")
    start, dropped, index, pace = time.perf_counter(), 0, state.round, 1
    while True:
        down, up = simulation.bytes_after(index)
        scores = jax.tree.map(float, simulation.evaluate(state))
        row = {"round": index, "bytes_down": down, "bytes_up": up}
        row |= scores._asdict() | {"dropped": dropped}
        yield state, row | {"seconds": time.perf_counter() - start}
        if index >= rounds:
            return
        stop = min(rounds, (index // evaluate_every + 1) * evaluate_every)
        while index < stop:
            began, count = time.perf_counter(), min(pace, stop - index)
            state, metrics = simulation.train_rounds(state, count)
            lost = np.asarray(metrics.lost)
            if lost.any() and not drop_nonfinite:
                raise _lost(metrics)
            dropped += int(lost.sum())
            index += count
            pace = 2 * pace if time.perf_counter() - began < 0.1 else max(1, pace // 2)
            tick(count)


def _lost(metrics: Metrics) -> NonFiniteError:
    rounds = np.asarray(metrics.lost_round)
    first = rounds[rounds >= 0].min()
    return NonFiniteError(int(first), np.flatnonzero(rounds == first).tolist())


def run(simulation: Simulation, state: State, **how) -> tuple[State, list[Row]]:
    """`evaluations` to the end: the last state, and the rows, one dict each.

    `pandas.DataFrame(rows)` makes a table of them.
    """
    rows = []
    last = state
    for last, row in evaluations(simulation, state, **how):  # noqa: B007 - returned
        rows.append(row)
    return last, rows
