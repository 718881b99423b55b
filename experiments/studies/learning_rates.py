"""Learning rates of the default comparisons, tuned by validation.

    python -m experiments.studies.learning_rates classification --output DIR
    python -m experiments.studies.learning_rates auc --output DIR

The comparisons are `fedjax-muon compare` and `fedjax-muon compare --problem auc`. Every
method has the same grid of learning rates and schedules (constant, cosine), and the
same seeds, which the comparisons never use. The best point has the highest mean
validation accuracy (or AUC) after the last round, on a tenth of the training examples
that no client has; of equal points, the one with the lowest validation loss is best.
While a method's best rate is the smallest or largest that was tried, its grid is
extended by another rate. The lines are kept in results/learning_rates_*.jsonl.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from fedjax_muon import data, minimax
from fedjax_muon.cli.arguments import MAIN_JOB
from fedjax_muon.data import Dataset
from fedjax_muon.reporting.comparison import Point, best
from fedjax_muon.runs.build import parts_of, simulation_of, start_key
from fedjax_muon.runs.config import DEFAULTS, Config, Run
from fedjax_muon.runs.errors import refusing
from fedjax_muon.simulation.sweeps import Cell, run_cells

EXPONENTS = range(-6, 2)  # of half decades: rates from 0.001 to 3
SCHEDULES = ("constant", "cosine")
METHODS = {"classification": MAIN_JOB, "auc": tuple(minimax.ALL)}
SEEDS = (100, 101, 102, 103, 104)
SHARE = 0.1
MOST = 6  # extensions of a method's grid


def rate(exponent: int) -> float:
    """Returns 1, 3, 10, 30, and so on, and their inverses, rounded like 0.03."""
    decade, half = divmod(exponent, 2)
    return float(f"{(3 if half else 1) * 10.0**decade:.0e}")


def points(
    algorithm: str, config: Config, exponents: Sequence[int], dataset: Dataset
) -> Iterator[Point]:
    """Yields the point of every rate at the schedule of `config`."""
    train, validation = data.hold_out(dataset, SHARE)
    run = Run(algorithm, {"lr": 1.0}, SEEDS[0], config)
    parts = {seed: parts_of(config, train, seed) for seed in SEEDS}
    rates = [rate(exponent) for exponent in exponents]
    groups = run_cells(
        simulation_of(run, train),
        [
            Cell({"lr": r}, start_key(seed), parts[seed])
            for r in rates
            for seed in SEEDS
        ],
        rounds=config.rounds,
        evaluate_every=config.rounds,
        validation=validation,
    )
    outcomes = [outcome for group in groups for outcome in group]
    for i, lr in enumerate(rates):
        ours = outcomes[i * len(SEEDS) : (i + 1) * len(SEEDS)]
        runs = [
            {column: np.array([row[column] for row in o.rows]) for column in o.rows[0]}
            for o in ours
            if o.diverged is None
        ]
        hyper = {"lr": lr, "lr_schedule": config.lr_schedule}
        yield Point(hyper, runs, len(ours) - len(runs))


def tuned(algorithm: str, problem: str, dataset: Dataset) -> list[Point]:
    """Returns a method's points, after its grid was extended where it has to be."""
    found: dict[tuple[int, str], Point] = {}
    todo = list(EXPONENTS)
    for _ in range(1 + MOST):
        for schedule in SCHEDULES:
            config = dataclasses.replace(DEFAULTS[problem], lr_schedule=schedule)
            made = points(algorithm, config, todo, dataset)
            found |= zip(((e, schedule) for e in todo), made, strict=True)
        chosen = best(list(found.values()))
        tried = sorted({exponent for exponent, _ in found})
        if chosen is None or chosen.hyper["lr"] not in map(rate, (tried[0], tried[-1])):
            break
        low = chosen.hyper["lr"] == rate(tried[0])
        todo = [tried[0] - 1 if low else tried[-1] + 1]
    return [found[key] for key in sorted(found)]


def line(algorithm: str, point: Point, is_best: bool) -> dict[str, Any]:
    """Returns a point as it is printed; the mean of a diverged one is null."""
    row: dict[str, Any] = {"algorithm": algorithm, **point.hyper}
    kinds = [] if point.diverged else [*point.runs[0]]
    kinds = [kind for kind in kinds if kind.startswith("validation_")]
    row |= {kind: round(point.last(kind)[0], 4) for kind in kinds}
    return row | {"diverged": point.diverged, "best": is_best}


def main(
    problem: Annotated[Literal["classification", "auc"], tyro.conf.Positional],
    output: Path | None = None,
) -> None:
    """Tunes the methods of a problem's default comparison.

    Args:
      problem: Which comparison.
      output: Directory of the lines, learning_rates_PROBLEM.jsonl; by default they are
        printed alone.
    """
    lines = []
    with refusing():
        dataset = data.load(DEFAULTS[problem].dataset)
        for algorithm in METHODS[problem]:
            found = tuned(algorithm, problem, dataset)
            chosen = best(found)
            rows = [line(algorithm, point, point is chosen) for point in found]
            lines += [json.dumps(row) for row in rows]
            print("\n".join(lines[-len(rows) :]), flush=True)
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            path = output / f"learning_rates_{problem}.jsonl"
            path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
