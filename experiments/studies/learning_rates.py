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

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import fedjax_muon as fm
from experiments.arguments import call
from experiments.papers.frame import METHODS, decayed
from fedjax_muon import problems
from fedjax_muon.cli.main import ending
from fedjax_muon.runs.rates import RATES as TUNED
from fedjax_muon.runs.summary import Point, best

EXPONENTS = range(-6, 2)  # of half decades: rates from 0.001 to 3
SCHEDULES = ("constant", "cosine")
PROBLEMS = {"classification": problems.classification, "auc": problems.auc}
SEEDS = (100, 101, 102, 103, 104)
ROUNDS = 100
MOST = 6  # extensions of a method's grid


def rate(exponent: int) -> float:
    """Returns 1, 3, 10, 30, and so on, and their inverses, rounded like 0.03."""
    decade, half = divmod(exponent, 2)
    return float(f"{(3 if half else 1) * 10.0**decade:.0e}")


def points(
    algorithm: str, problem: problems.Problem, schedule: str, exponents: Sequence[int]
) -> list[Point]:
    """Returns the point of every rate at a schedule."""
    method = METHODS[algorithm].function()
    if schedule == "cosine":
        method = decayed(method, ROUNDS)
    grid = {"lr": [rate(exponent) for exponent in exponents]}
    how: dict[str, Any] = {"rounds": ROUNDS, "evaluate_every": ROUNDS, "seeds": SEEDS}
    how |= {"extend": False, "progress": False}
    swept = fm.sweep({algorithm: method}, problem, grid, **how)[algorithm]
    named = lambda hyper: {**hyper, "lr_schedule": schedule}
    return [point._replace(hyper=named(point.hyper)) for point in swept.points]


def tuned(algorithm: str, problem: problems.Problem) -> list[Point]:
    """Returns a method's points, after its grid was extended where it has to be."""
    found: dict[tuple[int, str], Point] = {}
    todo = list(EXPONENTS)
    for _ in range(1 + MOST):
        for schedule in SCHEDULES:
            made = points(algorithm, problem, schedule, todo)
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


def main(problem: Literal["classification", "auc"], output: Path | None = None) -> None:
    """Tunes the methods of a problem's default comparison.

    Args:
      problem: Which comparison.
      output: Directory of the lines, learning_rates_PROBLEM.jsonl; by default they are
        printed alone.
    """
    lines = []
    with ending():
        made = PROBLEMS[problem]()
        for algorithm in TUNED[problem]:
            found = tuned(algorithm, made)
            chosen = best(found)
            rows = [line(algorithm, point, point is chosen) for point in found]
            lines += [json.dumps(row) for row in rows]
            print("\n".join(lines[-len(rows) :]), flush=True)
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            path = output / f"learning_rates_{problem}.jsonl"
            path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    call(main, __doc__)
