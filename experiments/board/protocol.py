"""Tuning and final runs of a method on a track, as RULES.md says."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.board import simulations
from experiments.board.entries import MINIMAX, SCHEDULES, Entry, Trial
from experiments.board.simulations import Problem
from experiments.board.tracks import Track
from fedjax_muon.simulation import Simulation
from fedjax_muon.simulation.sweeps import Cell, Outcome

Row = dict[str, Any]

TUNING_SEEDS = (100, 101)
SEEDS = (0, 1, 2, 3, 4)
FINAL, SECONDS = "final", "seconds"  # stages
TIMED = 3  # rounds


class Piece(NamedTuple):
    """Runs that are kept together once they are finished."""

    method: str
    stage: str  # a schedule of the trials, FINAL or SECONDS


def pieces(method: str, trials: Sequence[Trial]) -> list[Piece]:
    """What a method runs, in this order."""
    used = [name for name in SCHEDULES if any(t.schedule == name for t in trials)]
    return [Piece(method, stage) for stage in (*used, FINAL)]


def simulation_of(
    entry: Entry, trial: Trial, track: Track, problem: Problem, seed: int
) -> Simulation:
    """A method at a trial, on the clients of a seed."""
    task = problem.minimax if entry.kind == MINIMAX else problem.task
    algorithm = entry.algorithm(trial, track.rounds)
    return track.simulate(
        algorithm, task, problem, seed, rounds=track.rounds, **track.sizes
    )


def trained(
    entry: Entry,
    trials: Sequence[Trial],
    seeds: Sequence[int],
    track: Track,
    problem: Problem,
    evaluate_every: int,
) -> Iterator[Row]:
    """Trains trials of one schedule with all seeds."""
    simulation = simulation_of(entry, trials[0], track, problem, seeds[0])
    points = [(trial, seed) for trial in trials for seed in seeds]
    parts = {seed: problem.parts(seed) for seed in seeds}
    cells = [
        Cell(trial.hyper, jax.random.key(1000 + seed), parts[seed])
        for trial, seed in points
    ]
    outcomes = simulations.swept(
        simulation,
        cells,
        rounds=track.rounds,
        evaluate_every=evaluate_every,
        validation=problem.held,
    )
    for (trial, seed), outcome in zip(points, outcomes, strict=True):
        about = {"schedule": trial.schedule, "hyper": dict(trial.hyper), "seed": seed}
        yield about | _scores(outcome, track.metric)


def _scores(outcome: Outcome, metric: str) -> Row:
    """The last scores of a run, 0 if it diverged, and its curves."""
    last: Any = outcome.rows[-1] if outcome.diverged is None else {}
    test, worst = f"test_{metric}", f"client_{metric}_min"
    columns = {"round": "round", "scores": test, "virtual_seconds": "virtual_seconds"}
    known = outcome.rows[0].keys()
    curves = {
        name: [float(f"{row[column]:.6g}") for row in outcome.rows]
        for name, column in columns.items()
        if column in known
    }
    sent = [int(row["bytes_down"] + row["bytes_up"]) for row in outcome.rows]
    return {
        "score": float(last.get(test, 0.0)),
        "validation": float(last.get(f"validation_{metric}", 0.0)),
        **({"worst": float(last.get(worst, 0.0))} if worst in known else {}),
        "diverged": outcome.diverged is not None,
        **curves,
        "bytes": sent,
    }


def chosen(rows: Sequence[Row], trials: Sequence[Trial]) -> Trial:
    """The trial with the highest mean validation score; the first of equal ones."""

    def mean(trial: Trial) -> float:
        known = [
            row["validation"]
            for row in rows
            if row["stage"] == trial.schedule and row["hyper"] == dict(trial.hyper)
        ]
        return float(np.mean(known))

    return max(trials, key=mean)


def seconds_per_round(simulation: Simulation) -> float:
    """Processor seconds of a round after compilation; wall seconds on accelerators."""
    is_cpu = jax.default_backend() == "cpu"
    clock = time.process_time if is_cpu else time.perf_counter
    state = simulation.init(jax.random.key(0))
    state = jax.block_until_ready(simulation.train_rounds(state, TIMED)[0])
    began = clock()
    jax.block_until_ready(simulation.train_rounds(state, TIMED)[0])
    return (clock() - began) / TIMED


def run(
    piece: Piece, entry: Entry, track: Track, problem: Problem, tuned: Sequence[Row]
) -> list[Row]:
    """The rows of a piece; the final runs take the best of the tuned ones."""
    trials = entry.trials(track)
    about = piece._asdict() | {"device": jax.devices()[0].device_kind}
    if piece.stage == SECONDS:
        simulation = simulation_of(entry, trials[0], track, problem, SEEDS[0])
        return [about | {"seconds": float(f"{seconds_per_round(simulation):.4g}")}]
    seeds, every = TUNING_SEEDS, track.rounds
    ours = [trial for trial in trials if trial.schedule == piece.stage]
    if piece.stage == FINAL:
        seeds, every, ours = SEEDS, track.evaluate_every, [chosen(tuned, trials)]
    rows = trained(entry, ours, seeds, track, problem, every)
    return [about | row for row in rows]
