"""Trials and final runs of a row on a track, as RULES.md says."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from experiments.board.row import Row
from experiments.board.tracks import Track, score_of
from fedjax_muon.problems import Problem
from fedjax_muon.runs.search import DIVERGED, Trial, best, following
from fedjax_muon.runs.simulate import start_key
from fedjax_muon.simulation.batching import max_client_size_of
from fedjax_muon.simulation.groups import Cell, Groups, Outcome

Line = dict[str, Any]  # of a file of results: a run

TUNING_SEEDS: tuple[int, ...] = (100, 101)
TRIAL, FINAL, SECONDS = "trial", "final", "seconds"  # stages
TIMED = 3  # rounds


class Runs:
    """A row on a track: its runs, in one program for each variant of the track."""

    def __init__(self, name: str, row: Row, track: Track, problem: Problem):
        self.name, self.row, self.track, self.problem = name, row, track, problem
        self.rounds = track.rounds_of(row, problem)
        self.every = max(1, self.rounds // track.evaluations)
        self.score = score_of(problem)
        self.seeds = tuple(range(track.seeds))
        self.parts = {
            seed: problem.parts(seed) for seed in (*TUNING_SEEDS, *self.seeds)
        }
        largest = max(max_client_size_of(parts) for parts in self.parts.values())
        self.simulations = {
            variant: track.simulation(row, problem, 0, variant)
            for variant in track.variants
        }
        self.groups = {
            variant: Groups(
                simulation,
                rounds=self.rounds,
                evaluate_every=self.every,
                max_client_size=largest,
                validation=problem.validation,
            )
            for variant, simulation in self.simulations.items()
        }

    def trial(self, values: Mapping[str, float], seed: int) -> Line:
        """A run whose validation score alone is kept."""
        scores, diverged = [], []
        for outcome in self._outcomes(values, seed, self.rounds):
            diverged.append(outcome.diverged is not None)
            scores.append(self._last(outcome, "validation"))
        line = self._about(TRIAL, values, seed)
        return line | {"validation": self._worst(scores), "diverged": any(diverged)}

    def final(self, values: Mapping[str, float], seed: int) -> Line:
        """A run with its curve; of a track with variants, the worst one."""
        outcomes = self._outcomes(values, seed, self.every)
        scores = [self._last(outcome, "test") for outcome in outcomes]
        at = scores.index(self._worst(scores))
        rows, test = outcomes[at].rows, f"test_{self.score.metric}"
        columns = {"round": "round", "scores": test, "virtual": "virtual_seconds"}
        curves = {
            name: [float(f"{row[column]:.6g}") for row in rows]
            for name, column in columns.items()
            if column in rows[0]
        }
        sent = [int(row["bytes_down"] + row["bytes_up"]) for row in rows]
        line = self._about(FINAL, values, seed) | {"score": scores[at]}
        if len(outcomes) > 1:
            line["variant"] = self.track.variants[at]
        diverged = any(outcome.diverged is not None for outcome in outcomes)
        return line | {"diverged": diverged, **curves, "bytes": sent}

    def seconds(self) -> Line:
        """Processor seconds of a round after compilation; wall seconds on GPUs."""
        simulation = self.simulations[self.track.variants[0]]
        is_cpu = jax.default_backend() == "cpu"
        clock = time.process_time if is_cpu else time.perf_counter
        state = simulation.init(start_key(0))
        state = jax.block_until_ready(simulation.train_rounds(state, TIMED)[0])
        began = clock()
        jax.block_until_ready(simulation.train_rounds(state, TIMED)[0])
        seconds = (clock() - began) / TIMED
        return {"row": self.name, "stage": SECONDS, "seconds": float(f"{seconds:.4g}")}

    def _outcomes(
        self, values: Mapping[str, float], seed: int, every: int
    ) -> list[Outcome]:
        hyper, parts = self.track.hyper(self.row, values), self.parts[seed]
        outcomes = []
        for variant, groups in self.groups.items():
            weights = None
            if self.simulations[variant].program.mix is not None:
                weights = self.problem.mixing(seed, len(parts))
            groups.evaluate_every = every
            cell = Cell(hyper, start_key(seed), parts, weights)
            outcomes += groups.run([cell], 1)
        return outcomes

    def _last(self, outcome: Outcome, which: str) -> float:
        score = self.track.worst
        if outcome.diverged is None:
            last = outcome.rows[-1][f"{which}_{self.score.metric}"]
            score = float(f"{last:.6g}")
        return score if np.isfinite(score) else self.track.worst

    def _worst(self, scores: Sequence[float]) -> float:
        return min(scores, key=lambda score: self.score.sign * score)

    def _about(self, stage: str, values: Mapping[str, float], seed: int) -> Line:
        return {"row": self.name, "stage": stage, "hyper": dict(values), "seed": seed}


def points_of(
    lines: Sequence[Line], space: Mapping[str, float], sign: int
) -> dict[Trial, float]:
    """The finished trials of a row in their order: mean validation scores."""
    found: dict[Trial, list[Line]] = {}
    at = _places(space)
    for line in lines:
        if line["stage"] == TRIAL:
            found.setdefault(at[tuple(line["hyper"].values())], []).append(line)
    return {
        point: DIVERGED
        if any(line["diverged"] for line in runs)
        else sign * float(np.mean([line["validation"] for line in runs]))
        for point, runs in found.items()
        if len(runs) == len(TUNING_SEEDS)
    }


def _places(space: Mapping[str, float]) -> dict[tuple[float, ...], Trial]:
    """Points by their values."""
    others = range(-9, 10) if len(space) > 1 else (0,)
    points = [Trial(rate, other) for rate in range(-64, 65) for other in others]
    return {tuple(point.values(space).values()): point for point in points}


def asked(
    lines: Sequence[Line], row: Row, track: Track, sign: int
) -> list[tuple[str, dict[str, float], int]]:
    """What to run next: the stage, the options and the seed of each; none at the end.

    Args:
      lines: The runs of the row that are finished.
    """
    space = track.space(row)
    scores = points_of(lines, space, sign)
    done = {key_of(line) for line in lines}
    stage, seeds = TRIAL, TUNING_SEEDS
    points = following(scores, len(space), track.trials)
    if not points:
        stage, seeds, points = FINAL, tuple(range(track.seeds)), [best(scores)]
    every = [(stage, point.values(space), seed) for point in points for seed in seeds]
    return [one for one in every if (one[0], *one[1].values(), one[2]) not in done]


def key_of(line: Line) -> tuple[Any, ...]:
    """What tells the lines of a row apart: the stage, the options and the seed."""
    return (line["stage"], *line.get("hyper", {}).values(), line.get("seed"))
