"""Tables, figures and the page of the board, from kept runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np

from experiments.board import entries, protocol
from experiments.board.tracks import TRACKS, Track
from experiments.studies import tuned
from fedjax_muon.reporting.intervals import half_width
from fedjax_muon.reporting.style import drawing

matplotlib.use("Agg")

PAGE = Path("docs/board.md")
SHARE = 0.95  # of the baseline's score: the target
MOST = 5  # labels in a sentence
MUON_OF_AGENTS = "demuon"  # what stands for FedMuon where there is no server
MUON = "#d62728"  # the color of FedMuon in all figures
HEAD = (
    "method",
    "trial",
    "score, %",
    "rounds",
    "MB",
    "seconds",
    "virtual s",
    "worst client, %",
)


class Standing(NamedTuple):
    """A method on a track; arrays have one value per seed, NaN if not reached."""

    method: str
    label: str
    trial: str  # the chosen one, in words
    scores: np.ndarray  # in percent
    rounds: np.ndarray
    megabytes: np.ndarray
    virtual: np.ndarray
    worst: np.ndarray
    seconds: float  # per round; NaN if not measured
    total_megabytes: float
    total_virtual: float

    @property
    def mean(self) -> float:
        return float(self.scores.mean())


def standings(track: str, rows: Sequence[tuned.Row]) -> list[Standing]:
    """The finished methods of a track, the best first."""
    final: dict[str, list[tuned.Row]] = {}
    for row in rows:
        if row["stage"] == protocol.FINAL:
            final.setdefault(row["method"], []).append(row)
    about = TRACKS[track]
    if about.baseline not in final:
        return []
    base = [row["score"] for row in final[about.baseline]]
    target = SHARE * float(np.mean(base))
    timed = {r["method"]: r["seconds"] for r in rows if r["stage"] == protocol.SECONDS}
    made = [
        _standing(name, about, runs, target, timed.get(name, float("nan")))
        for name, runs in final.items()
    ]
    return sorted(made, key=lambda one: -one.mean)


def _standing(
    method: str, track: Track, runs: Sequence[tuned.Row], target: float, seconds: float
) -> Standing:
    def reached(column: str) -> np.ndarray:
        values = []
        for row in runs:
            at = np.flatnonzero(np.array(row["scores"]) >= target)
            known = len(at) and column in row
            values.append(float(row[column][at[0]]) if known else np.nan)
        return np.array(values)

    first = runs[0]
    entry = entries.entry_of(method, track)
    chosen = entries.Trial(first["schedule"], first["hyper"])
    at_edge = _at_edge(chosen.hyper, [trial.hyper for trial in entry.trials(track)])
    virtual = [row["virtual_seconds"][-1] for row in runs if "virtual_seconds" in row]
    return Standing(
        method=method,
        label=entry.label,
        trial=chosen.words + " (edge)" * at_edge,
        scores=100 * np.array([row["score"] for row in runs]),
        rounds=reached("round"),
        megabytes=1e-6 * reached("bytes"),
        virtual=reached("virtual_seconds"),
        worst=100 * np.array([row.get("worst", np.nan) for row in runs]),
        seconds=seconds,
        total_megabytes=1e-6 * first["bytes"][-1],
        total_virtual=float(np.mean(virtual)) if virtual else float("nan"),
    )


def _at_edge(chosen: Mapping[str, float], tried: Sequence[Mapping[str, float]]) -> bool:
    """Whether an option with three values or more is at an end of them."""
    values = {name: {hyper[name] for hyper in tried} for name in chosen}
    return any(
        len(values[name]) > 2 and number in (min(values[name]), max(values[name]))
        for name, number in chosen.items()
    )


def is_worse(one: Standing, best: Standing) -> bool:
    """Whether the paired difference from the best one excludes 0."""
    apart = best.scores - one.scores
    return bool(apart.mean() > half_width(apart))


def spread(values: np.ndarray) -> str:
    return f"{values.mean():.1f} ± {half_width(values):.1f}"


def _cell(values: np.ndarray, form: str = ",.1f") -> str:
    """The mean over seeds, or how many of them reach the target."""
    known = np.isfinite(values)
    if known.all():
        return f"{values.mean():{form}}"
    return f"{known.sum()} of {len(values)} seeds" if known.any() else "-"


def table(ranked: Sequence[Standing]) -> list[str]:
    """The rows of a track in Markdown: the best bold, its equals with a star.

    Columns that no method has are left out.
    """
    rows, best = [list(HEAD)], ranked[0]
    for one in ranked:
        score = spread(one.scores)
        if one is best:
            score = f"**{score}**"
        elif not is_worse(one, best):
            score += " *"
        cells = [one.label, one.trial, score, _cell(one.rounds)]
        cells += [_cell(one.megabytes, ".3g"), _cell(one.seconds * one.rounds, ".3g")]
        rows.append([*cells, _cell(one.virtual), _cell(one.worst)])
    kept = [column for column in zip(*rows, strict=True) if {*column[1:]} != {"-"}]
    head, *lines = [f"| {' | '.join(row)} |" for row in zip(*kept, strict=True)]
    return [head, "|---|---|" + "---:|" * (len(kept) - 2), *lines]


def facts(tracks: Mapping[str, Sequence[Standing]]) -> list[str]:
    """What follows from the intervals, a line for each track and question."""
    lines = []
    for track, ours in tracks.items():
        by_name = {one.method: one for one in ours}
        best = ours[0]
        equal = [one.label for one in ours[1:] if not is_worse(one, best)]
        reach = [one for one in ours if np.isfinite(one.megabytes).all()]
        cheap = min(reach, key=lambda one: one.megabytes.mean(), default=None)
        fewest = "No method reaches the target with all seeds."
        if cheap:
            fewest = (
                f"{cheap.label} reaches the target with the fewest bytes, "
                f"{cheap.megabytes.mean():.3g} MB."
            )
        sentences = (
            f"- **{TRACKS[track].title}**: {best.label} scores highest of the "
            f"{len(ours)} methods ({spread(best.scores)}).",
            _equals(equal),
            fewest,
            _apart(by_name, "fedmuon", TRACKS[track].baseline),
        )
        lines.append(" ".join(filter(None, sentences)))
    return lines


def alignment(tracks: Mapping[str, Sequence[Standing]]) -> list[str]:
    """The section on FedMuon's alignment: differences by weight and track."""
    lines = []
    for track, ours in tracks.items():
        by_name = {one.method: one for one in ours}
        names = [f"fedmuon_align_{weight}" for weight in (0, 0.25, 0.5)]
        if set(names) <= set(by_name):
            start, *others = (by_name[name] for name in names)
            apart = [signed(other.scores - start.scores) for other in others]
            cells = [TRACKS[track].title, spread(start.scores), *apart]
            lines.append(f"| {' | '.join(cells)} |")
    if not lines:
        return []
    return [ALIGNMENT, *lines, ""]


def signed(apart: np.ndarray) -> str:
    """A paired difference; bold if its interval excludes 0."""
    half = float(half_width(apart))
    words = f"{apart.mean():+.1f} ± {half:.1f}"
    return f"**{words}**" if abs(apart.mean()) > half else words


def _equals(labels: Sequence[str]) -> str:
    """How many are not significantly worse, and the first of them."""
    if not labels:
        return "All others are significantly worse."
    more = "; ..." if len(labels) > MOST else ""
    verb, some = "is" if len(labels) == 1 else "are", "; ".join(labels[:MOST])
    return f"{len(labels)} {verb} statistically tied with it ({some}{more})."


def _apart(by_name: Mapping[str, Standing], one: str, other: str) -> str:
    """A paired difference in words."""
    if not {one, other} <= set(by_name):
        return ""
    apart = by_name[one].scores - by_name[other].scores
    half = float(half_width(apart))
    verdict = "" if abs(apart.mean()) > half else ", which is not significant"
    what = f"{apart.mean():+.1f} ± {half:.1f} points{verdict}"
    return f"{by_name[one].label} minus {by_name[other].label}: {what}."


def differences(
    tracks: Mapping[str, Sequence[Standing]],
) -> dict[str, tuple[str, np.ndarray]]:
    """Muon's method minus the baseline in points by seed, with its name, by track."""
    found = {}
    for track, ours in tracks.items():
        by_name = {one.method: one for one in ours}
        base = TRACKS[track].baseline
        name = MUON_OF_AGENTS if base == "dsgd" else "fedmuon"
        if {name, base} <= set(by_name):
            one, other = by_name[name], by_name[base]
            found[track] = f"{one.label} minus {other.label}", one.scores - other.scores
    return found


def draw(tracks: Mapping[str, Sequence[Standing]], path: Path) -> None:
    """Draws the paired differences of Muon from the baseline, a row for each track."""
    found = differences(tracks)
    labels, places = [], np.arange(len(found), 0, -1)
    with drawing(path, (7.5, 0.9 + 0.32 * len(found))) as figure:
        axis = figure.subplots()
        axis.axvline(0, color="0.5", lw=1)
        aside = {"transform": axis.get_yaxis_transform(), "va": "center"}
        for place, (track, (name, apart)) in zip(places, found.items(), strict=True):
            mean, half = float(apart.mean()), float(half_width(apart))
            color = MUON if abs(mean) > half else "0.5"
            axis.errorbar(mean, place, xerr=half, fmt="o", ms=5, color=color, capsize=2)
            words = f"{mean:+.1f} ± {half:.1f}".replace("-", "\N{MINUS SIGN}")
            axis.text(1.01, place, words, **aside)
            usual = name == "FedMuon minus FedAvg"
            labels.append(TRACKS[track].title + ("" if usual else f" ({name})"))
        axis.set_yticks(places, labels)
        axis.set_ylim(0.4, len(found) + 0.6)
        axis.set_xlabel("FedMuon minus FedAvg, points of the test score, 95% intervals")


ALIGNMENT = """\
## Does alignment help FedMuon?

Differences in points from FedMuon(alignment) with weight 0, paired by seed. Bold ones
are significant.

| track | weight 0, score | weight 0.25 | weight 0.5 |
|---|---:|---:|---:|"""
ABOUT = "FedMuon minus FedAvg on each track of the board, with 95% intervals"
START = """\
# The board: methods under one protocol

Every method has the same six trials, seeds and clients on a track.
[The rules](../experiments/board/RULES.md) were fixed before the runs. A *track* is a
dataset with its clients and its model, and a *trial* is a learning rate with a schedule
or another option. Scores are test accuracies with 95% intervals over five seeds. The
best one is bold. A star marks scores that are statistically tied with it: the interval
of the paired difference contains 0. Rounds, megabytes, seconds and virtual seconds are
measured up to the target, 95% of the score of FedAvg, or of D-SGD on the ring. "Worst
client" is the lowest training accuracy of a client. Click a column to sort by it.
"Edge" marks an option at the lowest or highest of its three values.

`python -m experiments.board page` writes this page from the kept runs, such as
[digits.jsonl](../results/board/digits.jsonl).

## Who wins where
"""


OUTSIDE = {
    "replication": """\
**An independent replication of FedMuon** (Takezawa et al.; here
`fedmuon_correct`). We repeated it with the same settings on five partitions; the
original reports one run, on the first of them. Here, ± is a standard deviation:""",
    "niid_bench": """\
**Flower's baseline of NIID-Bench**, with its settings and its partition; ± is a
standard deviation over three runs. The published 33.80 ± 41.22 for SCAFFOLD is exactly
what two failed runs (10.0%) and one at 81.4% would give. We do not know why the
published FedNova is 8 points below ours:""",
}


def _outside(output: Path) -> list[str]:
    """The section on numbers of others, from the tables of `outside`."""
    lines = ["## Against published numbers", ""]
    for name, about in OUTSIDE.items():
        path = output / f"{name}.md"
        if path.exists():
            rows = [t for t in path.read_text().splitlines() if t.startswith("|")]
            lines += [about, "", *rows, ""]
            lines += [f"([{path.name}](../{output}/{path.name}))", ""]
    return lines


def ranked(output: Path) -> dict[str, list[Standing]]:
    """The standings of all tracks that have run.

    Raises:
      ValueError: If no track has the runs of its baseline.
    """
    tracks = {}
    for track in TRACKS:
        path = output / f"{track}.jsonl"
        if path.exists() and (found := standings(track, tuned.read(path))):
            tracks[track] = found
    if not tracks:
        raise ValueError(
            f"{output} has no runs of a baseline; run "
            "python -m experiments.board digits"
        )
    return tracks


def write(output: Path, page: Path = PAGE) -> None:
    """Writes the page and its figure."""
    tracks = ranked(output)
    lines = [START, *facts(tracks), ""]
    lines += [f"![{ABOUT}](../results/board/muon.png)", ""]
    for track, ours in tracks.items():
        lines += [f"## {TRACKS[track].title}", "", *table(ours), ""]
    lines += [*alignment(tracks), *_outside(output)]
    for suffix in (".png", ".svg"):
        draw(tracks, (output / "muon").with_suffix(suffix))
    page.write_text("\n".join(lines))
