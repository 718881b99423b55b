"""Where rows stand on a track: paired differences, wins, and what the target took."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import special

import fedjax_muon as fm
from experiments.board import lines as kept, protocol
from experiments.board.protocol import Line
from experiments.board.row import Row
from experiments.board.rows import ROWS
from experiments.board.tracks import TRACKS, Track
from fedjax_muon.runs.intervals import half_width
from fedjax_muon.runs.search import ends
from fedjax_muon.runs.summary import SCORES, Score

OTHER = " †"  # of rows that train with other sizes
LEVEL = 0.05  # of the test for a win
SHARE = 0.05  # of the baseline's score, by which the target is worse


class Standing(NamedTuple):
    """A row on a track; arrays have one value per seed, NaN if not reached."""

    row: str
    label: str
    options: str  # the chosen ones, as one types them
    marked: str  # its label, with a mark if it trains with other sizes than the track's
    scores: np.ndarray
    apart: np.ndarray  # from the baseline, positive if better
    wins: bool
    rounds: np.ndarray
    megabytes: np.ndarray
    seconds: np.ndarray
    edges: Sequence[str]  # where the search ended without a neighbor
    diverged: int  # seeds
    planned: int  # rounds of a run
    twins: Sequence[str] = ()  # labels of rows before it with the same scores

    @property
    def resized(self) -> bool:
        """Whether it trains with other sizes than the track's."""
        return self.marked != self.label


class Table(NamedTuple):
    """A track with its rows, the best first."""

    name: str
    track: Track
    score: Score
    rows: list[Standing]

    def find(self, label: str) -> Standing | None:
        return next((each for each in self.rows if each.label == label), None)

    def like(self, label: str) -> Standing | None:
        """The row of a label, with the baseline's aggregation if it exists."""
        _, comma, aggregation = self.baseline.label.partition(", ")
        return self.find(label + comma + aggregation) or self.find(label)

    @property
    def baseline(self) -> Standing:
        return next(each for each in self.rows if each.row == self.track.baseline)

    @property
    def best(self) -> Standing:
        """The best row with the sizes of the track."""
        return next(each for each in self.rows if not each.resized)

    @property
    def factor(self) -> float:
        """Of scores, for points; 1 for bits."""
        return 100.0 if self.score.high == 1 else 1.0

    def spread(self, values: np.ndarray, signed: bool = False) -> str:
        """Mean and half an interval, in points or bits."""
        mean, half = self.factor * values.mean(), self.factor * half_width(values)
        digits = 1 if self.factor > 1 else 3
        return f"{mean:{'+' if signed else ''}.{digits}f} ± {half:.{digits}f}"


def tables(place: Path) -> list[Table]:
    """All tracks whose rows are finished.

    Raises:
      ValueError: If there is none.
    """
    found = [_table(name, place / f"{name}.jsonl") for name in TRACKS]
    whole = [table for table in found if table is not None]
    if not whole:
        raise ValueError(
            f"{place} has no track all of whose rows are finished; run "
            "python -m experiments.board run digits"
        )
    return whole


def _table(name: str, path: Path) -> Table | None:
    by_row: dict[str, list[Line]] = {}
    for line in kept.read(path) if path.exists() else []:
        by_row.setdefault(line["row"], []).append(line)
    track = TRACKS[name]
    runs = {row: kept.finals(lines) for row, lines in by_row.items()}
    done = {row: each for row, each in runs.items() if len(each) == track.seeds}
    needed = {row for row in ROWS if name in ROWS[row].tracks} | {track.baseline}
    if not done.keys() >= needed:
        return None
    score = SCORES[SCORE_OF.get(name, ACCURACY)]
    scores = {row: np.array([x["score"] for x in each]) for row, each in done.items()}
    base = scores[track.baseline]
    apart = {row: score.sign * (each - base) for row, each in scores.items()}
    others = [row for row in apart if row != track.baseline]
    won = dict(zip(others, holm([p_value(apart[row]) for row in others]), strict=True))
    target = float(base.mean()) * (1 - score.sign * SHARE)
    rows = [
        _standing(by_row[row], done[row], track, score, target)._replace(
            apart=apart[row], wins=bool(won.get(row, False))
        )
        for row in done
    ]
    ranked = sorted(rows, key=lambda each: -score.sign * each.scores.mean())
    for place, each in enumerate(ranked):
        same = [x for x in ranked[:place] if np.array_equal(x.scores, each.scores)]
        ranked[place] = each._replace(twins=[x.label for x in same])
    return Table(name, track, score, ranked)


AUC, ACCURACY, BITS = 0, 2, 3  # places in SCORES
SCORE_OF = {"ring": AUC, "tokens": BITS}


def _standing(
    lines: Sequence[Line],
    runs: Sequence[Line],
    track: Track,
    score: Score,
    target: float,
) -> Standing:
    about = lines[0]
    known = ROWS.get(about["row"], Row(about["label"], fm.fedavg, about["space"]))
    sizes = {**known.sizes, **about.get("sizes", {})}
    other = any(not callable(size) for size in sizes.values())  # a cohort is in a label

    def reached(column: str) -> np.ndarray:
        values = []
        for run in runs:
            good = score.sign * (np.array(run["scores"]) - target) >= 0
            at = np.flatnonzero(good)
            known = len(at) and column in run
            values.append(float(run[column][at[0]]) if known else np.nan)
        return np.array(values)

    timed = [line["seconds"] for line in lines if line["stage"] == protocol.SECONDS]
    rounds = reached("round")
    seconds = rounds * (timed[0] if timed else np.nan)
    if track.timed:
        seconds = reached("virtual")
    points = protocol.points_of(lines, about["space"], score.sign)
    return Standing(
        row=about["row"],
        label=about["label"],
        options=known.words(runs[0]["hyper"]),
        marked=about["label"] + OTHER * other,
        scores=np.array([run["score"] for run in runs]),
        apart=np.zeros(len(runs)),
        wins=False,
        rounds=rounds,
        megabytes=1e-6 * reached("bytes"),
        seconds=seconds,
        edges=ends(points, len(about["space"])),
        diverged=sum(run["diverged"] for run in runs),
        planned=about["rounds"],
    )


def p_value(apart: np.ndarray) -> float:
    """Of a one-sided paired t-test that the mean difference is positive."""
    mean, deviation = apart.mean(), apart.std(ddof=1)
    if deviation == 0:
        return 0.0 if mean > 0 else 1.0
    t = mean / (deviation / np.sqrt(len(apart)))
    return float(special.stdtr(len(apart) - 1, -t))


def holm(values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Which hypotheses Holm's method rejects, all together at this level."""
    rejected, order = [False] * len(values), np.argsort(values)
    for place, index in enumerate(order):
        if values[index] > level / (len(values) - place):
            break
        rejected[index] = True
    return rejected


def ranks_before(place: Path) -> dict[str, dict[str, int]]:
    """The ranks of the first board, by track and row."""
    with (place / kept.HISTORY).open(newline="") as file:
        rows = [*csv.DictReader(file)]
    first = min((row["date"] for row in rows), default="")
    ranks: dict[str, dict[str, int]] = {}
    for track in {row["track"] for row in rows}:
        ours = [r for r in rows if r["track"] == track and r["date"] == first]
        ours.sort(key=lambda row: -float(row["score"]))
        ranks[track] = {row["method"]: i for i, row in enumerate(ours, 1)}
    return ranks


def alignment(found: Sequence[Table], weights: Sequence[float]) -> Mapping[str, list]:
    """Differences from FedMuon(alignment) with the first weight, by track."""
    shown = {}
    for table in found:
        by_row = {each.row: each for each in table.rows}
        names = [f"fedmuon_align_{weight:g}" for weight in weights]
        if set(names) <= set(by_row):
            start, *others = (by_row[name].scores for name in names)
            shown[table.name] = [start, *(other - start for other in others)]
    return shown
