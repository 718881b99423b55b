"""A paper's table or figure as reproduced here, beside what is printed there.

result.md     a table, with the commands, the machine and the time
result.csv    the same numbers
result.png    test scores and training losses against rounds, for every setting

Scores are of the test set after the last round. A point is the best of its grid on
validation examples, unless the whole grid is shown.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from fedjax_muon.reporting import comparison, plots, tables
from fedjax_muon.reporting.comparison import History
from fedjax_muon.runs import sweep as sweeps
from fedjax_muon.runs.config import METHODS

PLAYED = "played.jsonl"  # a line for every panel that a call ran
FIELDS = (
    "setting",
    "method",
    "hyper",
    "seeds",
    "score",
    "interval",
    "published",
    "train_loss",
    "published_train_loss",
    "bytes_per_round",
    "bytes_up_per_round",
    "seconds",
    "by_seed",  # this and the next in result.csv alone
    "train_loss_by_seed",
)
HEADS = (
    "setting",
    "method",
    "at",
    "seeds",
    "{score}, %",
    "±, 95 %",
    "published",
    "train loss",
    "published",
    "kB a round",
    "kB up",
    "s a run",
)


class Published(NamedTuple):
    """What a paper prints; nothing where it draws a curve only."""

    score: float | None = None  # percent
    train_loss: float | None = None


class Row(NamedTuple):
    """A method in a setting."""

    setting: str
    label: str
    hyper: str
    runs: Sequence[History]  # of the seeds; none if one of them diverged
    diverged: int


def read_published(paper: str, item: str) -> dict[tuple[str, str], Published]:
    """By setting and label, from the table beside the paper's module, if there is
    one."""
    path = Path(__file__).with_name(f"{paper}_published.csv")
    if not path.exists():
        return {}
    number = lambda text: float(text) if text else None
    with path.open(newline="") as file:
        return {
            (line["setting"], line["label"]): Published(
                number(line["score"]), number(line["train_loss"])
            )
            for line in csv.DictReader(file)
            if line["item"] == item
        }


def rows(panels: Mapping[str, Any], place: Path) -> list[tuple[Row, str]]:
    """What all panels show, with the settings that the paper has for it. Raises
    `ValueError` for a panel that is not finished."""
    found = []
    for name, panel in panels.items():
        for method in panel.sweep.algorithms:
            points = sweeps.points(panel.sweep, method, place / name)
            best = comparison.best(points)
            shown = points if panel.every_point else [best] if best else points[:1]
            for point in shown:
                label = panel.label or METHODS[method].label
                if panel.every_point:
                    label = f"{label}, {varied(panel.sweep.grids[method], point)}"
                runs = [] if point.diverged else point.runs
                hyper = tables.hyper_text(point)
                row = Row(panel.setting, label, hyper, runs, point.diverged)
                found.append((row, panel.printed_for or panel.setting))
    return found


def varied(grid: Mapping[str, Sequence[float]], point: comparison.Point) -> str:
    """What distinguishes a point from the others of its grid."""
    hyper = {name: v for name, v in point.hyper.items() if len(grid[name]) > 1}
    return tables.hyper_text(point._replace(hyper=hyper))


def numbers(row: Row, published: Published) -> dict[str, Any]:
    """A line of result.csv; empty where there is nothing."""
    line: dict[str, Any] = dict.fromkeys(FIELDS, "")
    line |= {"setting": row.setting, "method": row.label, "hyper": row.hyper}
    if published.score is not None:
        line["published"] = published.score
    if published.train_loss is not None:
        line["published_train_loss"] = published.train_loss
    if not row.runs:
        return line | {"score": "diverged", "seeds": row.diverged}
    column = comparison.score_column(row.runs[0])
    scores = 100 * np.array([run[column][-1] for run in row.runs])
    half = interval(scores)
    losses = [run["train_loss"][-1] for run in row.runs]
    run = row.runs[0]
    rounds = max(run["round"][-1], 1)
    down, up = (
        (run[name][-1] - run[name][0]) / rounds for name in ("bytes_down", "bytes_up")
    )
    return line | {
        "seeds": len(scores),
        "score": round(scores.mean(), 2),
        "interval": "" if half is None else round(half, 2),
        "train_loss": round(np.mean(losses), 4),
        "bytes_per_round": round(down + up),
        "bytes_up_per_round": round(up),
        "seconds": round(np.mean([run["seconds"][-1] for run in row.runs]), 1),
        "by_seed": " ".join(f"{score:.2f}" for score in scores),
        "train_loss_by_seed": " ".join(f"{loss:.4f}" for loss in losses),
    }


def interval(scores: np.ndarray) -> float | None:
    """Half the width of Student's 95 % confidence interval of the mean; none of one
    score."""
    if len(scores) < 2:
        return None
    return float(stats.t.ppf(0.975, len(scores) - 1) * stats.sem(scores))


class Report(NamedTuple):
    """What is reported of an item."""

    title: str
    reduced: str  # how it differs from the paper
    panels: Mapping[str, Any]  # that are finished
    missing: Sequence[str]  # panels that are not


def write(
    report: Report, place: Path, published: Mapping[tuple[str, str], Published]
) -> None:
    """Writes the three files. Raises `ValueError` for panels not finished."""
    found = rows(report.panels, place)
    lines = [
        numbers(row, published.get((printed_for, row.label), Published()))
        for row, printed_for in found
    ]
    with (place / "result.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(lines)
    score = next(iter(report.panels.values())).sweep.config.score
    text = [f"# {report.title}", ""]
    if report.reduced:
        text += [f"Not as printed: {report.reduced}.", ""]
    if report.missing:
        text += [f"Not run yet: {', '.join(report.missing)}.", ""]
    others = {printed for row, printed in found if printed != row.setting}
    if published and others:
        text += [f"Published numbers are those of {'; '.join(sorted(others))}.", ""]
    text += table(lines, score)
    text += [
        "",
        "![test scores and training losses against rounds](result.png)",
        "",
        *played(place),
    ]
    (place / "result.md").write_text("\n".join(text) + "\n")
    draw(report.title, [row for row, _ in found], score, place / "result.png")


def table(lines: Sequence[Mapping[str, Any]], score: str) -> list[str]:
    """The lines in Markdown, without columns that are empty."""
    heads = dict(zip(FIELDS[: len(HEADS)], HEADS, strict=True))
    used = [name for name in heads if any(line[name] != "" for line in lines)]
    text = ["| " + " | ".join(heads[name].format(score=score) for name in used) + " |"]
    words = ("setting", "method", "hyper")
    text.append("|" + "|".join("---" if n in words else "---:" for n in used) + "|")
    for line in lines:
        cells = dict(line)
        for name in ("bytes_per_round", "bytes_up_per_round"):
            if cells[name] != "":
                cells[name] = f"{cells[name] / 1e3:,.0f}"
        text.append("| " + " | ".join(str(cells[name]) for name in used) + " |")
    return text


def played(place: Path) -> list[str]:
    """How, on what machine and in what time it ran, as `papers.note` noted it."""
    path = place / PLAYED
    if not path.exists():
        return []
    notes = [json.loads(line) for line in path.read_text().splitlines()]
    minutes = sum(note["seconds"] for note in notes) / 60
    commands = dict.fromkeys(note["command"] for note in notes)
    about = dict.fromkeys(
        f"{n['cores']} cores of an {n['cpu']}, {n['backend']}, jax {n['jax']}, "
        f"Python {n['python']}"
        for n in notes
    )
    source = " ".join(dict.fromkeys(note["source"] for note in notes))
    where = f"{'; '.join(about)}, source {source}"
    lines = [f"Ran in {minutes:.0f} minutes, {where}, by", ""]
    lines += [f"    {command}" for command in commands]
    if taken := dict.fromkeys(part for note in notes for part in note["taken"]):
        lines += ["", f"Not run again: {', '.join(taken)}."]
    return lines


def draw(title: str, shown: Sequence[Row], score: str, path: Path) -> None:
    """Test scores and training losses, a line of panels for every setting; curves are
    means over seeds, bands reach from the lowest to the highest."""
    settings = list(dict.fromkeys(row.setting for row in shown))
    labels = list(dict.fromkeys(row.label for row in shown))
    with matplotlib.rc_context(plots.STYLE):
        size = (10.2, 3.2 * len(settings) + 0.4)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(settings), 2, squeeze=False)
        for (left, right), setting in zip(grid, settings, strict=True):
            for row in shown:
                if row.setting == setting and row.runs:
                    curve(left, row, comparison.score_column(row.runs[0]), 100, labels)
                    curve(right, row, "train_loss", 1, labels)
            left.set_title(setting, loc="left", fontsize=9)
            left.set(xlabel="round", ylabel=f"test {score}, %")
            right.set(xlabel="round", ylabel="train loss")
        handles = {}
        for left, _ in grid:
            handles |= dict(
                zip(*reversed(left.get_legend_handles_labels()), strict=True)
            )
        figure.legend(handles.values(), handles, loc="outside right center")
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        figure.savefig(path, dpi=110)


def curve(axes, row: Row, column: str, scale: float, labels: Sequence[str]) -> None:
    """One method's, in the color that its label has everywhere."""
    place = labels.index(row.label)
    color = matplotlib.color_sequences["tab10"][place % 10]
    values = scale * np.array([run[column] for run in row.runs])
    x = row.runs[0]["round"]
    style = {"color": color, "ls": plots.LINES[place // 10], "lw": 1.5}
    axes.plot(x, values.mean(0), label=row.label, **style)
    axes.fill_between(x, values.min(0), values.max(0), color=color, alpha=0.12, lw=0)
