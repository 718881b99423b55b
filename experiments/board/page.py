"""The page of the board, its tables and figures, from kept runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from experiments.board import calls, standings, tuning
from experiments.board.lines import HISTORY
from experiments.board.standings import Standing, Table
from experiments.board.tracks import TRACKS, head
from fedjax_muon.runs.intervals import half_width
from fedjax_muon.runs.style import (
    NOTE,
    closest,
    color_names,
    drawing,
    outside as beyond,
)

matplotlib.use("Agg")

PAGE, TUNING = Path("docs/board.md"), Path("results/tuning")
FEDMUON, OF_AGENTS = "FedMuon", "DeMuon"  # what stands for FedMuon without a server
RED, BLUE, GRAY = "#d62728", "#1f6fd6", "#747474"
KINDS = {
    RED: "FedMuon (DeMuon on the ring)",
    BLUE: "best other with Muon",
    GRAY: "best without Muon",
}
FARTHEST = 1.5  # behind, as a share of the best method's lead
WEIGHTS = (0.0, 0.25, 0.5)  # of FedMuon(alignment)
HEAD = ("method", "options", "score", "rounds", "MB", "seconds")


def spread_of(values: np.ndarray, form: str) -> str:
    """The mean over seeds, or how many of them reach the target."""
    known = np.isfinite(values)
    if known.all():
        return f"{values.mean():{form}}"
    return f"{known.sum()} of {len(values)} seeds" if known.any() else "-"


def table_of(table: Table, *, resized: bool = False) -> list[str]:
    """Rows of a track in Markdown, without columns that nobody has.

    Rows with the sizes of the track, or those with other sizes.
    """
    rows = [[*HEAD]]
    for each in table.rows:
        if each.resized != resized:
            continue
        score = table.spread(each.scores)
        if each is not table.baseline:
            score += f" ({difference(table, each)})"
        same = f" (= {each.twins[0]})" if each.twins else ""
        cells = [each.marked + same, each.options, score]
        cells += [spread_of(each.rounds, ",.0f"), spread_of(each.megabytes, ",.3g")]
        rows.append([*cells, spread_of(each.seconds, ",.3g")])
    columns = [x for x in zip(*rows, strict=True) if {*x[1:]} != {"-"}]
    head, *lines = [f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)]
    return [head, "|---|---|" + "---:|" * (len(columns) - 2), *lines]


def difference(table: Table, each: Standing) -> str:
    """The difference from the baseline, bold if it is a win."""
    words = table.spread(each.apart, signed=True)
    return f"**{words}**" if each.wins else words


def summary(found: Sequence[Table]) -> list[str]:
    """Differences from the baseline, with a server.

    Of methods on several tracks, and of the best row of every track, without rows of
    other sizes.
    """
    served = [table for table in found if table.name != "ring"]
    rows = [x for table in served for x in table.rows if not x.resized]
    labels = dict.fromkeys(x.label for x in rows)
    best = {table.best.label for table in served}
    several = [
        label
        for label in labels
        if sum(table.like(label) is not None for table in served) > 1 or label in best
    ]
    heads = [head(table.name) for table in served]
    lines = [f"| method | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    twins = {(x.label, twin) for x in rows for twin in x.twins}
    twins |= {(twin, label) for label, twin in twins}
    ranked = sorted(several, key=lambda label: -_wins(served, label))
    for place, label in enumerate(ranked):
        cells = []
        for table in served:
            each = table.like(label)
            if each is None:
                cells.append("")
            elif each is table.baseline:
                cells.append("0")
            else:
                mean = table.factor * each.apart.mean()
                words = f"{mean:+.{1 if table.factor > 1 else 2}f}"
                cells.append(f"**{words}**" if each.wins else words)
        same = [f" (= {x})" for x in ranked[:place] if (label, x) in twins]
        lines.append(f"| {label}{''.join(same)} | {' | '.join(cells)} |")
    return lines


def _wins(found: Sequence[Table], label: str) -> int:
    """The number of tracks on which a method beats the baseline."""
    return sum(each.wins for table in found if (each := table.like(label)))


def facts(table: Table) -> str:
    """What follows from the intervals of a track, in sentences."""
    best, base = table.best, table.baseline
    number, wins = len(table.rows) - 1, sum(each.wins for each in table.rows)
    beat = "all" if wins == number else wins
    words = [
        f"{quoted(best.label)} has the best mean score, {table.spread(best.scores)}.",
        f"Of the {number} rows besides {quoted(base.label)}, {beat} beat it.",
    ]
    if others := [x for x in table.rows if x.resized]:
        label = quoted(others[0].label)
        score = table.spread(others[0].scores)
        words.insert(1, f"With other sizes (†), {label} scores {score}.")
    if twins := twins_of(table):
        words.append(f"Equal algorithms with equal scores: {'; '.join(twins)}.")
    reach = [each for each in table.rows if np.isfinite(each.megabytes).all()]
    if reach:
        cheap = min(reach, key=lambda each: each.megabytes.mean())
        sent = f"{1000 * cheap.megabytes.mean():,.3g} kB"
        if cheap.megabytes.mean() >= 1:
            sent = f"{cheap.megabytes.mean():.3g} MB"
        named = quoted(cheap.label)
        words.append(f"{named} reaches the target with the fewest bytes, {sent}.")
    if bad := [f"{x.label} ({x.diverged})" for x in table.rows if x.diverged]:
        words.append(f"Diverged seeds: {', '.join(bad)}.")
    return " ".join(words)


def finding(table: Table) -> str:
    """What the figure of a track shows."""
    best = table.best
    wins, number = sum(each.wins for each in table.rows), len(table.rows) - 1
    base = table.baseline.label
    words = f"{wins} of {number} rows beat {base}; {best.label} has the best mean score"
    return words + " of those without †" * (table.rows[0] is not best)


def quoted(label: str) -> str:
    """A label as a word of a sentence."""
    return f'"{label}"' if "," in label else label


def twins_of(table: Table) -> list[str]:
    """Pairs of rows with the same scores, by their names."""
    return [
        f"{quoted(x.twins[0])} and {quoted(x.label)}" for x in table.rows if x.twins
    ]


def edges(found: Sequence[Table]) -> list[str]:
    """Where the best option has no neighbor that was tried."""
    return [
        f"- {table.name}: {each.label}, {' and '.join(each.edges)} ({each.options})"
        for table in found
        for each in table.rows
        if each.edges
    ]


def changes(found: Sequence[Table], output: Path) -> list[str]:
    """Ranks among the rows of the first board, before and now."""
    before = standings.ranks_before(output)
    shown = [table for table in found if table.name in before]
    ranks: dict[str, dict[str, str]] = {}
    for table in shown:
        old = before[table.name]
        rows = [each for each in table.rows if each.row in old]
        for place, each in enumerate(rows, 1):
            names = ranks.setdefault(each.label, {})
            names[table.name] = f"{old[each.row]}, {place}"
    heads = [table.name.replace("_", " ") for table in shown]
    lines = [f"| method | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for label, row in ranks.items():
        cells = [row.get(table.name, "") for table in shown]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def uses_muon(each: Standing) -> bool:
    """Whether a method orthogonalizes, by its name."""
    return "Muon" in each.label or "MuLoCo" in each.label


def color_of(table: Table, each: Standing) -> str:
    """FedMuon or what stands for it, others that use Muon, and all others."""
    if each in (table.like(FEDMUON), table.find(OF_AGENTS)):
        return RED
    return BLUE if uses_muon(each) else GRAY


def draw(table: Table, path: Path) -> None:
    """Draws the differences of all rows of a track from the baseline."""
    rows = [each for each in table.rows if each is not table.baseline]
    means = [table.factor * float(each.apart.mean()) for each in rows]
    halves = [table.factor * float(half_width(each.apart)) for each in rows]
    low, high = closest([0.0, *means], [0.0, *halves])
    best = max(np.add(means, halves))
    if low < -FARTHEST * best:  # what is far behind does not squeeze the others
        low, high = -FARTHEST * best, 1.1 * best
    size = (7.5, 1.3 + 0.21 * len(rows))
    with drawing(path, size, title=finding(table)) as figure:
        axis = figure.subplots()
        axis.set_xlim(low, high)
        axis.axvline(0, color=NOTE, lw=1)
        for place, each in zip(range(len(rows), 0, -1), rows, strict=True):
            _dot(axis, table, each, place)
        places = range(len(rows), 0, -1)
        axis.set_yticks(places, [each.marked for each in rows], fontsize=8)
        color_names(axis, [color_of(table, each) for each in rows])
        axis.set_ylim(0.3, len(rows) + 0.7)
        unit = "points of the test score" if table.factor > 1 else "fewer bits per byte"
        axis.set_xlabel(f"better than {table.baseline.label}, {unit}; 95% intervals")


def _dot(axis: Any, table: Table, each: Standing, place: float) -> None:
    """Draws a difference with its interval; it is hollow if it is no win."""
    mean = table.factor * float(each.apart.mean())
    half = table.factor * float(half_width(each.apart))
    color = color_of(table, each)
    text = f"{mean:.{1 if table.factor > 1 else 2}f}"
    if not beyond(axis, mean, place, color, text):
        how: dict[str, Any] = {"fmt": "o", "ms": 4.5, "color": color, "lw": 1.2}
        inside = color if each.wins else "none"
        axis.errorbar(mean, place, xerr=half, mfc=inside, **how)


def shown(table: Table) -> list[Standing]:
    """FedMuon, the best other row that uses Muon, and the best row without it.

    Rows with other sizes than the track's are left out.
    """
    muon = table.like(FEDMUON) or table.find(OF_AGENTS)
    rows = [each for each in table.rows if each.marked == each.label]
    others = [each for each in rows if each not in (muon, table.baseline)]
    kinds = [[each for each in others if uses_muon(each) == kind] for kind in (1, 0)]
    return [each for each in (muon, *(kind[0] for kind in kinds if kind)) if each]


def headline(found: Sequence[Table]) -> str:
    """What the summary shows, in a sentence."""
    counted = [table for table in found if table.name not in NOT_COUNTED]
    theirs = [each for table in counted if (each := table.like(FEDMUON))]
    wins = sum(each.wins for each in theirs)
    return f"FedMuon is ahead of FedAvg on {wins} of {len(theirs)} tracks"


def draw_summary(found: Sequence[Table], path: Path) -> None:
    """Draws what `shown` has of every track that counts, from the baseline.

    Scores in bits have a panel of their own.
    """
    found = [table for table in found if table.name not in NOT_COUNTED]
    parts = [[t for t in found if (t.factor > 1) == points] for points in (True, False)]
    parts = [part for part in parts if part]
    heights = [len(part) for part in parts]
    size = (7.2, 1.4 + 0.5 * len(found))
    with drawing(path, size, title=headline(found)) as figure:
        grid = {"height_ratios": heights}
        panels = figure.subplots(len(parts), 1, squeeze=False, gridspec_kw=grid)[:, 0]
        for axis, part in zip(panels, parts, strict=True):
            _summary_panel(axis, part)
        for color, words in KINDS.items():
            panels[0].plot([], [], "o", ms=4.5, color=color, label=words)
        figure.legend(loc="outside lower center", ncols=len(KINDS))


def _summary_panel(axis: Any, part: Sequence[Table]) -> None:
    places = np.arange(len(part), 0, -1)
    rows = [each for table in part for each in shown(table)]
    ends = [
        part[0].factor * (each.apart.mean() + half_width(each.apart)) for each in rows
    ]
    points = part[0].factor > 1
    axis.set_xlim(-5 if points else -0.1, 1.05 * max(ends))
    axis.locator_params(axis="x", nbins=6)
    axis.axvline(0, color=NOTE, lw=1)
    side: dict[str, Any] = {"va": "center", "fontsize": 7.5}
    side["transform"] = axis.get_yaxis_transform()
    for place, table in zip(places, part, strict=True):
        for each, up in zip(shown(table), (0.27, 0.0, -0.27), strict=False):
            _dot(axis, table, each, place + up)
            axis.text(1.01, place + up, each.label, color=color_of(table, each), **side)
    axis.set_yticks(places, [table.track.title for table in part])
    axis.set_ylim(0.5, len(part) + 0.5)
    unit = "points of the test score" if points else "fewer bits per byte"
    axis.set_xlabel(f"better than the baseline, {unit}")


def alignment(found: Sequence[Table]) -> list[str]:
    """The section on FedMuon's alignment: differences by weight and track."""
    lines = []
    shown = standings.alignment(found, WEIGHTS)
    for table in found:
        if table.name in shown:
            start, *others = shown[table.name]
            cells = [table.track.title, table.spread(start)]
            for apart in others:
                words = table.spread(apart, signed=True)
                clear = abs(apart.mean()) > float(half_width(apart))
                cells.append(f"**{words}**" if clear else words)
            lines.append(f"| {' | '.join(cells)} |")
    return [ALIGNMENT, *lines, ""] if lines else []


def outside(output: Path) -> list[str]:
    """The section on numbers of others, from the tables of `outside`."""
    lines = ["## Against published numbers", ""]
    for name, about in OUTSIDE.items():
        path = output / f"{name}.md"
        if path.exists():
            rows = [t for t in path.read_text().splitlines() if t.startswith("|")]
            lines += [about, "", *rows, ""]
            lines += [f"([{path.name}](../{output}/{path.name}))", ""]
    return lines


def section(table: Table) -> list[str]:
    """What the page has of a track; its tables are folded."""
    title, base = table.track.title, table.baseline.label
    lines = [f"## {title}", "", facts(table), ""]
    if table.name not in NOT_COUNTED:
        lines += [*calls.lines(table.name, table.best), ""]
    lines += [f"![{finding(table)}](../results/board/{table.name}.png)", ""]
    lines += [CAPTION.format(base, table.track.seeds), ""]
    lines += [f"<details markdown><summary>{FOLDED}</summary>", "", *table_of(table)]
    if any(each.resized for each in table.rows):
        lines += ["", OTHER_SIZES[table.name], "", *table_of(table, resized=True)]
    return [*lines, "", "</details>", "", *NOTES.get(table.name, [])]


def write(output: Path, page: Path = PAGE) -> None:
    """Writes the page and its figures."""
    found = standings.tables(output)
    for suffix in (".png", ".svg"):
        draw_summary(found, (output / "summary").with_suffix(suffix))
    lines = [START, *summary(found), "", AFTER_SUMMARY]
    about = f"{headline(found)}; {ABOUT}"
    lines += [f"![{about}](../results/board/summary.png)", "", SUMMARY_CAPTION, ""]
    for table in found:
        for suffix in (".png", ".svg"):
            draw(table, output / f"{table.name}{suffix}")
        lines += section(table)
    if missing := [name for name in TRACKS if name not in {t.name for t in found}]:
        lines += [UNFINISHED.format(", ".join(missing)), ""]
    lines += [OWN, UNTUNED, *tuning.gains_table(output), "", AFTER_UNTUNED, ""]
    lines += [*tuning.verdicts(output), "", *alignment(found)]
    ends = edges(found)
    lines += ["## Searches that end at an edge", ""]
    lines += [*(ends or ["None: every best option lies between others."]), "", SECOND]
    if (output / HISTORY).exists():
        text = "\n".join([CHANGES, *changes(found, output), ""])
        (output / "changes.md").write_text(text)
    lines += outside(output)
    page.write_text("\n".join(lines))
    tuning.write(output, TUNING)


OTHER_SIZES = {
    "digits": """\
† These rows take 30 local steps on all 16 clients in 50 rounds: as many bytes, but six
times as many steps. Their scores are not comparable with those above.""",
    "tokens": """\
† These rows average gradients after every step: 360 rounds on as many tokens, with 30
times as many messages.""",
}
NOTES = {
    "heart": [
        """\
**None of our summaries counts this track.** In [the study of natural
clients](../results/natural/README.md), FedAvg scores 78.7 ± 0.9 (standard deviation),
and no method is visibly better. That study weighs hospitals by their patients and uses
a constant rate of 0.003; with equal weights, as here, FedAvg scores 75.8 ± 1.6. Here
validation chose a rate of 0.00281, which falls to 0. FedProx with a tiny penalty begins
at 0.1 and scores 77.1 ± 0.2, although its validation score is lower than FedAvg's: 98
validation patients do not tell good rates from bad ones. Differences from FedAvg on
this track may therefore be differences between rates.""",
        "",
    ],
    "private": [
        """\
Each seed divides the examples anew, so each seed has other clients. Epsilon is that of
a single run and covers neither the other seeds nor the trials of the search. To keep
rows reproducible, the noise comes from the seed, so these runs protect nobody.""",
        "",
    ],
}
FOLDED = "All rows, with options, rounds, MB and seconds"
NOT_COUNTED = ("heart",)  # tracks of which no summary and no call are shown
ABOUT = "with private clients, DP-FedMuon is ahead of it and FedMuon far behind"
SUMMARY_CAPTION = """\
*Differences from the baseline, paired by seed, with 95% intervals; hollow dots are no
wins by the test above. The baseline is FedAvg, FedAvg(Adam) for the language model, and
D-SGD on the ring, which has no server and is not counted in the title. Rows with other
sizes (†) and [hospitals](#heart-disease-by-hospital) are left out.*"""
CAPTION = """\
*Differences from {}, paired by seed, with 95% intervals over {} seeds. Red:
FedMuon, or DeMuon without a server. Blue: other methods that use Muon. Filled dots:
wins by the test above. Numbers at the edge lie outside the axis.*"""
START = """\
# Board

A *track* is a dataset with its clients and its model. On each track, all methods use
the same number of trials, the same seeds and clients, and the same sizes of a round.
Rows with other sizes (†) have tables of their own. [The
rules](../experiments/board/RULES.md) were fixed before the runs. A search tunes the
learning rate and at most one other option, until the best value is no longer at an
edge. You can [submit your own method](#your-own-method) with one file.

## Which method, where

This table shows how much better each method scores than the baseline of a track (0): in
points, or in bits per byte on `tokens`. **Bold** differences are significant by a
one-sided paired test over ten seeds (five on `tokens`), corrected for all methods of
the track (Holm, level 0.05). The others may be chance. An empty cell means that the
method was not run on that track. On `attacks`, methods use the trimmed mean unless
their name says otherwise. Differences on `heart` may be
[due to the rates](#heart-disease-by-hospital).
"""
AFTER_SUMMARY = """\
In the sections below, scores are means over seeds with 95% intervals (Student's t). The
number in parentheses is the difference from the baseline, paired by seed. Rounds, MB
and seconds are counted until the method reaches the target: 95% of the baseline's
score, or 105% of its bits. Seconds were measured on one core of an AMD EPYC, without
evaluations; with slow clients, they are virtual.

Options are the arguments of `fm.NAME(...)`, except that `clip_norm` belongs to
`fm.privacy.ClientPrivacy`. The searched rate falls to 0 by a cosine: `server_lr` if the
server normalizes its step (FedAdam, FedYogi, FedAdagrad, DP-FedMuon), otherwise `lr`.
"(= FedCM)" marks another name for the same algorithm. Click a column to sort by it.
"""
SECOND = """\
This is the second board. The searches of the first one were shorter, and most of its
best options were at an edge. [Compare the ranks](../results/board/changes.md).
"""
UNFINISHED = """\
## Tracks that are running

By these rules, rows of {} are not finished yet. The
[history](../results/board/history.csv) lists their scores on the first board.
"""
OWN = """\
## Your own method

In a clone of the repository, one command checks your file, searches its options on
`digits`, and prints where your method ranks:

```bash
python -m experiments.board check my_method.py
```

This is a whole file:

```python
import fedjax_muon as fm
from experiments.board.row import Row


def normuon():
    return fm.transforms.by_rank(fm.transforms.scale_by_normuon())


ROWS = {"fedavg_normuon": Row("FedAvg(NorMuon)", normuon, {"lr": 0.03})}
```

The function returns an `Algorithm`, a `Gossip`, or an optax transformation for the
clients' steps. If it has an argument `lr`, it receives the learning rate as a schedule.
The search begins at `{"lr": 0.03}`; you may add one other option and its initial value.
The command takes about two minutes on one core of an AMD EPYC. `--against fedmuon` also
compares your method with that row, and `--output DIR` writes to another directory.

Send in the `submission.jsonl` that the command writes. `python -m experiments.board
accept submission.jsonl` runs your file again, and adds the result. Both commands run
the code of the file without a sandbox. `python -m experiments.board page` writes this
page.
"""
UNTUNED = """\
## Without a search

How much does the search gain over one rate for all tracks? The rate is chosen on
`digits` and `fashion` alone and falls to 0 by a cosine. The search has 14 trials (8 on
`tokens`). Gains are in points of the test score, and in fiftieths of a bit on `tokens`;
± is a 95% interval, paired by seed. **Bold** gains are at most 0.5 points, or 0.02
bits, on average. [The rules](../experiments/board/RULES.md) were fixed before these
runs. [More](../results/tuning/README.md)
"""
AFTER_UNTUNED = """\
By the rules, a method needs no search if its gain is bold on at least seven of the ten
tracks. A track on which it was not run does not count:"""
ALIGNMENT = """\
## Does alignment help FedMuon?

Differences in points from FedMuon(alignment) with weight 0, paired by seed. They are
bold if their 95% interval excludes 0.

| track | weight 0, score | weight 0.25 | weight 0.5 |
|---|---:|---:|---:|"""
CHANGES = """\
# Ranks on the first board and on the second

The first board used six trials per method, five seeds, and Newton-Schulz in float32; 75
of its 121 best options were at an edge. These are the ranks of its methods among each
other, then and now. [history.csv](history.csv) lists all scores.
"""
OUTSIDE = {
    "replication": """\
**An independent replication of FedMuon** (Takezawa et al.; here
`fedmuon_correct`) reports one run on one partition. We repeated it with the same
settings on that partition and on four others. ± is a standard deviation:""",
    "niid_bench": """\
**Flower's baseline of NIID-Bench**, with its settings and its partition. ± is a
standard deviation over three runs. Two failed runs (10.0%) and one at 81.4% would give
exactly the published 33.80 ± 41.22 of SCAFFOLD. We do not know why the published
FedNova is 8 points below ours:""",
}
