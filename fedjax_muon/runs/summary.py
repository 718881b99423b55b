"""Comparison of methods over several seeds."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_muon.runs.metrics_csv import text_of

__all__ = [
    "History",
    "Point",
    "Summary",
    "best",
    "mean_curve",
    "score_column",
    "summarize",
    "target_score",
]

SHARE_OF_BEST = 0.9
History = Mapping[str, np.ndarray]  # columns by name, see `metrics_csv.read`


class Score(NamedTuple):
    """A metric that methods are ranked by."""

    metric: str
    words: str
    sign: int = 1  # -1 if lower values are better
    low: float = 0.0  # the least possible value
    high: float = 1.0
    chance: float = 0.0  # of random guesses

    def text(self, value: float) -> str:
        """A value as tables show it: in percent, if it is a share."""
        if np.isnan(value):
            return "-"
        return f"{100 * value:.2f}" if self.high == 1 else f"{value:.3f}"

    @property
    def heading(self) -> str:
        """The heading of a column with such values."""
        return f"{self.words}, %" if self.high == 1 else self.words


SCORES = (  # by preference
    Score("auc", "AUC", chance=0.5),
    Score("mcc", "MCC", low=-1.0),
    Score("accuracy", "accuracy"),
    Score("mae", "mean absolute error", -1, high=np.inf),
    Score("bits_per_byte", "bits per byte", -1, high=np.inf),
    Score("loss", "loss", -1, high=np.inf),
)


def score_of(metrics: Collection[str]) -> Score:
    """What methods are ranked by, of the metrics of a task."""
    return next((each for each in SCORES if each.metric in metrics), SCORES[-1])


def score_in(run: History) -> Score:
    """What runs are ranked by."""
    return score_of({name.removeprefix("test_") for name in run if "test_" in name})


def score_named(words: str) -> Score:
    """The score of some words, such as "AUC"; the accuracy if there is none."""
    return next((each for each in SCORES if each.words == words), SCORES[2])


class Summary(NamedTuple):
    """Results of one method over its seeds.

    Rounds and megabytes are NaN if the target was not reached. A megabyte is 10^6
    bytes; traffic is up and down, of all clients together.
    """

    method: str
    score_mean: float  # after the last round, see `score_column`
    score_std: float  # over seeds, with n - 1; NaN for one seed
    rounds_to_target: float  # first evaluated round whose mean score reaches it
    megabytes_to_target: float
    bytes_per_round: float  # mean over rounds
    seconds: float  # mean wall-clock time of a run


def score_column(run: History, examples: str = "test") -> str:
    """The column that runs are ranked by, of "test" or "validation" examples."""
    return f"{examples}_{score_in(run).metric}"


def mean_and_std(values: ArrayLike) -> tuple[float, float]:
    """The mean over seeds, and the deviation with n - 1, NaN for one seed.

    Example:
      >>> mean_and_std([1.0, 2.0, 3.0])
      (2.0, 1.0)
    """
    values = np.asarray(values, float)
    spread = values.std(ddof=1) if len(values) > 1 else np.nan
    return float(values.mean()), float(spread)


def mean_curve(runs: Sequence[History], column: str) -> np.ndarray:
    """The mean of a column over seeds, for each round that all runs evaluated."""
    return np.mean([run[column] for run in runs], axis=0)


def target_score(methods: Mapping[str, Sequence[History]]) -> float:
    """0.9 of the best mean test score of any method at any round.

    For an AUC, it is 1/2, the AUC of random guesses, and 0.9 of the rest; for a score
    of which lower values are better, the best over 0.9.

    Example:
      >>> run = {"test_accuracy": np.array([0.1, 0.5])}
      >>> target_score({"FedAvg": [run]})
      0.45
    """
    scores = [score_in(runs[0]) for runs in methods.values()]
    columns = [f"test_{score.metric}" for score in scores]
    curves = list(map(mean_curve, methods.values(), columns))
    if scores[0].sign < 0:
        return float(min(map(np.min, curves)) / SHARE_OF_BEST)
    floor = max(score.chance for score in scores)
    return float(floor + SHARE_OF_BEST * (max(map(np.max, curves)) - floor))


def summarize(methods: Mapping[str, Sequence[History]], target: float) -> list[Summary]:
    """Summarizes every method, with a target such as `target_score(methods)`."""
    return [_summary(name, runs, target) for name, runs in methods.items()]


def _summary(name: str, runs: Sequence[History], target: float) -> Summary:
    column = score_column(runs[0])
    mean, std = mean_and_std([run[column][-1] for run in runs])
    curve = mean_curve(runs, column)
    rounds = runs[0]["round"]
    total = runs[0]["bytes_down"] + runs[0]["bytes_up"]
    sign = score_in(runs[0]).sign
    reached = np.flatnonzero(sign * curve >= sign * target)
    first = reached[0] if len(reached) else None
    count = max(int(rounds[-1]), 1)
    return Summary(
        method=name,
        score_mean=mean,
        score_std=std,
        rounds_to_target=np.nan if first is None else float(rounds[first]),
        megabytes_to_target=np.nan if first is None else float(total[first]) / 1e6,
        bytes_per_round=float(total[-1] - total[0]) / count,
        seconds=float(np.mean([run["seconds"][-1] for run in runs])),
    )


class Point(NamedTuple):
    """One point of a hyperparameter grid, run on several seeds."""

    hyper: Mapping[str, float]
    runs: Sequence[History]  # without diverged ones
    diverged: int  # number of diverged seeds
    lost: Sequence[History] = ()  # their runs

    def last(self, column: str) -> tuple[float, float]:
        """Mean and deviation (n - 1) of the last values; NaN if a seed diverged."""
        if self.diverged or not self.runs:
            return np.nan, np.nan
        return mean_and_std([run[column][-1] for run in self.runs])


def best(points: Sequence[Point]) -> Point | None:
    """Selects the point with the best mean validation score after the last round.

    Among equal scores, it is the one with the lowest validation loss. Points with a
    diverged seed or a score of NaN are excluded; None if no point is left.
    """

    def score(point: Point) -> tuple[float, float]:
        score, _ = point.last(score_column(point.runs[0], "validation"))
        loss, _ = point.last("validation_loss")
        sign = score_in(point.runs[0]).sign
        return sign * score, -np.nan_to_num(loss, nan=np.inf)

    scored = [p for p in points if not p.diverged and not np.isnan(score(p)[0])]
    return max(scored, key=score, default=None)


def edges(points: Sequence[Point], chosen: Point) -> list[str]:
    """The hyperparameters whose chosen value is at an edge of the grid.

    A better value may lie beyond. A hyperparameter with one value was not tuned and
    has no edge.

    Example:
      >>> grid = [Point({"lr": lr}, [], 0) for lr in (0.01, 0.1, 1.0)]
      >>> edges(grid, grid[2])
      ['lr']
    """
    values = {name: {p.hyper[name] for p in points} for name in chosen.hyper}
    return [
        name
        for name, value in chosen.hyper.items()
        if len(values[name]) > 1 and value in (min(values[name]), max(values[name]))
    ]


def write(
    summaries: Sequence[Summary],
    path: Path,
    *,
    diverged: Mapping[str, str],
    columns: Mapping[str, Mapping[str, str]],
) -> None:
    """Writes summaries as a CSV file, one line for every method.

    Args:
      diverged: Status of the methods that have no summary.
      columns: Further columns by name, with their values by method.
    """
    known = {row.method: row._asdict() for row in summaries}
    blank = dict.fromkeys(Summary._fields, "")
    rows = []
    for method, status in {**dict.fromkeys(known, "finished"), **diverged}.items():
        about = {"method": method, "status": status}
        about |= {name: values.get(method, "") for name, values in columns.items()}
        rows.append(about | blank | {"method": method} | known.get(method, {}))
    path.write_text(text_of(rows, header=True), "utf-8", newline="")


def risen_loss(run: History) -> str:
    """Says that a run's loss ended above its start; empty if it did not.

    The loss is that of training examples, or of test examples where they are private.
    """
    name = "train_loss" if "train_loss" in run else "test_loss"
    first, last = run[name][0], run[name][-1]
    if last <= first:
        return ""
    if "answered" in run and run["answered"][-1] < run["round"][-1]:
        few = run["answered"][-1] / run["round"][-1]
        return (
            f"only {few:.2g} clients answered per round; sample more clients, or let "
            "fewer drop out"
        )
    rose = f"loss rose from {first:.3g} to {last:.3g}"
    if name == "train_loss":
        return f"the training {rose}; try a lower learning rate"
    return (
        f"the test {rose}; the noise may be too large: try more clients per round or a "
        "smaller model, or a lower learning rate"
    )


def check_rounds(methods: Mapping[str, Sequence[History]]) -> None:
    """Checks that the runs of each method were evaluated, at the same rounds."""
    for name, runs in methods.items():
        if not len(runs[0]["round"]):
            raise ValueError(f"{name} has no rounds yet; train first, or leave it out")
        if any(not np.array_equal(run["round"], runs[0]["round"]) for run in runs):
            raise ValueError(
                f"the runs of {name} were evaluated at different rounds and have no "
                "mean; draw them separately, or finish the unfinished ones first"
            )
