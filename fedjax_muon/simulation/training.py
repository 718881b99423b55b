"""Training over many rounds, with evaluations and a record of metrics for each."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from fedjax_muon.core import check_count
from fedjax_muon.core.hyperparameters import plain_numbers
from fedjax_muon.core.recipe import recipe_of
from fedjax_muon.engine.processes import broadcast_from_first
from fedjax_muon.simulation.meter import Record, end_of_messages, end_of_row
from fedjax_muon.simulation.rounds import Metrics
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.terminal import Progress, plain_console, shown

Callback = Callable[[Any, Record], bool | None]


class Call(NamedTuple):
    """Result of some rounds that ran in one call."""

    state: Any
    metrics: Metrics
    rounds: int  # number of rounds in this call
    total: int  # number of rounds since the beginning
    due: bool  # whether an evaluation is due


def calls(
    train_rounds: Callable[[Any, int], tuple[Any, Metrics]],
    state: Any,
    index: int,
    *,
    rounds: int,
    evaluate_every: int,
) -> Iterator[Call]:
    """Runs until `rounds` are completed, in calls of about a tenth of a second.

    Args:
      train_rounds: Called as `train_rounds(state, count) -> (state, metrics)`.
      state: The state before the first call; it is donated.
      index: Number of rounds that the state has completed.
      rounds: Number of rounds since the beginning.
      evaluate_every: Rounds between two evaluations, at which calls end.
    """
    pace = 1
    while index < rounds:
        stop = min(rounds, (index // evaluate_every + 1) * evaluate_every)
        began, count = time.perf_counter(), min(pace, stop - index)
        state, metrics = train_rounds(state, count)
        jax.block_until_ready(metrics)
        index += count
        took = broadcast_from_first(time.perf_counter() - began)
        pace = 2 * pace if took < 0.1 else max(1, pace // 2)
        yield Call(state, metrics, count, index, index == stop)


class Step(NamedTuple):
    """Result of some new rounds, or of none at the beginning."""

    state: Any
    rounds: int  # number of new rounds
    record: Record | None  # if an evaluation is due
    dropped: int  # number of messages that were left out so far
    seconds: float  # duration of training so far


def steps(
    simulation: Simulation,
    state: Any,
    *,
    rounds: int,
    evaluate_every: int = 10,
    drop_nonfinite: bool = False,
    evaluate_first: bool = True,
    dropped: int = 0,
    seconds: float = 0.0,
) -> Iterator[Step]:
    """Trains until `rounds` are completed, in steps of about a tenth of a second.

    A yielded state is donated when the iteration continues: save it, or copy it.

    The first step is the state itself, without new rounds. Records are at multiples of
    `evaluate_every` and at the end.

    Args:
      state: From `simulation.init`, or a later one; it is donated.
      rounds: Total number of rounds, including those of the state.
      drop_nonfinite: Whether messages that are not finite are left out of the mean, and
        counted, instead of raising an error.
      evaluate_first: Whether the first state is evaluated.
      dropped: Number of messages that were left out before.
      seconds: Duration of training before.

    Raises:
      NonFiniteError: If a message or the training loss is not finite.
    """
    check_count("evaluate_every", evaluate_every)
    timing = simulation.meter.timing(state.key)
    if timing is not None:
        timing.check(rounds)
    start, index = time.perf_counter() - seconds, state.round
    elapsed = lambda: time.perf_counter() - start

    def record(state: Any, index: int) -> Record:
        counts: Any = {"dropped": dropped, "seconds": elapsed()}
        scores = simulation.evaluate(state)
        row = simulation.meter.row(state.key, index, scores, **counts)
        if not drop_nonfinite and (end := end_of_row(row)):
            raise end
        return row

    completed = calls(
        simulation.train_rounds,
        state,
        index,
        rounds=rounds,
        evaluate_every=evaluate_every,
    )
    first = record(state, index) if evaluate_first else None
    yield Step(state, 0, first, dropped, elapsed())
    for call in completed:
        if not drop_nonfinite and (end := end_of_messages(call.metrics.lost_round)):
            raise end
        dropped += int(np.asarray(call.metrics.lost).sum())
        row = record(call.state, call.total) if call.due else None
        yield Step(call.state, call.rounds, row, dropped, elapsed())


@plain_numbers
def run(
    simulation: Simulation,
    state: Any,
    *,
    rounds: int,
    evaluate_every: int = 10,
    drop_nonfinite: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> tuple[Any, list[Record]]:
    """Trains `rounds` more rounds, with evaluations in between.

    Args:
      simulation: From `federate` or `decentralize`.
      state: From `simulation.init`, or from an earlier call; it is donated.
      rounds: Number of new rounds.
      drop_nonfinite: Whether messages that are not finite are left out of the mean, and
        counted, instead of raising an error.
      callbacks: Called as `callback(state, record)` after every evaluation, such as
        those of `fm.tracking`. The state must be copied to be kept. Training ends early
        if one returns True.
      progress: Whether the rounds are shown on standard error: by a bar on a terminal
        and in notebooks that have ipywidgets, elsewhere by a line for every tenth of
        the rounds or every 30 seconds.

    Returns:
      The last state, and the records, which are dictionaries.
      `pandas.DataFrame(records)` makes a table of them.

    Raises:
      NonFiniteError: If a message or the training loss is not finite.

    Example:
      >>> state, history = fm.run(simulation, state, rounds=2, progress=False)
      >>> history[-1]["round"]
      3
    """
    if not isinstance(simulation, Simulation):
        raise TypeError(
            "run takes a simulation, from federate or decentralize, got "
            f"{type(simulation).__name__}; fm.train(method, problem) trains a method"
        )
    check_count("rounds", rounds)
    records: list[Record] = []
    course = steps(
        simulation,
        state,
        rounds=state.round + rounds,
        evaluate_every=evaluate_every,
        drop_nonfinite=drop_nonfinite,
    )
    made = recipe_of(simulation.settings.algorithm)
    course_so_far = Progress(rounds, made.function.__name__ if made else "train")
    console = plain_console(stderr=True, quiet=not progress)
    with shown(console, course_so_far):
        for step in course:
            state, record = step.state, step.record
            course_so_far.advance(step.rounds, record)
            if record is None:
                continue
            records.append(record)
            answers = [callback(state, record) for callback in callbacks]
            if True in answers:
                break
    return state, records


def early_stopping(
    column: str, *, patience: int, mode: Literal["min", "max"], min_change: float = 0.0
) -> Callable[[Any, Record], bool]:
    """Makes a callback that ends training when a metric no longer improves.

    Use a metric of training or validation examples: a test score that decides when to
    stop is no longer an estimate for new examples.

    Args:
      column: Name of the metric, such as "train_loss".
      patience: Number of evaluations in a row without improvement after which training
        ends.
      mode: Whether smaller ("min") or larger ("max") values are better.
      min_change: Smallest change of the best value that is an improvement.

    Returns:
      A callback, which starts anew with every call of `run`. It raises `ValueError`
      if there is no such metric.

    Example:
      >>> stop = fm.early_stopping("test_loss", patience=3, mode="min")
      >>> state, history = fm.run(
      ...     simulation, state, rounds=2, callbacks=[stop], progress=False
      ... )
    """
    check_count("patience", patience)
    if mode not in ("min", "max"):
        raise ValueError(f'mode must be "min" or "max", got {mode!r}')
    if not min_change >= 0:
        raise ValueError(f"min_change must be at least 0, got {min_change}")
    sign = 1.0 if mode == "max" else -1.0
    best, waited, last = -math.inf, 0, -1

    def callback(state: Any, record: Record) -> bool:
        nonlocal best, waited, last
        del state
        if record.get("round", math.inf) <= last:  # the first one of another call
            best, waited = -math.inf, 0
        last = record.get("round", last)
        if column not in record:
            raise ValueError(
                f"there is no metric {column!r}; there are {', '.join(record)}"
            )
        value = sign * record[column]
        if value > best + min_change:
            best, waited = value, 0
        else:  # also if the value is NaN
            waited += 1
        return waited >= patience

    return callback
