"""Criteria for the papers' claims, applied to our runs.

A claim is judged by the tables that `experiments.papers.results` has collected. It is
reproduced if every difference that it needs has the right sign and exceeds half the
width of its 95 % interval. It is reproduced within the noise if all signs are right but
a difference is smaller. Differences are taken seed by seed, since a seed has the same
partition, initial parameters and cohorts under every method. Without scores by seed,
the half widths of both methods are added in quadrature. A diverged method ranks last.
"""

import csv
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from experiments.papers.paper_report import interval

YES, NOISE, NO = "reproduced", "reproduced within the noise", "not reproduced"


class Score(NamedTuple):
    """A mean in percent, and half the width of its interval."""

    mean: float
    half: float = 0.0
    runs: tuple[float, ...] = ()  # of the seeds in order, if they are known
    digits: int = 1  # shown digits

    def __str__(self) -> str:
        return (
            "diverged"
            if math.isinf(self.mean)
            else f"{self.mean:.{self.digits}f} ± {self.half:.{self.digits}f}"
        )


class Found(NamedTuple):
    """Our numbers and the verdict."""

    ours: str
    verdict: str


Scores = Mapping[tuple[str, str], Score]  # by setting and method


class Claim(NamedTuple):
    """One claim of a paper, and its criterion."""

    paper: str
    claim: str
    printed: str
    table: str  # in results, such as papers/fedmuon_004/table_2
    judge: Callable[[Scores], Found]


def read(path: Path) -> dict[tuple[str, str], Score]:
    """Returns the scores of a result.csv, or of a file with an AUC for every seed."""
    found, seeds = {}, {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            if "auc" in line:
                setting = f"{line['dataset']}, {line['panel']} {line['value']}"
                runs = seeds.setdefault((setting, line["method"]), {})
                runs[int(line["seed"])] = 100 * float(line["auc"])
                continue
            score = Score(-math.inf)
            if line["score"] != "diverged":
                runs = tuple(map(float, line["by_seed"].split()))
                score = Score(float(line["score"]), float(line["interval"] or 0), runs)
            found[line["setting"], line["method"]] = score
            if losses := line.get("train_loss_by_seed"):
                key = train_loss(line["setting"]), line["method"]
                found[key] = over([float(loss) for loss in losses.split()], 3)
            if up := line.get("bytes_up_per_round"):
                found[uploads(line["setting"]), line["method"]] = Score(float(up))
    by_seed = lambda runs: over([runs[seed] for seed in sorted(runs)])
    return found | {key: by_seed(runs) for key, runs in seeds.items()}


def uploads(setting: str) -> str:
    """Returns the key in `read` for the bytes that all clients send in a round."""
    return f"{setting}, upload"


def train_loss(setting: str) -> str:
    """Returns the key in `read` for the training losses of a setting."""
    return f"{setting}, train loss"


def over(runs: Sequence[float], digits: int = 1) -> Score:
    """Returns the mean over seeds."""
    half = float(interval(np.array(runs)) or 0)
    return Score(fmean(runs), half, tuple(runs), digits)


def verdict(gaps: Sequence[Score]) -> str:
    """Returns the verdict on differences that should all be positive."""
    if any(not gap.mean > 0 for gap in gaps):
        return NO
    return YES if all(gap.mean > gap.half for gap in gaps) else NOISE


def minus(one: Score, other: Score) -> Score:
    """Returns the difference, taken seed by seed if both have the same seeds."""
    if one.runs and len(one.runs) == len(other.runs):
        return over([a - b for a, b in zip(one.runs, other.runs, strict=True)])
    return Score(one.mean - other.mean, math.hypot(one.half, other.half))


def above(settings: Sequence[str], method: str, other: str):
    """Judges whether a method is above another in all settings."""

    def judge(scores: Scores) -> Found:
        gaps = [minus(scores[s, method], scores[s, other]) for s in settings]
        ours = "; ".join(
            f"{s}: {scores[s, method]}, {scores[s, other]}" for s in settings
        )
        return Found(ours, verdict(gaps))

    return judge


def falling(setting: str, *methods: str) -> Callable[[Scores], Found]:
    """Judges whether the methods' scores decrease in this order."""

    def judge(scores: Scores) -> Found:
        found = [scores[setting, method] for method in methods]
        gaps = [minus(a, b) for a, b in itertools.pairwise(found)]
        ours = ", ".join(f"{m} {s}" for m, s in zip(methods, found, strict=True))
        return Found(f"{setting}: {ours}", verdict(gaps))

    return judge


def first(setting: str, method: str, *among: str) -> Callable[[Scores], Found]:
    """Judges whether a method is above others of a setting; by default all."""
    return _ranked(setting, method, among, lambda own, other: minus(own, other))


def least(setting: str, method: str, *among: str) -> Callable[[Scores], Found]:
    """Judges whether a method is below others, where less is better; by default all."""
    return _ranked(setting, method, among, lambda own, other: minus(other, own))


def _ranked(
    setting: str,
    method: str,
    among: Sequence[str],
    gain: Callable[[Score, Score], Score],
) -> Callable[[Scores], Found]:
    """Judges by the gains of a method over others."""

    def judge(scores: Scores) -> Found:
        own = scores[setting, method]
        others = [m for where, m in scores if where == setting and m != method]
        gains = {name: gain(own, scores[setting, name]) for name in among or others}
        best = min(gains, key=lambda name: gains[name].mean)
        rank = 1 + sum(one.mean < 0 for one in gains.values())
        ours = f"{setting}: {own}, rank {rank} of {1 + len(gains)}"
        ours += f"; the best other is {best}, {scores[setting, best]}"
        return Found(ours, verdict(list(gains.values())))

    return judge


def highest(setting: str, label: str, *values: float, at: float):
    """Judges whether one method is best at the value `at` of a hyper-parameter."""

    def judge(scores: Scores) -> Found:
        found = {value: scores[setting, f"{label}={value:g}"] for value in values}
        own = found.pop(at)
        gaps = [minus(own, other) for other in found.values()]
        listed = sorted([*found.items(), (at, own)])
        ours = ", ".join(f"{value:g}: {score}" for value, score in listed)
        return Found(f"{setting}: {ours}", verdict(gaps))

    return judge


def within(setting: str, method: str, other: str, points: float):
    """Judges whether a method is at most a number of points below another."""

    def judge(scores: Scores) -> Found:
        lost = minus(scores[setting, other], scores[setting, method])
        room = Score(points - lost.mean, lost.half)
        return Found(f"{setting}: {lost} points lost", verdict([room]))

    return judge


def cheaper(setting: str, times: Mapping[str, float], than: str):
    """Judges whether methods send at most these multiples of another's bytes."""

    def judge(scores: Scores) -> Found:
        sent = lambda method: scores[uploads(setting), method].mean
        found = {method: sent(method) / sent(than) for method in times}
        ours = ", ".join(f"{m} {ratio:.2f}" for m, ratio in found.items())
        # rounded like the printed ratios
        holds = all(round(ratio, 2) <= times[m] for m, ratio in found.items())
        return Found(f"{setting}: {ours}", YES if holds else NO)

    return judge


def wider(setting: tuple[str, str], method: str) -> Callable[[Scores], Found]:
    """Judges whether a method's lead over the best other grows between settings."""

    def judge(scores: Scores) -> Found:
        gaps = []
        for where in setting:
            others = [s for (w, m), s in scores.items() if w == where and m != method]
            best = max(others, key=lambda score: score.mean)
            gaps.append(minus(scores[where, method], best))
        ours = "; ".join(f"{w}: {g}" for w, g in zip(setting, gaps, strict=True))
        return Found(ours, verdict([minus(gaps[1], gaps[0])]))

    return judge
