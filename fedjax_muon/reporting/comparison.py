"""What several runs say together: one line per method, over seeds."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

SHARE_OF_BEST = 0.9
History = Mapping[str, np.ndarray]  # columns, as `history.read` returns them


class Summary(NamedTuple):
    """One method over its seeds. Rounds and megabytes are nan where the target was not
    reached; a megabyte is 10^6 bytes, up and down of all clients together."""

    method: str
    score_mean: float  # after the last round, see `score_column`
    score_std: float  # over seeds, with n - 1; nan for one seed
    rounds_to_target: float  # first evaluated round whose mean score reaches it
    megabytes_to_target: float
    bytes_per_round: float  # mean, up and down of the whole cohort
    seconds: float  # mean wall clock of a run


def score_column(run: History, examples: str = "test") -> str:
    """What runs are ranked by, on test or validation examples: the AUC or Matthews'
    correlation where there is one, else the accuracy."""
    kinds = [kind for kind in ("auc", "mcc") if f"test_{kind}" in run]
    return f"{examples}_{(*kinds, 'accuracy')[0]}"


def mean_curve(runs: Sequence[History], column: str) -> np.ndarray:
    """Mean of a column over seeds, at the rounds that all runs evaluated."""
    return np.mean([run[column] for run in runs], axis=0)


def target_score(
    methods: Mapping[str, Sequence[History]], share: float = SHARE_OF_BEST
) -> float:
    """`share` of the best mean test score that any method reached at any round; of an
    AUC, of what it has above one half, which is guessing's."""
    columns = [score_column(runs[0]) for runs in methods.values()]
    curves = map(mean_curve, methods.values(), columns)
    floor = 0.5 if "test_auc" in columns else 0.0
    return float(floor + share * (max(map(np.max, curves)) - floor))


def summarize(methods: Mapping[str, Sequence[History]], target: float) -> list[Summary]:
    """One `Summary` for every method, in the given order."""
    return [_summary(name, runs, target) for name, runs in methods.items()]


def _summary(name, runs, target):
    column = score_column(runs[0])
    final = np.array([run[column][-1] for run in runs])
    curve = mean_curve(runs, column)
    rounds = runs[0]["round"]
    total = runs[0]["bytes_down"] + runs[0]["bytes_up"]
    reached = np.flatnonzero(curve >= target)
    first = reached[0] if len(reached) else None
    played = max(int(rounds[-1]), 1)
    return Summary(
        method=name,
        score_mean=float(final.mean()),
        score_std=float(final.std(ddof=1)) if len(final) > 1 else np.nan,
        rounds_to_target=np.nan if first is None else float(rounds[first]),
        megabytes_to_target=np.nan if first is None else float(total[first]) / 1e6,
        bytes_per_round=float(total[-1] - total[0]) / played,
        seconds=float(np.mean([run["seconds"][-1] for run in runs])),
    )


class Point(NamedTuple):
    """Some hyper-parameters of a method, run on several seeds."""

    hyper: Mapping[str, float]
    runs: Sequence[History]  # those that did not diverge
    diverged: int  # how many did

    def last(self, column: str) -> tuple[float, float]:
        """Mean and deviation over seeds (n - 1) of a column's last value, nan if a
        seed diverged."""
        values = np.array([run[column][-1] for run in self.runs])
        if self.diverged or not len(values):
            return np.nan, np.nan
        spread = values.std(ddof=1) if len(values) > 1 else np.nan
        return float(values.mean()), float(spread)


def best(points: Sequence[Point]) -> Point | None:
    """The point of highest mean validation score after the last round, of lowest
    validation loss among equals; points with a diverged seed, or whose score is nan,
    are out."""

    def score(point):
        score, _ = point.last(score_column(point.runs[0], "validation"))
        loss, _ = point.last("validation_loss")
        return score, -np.nan_to_num(loss, nan=np.inf)

    scored = [p for p in points if not p.diverged and not np.isnan(score(p)[0])]
    return max(scored, key=score, default=None)


def write(summaries: Sequence[Summary], path: Path) -> None:
    """The summaries as a CSV file, one line each."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Summary._fields)
        writer.writerows(summaries)


def check_rounds(methods: Mapping[str, Sequence[History]]) -> None:
    """Raises `ValueError` unless the runs of each method were evaluated alike."""
    for name, runs in methods.items():
        if any(not np.array_equal(run["round"], runs[0]["round"]) for run in runs):
            raise ValueError(
                f"the runs of {name} were evaluated at different rounds and have no "
                "mean; draw them apart, or finish the unfinished ones with resume"
            )
