"""Criteria for the papers' claims, applied to our runs.

A claim is judged by the tables that `experiments.papers.results` has collected. It
needs differences that are positive. Each is judged by its 95% interval over seeds: a
claim is reproduced if all intervals are above 0, and contradicted if one of them is
below 0. Otherwise it is undecided. A claim is also undecided if the best rate of a
compared method is at an edge of its grid, or if a compared method diverged at all
rates: other rates might change the difference either way.

Differences are taken seed by seed, since a seed has the same partition, initial
parameters and cohorts under every method. Without scores by seed, the half widths of
both methods are added in quadrature. A single score has no interval. Intervals are not
widened for the number of differences.
"""

import csv
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from fedjax_muon.runs import intervals

YES, OPEN, NO = "reproduced", "undecided", "contradicted"


class Score(NamedTuple):
    """A mean in percent, and half the width of its interval."""

    mean: float
    half: float = 0.0  # infinite if unknown
    runs: tuple[float, ...] = ()  # of the seeds in order, if they are known
    digits: int = 1  # shown digits
    edge: str = ""  # hyper-parameters whose best value is at an edge of the grid

    def __str__(self) -> str:
        if math.isinf(self.mean):
            return "diverged"
        half = f" ± {self.half:.{self.digits}f}" if math.isfinite(self.half) else ""
        return f"{self.mean:.{self.digits}f}{half}"


class Gap(NamedTuple):
    """A difference that a claim needs to be positive, and what is compared."""

    difference: Score
    cells: tuple[tuple[str, str], ...] = ()  # settings and methods


class Found(NamedTuple):
    """Our numbers and the verdict."""

    ours: str
    verdict: str
    why: str = ""  # of a verdict that the intervals do not explain
    gaps: tuple[Gap, ...] = ()


Scores = Mapping[tuple[str, str], Score]  # by setting and method
Judge = Callable[[Scores], Found]


class Claim(NamedTuple):
    """One claim of a paper, and its criterion."""

    id: str  # paper's number, table or figure, what is claimed
    paper: str
    claim: str
    printed: str
    table: str  # in results, such as papers/fedmuon_004/table_2
    judge: Judge
    size: str = ""  # effect of the smaller run that a verdict has to name
    in_paper: bool = True  # otherwise the comparison is ours


def read(path: Path) -> dict[tuple[str, str], Score]:
    """Returns the scores of a result.csv, or of a file with an AUC for every seed."""
    found: dict[tuple[str, str], Score] = {}
    seeds: dict[tuple[str, str], Any] = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            if "auc" in line:
                setting = f"{line['dataset']}, {line['panel']} {line['value']}"
                runs = seeds.setdefault((setting, line["method"]), {})
                runs[int(line["seed"])] = 100 * float(line["auc"])
                continue
            edge = line.get("edge") or ""
            score = Score(-math.inf, edge=edge)
            if line["score"] != "diverged":
                runs = tuple(map(float, line["by_seed"].split()))
                half = float(line["interval"] or math.inf)
                score = Score(float(line["score"]), half, runs, edge=edge)
            found[line["setting"], line["method"]] = score
            if losses := line.get("train_loss_by_seed"):
                key = train_loss(line["setting"]), line["method"]
                runs = [float(loss) for loss in losses.split()]
                found[key] = over(runs, 3)._replace(edge=edge)
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
    half = float(np.nan_to_num(intervals.half_width(runs), nan=math.inf))
    return Score(fmean(runs), half, tuple(runs), digits)


def verdict(differences: Iterable[Score]) -> str:
    """Returns the verdict on differences that should all be positive."""
    differences = list(differences)
    if any(gap.mean < -gap.half for gap in differences):
        return NO
    return YES if all(gap.mean > gap.half for gap in differences) else OPEN


def found(scores: Scores, ours: str, gaps: Sequence[Gap]) -> Found:
    """Returns the verdict on all differences of a claim."""
    cells = dict.fromkeys(cell for gap in gaps for cell in gap.cells)
    why = []
    if edges := [method for where, method in cells if scores[where, method].edge]:
        why.append(f"best at a grid's edge: {', '.join(dict.fromkeys(edges))}")
    if lost := [m for where, m in cells if math.isinf(scores[where, m].mean)]:
        why.append(f"diverged at all rates: {', '.join(dict.fromkeys(lost))}")
    judged = OPEN if why else verdict(gap.difference for gap in gaps)
    return Found(ours, judged, "; ".join(why), tuple(gaps))


def minus(one: Score, other: Score) -> Score:
    """Returns the difference, taken seed by seed if both have the same seeds."""
    if one.runs and len(one.runs) == len(other.runs):
        return over([a - b for a, b in zip(one.runs, other.runs, strict=True)])
    return Score(one.mean - other.mean, math.hypot(one.half, other.half))


def lead(scores: Scores, setting: str, method: str, other: str) -> Gap:
    """Returns how far a method is above another."""
    difference = minus(scores[setting, method], scores[setting, other])
    return Gap(difference, ((setting, method), (setting, other)))


def at_edge(judge: Judge, method: str) -> Judge:
    """Leaves a claim undecided for a method at its grid's edge that no table names."""

    def judge_at_edge(scores: Scores) -> Found:
        why = f"best at a grid's edge: {method}"
        return judge(scores)._replace(verdict=OPEN, why=why)

    return judge_at_edge


def above(settings: Sequence[str], method: str, other: str) -> Judge:
    """Judges whether a method is above another in all settings."""

    def judge(scores: Scores) -> Found:
        gaps = [lead(scores, s, method, other) for s in settings]
        ours = "; ".join(
            f"{s}: {scores[s, method]}, {scores[s, other]}" for s in settings
        )
        return found(scores, ours, gaps)

    return judge


def falling(setting: str, *methods: str) -> Judge:
    """Judges whether the methods' scores decrease in this order."""

    def judge(scores: Scores) -> Found:
        own = [f"{method} {scores[setting, method]}" for method in methods]
        gaps = [lead(scores, setting, *pair) for pair in itertools.pairwise(methods)]
        return found(scores, f"{setting}: {', '.join(own)}", gaps)

    return judge


def first(setting: str, method: str, *among: str, but: str = "") -> Judge:
    """Judges whether a method is above others of a setting.

    These are by default all, or all but one, which has a rank though.
    """
    return _ranked(setting, method, among, but, lambda own, other: minus(own, other))


def least(setting: str, method: str, *among: str) -> Judge:
    """Judges whether a method is below others, where less is better; by default all."""
    return _ranked(setting, method, among, "", lambda own, other: minus(other, own))


def _ranked(
    setting: str,
    method: str,
    among: Sequence[str],
    but: str,
    gain: Callable[[Score, Score], Score],
) -> Judge:
    """Judges by the gains of a method over others."""

    def judge(scores: Scores) -> Found:
        own = scores[setting, method]
        others = [m for where, m in scores if where == setting and m != method]
        gains = {name: gain(own, scores[setting, name]) for name in among or others}
        rank = 1 + sum(one.mean < 0 for one in gains.values())
        ours = f"{setting}: {own}, rank {rank} of {1 + len(gains)}"
        gains.pop(but, None)
        best = min(gains, key=lambda name: gains[name].mean)
        other = f"the best but {but}" if but else "the best other"
        ours += f"; {other} is {best}, {scores[setting, best]}"
        gaps = [
            Gap(one, ((setting, method), (setting, name)))
            for name, one in gains.items()
        ]
        return found(scores, ours, gaps)

    return judge


def highest(setting: str, label: str, *values: float, at: float) -> Judge:
    """Judges whether one method is best at the value `at` of a hyper-parameter."""

    def judge(scores: Scores) -> Found:
        name = lambda value: f"{label}={value:g}"
        gaps = [
            lead(scores, setting, name(at), name(value))
            for value in values
            if value != at
        ]
        listed = [f"{value:g}: {scores[setting, name(value)]}" for value in values]
        return found(scores, f"{setting}: {', '.join(listed)}", gaps)

    return judge


def within(setting: str, method: str, other: str, points: float) -> Judge:
    """Judges whether a method is at most a number of points below another."""

    def judge(scores: Scores) -> Found:
        ahead = lead(scores, setting, other, method)
        lost = ahead.difference
        room = Gap(Score(points - lost.mean, lost.half), ahead.cells)
        return found(scores, f"{setting}: {lost} points lost", [room])

    return judge


def cheaper(setting: str, times: Mapping[str, float], than: str) -> Judge:
    """Judges whether methods send at most these multiples of another's bytes."""

    def judge(scores: Scores) -> Found:
        sent = lambda method: scores[uploads(setting), method].mean
        ratios = {method: sent(method) / sent(than) for method in times}
        ours = ", ".join(f"{m} {ratio:.2f}" for m, ratio in ratios.items())
        # rounded like the printed ratios; counts have no noise
        holds = all(round(ratio, 2) <= times[m] for m, ratio in ratios.items())
        return Found(f"{setting}: {ours}", YES if holds else NO)

    return judge


def costs(setting: str, method: str, other: str, share: float) -> Judge:
    """Judges whether a method needs at most a share more than another."""

    def judge(scores: Scores) -> Found:
        own, base = scores[setting, method], scores[setting, other]
        scaled = Score(
            (1 + share) * base.mean,
            (1 + share) * base.half,
            tuple((1 + share) * run for run in base.runs),
        )
        more = 100 * (own.mean / base.mean - 1)
        ours = f"{setting}: {method} {own}, {other} {base}, {more:+.0f} %"
        gap = Gap(minus(scaled, own), ((setting, method), (setting, other)))
        return found(scores, ours, [gap])

    return judge


def wider(settings: tuple[str, str], method: str) -> Judge:
    """Judges whether a method's lead over the best other grows between settings."""

    def judge(scores: Scores) -> Found:
        leads = []
        for where in settings:
            others = [m for w, m in scores if w == where and m != method]
            best = max(others, key=lambda name: scores[where, name].mean)
            leads.append(lead(scores, where, method, best))
        before, after = leads
        ours = "; ".join(
            f"{w}: {one.difference} over {one.cells[1][1]}"
            for w, one in zip(settings, leads, strict=True)
        )
        growth = minus(after.difference, before.difference)
        return found(scores, ours, [Gap(growth, before.cells + after.cells)])

    return judge


def loses_more(settings: tuple[str, str], method: str, other: str) -> Judge:
    """Judges whether a method loses more than another from a setting to the next."""

    def judge(scores: Scores) -> Found:
        cells = [(s, m) for m in (method, other) for s in settings]
        own, rest = (
            minus(*(scores[s, name] for s in settings)) for name in (method, other)
        )
        ours = f"{settings[0]} to {settings[1]}: {method} loses {own}, {other} {rest}"
        return found(scores, ours, [Gap(minus(own, rest), tuple(cells))])

    return judge
