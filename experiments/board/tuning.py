"""What a search costs: plateaus and shared rates from the trials, and untuned rows."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.board import lines as kept, untuned
from experiments.board.rows import EVERYWHERE, ROWS
from experiments.board.tracks import TRACKS, head
from fedjax_muon.algorithms import ALL
from fedjax_muon.runs.intervals import half_width
from fedjax_muon.runs.style import drawing, outside

BAR, BITS, ENOUGH = 0.5, 1.0, 7  # points, those of tokens for 0.02 bits, and tracks
SHOWN = 16.0  # points in the figure
MEAN = "#d62728"
MARKS = dict(zip(EVERYWHERE, "os^Dv", strict=True))
# what the other rows of a track differ from
COUNTS: Mapping[str, str] = {"stragglers": "_waiting", "attackers": "_trimmed_mean"}
FIVE = ("fedmuon", "local_muon", "muloco", "fedavg", "fedavg_adam")


class Curve(NamedTuple):
    """How far trials are from the best one, in points, by rising rates."""

    rates: np.ndarray
    losses: np.ndarray

    def at(self, rate: float) -> float:
        """The loss at a rate: between trials by its logarithm, outside that of the
        nearest trial."""
        return float(np.interp(math.log(rate), np.log(self.rates), self.losses))

    def plateau(self, points: float = 1.0) -> tuple[float, float]:
        """The lowest and the highest rate around the best that lose at most so much,
        as far as rates were tried."""
        logs, best = np.log(self.rates), int(np.argmin(self.losses))
        ends = []
        for step, last in ((-1, 0), (1, len(logs) - 1)):
            at = best
            while at != last and self.losses[at + step] <= points:
                at += step
            end = logs[at]
            if at != last:
                low, high = self.losses[at], self.losses[at + step]
                end += (points - low) / (high - low) * (logs[at + step] - end)
            ends.append(float(np.exp(end)))
        return ends[0], ends[1]


def counts(track: str, row: str) -> bool:
    """Whether a row stands for its method on a track."""
    return row.endswith(COUNTS.get(track, ""))


def curves(place: Path) -> dict[str, dict[str, Curve]]:
    """The trials of methods with rows on all tracks of EVERYWHERE, by method and track.

    On `private`, the noise decides the rate, so it is not among them.
    """
    found: dict[str, dict[str, Curve]] = {}
    for track in EVERYWHERE:
        about = TRACKS[track]
        for row in untuned.rows_of(track, place):
            if set(EVERYWHERE) <= set(untuned.EVERY[row].tracks) and row in ROWS:
                lines = kept.lines_of(place / f"{track}.jsonl", row)
                losses = untuned.losses(lines, about)
                curve = Curve(np.array([*losses]), np.array([*losses.values()]))
                found.setdefault(untuned.method_of(row), {})[track] = curve
    return found


def left_out(known: Mapping[str, Curve]) -> dict[str, float]:
    """The loss on every track at the rate that is best for all others together."""
    ends = [curve.rates[[0, -1]] for curve in known.values()]
    rates = np.geomspace(np.min(ends), np.max(ends), 200)
    table = {name: [curve.at(rate) for rate in rates] for name, curve in known.items()}
    lost = {}
    for name, curve in known.items():
        others = np.mean([row for other, row in table.items() if other != name], 0)
        lost[name] = curve.at(rates[int(np.argmin(others))])
    return lost


class Gains(NamedTuple):
    """What a search gains for a row on a track, in points, by seed."""

    track: str
    row: str
    gains: np.ndarray

    @property
    def passes(self) -> bool:
        """Whether the row needs no search, by the bar."""
        return bool(self.gains.mean() <= (BITS if TRACKS[self.track].worst else BAR))

    @property
    def words(self) -> str:
        """Mean and half an interval, bold if a search gains no more than the bar."""
        text = f"{self.gains.mean():.1f} ± {half_width(self.gains):.1f}"
        return f"**{text}**" if self.passes else text


def gains(place: Path) -> list[Gains]:
    """Of all rows whose runs without a search are finished."""
    found = []
    for name, track in TRACKS.items():
        path = place / untuned.PLACE / f"{name}.jsonl"
        for row in untuned.rows_of(name, place):
            plain = kept.finals(kept.lines_of(path, row))
            if len(plain) == track.seeds:
                searched = place / f"{name}.jsonl"
                tuned = kept.finals(kept.lines_of(searched, untuned.searched(row)))
                pairs = zip(tuned, plain, strict=True)
                apart = np.array([one["score"] - two["score"] for one, two in pairs])
                found.append(Gains(name, row, track.points(apart)))
    return found


def passed(found: list[Gains], method: str) -> tuple[int, int]:
    """On how many tracks a method needs no search, and on how many it was tried."""
    own = [
        each
        for each in found
        if untuned.method_of(each.row) == method and counts(each.track, each.row)
    ]
    return sum(each.passes for each in own), len(own)


def label(method: str) -> str:
    """The name of a method in tables."""
    return untuned.EVERY[method].label


def costs_table(place: Path) -> list[str]:
    """Plateaus, and what a shared rate loses, from robust to brittle, in Markdown."""
    heads = " | ".join(name.replace("_", " ") for name in EVERYWHERE)
    lines = [
        f"| method | {heads} | mean factor | one rate loses |",
        "|---|" + "---:|" * (len(EVERYWHERE) + 2),
    ]
    for name, known in _ordered(curves(place)):
        widths = []
        cells = []
        for curve in known.values():
            low, high = curve.plateau()
            widths.append(math.log(high / low))
            cells.append(f"{low:.2g} to {high:.2g}")
        mean, half = np.mean(widths), half_width(widths)
        factors = np.exp([mean, mean - half, mean + half])
        cells.append("{:.1f} ({:.1f} to {:.1f})".format(*factors))
        lost = np.array([*left_out(known).values()])
        cells.append(f"{lost.mean():.1f} ± {half_width(lost):.1f}")
        lines.append(f"| {label(name)} | {' | '.join(cells)} |")
    return lines


def _ordered(found: dict[str, dict[str, Curve]]) -> list[tuple[str, dict[str, Curve]]]:
    """From the least mean loss of a shared rate to the greatest."""
    mean = lambda pair: np.mean([*left_out(pair[1]).values()])
    return sorted(found.items(), key=mean)


def gains_table(place: Path) -> list[str]:
    """What a search gains, by method and track, in Markdown."""
    found = gains(place)
    every = untuned.rates(place)
    rates = {name: each for name, each in every.items() if passed(found, name)[1]}
    shown = [name for name in TRACKS if any(each.track == name for each in found)]
    heads = " | ".join(map(head, shown))
    lines = [f"| method | rate | {heads} |", "|---|---:|" + "---:|" * len(shown)]
    cells = {
        (untuned.method_of(each.row), each.track): each.words
        for each in found
        if counts(each.track, each.row)
    }
    for name, rate in sorted(
        rates.items(), key=lambda pair: -passed(found, pair[0])[0]
    ):
        row = " | ".join(cells.get((name, track), "") for track in shown)
        lines.append(f"| {label(name)} | {rate:.3g} | {row} |")
    return lines


def verdicts(place: Path) -> list[str]:
    """For which of the five methods the bar holds, in Markdown."""
    found = gains(place)
    lines = [
        "| method | no search needed | tracks tried | verdict |",
        "|---|---:|---:|---|",
    ]
    for name in FIVE:
        good, tried = passed(found, name)
        words = "no search" if good >= ENOUGH else "search"
        lines.append(f"| {ALL[name].label} | {good} | {tried} | {words} |")
    return lines


def draw(place: Path, path: Path) -> None:
    """Draws what one rate for all other tracks loses on each, by method."""
    found = _ordered(curves(place))
    places = range(len(found), 0, -1)
    with drawing(path, (7.5, 1.5 + 0.3 * len(found))) as figure:
        axis = figure.subplots()
        axis.set_xlim(-0.3, SHOWN)
        for y, (_, known) in zip(places, found, strict=True):
            lost = left_out(known)
            for track, loss in lost.items():
                if not outside(axis, loss, y, "0.3"):
                    how: Any = {"ms": 5, "color": "0.35", "alpha": 0.8, "ls": ""}
                    axis.plot(loss, y, MARKS[track], **how)
            axis.plot(np.mean([*lost.values()]), y, "|", ms=14, mew=2, color=MEAN)
        for track, mark in MARKS.items():
            axis.plot([], [], mark, ms=5, color="0.35", ls="", label=track)
        axis.plot([], [], "|", ms=10, mew=2, color=MEAN, ls="", label="mean")
        figure.legend(loc="outside upper center", ncols=3, fontsize=8)
        axis.set_yticks(places, [label(name) for name, _ in found])
        axis.set_xlabel("points that the best rate of the other four tracks loses")


def write(place: Path, output: Path) -> None:
    """Writes the table of plateaus and its figure."""
    output.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        draw(place, output / f"plateaus{suffix}")
    text = "\n".join([PLATEAUS, *costs_table(place), ""])
    (output / "plateaus.md").write_text(text)


PLATEAUS = """\
# Rates that lose at most a point

From the trials of the board (`python -m experiments.board page`): the lowest and the
highest rate around the best one that lose at most one point of validation, between
trials by the logarithm of the rate and as far as rates were tried. The rate falls to 0
by a cosine. The factor between both is a geometric mean over tracks. The last column is
what the best rate of the other four tracks loses, as a mean over tracks. In parentheses
and after ±: 95% intervals over the five tracks. Validation has 144 examples of two
seeds on `digits` and 98 patients on `heart`, so a point is one or two examples there.
"""
